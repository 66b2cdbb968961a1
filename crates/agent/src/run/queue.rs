//! The queue of one agent's workers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use waybill_engine::{Outcome, murmur2};

use crate::handler::{StepCall, not_attempted};

/// The shortest retry delay for requests that were handed back or refused.
pub(super) const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// The longest retry delay for refused requests. Until then the scheduler sends the agent nothing,
/// and the agent works off its queue.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);

/// A queued or running step call.
#[derive(Debug)]
pub(super) struct Work<S> {
    pub(super) call: StepCall,
    /// Its origin.
    pub(super) source: S,
    pub(super) bytes: usize,
    pub(super) received: Instant,
}

/// A queue limited by count and bytes, both including running work.
///
/// A push wakes no worker: the poller wakes one worker per agent and batch. Each worker that finds
/// more than it takes wakes the next, from inside the runtime.
#[derive(Debug)]
pub(super) struct Queue<S> {
    state: Mutex<State<S>>,
    wake: Notify,
    workers: usize,
    in_flight_max: usize,
    in_flight_bytes_max: usize,
    /// A moving average of how long an attempt takes, in microseconds.
    average_us: AtomicU64,
}

#[derive(Debug)]
struct State<S> {
    waiting: VecDeque<Work<S>>,
    in_flight: usize,
    in_flight_bytes: usize,
    closed: bool,
}

/// The next work of a queue.
#[derive(Debug)]
pub(super) struct Next<S> {
    pub(super) work: Work<S>,
    /// Whether there is enough time for an attempt.
    pub(super) has_time: bool,
}

/// A step call for which the agent has no capacity or no time.
#[derive(Debug)]
pub(super) struct NoRoom<S> {
    pub(super) work: Work<S>,
    /// How long the caller should wait before the next request.
    pub(super) retry_after: Duration,
}

impl<S> NoRoom<S> {
    /// For work that has waited too long. Most of the work after it is as old, and is refused soon.
    pub(super) fn too_late(work: Work<S>) -> Self {
        Self {
            work,
            retry_after: RETRY_AFTER_MIN,
        }
    }

    /// The answer to the caller.
    pub(super) fn outcome(&self) -> Outcome {
        // Requests that are refused together must not return together: spread them over half the
        // time.
        let key = self.work.call.request.operation.key();
        let share = f64::from(murmur2(&key)) / f64::from(u32::MAX);
        let wait = self.retry_after.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        let wait = wait.mul_f64(1.0 + share / 2.0);
        not_attempted(
            "no-room",
            "the agent has no capacity or time for the attempt",
            wait,
        )
    }
}

