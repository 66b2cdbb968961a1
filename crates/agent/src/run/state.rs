//! The decisions of the run loop, shared by the polling thread, the workers and the producer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use waybill_agent_core::{AgentLoop, QueueLimits};

use super::outbox::Outgoing;

/// An [`AgentLoop`] under a lock. Nothing is encoded, sent, logged or awaited while it is locked.
#[derive(Debug)]
pub(super) struct State {
    agents: Mutex<AgentLoop<Arc<Outgoing>>>,
    /// Notified when no record is open.
    idle: Condvar,
}

impl State {
    pub(super) fn new(limits: impl IntoIterator<Item = QueueLimits>) -> Self {
        Self {
            agents: Mutex::new(AgentLoop::new(limits)),
            idle: Condvar::new(),
        }
    }

    /// Locks the loop, for a call that finishes no record, or by the polling thread: it is the one
    /// that waits.
    pub(super) fn lock(&self) -> MutexGuard<'_, AgentLoop<Arc<Outgoing>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that may finish records.
    pub(super) fn finish<T>(&self, call: impl FnOnce(&mut AgentLoop<Arc<Outgoing>>) -> T) -> T {
        let mut agents = self.lock();
        let result = call(&mut agents);
        let is_idle = agents.open() == 0;
        drop(agents);
        if is_idle {
            self.idle.notify_all();
        }
        result
    }

    /// Blocks until no record is open, or `until`.
    pub(super) fn wait_idle(&self, until: Instant) {
        let mut agents = self.lock();
        while agents.open() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            agents = self
                .idle
                .wait_timeout(agents, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
