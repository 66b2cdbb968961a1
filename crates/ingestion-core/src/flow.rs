//! Detects whether the broker is available.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::accepted::Failed;

/// Whether acknowledgements arrive. If the broker is unavailable, only the first request waits for
/// its time-out. Later requests are refused immediately.
///
/// A record counts as waiting until the producer gives it up. Once none waits, the next request
/// goes through and tests whether the broker is available again.
///
/// Times are those of a monotonic clock, since any fixed moment.
#[derive(Debug)]
pub struct Flow {
    stall_max: Duration,
    waiting: AtomicUsize,
    /// When the last acknowledgement arrived, or the first waiting record began, in ms.
    moved_ms: AtomicU64,
    is_unavailable: AtomicBool,
}

/// A change that is worth a line in the log: each is reported once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The broker has become unavailable.
    Unavailable,
    /// It is available again.
    Available,
}

impl Flow {
    /// How long a broker may be silent before it counts as unavailable.
    pub const STALL_MAX: Duration = Duration::from_secs(2);

    /// A flow in which records wait up to `accept_timeout`.
    #[must_use]
    pub fn new(accept_timeout: Duration) -> Self {
        Self {
            stall_max: Self::STALL_MAX.min(accept_timeout),
            waiting: AtomicUsize::new(0),
            moved_ms: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
        }
    }

    /// Counts a record in.
    ///
    /// # Errors
    ///
    /// If the flow has stalled: the change, if it is one. Each `Ok` needs a later
    /// [`end`](Self::end).
    pub fn begin(&self, now: Duration) -> Result<(), Option<Turn>> {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.moved(now);
            return Ok(());
        }
        let moved = Duration::from_millis(self.moved_ms.load(Ordering::Acquire));
        if now.saturating_sub(moved) <= self.stall_max {
            return Ok(());
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        Err(self.unavailable())
    }

    /// Counts a record out: acknowledged, or failed. Returns the change, if it is one.
    pub fn end(&self, failed: Option<Failed>, now: Duration) -> Option<Turn> {
        if failed.is_none() {
            self.moved(now);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        match failed {
            None => self.available(),
            Some(failed) if failed.is_of_the_broker() => self.unavailable(),
            Some(_) => None,
        }
    }

    fn unavailable(&self) -> Option<Turn> {
        let before = self.is_unavailable.swap(true, Ordering::Relaxed);
        (!before).then_some(Turn::Unavailable)
    }

    fn available(&self) -> Option<Turn> {
        let is_turn = self.is_unavailable.load(Ordering::Relaxed)
            && self.is_unavailable.swap(false, Ordering::Relaxed);
        is_turn.then_some(Turn::Available)
    }

    fn moved(&self, now: Duration) {
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.fetch_max(millis, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accepted::Refusal;

    const UNKNOWN: Option<Failed> = Some(Failed::Unknown);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn requests_are_refused_while_the_broker_is_silent() {
        let flow = Flow::new(Duration::from_secs(10));
        assert_eq!(flow.begin(ms(0)), Ok(()));
        assert_eq!(flow.begin(ms(2_000)), Ok(()));
        assert_eq!(flow.begin(ms(2_001)), Err(Some(Turn::Unavailable)));
        assert_eq!(flow.end(UNKNOWN, ms(10_000)), None);
        assert_eq!(flow.begin(ms(10_000)), Err(None), "reported before");
        assert_eq!(flow.end(UNKNOWN, ms(12_000)), None);
        let probe = flow.begin(ms(12_000));
        assert_eq!(probe, Ok(()), "it tests whether the broker is back");
        assert_eq!(flow.begin(ms(14_000)), Ok(()));
        assert_eq!(flow.begin(ms(14_001)), Err(None));
        assert_eq!(flow.end(None, ms(14_002)), Some(Turn::Available));
    }

    #[test]
    fn acknowledgements_keep_the_flow_open() {
        let flow = Flow::new(Duration::from_secs(10));
        assert_eq!(flow.begin(ms(0)), Ok(()));
        assert_eq!(flow.begin(ms(0)), Ok(()));
        assert_eq!(flow.end(None, ms(1_900)), None);
        assert_eq!(flow.begin(ms(3_900)), Ok(()));
        assert_eq!(flow.begin(ms(3_901)), Err(Some(Turn::Unavailable)));
        assert_eq!(flow.end(None, ms(5_000)), Some(Turn::Available));
        assert_eq!(flow.begin(ms(5_000)), Ok(()));
    }

    #[test]
    fn a_full_queue_or_a_large_record_says_nothing_about_the_broker() {
        let flow = Flow::new(Duration::from_secs(10));
        for refusal in [Refusal::QueueFull, Refusal::TooLarge] {
            assert_eq!(flow.begin(ms(0)), Ok(()));
            assert_eq!(flow.end(Some(Failed::Refused(refusal)), ms(0)), None);
        }
        assert_eq!(flow.begin(ms(0)), Ok(()));
        let failed = Some(Failed::Refused(Refusal::DiskLimit));
        assert_eq!(flow.end(failed, ms(0)), Some(Turn::Unavailable));
    }
}