impl<S> Queue<S> {
    pub(super) fn new(workers: usize, in_flight_max: usize, in_flight_bytes_max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                in_flight: 0,
                in_flight_bytes: 0,
                closed: false,
            }),
            wake: Notify::new(),
            workers: workers.max(1),
            in_flight_max: in_flight_max.max(1),
            in_flight_bytes_max,
            average_us: AtomicU64::new(0),
        }
    }

    /// The number of workers of the queue.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Adds work, unless the limits are reached or too little time would be left when it starts.
    pub(super) fn push(&self, work: Work<S>) -> Result<(), Box<NoRoom<S>>> {
        let mut state = self.state();
        let full = state.in_flight >= self.in_flight_max
            || (state.in_flight > 0
                && state.in_flight_bytes + work.bytes > self.in_flight_bytes_max);
        let wait = self.wait(state.waiting.len());
        let left = work
            .call
            .deadline
            .saturating_duration_since(work.received + wait);
        if full || !self.has_time(wait, left) {
            return Err(Box::new(NoRoom {
                work,
                // Half of the work ahead is done by then.
                retry_after: wait / 2,
            }));
        }
        state.in_flight += 1;
        state.in_flight_bytes += work.bytes;
        state.waiting.push_back(work);
        Ok(())
    }

    /// Wakes a worker, after pushes.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The next work; `None` once the queue is closed. It counts as running until it has
    /// [finished](Self::finished).
    pub(super) async fn next(&self) -> Option<Next<S>> {
        loop {
            {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                if state.closed || !state.waiting.is_empty() {
                    self.wake.notify_one();
                }
                if let Some(work) = next {
                    let now = Instant::now();
                    let left = work.call.deadline.saturating_duration_since(now);
                    // Past complete-by there is no answer at all.
                    let has_time = left.is_zero() || self.has_time(now - work.received, left);
                    return Some(Next { work, has_time });
                }
                if state.closed {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Whether an attempt that has waited for this long will probably end before its deadline.
    /// Refused, it counts as not attempted; started, it would probably fail, and take time from
    /// attempts that can still succeed. An attempt that has not waited here for most of its time
    /// always starts. Otherwise, with a slow service or clocks that differ, no attempt might ever
    /// start.
    fn has_time(&self, waited: Duration, left: Duration) -> bool {
        left >= waited || left >= 2 * self.average()
    }

    /// Records that work has ended. `took` is the duration of the attempt, if one was made.
    pub(super) fn finished(&self, bytes: usize, took: Option<Duration>) {
        if let Some(took) = took {
            self.note(took);
        }
        let mut state = self.state();
        state.in_flight -= 1;
        state.in_flight_bytes -= bytes;
    }

    /// Adds the duration of an attempt to the average.
    fn note(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let average_us = self.average_us.load(Ordering::Relaxed);
        // Two workers may overwrite each other: this is an estimate.
        let next_us = if average_us == 0 {
            took_us
        } else {
            average_us - average_us / 16 + took_us / 16
        };
        self.average_us.store(next_us, Ordering::Relaxed);
    }

    /// Removes queued work whose origin matches.
    pub(super) fn forget(&self, is_gone: impl Fn(&S) -> bool) {
        let mut state = self.state();
        let (mut count, mut bytes) = (0, 0);
        state.waiting.retain(|work| {
            let goes = is_gone(&work.source);
            if goes {
                count += 1;
                bytes += work.bytes;
            }
            !goes
        });
        state.in_flight -= count;
        state.in_flight_bytes -= bytes;
    }

    /// Accepts nothing more, and returns the queued work.
    pub(super) fn close(&self) -> Vec<Work<S>> {
        let mut state = self.state();
        state.closed = true;
        self.wake.notify_one();
        state.waiting.drain(..).collect()
    }

    /// The numbers of queued and running calls.
    pub(super) fn depth(&self) -> (usize, usize) {
        let state = self.state();
        let waiting = state.waiting.len();
        (waiting, state.in_flight - waiting)
    }

    /// The expected wait of work behind `ahead` others.
    fn wait(&self, ahead: usize) -> Duration {
        let rounds = ahead as f64 / self.workers as f64;
        self.average().mul_f64(rounds)
    }

    fn average(&self) -> Duration {
        Duration::from_micros(self.average_us.load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::StepRequestBuilder;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A queue for one worker, whose attempts take 300 ms.
    fn queue() -> Queue<u32> {
        let queue = Queue::new(1, 100, 1 << 20);
        queue.note(millis(300));
        queue
    }

    /// Adds work that arrived this long ago, with this much time until complete-by.
    fn push(queue: &Queue<u32>, source: u32, waited: Duration, complete_within: Duration) {
        let received = Instant::now() - waited;
        let call = StepCall {
            request: StepRequestBuilder::new("agent", "step").build(),
            sent: received,
            deadline: received + complete_within,
        };
        let work = Work {
            call,
            source,
            bytes: 0,
            received,
        };
        queue.push(work).unwrap();
    }

    /// The source of the next work, and whether it has time.
    async fn next(queue: &Queue<u32>) -> (u32, bool) {
        let Next { work, has_time } = queue.next().await.unwrap();
        (work.source, has_time)
    }

    #[tokio::test]
    async fn an_attempt_that_waited_for_most_of_its_time_needs_time_for_two() {
        let queue = queue();
        push(&queue, 1, millis(9_900), millis(10_000));
        push(&queue, 2, millis(60_000), millis(120_000));
        push(&queue, 3, millis(60_000), millis(60_000));
        push(&queue, 4, millis(9_900), millis(60_000));
        assert_eq!(next(&queue).await, (1, false));
        assert_eq!(next(&queue).await, (2, true));
        assert_eq!(next(&queue).await, (3, true), "it is past its deadline");
        assert_eq!(next(&queue).await, (4, true));
        assert_eq!(queue.depth(), (0, 4));
    }

    #[tokio::test]
    async fn an_attempt_that_never_waited_always_has_time() {
        let queue = queue();
        queue.note(millis(3_600_000));
        push(&queue, 1, Duration::ZERO, millis(60_000));
        assert_eq!(next(&queue).await, (1, true));
    }
}
