//! The alerts that wait for one receiver, and how they are grouped into messages.
//!
//! Time is an argument, and nothing is sent here: the worker asks for the next message. An alert
//! without a similar one before it is *fresh* and is sent immediately. It opens a window in which
//! similar alerts are gathered. The window lasts `dedup_window` from when the fresh alert was
//! taken, so that a receiver that was unreachable for an hour gets two messages of a kind, not
//! sixty.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::alert::{Alert, Message};

/// How many alerts may wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a window lasts.
    pub dedup_window: Duration,
    /// The limit on waiting alerts, the last one of each window included.
    pub queue_max: usize,
    /// The limit on callbacks that windows gather.
    pub folded_max: usize,
}

/// The waiting alerts. `T` is the callback of each alert, which is returned with the message that
/// reports the alert.
pub(super) struct Backlog<T> {
    limits: Limits,
    fresh: VecDeque<Fresh<T>>,
    windows: HashMap<Likeness, Window<T>>,
    /// Callbacks in all windows.
    folded: usize,
    closed: bool,
}

/// What alerts must have in common to be reported together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Likeness {
    kind: String,
    workflow: String,
    code: Option<String>,
    step: Option<String>,
}

impl Likeness {
    fn of(alert: &Alert) -> Self {
        Self {
            kind: alert.kind.clone(),
            workflow: alert.workflow.clone(),
            code: alert.error.as_ref().map(|error| error.code.clone()),
            step: alert.step.clone(),
        }
    }
}

struct Fresh<T> {
    since: Instant,
    alert: Alert,
    callback: T,
}

struct Window<T> {
    /// `None` until the alert that opened the window was taken.
    ends: Option<Instant>,
    repeats: Option<FoldedRepeats<T>>,
}

struct FoldedRepeats<T> {
    last: Alert,
    callbacks: Vec<T>,
}

/// How an alert was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// As its own message.
    Fresh,
    /// As a repeat of an earlier alert.
    Folded,
}

/// A message to send, and the callbacks of all alerts that it reports.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Outgoing<T> {
    pub message: Message,
    pub callbacks: Vec<T>,
}

