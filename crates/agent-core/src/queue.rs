//! The queue of one agent's workers.

use std::collections::VecDeque;
use std::time::Duration;

use waybill_engine::Now;

use crate::refusal::{RETRY_AFTER_MIN, Refusal, Refused};
use crate::work::Work;

/// The limits of one agent's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// The number of its workers: how many attempts run at once. At least one.
    pub workers: usize,
    /// How many requests it holds, running and queued. At least one.
    pub in_flight_max: usize,
    /// How many bytes of requests it holds. One request has room in any case.
    pub in_flight_bytes_max: usize,
}

/// A queue limited by count and bytes, both including running work.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    limits: QueueLimits,
    waiting: VecDeque<Work<S>>,
    in_flight: usize,
    in_flight_bytes: usize,
    is_closed: bool,
    /// A moving average of how long an attempt takes, in microseconds.
    average_us: u64,
}

impl<S> Queue<S> {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self {
            limits: QueueLimits {
                workers: limits.workers.max(1),
                in_flight_max: limits.in_flight_max.max(1),
                ..limits
            },
            waiting: VecDeque::new(),
            in_flight: 0,
            in_flight_bytes: 0,
            is_closed: false,
            average_us: 0,
        }
    }

    /// The number of workers of the queue.
    pub(crate) fn workers(&self) -> usize {
        self.limits.workers
    }

    /// Adds work that was just received, unless the limits are reached or too little time would be
    /// left when it starts.
    pub(crate) fn push(&mut self, work: Work<S>) -> Result<(), Box<Refused<S>>> {
        let is_full = self.in_flight >= self.limits.in_flight_max
            || (self.in_flight > 0
                && self.in_flight_bytes + work.bytes > self.limits.in_flight_bytes_max);
        let wait = self.wait(self.waiting.len());
        let left = work.deadline.left(work.received + wait);
        if is_full || !self.has_time(wait, left) {
            // Half of the work ahead is done by then.
            let retry_after = wait / 2;
            return Err(Box::new(Refused::new(
                work,
                Refusal::NoRoom { retry_after },
            )));
        }
        self.in_flight += 1;
        self.in_flight_bytes += work.bytes;
        self.waiting.push_back(work);
        Ok(())
    }

    /// The work that has waited longest. It counts as running until it has
    /// [finished](Self::finished).
    pub(crate) fn pop(&mut self) -> Option<Work<S>> {
        self.waiting.pop_front()
    }

    /// Whether work waits.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the queue accepts nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Why work that was dequeued at `now` does not start, if there is too little time for it.
    pub(crate) fn refuses(&self, work: &Work<S>, now: Now) -> Option<Refusal> {
        let waited = now.boot.since(work.received);
        // Most of the work after it is as old, and is refused soon.
        let retry_after = RETRY_AFTER_MIN;
        (!self.has_time(waited, work.deadline.left(now.boot)))
            .then_some(Refusal::NoRoom { retry_after })
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
    pub(crate) fn finished(&mut self, bytes: usize, took: Option<Duration>) {
        if let Some(took) = took {
            self.note(took);
        }
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
    }

    /// Adds the duration of an attempt to the average.
    fn note(&mut self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.average_us = match self.average_us {
            0 => took_us,
            average_us => average_us - average_us / 16 + took_us / 16,
        };
    }

    /// Removes queued work whose origin matches.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(&S) -> bool) {
        let (mut count, mut bytes) = (0, 0);
        self.waiting.retain(|work| {
            let goes = is_gone(&work.source);
            if goes {
                count += 1;
                bytes += work.bytes;
            }
            !goes
        });
        self.in_flight -= count;
        self.in_flight_bytes -= bytes;
    }

    /// Accepts nothing more, and removes and returns the queued work.
    pub(crate) fn close(&mut self) -> VecDeque<Work<S>> {
        self.is_closed = true;
        let waiting = std::mem::take(&mut self.waiting);
        self.in_flight -= waiting.len();
        self.in_flight_bytes -= waiting.iter().map(|work| work.bytes).sum::<usize>();
        waiting
    }

    /// The numbers of queued and running requests.
    pub(crate) fn depth(&self) -> (usize, usize) {
        let waiting = self.waiting.len();
        (waiting, self.in_flight - waiting)
    }

    /// The expected wait of work behind `ahead` others.
    fn wait(&self, ahead: usize) -> Duration {
        let rounds = ahead as f64 / self.limits.workers as f64;
        self.average().mul_f64(rounds)
    }

    fn average(&self) -> Duration {
        Duration::from_micros(self.average_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{at, request};

    const LIMITS: QueueLimits = QueueLimits {
        workers: 1,
        in_flight_max: 100,
        in_flight_bytes_max: 1 << 20,
    };

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A queue for one worker, whose attempts take 300 ms.
    fn queue() -> Queue<u32> {
        let mut queue = Queue::new(LIMITS);
        queue.note(millis(300));
        queue
    }

    /// Work that arrives at 0, with this much time until complete-by.
    fn work(source: u32, bytes: usize, within_ms: u64) -> Work<u32> {
        Work::new(request(1, at(within_ms)), source, bytes, None, at(0))
    }

    fn has_time(queue: &mut Queue<u32>, within_ms: u64, dequeued_ms: u64) -> bool {
        queue.push(work(1, 0, within_ms)).unwrap();
        let work = queue.pop().unwrap();
        let refusal = queue.refuses(&work, at(dequeued_ms));
        queue.finished(0, None);
        refusal.is_none()
    }

    #[test]
    fn an_attempt_that_waited_for_most_of_its_time_needs_time_for_two() {
        let mut queue = queue();
        assert!(!has_time(&mut queue, 10_000, 9_900));
        assert!(!has_time(&mut queue, 10_000, 9_401));
        assert!(has_time(&mut queue, 10_000, 9_400));
        assert!(has_time(&mut queue, 120_000, 60_000));
        assert!(has_time(&mut queue, 60_000, 9_900));
        assert_eq!(queue.depth(), (0, 0));
    }

    #[test]
    fn an_attempt_that_never_waited_always_has_time() {
        let mut queue = queue();
        queue.note(millis(3_600_000));
        assert!(has_time(&mut queue, 60_000, 0));
    }

    #[test]
    fn work_that_would_wait_for_too_long_is_refused() {
        let mut queue = queue();
        for source in 0..10 {
            queue.push(work(source, 0, 60_000)).unwrap();
        }
        // It would wait for ten attempts, and needs time for two then.
        let refused = queue.push(work(10, 0, 3_599)).unwrap_err();
        let retry_after = millis(1_500);
        assert_eq!(refused.refusal, Refusal::NoRoom { retry_after });
        assert_eq!(refused.work.source, 10);
        queue.push(work(11, 0, 3_600)).unwrap();
        assert_eq!(queue.depth(), (11, 0));
    }

    #[test]
    fn running_and_queued_work_count_towards_both_limits() {
        let mut queue = Queue::new(QueueLimits {
            in_flight_max: 3,
            in_flight_bytes_max: 100,
            ..LIMITS
        });
        queue.push(work(1, 500, 1_000)).unwrap();
        assert!(queue.push(work(2, 1, 1_000)).is_err(), "no bytes are left");
        queue.pop().unwrap();
        assert!(queue.push(work(2, 1, 1_000)).is_err(), "it still runs");
        queue.finished(500, None);
        for source in 3..6 {
            queue.push(work(source, 10, 1_000)).unwrap();
        }
        assert!(queue.push(work(6, 0, 1_000)).is_err(), "three are held");
        queue.forget(|source| *source == 4);
        queue.push(work(7, 80, 1_000)).unwrap();
        assert_eq!(queue.pop().unwrap().source, 3);
        assert_eq!(queue.depth(), (2, 1));

        let left: Vec<u32> = queue.close().iter().map(|work| work.source).collect();
        assert_eq!(left, [5, 7]);
        assert_eq!(queue.depth(), (0, 1));
        queue.finished(10, Some(millis(5)));
        assert_eq!((queue.in_flight, queue.in_flight_bytes), (0, 0));
    }
}
