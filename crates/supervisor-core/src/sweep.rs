//! Decides which buckets of an index shard to read, and how far the durable cursor may move.
//!
//! An entry is a hint. A bucket is read repeatedly until it ends, for low latency. It
//! is read once more after its end and a grace period, when entries that were in flight are
//! visible. Then the cursor may pass it.
//!
//! Finding every entry does not depend on clocks, though. Once the cursor is durable, the buckets
//! that it passed are read one last time. The writer of an entry reads the cursor afterwards, and
//! rewrites the entry ahead of the cursor if the cursor has passed it (`scheduler/index.rs`). The
//! last read finds every entry that was visible before the cursor was durable, and the writer of a
//! later one sees the cursor. A new sweep also reads the buckets that its predecessor might not
//! have read a last time.
//!
//! Handled entries are remembered until the last read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use waybill_engine::Timestamp;
use waybill_state::{DUE_BUCKETS_REREAD, DueBucket, DueEntry};

/// Maximum number of buckets in one pass; the next pass continues from there.
const BUCKETS_MAX: i64 = 120;

/// A sweep skips only if it is further behind than this: after an outage of up to a week every
/// bucket is swept.
const BEHIND_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How many consecutive buckets must be empty before a skip: entries written by a wrong clock are
/// close together.
const EMPTY_MIN: u32 = 600;
/// How long before the current time the sweep continues after a skip. The audit finds operations
/// due for longer.
const SKIP_TO: Duration = Duration::from_secs(60 * 60);

/// How many handled entries of one bucket are remembered. Beyond that, some cause a second
/// recovery, which changes nothing.
const REMEMBERED_MAX: usize = 100_000;

/// The progress of a sweep over an index shard.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The first bucket not yet read again since the cursor passed it.
    passed: DueBucket,
    cursor: DueBucket,
    grace: Duration,
    open: BTreeMap<DueBucket, OpenBucket>,
    /// How many consecutive buckets were empty when first read after their end.
    empty: u32,
}

/// A bucket that was read, and will be read again.
#[derive(Debug, Default)]
struct OpenBucket {
    handled: BTreeSet<DueEntry>,
    /// It was read completely after its end.
    ended: bool,
    /// It was read completely after its end and the grace period.
    complete: bool,
}

impl Sweep {
    /// Continues from a durable cursor.
    pub(crate) fn new(cursor: DueBucket, grace: Duration) -> Self {
        Self {
            passed: DueBucket(cursor.0.saturating_sub(DUE_BUCKETS_REREAD)),
            cursor,
            grace,
            open: BTreeMap::new(),
            empty: 0,
        }
    }

    /// The buckets to read now, in order.
    pub(crate) fn to_read(&self, now: Timestamp) -> Vec<DueBucket> {
        let last = DueBucket::of(now).0.min(self.cursor.0 + BUCKETS_MAX);
        let again = self.passed.0..self.cursor.0;
        let ahead =
            (self.cursor.0..=last).filter(|&bucket| match self.open.get(&DueBucket(bucket)) {
                None => true,
                Some(open) if !open.ended => true,
                Some(open) => !open.complete && now >= DueBucket(bucket).end() + self.grace,
            });
        again.chain(ahead).map(DueBucket).collect()
    }

    /// Whether to handle an entry now: it is not handled yet, and is due or in its last read.
    pub(crate) fn is_new(&self, bucket: DueBucket, entry: &DueEntry, now: Timestamp) -> bool {
        let open = self.open.get(&bucket);
        let is_due_or_last = entry.due <= now || bucket < self.cursor;
        is_due_or_last && !open.is_some_and(|open| open.handled.contains(entry))
    }

    /// Marks entries of a bucket as handled: their recoveries are acknowledged.
    pub(crate) fn mark_handled(&mut self, bucket: DueBucket, entries: &[DueEntry]) {
        let open = self.open.entry(bucket).or_default();
        let room = REMEMBERED_MAX.saturating_sub(open.handled.len());
        open.handled.extend(entries.iter().take(room));
    }

