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
/// Work that was turned away is asked for again after this long at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

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
                retry_after: wait,
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

    /// The next work; `None` once the queue is closed.
    pub(super) async fn next(&self) -> Option<Work<S>> {
        loop {
            {
                let mut state = self.state();
                let work = state.waiting.pop_front();
                if state.closed || !state.waiting.is_empty() {
                    self.wake.notify_one();
                }
                if work.is_some() || state.closed {
                    return work;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Work has ended. `took` is how long the attempt was, if one was made.
    pub(super) fn finished(&self, bytes: usize, took: Option<Duration>) {
        if let Some(took) = took {
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
        let mut state = self.state();
        state.in_flight -= 1;
        state.in_flight_bytes -= bytes;
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
        let average_us = self.average_us.load(Ordering::Relaxed);
        let rounds = ahead as f64 / self.workers as f64;
        Duration::from_secs_f64(rounds * average_us as f64 / 1e6)
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
