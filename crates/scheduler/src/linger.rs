//! The linger of group commits: when a commit waits for more rows.

use std::time::{Duration, Instant};

/// A commit behind one of many rows begins no sooner than this after it: decisions gather that share the rows' sync and
/// the messages' requests.
const LINGER: Duration = Duration::from_millis(1);
/// So many rows are many. Behind fewer there is little to share, and operations that are alone must not wait at each of
/// their steps.
const MANY_ROWS: usize = 4;

/// Whether the next commit waits.
#[derive(Debug, Default)]
pub(super) struct GroupCommitLinger {
    /// Before this no commit begins.
    until: Option<Instant>,
    /// Whether one was held back since the last one began.
    holds: bool,
}

impl GroupCommitLinger {
    /// Whether the next commit has to wait at `now`. Asked whenever one could begin.
    pub(super) fn holds_back(&mut self, now: Instant) -> bool {
        self.holds = self.until.is_some_and(|until| now < until);
        self.holds
    }

    /// A commit of so many rows began.
    pub(super) fn began(&mut self, now: Instant, rows: usize) {
        self.until = (rows >= MANY_ROWS).then(|| now + LINGER);
    }

    /// How long that what was held back has to wait still: none at all, if its time came since. `None` if nothing was.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let until = self.until.filter(|_| self.holds)?;
        Some(until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn only_behind_many_rows_a_commit_waits() {
        let start = Instant::now();
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
    fn what_was_held_back_waits_no_longer_though_its_time_came_before_anybody_asked() {
        let start = Instant::now();
        let mut linger = GroupCommitLinger::default();
        linger.began(start, MANY_ROWS);
        assert!(linger.holds_back(start + LINGER - MICRO));
        assert_eq!(linger.rest(start + LINGER + MICRO), Some(Duration::ZERO));
    }
}