    /// A bucket was read completely, starting at `began`, and all its due entries, if any, were
    /// handled.
    pub(crate) fn was_read(&mut self, bucket: DueBucket, began: Timestamp, is_empty: bool) {
        if bucket < self.cursor {
            if bucket == self.passed {
                self.passed = DueBucket(bucket.0 + 1);
            }
            self.open.remove(&bucket);
            return;
        }
        let open = self.open.entry(bucket).or_default();
        let is_first = !open.ended;
        open.ended = began >= bucket.end();
        if !is_empty {
            self.empty = 0;
        } else if is_first && open.ended {
            self.empty = self.empty.saturating_add(1);
        }
        open.complete = began >= bucket.end() + self.grace;
    }

    /// The next position of the durable cursor: it passes complete buckets, and only once the
    /// buckets that it passed before were read again.
    pub(crate) fn next_cursor(&self) -> Option<DueBucket> {
        let is_complete = |bucket| {
            self.open
                .get(&DueBucket(bucket))
                .is_some_and(|open| open.complete)
        };
        let last = self.passed.0.saturating_add(DUE_BUCKETS_REREAD);
        let next = (self.cursor.0..last).find(|&bucket| !is_complete(bucket));
        let next = DueBucket(next.unwrap_or(last));
        (self.passed == self.cursor && next > self.cursor).then_some(next)
    }

    /// Records that `cursor` is durable. Returns whether it moved by the maximum, so that more may
    /// follow.
    pub(crate) fn cursor_moved(&mut self, cursor: DueBucket) -> bool {
        self.cursor = cursor;
        cursor.0 - self.passed.0 >= DUE_BUCKETS_REREAD
    }

    /// Where the cursor may skip to if it is far behind and finds no entries. Reading every bucket
    /// of the years by which a wrong clock was behind would take hours.
    pub(crate) fn may_skip_to(&self, now: Timestamp) -> Option<DueBucket> {
        let is_far_behind = self.cursor < DueBucket::of(now - BEHIND_MAX);
        (is_far_behind && self.empty >= EMPTY_MIN).then(|| DueBucket::of(now - SKIP_TO))
    }

    /// Records that `cursor` is durable, although the buckets before it were not read.
    pub(crate) fn skip_to(&mut self, cursor: DueBucket) {
        *self = Self::new(cursor, self.grace);
    }

