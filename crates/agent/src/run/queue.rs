//! What waits for one agent's workers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use waybill_engine::{Outcome, murmur2};

use crate::handler::{StepCall, not_attempted};

/// Work that was handed back, or turned away, is asked for again after this long at least.
pub(super) const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// Work that was turned away is asked for again after this long at most. Whoever asks leaves the agent alone until then:
/// much longer, and the agent has nothing to do.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);

/// A step call that waits or runs.
#[derive(Debug)]
pub(super) struct Work<S> {
    pub(super) call: StepCall,
    /// Where it came from.
    pub(super) source: S,
    pub(super) bytes: usize,
}

/// A queue bounded by count and bytes, which counts running work as well.
///
/// A push wakes nobody: the poller wakes one worker per agent and batch, and each worker that finds
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

/// There is no room, or no time, for a step call.
#[derive(Debug)]
pub(super) struct NoRoom<S> {
    pub(super) work: Work<S>,
    /// When it may be worth asking again.
    pub(super) retry_after: Duration,
}

impl<S> NoRoom<S> {
    /// The answer to whoever asked.
    pub(super) fn outcome(&self) -> Outcome {
        // Those that are turned away together come back spread over half the time.
        let key = self.work.call.request.operation.key();
        let share = f64::from(murmur2(&key)) / f64::from(u32::MAX);
        let wait = self.retry_after.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        let wait = wait.mul_f64(1.0 + share / 2.0);
        not_attempted("no-room", "the agent cannot start it in time", wait)
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

    /// How many workers the queue is for.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Takes work in, unless the bounds are reached or it could not start before its deadline.
    pub(super) fn push(&self, work: Work<S>, now: Instant) -> Result<(), Box<NoRoom<S>>> {
        let mut state = self.state();
        let full = state.in_flight >= self.in_flight_max
            || (state.in_flight > 0
                && state.in_flight_bytes + work.bytes > self.in_flight_bytes_max);
        let wait = self.wait(state.waiting.len());
        if full || now + wait > work.call.deadline {
            return Err(Box::new(NoRoom {
                work,
                // Half of what is ahead has gone by then.
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

    /// The next work to start, or to turn away: what waited here until it has too little time left. `None` once the queue
    /// is closed.
    pub(super) async fn next(&self) -> Option<Result<Work<S>, Box<NoRoom<S>>>> {
        loop {
            {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                if state.closed || !state.waiting.is_empty() {
                    self.wake.notify_one();
                }
                if let Some(next) = next {
                    return Some(self.in_time(next, &mut state));
                }
                if state.closed {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Turns work away that would not end before its deadline, so that it counts as not attempted rather than as failed,
    /// and takes no time from work that can still succeed.
    fn in_time(&self, work: Work<S>, state: &mut State<S>) -> Result<Work<S>, Box<NoRoom<S>>> {
        let now = Instant::now();
        let left = work.call.deadline.saturating_duration_since(now);
        // What has not spent most of its time here is started, however long attempts take: otherwise nothing might be
        // started any more.
        if left >= now - work.call.received || left >= 2 * self.average() {
            return Ok(work);
        }
        state.release(work.bytes);
        // What is behind it has waited as long, and is turned away at once.
        Err(Box::new(NoRoom {
            work,
            retry_after: RETRY_AFTER_MIN,
        }))
    }

    /// Work has ended. `took` is how long the attempt was, if one was made.
    pub(super) fn finished(&self, bytes: usize, took: Option<Duration>) {
        if let Some(took) = took {
            self.note(took);
        }
        self.state().release(bytes);
    }

    /// Takes the time of an attempt into the average.
    fn note(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let average_us = self.average_us.load(Ordering::Relaxed);
        // Two workers may overwrite each other: it is an estimate.
        let next_us = if average_us == 0 {
            took_us
        } else {
            average_us - average_us / 16 + took_us / 16
        };
        self.average_us.store(next_us, Ordering::Relaxed);
    }

    /// Leaves out what waits and comes from these.
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

    /// Takes nothing more in, and returns what waits.
    pub(super) fn close(&self) -> Vec<Work<S>> {
        let mut state = self.state();
        state.closed = true;
        self.wake.notify_one();
        state.waiting.drain(..).collect()
    }

    /// How much waits, and how much runs.
    pub(super) fn depth(&self) -> (usize, usize) {
        let state = self.state();
        let waiting = state.waiting.len();
        (waiting, state.in_flight - waiting)
    }

    /// How long work waits that has `ahead` before it.
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

impl<S> State<S> {
    /// Work ended, or was turned away.
    fn release(&mut self, bytes: usize) {
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::StepRequestBuilder;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A queue for one worker, of which attempts take 300 ms.
    fn queue() -> Queue<u32> {
        let queue = Queue::new(1, 100, 1 << 20);
        queue.note(millis(300));
        queue
    }

    /// Adds work that came so long ago, and had so much time then.
    fn push(queue: &Queue<u32>, source: u32, waited: Duration, complete_within: Duration) {
        let received = Instant::now() - waited;
        let call = StepCall {
            request: StepRequestBuilder::new("agent", "step").build(),
            received,
            deadline: received + complete_within,
        };
        let work = Work {
            call,
            source,
            bytes: 0,
        };
        queue.push(work, received).unwrap();
    }

    /// The source of what comes next, and whether it is started.
    async fn next(queue: &Queue<u32>) -> (u32, bool) {
        match queue.next().await.unwrap() {
            Ok(work) => (work.source, true),
            Err(turned_away) => (turned_away.work.source, false),
        }
    }

    #[tokio::test]
    async fn what_waited_until_it_has_too_little_time_is_turned_away() {
        let queue = queue();
        push(&queue, 1, millis(9_900), millis(10_000));
        push(&queue, 2, millis(60_000), millis(120_000));
        push(&queue, 3, millis(60_000), millis(60_000));
        push(&queue, 4, millis(9_900), millis(60_000));
        assert_eq!(next(&queue).await, (1, false));
        assert_eq!(next(&queue).await, (2, true));
        assert_eq!(next(&queue).await, (3, false));
        assert_eq!(next(&queue).await, (4, true));
        assert_eq!(queue.depth(), (0, 2));
    }

    #[tokio::test]
    async fn what_never_waited_is_started_however_long_attempts_take() {
        let queue = queue();
        queue.note(millis(3_600_000));
        push(&queue, 1, Duration::ZERO, millis(60_000));
        assert_eq!(next(&queue).await, (1, true));
    }
}