impl<T> Backlog<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            fresh: VecDeque::new(),
            windows: HashMap::new(),
            folded: 0,
            closed: false,
        }
    }

    /// Queues an alert. Call it only while the backlog [has room](Self::has_room).
    pub(super) fn enqueue(&mut self, alert: Alert, callback: T, now: Instant) -> Taken {
        let likeness = Likeness::of(&alert);
        if let Some(window) = self.windows.get_mut(&likeness)
            && (window.repeats.is_some() || window.ends.is_none_or(|ends| now < ends))
        {
            let repeats = window.repeats.get_or_insert_with(|| FoldedRepeats {
                last: alert.clone(),
                callbacks: Vec::new(),
            });
            repeats.last = alert;
            repeats.callbacks.push(callback);
            self.folded += 1;
            return Taken::Folded;
        }
        self.make_room_for_a_window(now);
        let window = Window {
            ends: None,
            repeats: None,
        };
        self.windows.insert(likeness, window);
        self.fresh.push_back(Fresh {
            since: now,
            alert,
            callback,
        });
        Taken::Fresh
    }

    /// Whether there is room for another alert.
    pub(super) fn has_room(&self) -> bool {
        let gathering = self.windows.values().filter(|w| w.repeats.is_some());
        self.fresh.len() + gathering.count() < self.limits.queue_max
            && self.folded < self.limits.folded_max
    }

    /// Ends the input: gathered alerts need not wait any longer.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the input has ended and nothing is left.
    pub(super) fn is_finished(&self) -> bool {
        self.closed && self.fresh.is_empty() && self.folded == 0
    }

    /// Takes the message that has waited longest of those that are due.
    pub(super) fn next(&mut self, now: Instant) -> Option<Outgoing<T>> {
        // Without room, a window that keeps gathering would delay all other alerts.
        let is_hurried = self.closed || !self.has_room();
        let due = self.first_window_to_end();
        let due = due.filter(|(ends, _)| *ends <= now || is_hurried);
        match (self.fresh.front(), due) {
            (None, None) => None,
            (Some(fresh), Some((ends, likeness))) if ends < fresh.since => {
                let likeness = likeness.clone();
                self.take_repeats(&likeness, now)
            }
            (None, Some((_, likeness))) => {
                let likeness = likeness.clone();
                self.take_repeats(&likeness, now)
            }
            (Some(_), _) => self.take_fresh(now),
        }
    }

    /// When the next message is due if no alert is queued before.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.first_window_to_end().map(|(ends, _)| ends)
    }

    /// The first window to end that has repeats to report.
    fn first_window_to_end(&self) -> Option<(Instant, &Likeness)> {
        self.windows
            .iter()
            .filter(|(_, window)| window.repeats.is_some())
            .filter_map(|(likeness, window)| Some((window.ends?, likeness)))
            .min_by_key(|(ends, _)| *ends)
    }

    fn take_fresh(&mut self, now: Instant) -> Option<Outgoing<T>> {
        let Fresh {
            alert, callback, ..
        } = self.fresh.pop_front()?;
        if let Some(window) = self.windows.get_mut(&Likeness::of(&alert)) {
            window.ends = Some(now + self.limits.dedup_window);
        }
        Some(Outgoing {
            message: Message { alert, repeats: 0 },
            callbacks: vec![callback],
        })
    }

    /// The window restarts: an ongoing storm is reported once every `dedup_window`.
    fn take_repeats(&mut self, likeness: &Likeness, now: Instant) -> Option<Outgoing<T>> {
        let window = self.windows.get_mut(likeness)?;
        window.ends = Some(now + self.limits.dedup_window);
        let FoldedRepeats { last, callbacks } = window.repeats.take()?;
        self.folded -= callbacks.len();
        Some(Outgoing {
            message: Message {
                alert: last,
                repeats: callbacks.len(),
            },
            callbacks,
        })
    }

    /// Drops windows that have ended. If there are still too many, drops the one that ends first
    /// among those without repeats. The other windows are fewer than `queue_max`: each has an alert
    /// that waits.
    fn make_room_for_a_window(&mut self, now: Instant) {
        if self.windows.len() < self.limits.queue_max {
            return;
        }
        self.windows.retain(|_, window| {
            window.repeats.is_some() || window.ends.is_none_or(|ends| now < ends)
        });
        if self.windows.len() < self.limits.queue_max {
            return;
        }
        let quiet = self.windows.iter().filter(|(_, w)| w.repeats.is_none());
        let first = quiet
            .filter_map(|(likeness, window)| Some((window.ends?, likeness)))
            .min_by_key(|(ends, _)| *ends)
            .map(|(_, likeness)| likeness.clone());
        if let Some(likeness) = first {
            self.windows.remove(&likeness);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::alert::tests::alert;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn backlog(queue_max: usize, folded_max: usize) -> Backlog<u32> {
        Backlog::new(Limits {
            dedup_window: 60 * SECOND,
            queue_max,
            folded_max,
        })
    }

    fn of_step(step: &str) -> Alert {
        Alert {
            step: Some(step.to_owned()),
            ..alert()
        }
    }

    fn of_operation(operation: &str) -> Alert {
        Alert {
            operation: operation.to_owned(),
            ..alert()
        }
    }

    fn outgoing(alert: Alert, repeats: usize, callbacks: &[u32]) -> Outgoing<u32> {
        Outgoing {
            message: Message { alert, repeats },
            callbacks: callbacks.to_vec(),
        }
    }

    #[test]
    fn the_first_alert_is_sent_immediately_and_repeats_are_summarized() {
        let mut backlog = backlog(10, 10);
        let start = Instant::now();
        assert_eq!(backlog.enqueue(of_operation("a"), 1, start), Taken::Fresh);
        let first = backlog.next(start);
        assert_eq!(first, Some(outgoing(of_operation("a"), 0, &[1])));

        for (callback, operation) in [(2, "b"), (3, "c")] {
            let taken = backlog.enqueue(of_operation(operation), callback, start + SECOND);
            assert_eq!(taken, Taken::Folded);
        }
        assert_eq!(backlog.next(start + 59 * SECOND), None);
        assert_eq!(backlog.next_at(), Some(start + 60 * SECOND));
        assert_eq!(
            backlog.next(start + 60 * SECOND),
            Some(outgoing(of_operation("c"), 2, &[2, 3]))
        );
        assert_eq!(backlog.next(start + 60 * SECOND), None);
    }

    #[test]
    fn repeats_over_several_windows_are_sent_once_per_window() {
        let mut backlog = backlog(10, 1_000);
        let start = Instant::now();
        let mut messages = Vec::new();
        for second in 0..300 {
            let now = start + second * SECOND;
            backlog.enqueue(alert(), second, now);
            while let Some(outgoing) = backlog.next(now) {
                messages.push(outgoing.message.repeats);
            }
        }
        backlog.close();
        let last = backlog.next(start + 300 * SECOND).unwrap();
        messages.push(last.message.repeats);
        assert_eq!(messages, [0, 60, 60, 60, 60, 59]);
        assert!(backlog.is_finished());
    }

    #[test]
    fn an_alert_after_a_window_without_repeats_is_sent_immediately() {
        let mut backlog = backlog(10, 10);
        let start = Instant::now();
        backlog.enqueue(alert(), 1, start);
        backlog.next(start);
        let later = start + 61 * SECOND;
        assert_eq!(backlog.next_at(), None);
        assert_eq!(backlog.enqueue(alert(), 2, later), Taken::Fresh);
        assert_eq!(backlog.next(later), Some(outgoing(alert(), 0, &[2])));
    }

    #[test]
    fn alerts_differ_by_kind_workflow_error_code_and_step_and_by_nothing_else() {
        let mut backlog = backlog(10, 10);
        let now = Instant::now();
        let mut other_code = alert();
        other_code.error.as_mut().unwrap().code = "other".to_owned();
        let mut other_text = alert();
        other_text.error.as_mut().unwrap().message = "other".to_owned();
        other_text.tenant = "other".to_owned();
        let other_kind = Alert {
            kind: "other".to_owned(),
            ..alert()
        };
        let other_workflow = Alert {
            workflow: "other".to_owned(),
            ..alert()
        };
        for (callback, (alert, expected)) in (0..).zip([
            (alert(), Taken::Fresh),
            (other_code, Taken::Fresh),
            (other_kind, Taken::Fresh),
            (other_workflow, Taken::Fresh),
            (of_step("other"), Taken::Fresh),
            (other_text, Taken::Folded),
        ]) {
            assert_eq!(
                backlog.enqueue(alert, callback, now),
                expected,
                "{callback}"
            );
        }
    }

    #[test]
    fn repeats_of_a_queued_alert_are_gathered() {
        let mut backlog = backlog(10, 10);
        let start = Instant::now();
        backlog.enqueue(alert(), 1, start);
        let later = start + 600 * SECOND;
        assert_eq!(backlog.enqueue(alert(), 2, later), Taken::Folded);
        assert_eq!(backlog.next_at(), None);
        assert_eq!(backlog.next(later), Some(outgoing(alert(), 0, &[1])));
        assert_eq!(backlog.next(later), None);
        assert_eq!(backlog.next_at(), Some(later + 60 * SECOND));
    }

    #[test]
    fn alerts_are_sent_in_order_of_time() {
        let mut backlog = backlog(10, 10);
        let start = Instant::now();
        for callback in [1, 2] {
            backlog.enqueue(alert(), callback, start);
        }
        backlog.next(start);
        backlog.enqueue(of_step("early"), 3, start + 59 * SECOND);
        backlog.enqueue(of_step("late"), 4, start + 61 * SECOND);
        let now = start + 62 * SECOND;
        let order: Vec<_> = std::iter::from_fn(|| backlog.next(now)).collect();
        assert_eq!(
            order,
            [
                outgoing(of_step("early"), 0, &[3]),
                outgoing(alert(), 1, &[2]),
                outgoing(of_step("late"), 0, &[4]),
            ]
        );
    }

    #[test]
    fn gathered_repeats_are_sent_early_when_there_is_no_room() {
        let mut backlog = backlog(10, 2);
        let start = Instant::now();
        backlog.enqueue(alert(), 1, start);
        backlog.next(start);
        backlog.enqueue(alert(), 2, start);
        assert!(backlog.has_room());
        assert_eq!(backlog.next(start), None);
        backlog.enqueue(alert(), 3, start);
        assert!(!backlog.has_room());
        assert_eq!(backlog.next(start), Some(outgoing(alert(), 2, &[2, 3])));
        assert!(backlog.has_room());
    }

    #[test]
    fn a_full_queue_refuses_alerts_until_one_is_sent() {
        let mut backlog = backlog(2, 10);
        let now = Instant::now();
        backlog.enqueue(of_step("a"), 1, now);
        assert!(backlog.has_room());
        backlog.enqueue(of_step("b"), 2, now);
        assert!(!backlog.has_room());
        backlog.next(now);
        assert!(backlog.has_room());
    }

    #[test]
    fn the_number_of_windows_is_bounded() {
        let mut backlog = backlog(2, 10);
        let start = Instant::now();
        for (callback, step) in (0..).zip(["a", "b", "c"]) {
            let now = start + callback * SECOND;
            backlog.enqueue(of_step(step), callback, now);
            backlog.next(now);
        }
        assert_eq!(backlog.windows.len(), 2);
        let now = start + 3 * SECOND;
        assert_eq!(backlog.enqueue(of_step("c"), 3, now), Taken::Folded);
        assert_eq!(backlog.enqueue(of_step("a"), 4, now), Taken::Fresh);
        assert_eq!(backlog.windows.len(), 2);
    }

    #[test]
    fn a_closed_backlog_returns_everything_immediately() {
        let mut backlog = backlog(10, 10);
        let now = Instant::now();
        for callback in [1, 2, 3] {
            backlog.enqueue(alert(), callback, now);
        }
        backlog.close();
        assert!(!backlog.is_finished());
        let all: Vec<_> = std::iter::from_fn(|| backlog.next(now)).collect();
        assert_eq!(
            all,
            [outgoing(alert(), 0, &[1]), outgoing(alert(), 2, &[2, 3])]
        );
        assert!(backlog.is_finished());
    }
}