    /// How far the sweep is behind.
    pub(crate) fn behind(&self, now: Timestamp) -> Duration {
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

    /// A sweep whose predecessor's last buckets were read again.
    fn sweep(cursor: i64) -> Sweep {
        let mut sweep = Sweep::new(DueBucket(cursor), GRACE);
        let again = buckets(cursor - DUE_BUCKETS_REREAD..=cursor - 1);
        assert_eq!(sweep.to_read(at(cursor - 1, 0)), again);
        for bucket in again {
            sweep.was_read(bucket, at(cursor, 0), false);
        }
        sweep
    }

    #[test]
    fn a_bucket_is_read_until_it_ends_and_again_after_the_grace() {
        let mut sweep = sweep(10);
        assert_eq!(sweep.to_read(at(10, 0)), buckets(10..=10));
        sweep.was_read(DueBucket(10), at(10, 500), false);
        assert_eq!(sweep.to_read(at(10, 900)), buckets(10..=10));
        sweep.was_read(DueBucket(10), at(11, 0), false);
        assert_eq!(sweep.to_read(at(11, 0)), buckets(11..=11));
        sweep.was_read(DueBucket(11), at(13, 0), false);
        assert_eq!(sweep.to_read(at(13, 999)), buckets(12..=13));
        assert_eq!(
            sweep.to_read(at(14, 0))[0],
            DueBucket(10),
            "its grace is over"
        );
    }

    #[test]
    fn the_cursor_passes_a_bucket_only_after_it_was_read_past_the_grace() {
        let mut sweep = sweep(10);
        sweep.was_read(DueBucket(10), at(13, 999), false);
        assert_eq!(sweep.next_cursor(), None);
        sweep.was_read(DueBucket(11), at(20, 0), false);
        assert_eq!(sweep.next_cursor(), None, "bucket 10 comes first");
        sweep.was_read(DueBucket(10), at(14, 0), false);
        assert_eq!(sweep.next_cursor(), Some(DueBucket(12)));
    }

    #[test]
    fn a_bucket_that_the_cursor_passed_is_read_once_more() {
        let mut sweep = sweep(10);
        let (seen, late) = (entry(10, 1), entry(10, 2));
        sweep.mark_handled(DueBucket(10), &[seen]);
        for bucket in [10, 11, 12] {
            sweep.was_read(DueBucket(bucket), at(20, 0), false);
        }
        let next = sweep.next_cursor().unwrap();
        assert_eq!(next, DueBucket(13));
        assert!(!sweep.cursor_moved(next), "it did not move by the maximum");
        sweep.was_read(DueBucket(13), at(20, 0), false);
        assert_eq!(
            sweep.next_cursor(),
            None,
            "the passed buckets are reread first"
        );
        // The writer's clock was set back since.
        assert_eq!(sweep.to_read(at(9, 0)), buckets(10..=12));
        assert!(!sweep.is_new(DueBucket(10), &seen, at(9, 0)));
        assert!(sweep.is_new(DueBucket(10), &late, at(9, 0)));
        for bucket in [10, 11, 12] {
            sweep.was_read(DueBucket(bucket), at(9, 0), false);
        }
        assert_eq!(sweep.to_read(at(9, 0)), []);
        assert_eq!(sweep.next_cursor(), Some(DueBucket(14)));
    }

    #[test]
    fn the_cursor_never_moves_further_than_a_successor_looks_back() {
        let mut sweep = sweep(10);
        for bucket in 10..=10 + 2 * DUE_BUCKETS_REREAD {
            sweep.was_read(DueBucket(bucket), at(1_000, 0), false);
        }
        let next = DueBucket(10 + DUE_BUCKETS_REREAD);
        assert_eq!(sweep.next_cursor(), Some(next));
        assert!(sweep.cursor_moved(next), "the sweep continues immediately");
        assert_eq!(Sweep::new(next, GRACE).passed, DueBucket(10));
    }

    #[test]
    fn an_entry_is_new_once_and_not_before_it_is_due() {
        let mut sweep = sweep(10);
        let first = entry(10, 1);
        assert!(!sweep.is_new(DueBucket(10), &first, at(10, 99)));
        assert!(sweep.is_new(DueBucket(10), &first, at(10, 100)));
        sweep.mark_handled(DueBucket(10), &[first]);
        assert!(!sweep.is_new(DueBucket(10), &first, at(14, 0)));
        assert!(sweep.is_new(DueBucket(10), &entry(10, 2), at(14, 0)));
    }

    #[test]
    fn a_sweep_a_week_behind_skips_after_ten_empty_minutes() {
        const WEEK: i64 = 7 * 24 * 3_600;
        let mut sweep = sweep(10);
        let now = 11 + WEEK;
        for bucket in 10..10 + i64::from(EMPTY_MIN) {
            assert_eq!(sweep.may_skip_to(at(now, 0)), None, "entries may be there");
            // The second read, after the grace period, changes nothing.
            for _ in 0..2 {
                sweep.mark_handled(DueBucket(bucket), &[]);
                sweep.was_read(DueBucket(bucket), at(now, 0), true);
            }
        }
        assert_eq!(sweep.may_skip_to(at(now - 1, 999)), None);
        let next = sweep.may_skip_to(at(now, 0)).unwrap();
        assert_eq!(next, DueBucket(now - 3_600));
        sweep.skip_to(next);
        assert_eq!(sweep.may_skip_to(at(now, 0)), None);
        let read = buckets(next.0 - DUE_BUCKETS_REREAD..=next.0 + BUCKETS_MAX);
        assert_eq!(sweep.to_read(at(now, 0)), read);
    }

    #[test]
    fn a_stalled_sweep_falls_behind() {
        let mut sweep = sweep(10);
        assert_eq!(sweep.behind(at(10, 500)), Duration::ZERO);
        assert_eq!(sweep.behind(at(15, 0)), Duration::from_secs(4));
        sweep.was_read(DueBucket(10), at(15, 0), false);
        assert_eq!(sweep.behind(at(15, 0)), Duration::from_secs(3));
    }
}
