//! Distinguishes a busy service from one that does not answer.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// When the service last answered a call.
#[derive(Debug)]
pub(super) struct LastAnswer {
    origin: Instant,
    /// In microseconds since `origin`; 0 before the first.
    at_us: AtomicU64,
}

impl LastAnswer {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            at_us: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self, at: Instant) {
        self.at_us.fetch_max(self.micros(at), Ordering::Relaxed);
    }

    pub(super) fn is_after(&self, instant: Instant) -> bool {
        self.at_us.load(Ordering::Relaxed) > self.micros(instant)
    }

    fn micros(&self, instant: Instant) -> u64 {
        u64::try_from((instant - self.origin).as_micros()).unwrap_or(u64::MAX)
    }
}
