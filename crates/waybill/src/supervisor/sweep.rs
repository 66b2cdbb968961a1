//! Which buckets of a shard are read when, and how far the durable cursor may move.
//!
//! An entry is a hint. It becomes visible at the latest a scheduler's lease after it was decided on,
//! for a commit that is acknowledged later does not count. So a bucket is read as soon as it begins
//! and while it lasts, for speed, and once more after its end and that grace, for certainty; then
//! the cursor may pass it. Entries that were dealt with are remembered until then.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use waybill_engine::Timestamp;
use waybill_store::{DueBucket, DueEntry};

/// How many buckets one pass reads at most; the next goes on from there.
const BUCKETS_MAX: i64 = 120;

/// How many dealt-with entries of one bucket are remembered. Of more, some are asked about twice,
/// which changes nothing.
const REMEMBERED_MAX: usize = 100_000;

/// How far a shard is swept.
#[derive(Debug)]
pub(super) struct Sweep {
    cursor: DueBucket,
    grace: Duration,
    open: BTreeMap<DueBucket, OpenBucket>,
}

/// A bucket that was read and is not behind the cursor.
#[derive(Debug, Default)]
struct OpenBucket {
    dealt_with: HashSet<DueEntry>,
    /// It was read whole after its end.
    ended: bool,
    /// It was read whole after its end and the grace.
    complete: bool,
}

impl Sweep {
    pub(super) fn new(cursor: DueBucket, grace: Duration) -> Self {
        Self {
            cursor,
            grace,
            open: BTreeMap::new(),
        }
    }

    /// The buckets to read now, in order.
    pub(super) fn to_read(&self, now: Timestamp) -> Vec<DueBucket> {
        let last = DueBucket::of(now).0.min(self.cursor.0 + BUCKETS_MAX);
        (self.cursor.0..=last)
            .map(DueBucket)
            .filter(|bucket| match self.open.get(bucket) {
                None => true,
                Some(open) if !open.ended => true,
                Some(open) => !open.complete && now >= bucket.end() + self.grace,
            })
            .collect()
    }

    /// Whether an entry is due and was not dealt with.
    pub(super) fn is_new(&self, bucket: DueBucket, entry: &DueEntry, now: Timestamp) -> bool {
        let open = self.open.get(&bucket);
        entry.due <= now && !open.is_some_and(|open| open.dealt_with.contains(entry))
    }

    /// Entries of a bucket were dealt with: what was asked because of them is acknowledged.
    pub(super) fn dealt_with(&mut self, bucket: DueBucket, entries: &[DueEntry]) {
        let open = self.open.entry(bucket).or_default();
        let room = REMEMBERED_MAX.saturating_sub(open.dealt_with.len());
        open.dealt_with.extend(entries.iter().take(room));
    }

    /// A bucket was read whole, beginning at `began`, and all its due entries were dealt with.
    pub(super) fn was_read(&mut self, bucket: DueBucket, began: Timestamp) {
        let open = self.open.entry(bucket).or_default();
        open.ended = began >= bucket.end();
        open.complete = began >= bucket.end() + self.grace;
    }

    /// Moves the cursor over complete buckets; returns it if it moved.
    pub(super) fn advance(&mut self) -> Option<DueBucket> {
        let before = self.cursor;
        while let Some(first) = self.open.first_entry() {
            if *first.key() != self.cursor || !first.get().complete {
                break;
            }
            first.remove();
            self.cursor = DueBucket(self.cursor.0 + 1);
        }
        (self.cursor > before).then_some(self.cursor)
    }

    /// How far the sweep lies behind.
    pub(super) fn behind(&self, now: Timestamp) -> Duration {
        let unread = (self.cursor.0..=DueBucket::of(now).0).map(DueBucket);
        let mut unread =
            unread.filter(|bucket| !self.open.get(bucket).is_some_and(|open| open.ended));
        let first = unread.next().unwrap_or(DueBucket::of(now));
        now.since(first.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waybill_engine::OperationId;

    const GRACE: Duration = Duration::from_secs(3);

    fn at(second: i64, millis: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000 + millis)
    }

    fn entry(second: i64, n: u128) -> DueEntry {
        DueEntry {
            due: at(second, 100),
            operation: OperationId(uuid::Uuid::from_u128(n)),
        }
    }

    fn buckets(range: std::ops::RangeInclusive<i64>) -> Vec<DueBucket> {
        range.map(DueBucket).collect()
    }

    #[test]
    fn a_bucket_is_read_while_it_lasts_and_once_more_after_the_grace() {
        let mut sweep = Sweep::new(DueBucket(10), GRACE);
        assert_eq!(sweep.to_read(at(10, 0)), buckets(10..=10));
        sweep.was_read(DueBucket(10), at(10, 500));
        assert_eq!(sweep.to_read(at(10, 900)), buckets(10..=10));
        sweep.was_read(DueBucket(10), at(11, 0));
        assert_eq!(sweep.to_read(at(11, 0)), buckets(11..=11));
        sweep.was_read(DueBucket(11), at(13, 0));
        assert_eq!(sweep.to_read(at(13, 999)), buckets(12..=13));
        assert_eq!(
            sweep.to_read(at(14, 0))[0],
            DueBucket(10),
            "its grace is over"
        );
    }

    #[test]
    fn the_cursor_passes_a_bucket_only_after_it_was_read_past_the_grace() {
        let mut sweep = Sweep::new(DueBucket(10), GRACE);
        sweep.was_read(DueBucket(10), at(13, 999));
        assert_eq!(sweep.advance(), None);
        sweep.was_read(DueBucket(11), at(20, 0));
        assert_eq!(sweep.advance(), None, "bucket 10 comes first");
        sweep.was_read(DueBucket(10), at(14, 0));
        assert_eq!(sweep.advance(), Some(DueBucket(12)));
    }

    #[test]
    fn an_entry_is_new_once_and_not_before_it_is_due() {
        let mut sweep = Sweep::new(DueBucket(10), GRACE);
        let first = entry(10, 1);
        assert!(!sweep.is_new(DueBucket(10), &first, at(10, 99)));
        assert!(sweep.is_new(DueBucket(10), &first, at(10, 100)));
        sweep.dealt_with(DueBucket(10), &[first]);
        assert!(!sweep.is_new(DueBucket(10), &first, at(14, 0)));
        assert!(sweep.is_new(DueBucket(10), &entry(10, 2), at(14, 0)));
    }

    #[test]
    fn a_sweep_that_stands_still_falls_behind() {
        let mut sweep = Sweep::new(DueBucket(10), GRACE);
        assert_eq!(sweep.behind(at(10, 500)), Duration::ZERO);
        assert_eq!(sweep.behind(at(15, 0)), Duration::from_secs(4));
        sweep.was_read(DueBucket(10), at(15, 0));
        assert_eq!(sweep.behind(at(15, 0)), Duration::from_secs(3));
    }
}
