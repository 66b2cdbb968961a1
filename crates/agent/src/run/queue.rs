//! What waits for one agent's workers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::offsets::Source;
use crate::handler::StepCall;

/// A step call that waits or runs.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) call: StepCall,
    pub(super) source: Source,
    pub(super) bytes: usize,
}

/// A queue bounded by count and bytes, which counts running work as well.
///
/// A push wakes nobody: the poller wakes one worker per agent and batch, and each worker that finds
/// more than it takes wakes the next, from inside the runtime.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
    workers: usize,
    in_flight_max: usize,
    in_flight_bytes_max: usize,
    /// A moving average of how long an attempt takes, in microseconds.
    average_us: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Work>,
    in_flight: usize,
    in_flight_bytes: usize,
    closed: bool,
}

/// There is no room, or no time, for a step call.
#[derive(Debug)]
pub(super) struct NoRoom {
    pub(super) work: Work,
    /// When it may be worth asking again.
    pub(super) retry_after: Duration,
}

impl Queue {
    pub(super) fn new(workers: usize, in_flight_max: usize, in_flight_bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
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
    pub(super) fn push(&self, work: Work, now: Instant) -> Result<(), Box<NoRoom>> {
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
    pub(super) async fn next(&self) -> Option<Work> {
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

    /// Takes nothing more in, and returns what waits.
    pub(super) fn close(&self) -> Vec<Work> {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
