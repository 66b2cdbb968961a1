//! Detects whether the broker is available.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use waybill_kafka::{ErrorCode, ProduceError};
use waybill_telemetry::chain;

/// Whether acknowledgements arrive. If the broker is unavailable, only the first request waits for
/// its time-out. Later requests are refused immediately.
///
/// A record counts as waiting until the producer gives it up. Once none waits, the next request
/// goes through and tests whether the broker is available again.
///
/// The log reports once that the broker is unavailable, and once that it is available again.
#[derive(Debug)]
pub struct Flow {
    began: Instant,
    stall_max: Duration,
    waiting: AtomicUsize,
    /// When the last acknowledgement arrived, or the first waiting record began, in ms after
    /// `began`.
    moved_ms: AtomicU64,
    is_unavailable: AtomicBool,
}

impl Flow {
    /// How long a broker may be silent before it counts as unavailable.
    const STALL_MAX: Duration = Duration::from_secs(2);

    /// A flow in which records wait up to `accept_timeout`.
    pub fn new(accept_timeout: Duration) -> Self {
        Self {
            began: Instant::now(),
            stall_max: Self::STALL_MAX.min(accept_timeout),
            waiting: AtomicUsize::new(0),
            moved_ms: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
        }
    }

    /// Counts a record in, unless the flow has stalled. Each `true` needs a later
    /// [`end`](Self::end).
    pub fn begin(&self) -> bool {
        let may_go = self.begin_at(Instant::now());
        if !may_go {
            self.note_unavailable("no record was acknowledged for a while");
        }
        may_go
    }

    /// Counts a record out: acknowledged, or failed with this error.
    pub fn end(&self, error: Option<&ProduceError>) {
        self.end_at(error.is_none(), Instant::now());
        match error {
            None => self.note_available(),
            Some(error) if is_of_the_broker(error) => self.note_unavailable(&chain(error)),
            Some(_) => {}
        }
    }

    fn note_unavailable(&self, cause: &str) {
        if !self.is_unavailable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                cause,
                "the broker does not accept requests; answering 503 or 504"
            );
        }
    }

    fn note_available(&self) {
        if self.is_unavailable.load(Ordering::Relaxed)
            && self.is_unavailable.swap(false, Ordering::Relaxed)
        {
            tracing::info!("the broker accepts requests again");
        }
    }

    fn begin_at(&self, now: Instant) -> bool {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.moved(now);
            return true;
        }
        let moved = self.began + Duration::from_millis(self.moved_ms.load(Ordering::Acquire));
        if now.saturating_duration_since(moved) <= self.stall_max {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        false
    }

    fn end_at(&self, acknowledged: bool, now: Instant) {
        if acknowledged {
            self.moved(now);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    fn moved(&self, now: Instant) {
        let millis = now.saturating_duration_since(self.began).as_millis();
        self.moved_ms
            .fetch_max(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::AcqRel);
    }
}

/// Whether the broker failed, and not this process's queue or the record.
fn is_of_the_broker(error: &ProduceError) -> bool {
    match error {
        ProduceError::OutcomeUnknown { .. } => true,
        ProduceError::Refused { code } => {
            !matches!(code, ErrorCode::QueueFull | ErrorCode::MessageSizeTooLarge)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_while_the_broker_is_silent() {
        let flow = Flow::new(Duration::from_secs(10));
        let at = |ms: u64| flow.began + Duration::from_millis(ms);
        assert!(flow.begin_at(at(0)));
        assert!(flow.begin_at(at(2_000)));
        assert!(!flow.begin_at(at(2_001)));
        flow.end_at(false, at(10_000));
        assert!(!flow.begin_at(at(10_000)));
        flow.end_at(false, at(12_000));
        assert!(
            flow.begin_at(at(12_000)),
            "the one that sees whether the broker is back"
        );
        assert!(flow.begin_at(at(14_000)));
        assert!(!flow.begin_at(at(14_001)));
    }

    #[test]
    fn acknowledgements_keep_the_flow_open() {
        let flow = Flow::new(Duration::from_secs(10));
        let at = |ms: u64| flow.began + Duration::from_millis(ms);
        assert!(flow.begin_at(at(0)));
        assert!(flow.begin_at(at(0)));
        flow.end_at(true, at(1_900));
        assert!(flow.begin_at(at(3_900)));
        assert!(!flow.begin_at(at(3_901)));
        flow.end_at(true, at(5_000));
        assert!(flow.begin_at(at(5_000)));
    }
}
