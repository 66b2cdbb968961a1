//! The entries of the deadline index, and the buckets that they are listed under.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{OperationId, Timestamp};

/// How many buckets before an index shard's cursor a supervisor that continues there reads again.
/// Entries before these may be forgotten.
pub const DUE_BUCKETS_REREAD: i64 = 30;

/// An entry of the deadline index: a hint that something is due for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DueEntry {
    /// When it is due; decides the bucket that it is listed under.
    pub due: Timestamp,
    /// The operation.
    pub operation: OperationId,
}

impl DueEntry {
    /// How far ahead an entry that was too late is written again.
    const LEAD: Duration = Duration::from_secs(1);

    /// This entry as its writer writes it once more at `now`, because the sweep has moved its
    /// cursor over it; `None` if it has not. The operation's row may have an earlier due time: an
    /// entry that comes up later than that is harmless.
    ///
    /// It is later by whole seconds, so that different entries stay different: a sweep passes over
    /// an entry that it has dealt with.
    #[must_use]
    pub fn ahead_of(self, cursor: DueBucket, now: Timestamp) -> Option<Self> {
        if DueBucket::of(self.due) >= cursor {
            return None;
        }
        let from = now.max(cursor.start()) + Self::LEAD;
        let micros = from.since(self.due).as_micros();
        let seconds = u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Some(Self {
            due: self.due + Duration::from_secs(seconds),
            ..self
        })
    }
}

/// A slot of the deadline index: one second of due times in one index shard (the index shard is the
/// partition).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DueBucket(pub i64);

impl DueBucket {
    /// How much time one bucket spans.
    pub const WIDTH: Duration = Duration::from_secs(1);

    const WIDTH_US: i64 = 1_000_000;

    /// The bucket that holds `due`.
    #[must_use]
    pub fn of(due: Timestamp) -> Self {
        Self(due.as_micros().div_euclid(Self::WIDTH_US))
    }

    /// The cursor to store before the first entry of an index shard is written, if its cursor is
    /// `stored`; `None` if it has one. `asked_at` is the time before `stored` was read: another
    /// process may store a cursor and write entries in the meantime.
    #[must_use]
    pub fn first_cursor(stored: Option<Self>, asked_at: Timestamp) -> Option<Self> {
        match stored {
            Some(_) => None,
            None => Some(Self::of(asked_at)),
        }
    }

    /// The first instant of the bucket.
    #[must_use]
    pub fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(Self::WIDTH_US))
    }

    /// The first instant after the bucket.
    #[must_use]
    pub fn end(self) -> Timestamp {
        Timestamp(self.0.saturating_add(1).saturating_mul(Self::WIDTH_US))
    }

    /// The first and the last instant of the bucket.
    #[must_use]
    pub fn bounds(self) -> (Timestamp, Timestamp) {
        let first = self.0.saturating_mul(Self::WIDTH_US);
        (
            Timestamp(first),
            Timestamp(first.saturating_add(Self::WIDTH_US - 1)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_covers_one_second_also_before_the_epoch() {
        for (due, bucket) in [
            (0, 0),
            (999_999, 0),
            (1_000_000, 1),
            (-1, -1),
            (-1_000_000, -1),
            (-1_000_001, -2),
        ] {
            let found = DueBucket::of(Timestamp(due));
            assert_eq!(found, DueBucket(bucket), "{due}");
            let (first, last) = found.bounds();
            assert!((first.0..=last.0).contains(&due), "{due}");
            assert_eq!(found.end(), Timestamp(last.0 + 1), "{due}");
        }
    }

    #[test]
    fn a_sweep_begins_no_later_than_its_cursor_was_asked_for() {
        let asked_at = Timestamp(7_900_000);
        let first = DueBucket::first_cursor(None, asked_at);
        assert_eq!(first, Some(DueBucket(7)));
        assert_eq!(DueBucket::first_cursor(Some(DueBucket(9)), asked_at), None);
    }

    #[test]
    fn an_entry_that_a_sweep_has_passed_is_written_ahead_of_it() {
        let entry = |micros| DueEntry {
            due: Timestamp(micros),
            operation: OperationId(uuid::Uuid::from_u128(7)),
        };
        let again = |micros, now| entry(micros).ahead_of(DueBucket(100), Timestamp(now));
        assert_eq!(again(100_000_000, 50_000_000), None);
        assert_eq!(again(99_000_000, 50_000_000), Some(entry(101_000_000)));
        assert_eq!(again(99_000_000, 113_000_000), Some(entry(114_000_000)));
        // Different entries stay different, although the sweep is ahead of both.
        assert_eq!(again(98_300_000, 50_000_000), Some(entry(101_300_000)));
        assert_eq!(again(99_400_000, 50_000_000), Some(entry(101_400_000)));
        assert!(again(i64::MIN, i64::MAX).is_some());
    }

    #[test]
    fn extreme_times_have_buckets() {
        for due in [i64::MIN, i64::MAX] {
            let (first, last) = DueBucket::of(Timestamp(due)).bounds();
            assert!((first.0..=last.0).contains(&due), "{due}");
        }
        assert_eq!(DueBucket(i64::MAX).end(), Timestamp(i64::MAX));
    }
}
