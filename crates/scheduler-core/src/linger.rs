//! The linger of group commits: how long a commit waits for more rows.

use std::time::Duration;

use waybill_engine::BootTime;

/// Minimum time between a commit of many rows and the next one. Decisions that accumulate in the
/// meantime share the sync of the rows and the requests of the messages.
const LINGER: Duration = Duration::from_millis(1);
/// This many rows are many. With fewer there is little to share, and a lone operation must not wait
/// at each of its steps.
const MANY_ROWS: usize = 4;

/// Decides whether the next commit waits.
#[derive(Debug, Default)]
pub(crate) struct GroupCommitLinger {
    /// No commit begins before this.
    until: Option<BootTime>,
    /// Whether a commit was held back since the last one began.
    holds: bool,
}

impl GroupCommitLinger {
    /// Whether the next commit must wait at `now`. Called whenever a commit could begin.
    pub(crate) fn holds_back(&mut self, now: BootTime) -> bool {
        self.holds = self.until.is_some_and(|until| now < until);
        self.holds
    }

    /// A commit of this many rows began.
    pub(crate) fn began(&mut self, now: BootTime, rows: usize) {
        self.until = (rows >= MANY_ROWS).then(|| now + LINGER);
    }

    /// The remaining wait of a held-back commit: zero if it may begin now. `None` if none is held
    /// back.
    pub(crate) fn rest(&self, now: BootTime) -> Option<Duration> {
        let until = self.until.filter(|_| self.holds)?;
        Some(until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn a_commit_waits_only_after_a_large_one() {
        let start = BootTime::from_micros(60_000_000);
        let mut linger = GroupCommitLinger::default();
        assert!(!linger.holds_back(start));
        linger.began(start, MANY_ROWS - 1);
        assert!(!linger.holds_back(start + MICRO));
        assert_eq!(linger.rest(start + MICRO), None);
        linger.began(start, MANY_ROWS);
        assert!(linger.holds_back(start + MICRO));
        assert_eq!(linger.rest(start + MICRO), Some(LINGER - MICRO));
        assert!(!linger.holds_back(start + LINGER));
        assert_eq!(linger.rest(start + LINGER), None);
    }

    #[test]
    fn a_held_back_commit_is_released_when_its_time_has_already_passed() {
        let start = BootTime::from_micros(60_000_000);
        let mut linger = GroupCommitLinger::default();
        linger.began(start, MANY_ROWS);
        assert!(linger.holds_back(start + LINGER - MICRO));
        assert_eq!(linger.rest(start + LINGER + MICRO), Some(Duration::ZERO));
    }
}
