//! The ages of a log's segments, measured by the time for which this broker has run.
//!
//! What must hold: **a segment is deleted late, never early**, whatever the clocks of this machine
//! and of the producers show. So neither the wall clock nor the records' timestamps are used. A
//! broker counts its running time on a monotonic clock, over all its runs. A segment's age is the
//! time counted since the broker first saw it end where it ends now. Time without a running broker
//! does not count, and neither does suspension of the machine on Linux and macOS, where the
//! monotonic clock ([`Instant`]) stops. Elsewhere it may count; no more is counted than has passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Milliseconds for which brokers have run on a data directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTime {
    before_ms: u64,
    started: Instant,
}

impl RunTime {
    /// Continues from the time counted before this start.
    pub(crate) fn since(before_ms: u64) -> Self {
        Self {
            before_ms,
            started: Instant::now(),
        }
    }

    /// The time counted so far.
    pub(crate) fn now_ms(self) -> u64 {
        self.before_ms
            .saturating_add(millis(self.started.elapsed()))
    }
}

/// Where a segment ended when retention last looked at it, and since when it has ended there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct SeenEnd {
    next_offset: i64,
    since_ms: u64,
}

/// The ages of the segments of one partition, by base offset.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SegmentAges(BTreeMap<i64, SeenEnd>);

impl SegmentAges {
    /// Records the current `segments`, each by its base offset and the offset after its last
    /// record, at the run time `now_ms`. Forgets all others.
    pub(crate) fn observe(&mut self, segments: impl Iterator<Item = (i64, i64)>, now_ms: u64) {
        let before = std::mem::take(&mut self.0);
        self.0 = segments
            .map(|(base, next_offset)| {
                let seen = before.get(&base).copied();
                let fresh = SeenEnd {
                    next_offset,
                    since_ms: now_ms,
                };
                let seen = seen.filter(|seen| seen.next_offset == next_offset);
                (base, seen.unwrap_or(fresh))
            })
            .collect();
    }

    /// Whether the segment at `base` has been seen for longer than `retention`.
    pub(crate) fn is_older(&self, base: i64, retention: Duration, now_ms: u64) -> bool {
        self.0
            .get(&base)
            .is_some_and(|seen| now_ms.saturating_sub(seen.since_ms) > millis(retention))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn a_segment_ages_from_when_its_end_was_first_seen() {
        let mut ages = SegmentAges::default();
        ages.observe([(0, 10), (10, 20)].into_iter(), 5);
        assert!(!ages.is_older(0, HOUR, 5 + HOUR_MS));
        assert!(ages.is_older(0, HOUR, 6 + HOUR_MS));
        assert!(!ages.is_older(20, HOUR, u64::MAX), "it was never seen");

        // A record more, and it is young again. The other one is not.
        ages.observe([(0, 10), (10, 21)].into_iter(), HOUR_MS);
        assert!(ages.is_older(0, HOUR, 6 + HOUR_MS));
        assert!(!ages.is_older(10, HOUR, 2 * HOUR_MS));

        ages.observe([(10, 21)].into_iter(), 2 * HOUR_MS);
        assert!(!ages.is_older(0, HOUR, u64::MAX), "it is forgotten");
        assert!(ages.is_older(10, HOUR, 2 * HOUR_MS + 1));
    }

    #[test]
    fn run_time_continues_from_the_end_of_the_previous_run() {
        let run = RunTime::since(HOUR_MS);
        let now = run.now_ms();
        assert!((HOUR_MS..2 * HOUR_MS).contains(&now), "{now}");
        assert_eq!(RunTime::since(u64::MAX).now_ms(), u64::MAX);
    }
}
