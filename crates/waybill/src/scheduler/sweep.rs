//! Sweeping the deadline index: what is due for operations that were handed off.
//!
//! An entry is a hint. The sweep reads the buckets from its durable cursor up to now, gives each
//! hint to the engine once, and moves the cursor past a bucket only when the bucket was read after
//! its end and a grace, and everything that it caused is settled. So a crash at any moment leads to
//! the same hints being read again, never to one being lost.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{PartitionId, Timestamp};
use waybill_store::{DueBucket, DueEntry, Store, StoreError};

/// How long after its end a bucket stays open for entries that were written late.
const GRACE: Duration = Duration::from_secs(3);
/// How many entries one read takes.
const READ_ENTRIES_MAX: usize = 1_000;
/// How many buckets one sweep reads at most; the next sweep goes on from there.
const SWEEP_BUCKETS_MAX: i64 = 120;
/// How often the cursor is written when nothing forces it.
const CURSOR_INTERVAL: Duration = Duration::from_secs(5);

/// An entry that is due, with its number in the order of this ownership's hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hint {
    /// Ascends from 0.
    pub sequence: u64,
    /// The entry.
    pub entry: DueEntry,
}

/// What one sweep read.
#[derive(Debug)]
pub(super) struct Swept {
    /// When the reading began, and the first bucket that a commit under way then added to.
    began: Timestamp,
    unwritten: Option<DueBucket>,
    /// The buckets that were read whole, with their entries.
    buckets: Vec<(DueBucket, Vec<DueEntry>)>,
}

/// The sweep of one partition's shard.
#[derive(Debug)]
pub(super) struct Sweep {
    cursor: DueBucket,
    open: BTreeMap<DueBucket, OpenBucket>,
    next_sequence: u64,
    reading: bool,
    cursor_written: DueBucket,
    cursor_written_at: Timestamp,
}

/// A bucket at or past the cursor of which something was read.
#[derive(Debug, Default)]
struct OpenBucket {
    seen: HashSet<DueEntry>,
    /// The sequence number after the bucket's last hint; zero if it had none.
    settled_at: u64,
    /// Whether it was read after its end and the grace.
    complete: bool,
}

impl Sweep {
    pub(super) fn new(cursor: DueBucket, now: Timestamp) -> Self {
        Self {
            cursor,
            open: BTreeMap::new(),
            next_sequence: 0,
            reading: false,
            cursor_written: cursor,
            cursor_written_at: now,
        }
    }

    /// The buckets to read now, or `None` while a read is under way.
    pub(super) fn begin(&mut self, now: Timestamp) -> Option<std::ops::RangeInclusive<i64>> {
        if self.reading {
            return None;
        }
        let last = DueBucket::of(now).0.min(self.cursor.0 + SWEEP_BUCKETS_MAX);
        let first = self
            .open
            .iter()
            .find(|(_, bucket)| !bucket.complete)
            .map_or_else(
                || {
                    self.open
                        .last_key_value()
                        .map_or(self.cursor.0, |(last, _)| last.0 + 1)
                },
                |(bucket, _)| bucket.0,
            );
        if first > last {
            return None;
        }
        self.reading = true;
        Some(first..=last)
    }

    /// Ends a read that failed; the next sweep repeats it.
    pub(super) fn failed(&mut self) {
        self.reading = false;
    }

    /// Takes what a sweep read and returns the hints that are due and new. An entry of the current second that is not due yet is left for the next sweep.
    pub(super) fn take(&mut self, swept: Swept, now: Timestamp) -> Vec<Hint> {
        self.reading = false;
        let mut hints = Vec::new();
        for (bucket, entries) in swept.buckets {
            if bucket < self.cursor {
                continue;
            }
            let open = self.open.entry(bucket).or_default();
            for entry in entries {
                if entry.due <= now && open.seen.insert(entry) {
                    hints.push(Hint {
                        sequence: self.next_sequence,
                        entry,
                    });
                    self.next_sequence += 1;
                    open.settled_at = self.next_sequence;
                }
            }
            open.complete = swept.began >= bucket.end() + GRACE
                && swept.unwritten.is_none_or(|unwritten| unwritten > bucket);
        }
        hints
    }

    /// Moves the cursor behind what is settled (all hints below `settled`) and is not about to be
    /// written (`unwritten` is the first bucket that a commit under way adds an entry to). Returns
    /// the cursor to write, if it is time to.
    pub(super) fn advance(
        &mut self,
        settled: u64,
        unwritten: Option<DueBucket>,
        now: Timestamp,
    ) -> Option<DueBucket> {
        while let Some(first) = self.open.first_entry() {
            let bucket = *first.key();
            let open = first.get();
            if !open.complete
                || open.settled_at > settled
                || unwritten.is_some_and(|unwritten| unwritten <= bucket)
            {
                break;
            }
            first.remove();
            self.cursor = DueBucket(bucket.0 + 1);
        }
        let due = now.since(self.cursor_written_at) >= CURSOR_INTERVAL;
        (due && self.cursor > self.cursor_written).then(|| {
            self.cursor_written = self.cursor;
            self.cursor_written_at = now;
            self.cursor
        })
    }
}

/// Reads `buckets` of a shard whole.
pub(super) async fn read(
    store: Arc<dyn Store>,
    shard: PartitionId,
    buckets: std::ops::RangeInclusive<i64>,
    began: Timestamp,
    unwritten: Option<DueBucket>,
) -> Result<Swept, StoreError> {
    let mut read = Vec::new();
    for bucket in buckets.map(DueBucket) {
        let mut entries: Vec<DueEntry> = Vec::new();
        loop {
            let after = entries.last().copied();
            let page = store.due(shard, bucket, after, READ_ENTRIES_MAX).await?;
            let is_last = page.len() < READ_ENTRIES_MAX;
            entries.extend(page);
            if is_last {
                break;
            }
        }
        read.push((bucket, entries));
    }
    Ok(Swept {
        began,
        unwritten,
        buckets: read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use waybill_engine::OperationId;

    fn operation(n: u128) -> OperationId {
        OperationId(uuid::Uuid::from_u128(n))
    }

    fn at(second: i64, millis: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000 + millis)
    }

    fn entry(second: i64, n: u128) -> DueEntry {
        DueEntry {
            due: at(second, 100),
            operation: operation(n),
        }
    }

    fn swept(began: Timestamp, buckets: &[(i64, &[DueEntry])]) -> Swept {
        let buckets = buckets
            .iter()
            .map(|(b, entries)| (DueBucket(*b), entries.to_vec()))
            .collect();
        Swept {
            began,
            unwritten: None,
            buckets,
        }
    }

    #[test]
    fn a_hint_is_given_once_however_often_its_bucket_is_read() {
        let mut sweep = Sweep::new(DueBucket(10), at(10, 0));
        assert_eq!(sweep.begin(at(10, 500)), Some(10..=10));
        let first = sweep.take(swept(at(10, 500), &[(10, &[entry(10, 1)])]), at(10, 500));
        assert_eq!(
            first,
            vec![Hint {
                sequence: 0,
                entry: entry(10, 1)
            }]
        );
        assert_eq!(sweep.begin(at(11, 0)), Some(10..=11));
        let read = swept(at(11, 0), &[(10, &[entry(10, 1), entry(10, 2)]), (11, &[])]);
        let second = sweep.take(read, at(11, 0));
        assert_eq!(
            second,
            vec![Hint {
                sequence: 1,
                entry: entry(10, 2)
            }]
        );
    }

    #[test]
    fn the_cursor_waits_for_settled_hints_for_the_grace_and_for_commits_under_way() {
        let mut sweep = Sweep::new(DueBucket(10), at(10, 0));
        sweep.begin(at(20, 0)).expect("nothing is being read");
        let hints = sweep.take(
            swept(at(14, 0), &[(10, &[entry(10, 1)]), (11, &[]), (12, &[])]),
            at(20, 0),
        );
        assert_eq!(hints.len(), 1);
        assert_eq!(
            sweep.advance(0, None, at(20, 0)),
            None,
            "hint 0 is not settled"
        );
        assert_eq!(
            sweep.advance(1, Some(DueBucket(10)), at(20, 0)),
            None,
            "a commit is under way"
        );
        // Bucket 11 ended at 12 and was read at 14: before its grace of three seconds was over.
        assert_eq!(sweep.advance(1, None, at(20, 0)), Some(DueBucket(11)));
    }

    #[test]
    fn a_bucket_that_a_commit_was_adding_to_while_it_was_read_is_read_again() {
        let mut sweep = Sweep::new(DueBucket(10), at(10, 0));
        sweep.begin(at(20, 0)).expect("nothing is being read");
        let mut read = swept(at(20, 0), &[(10, &[])]);
        read.unwritten = Some(DueBucket(10));
        assert_eq!(sweep.take(read, at(20, 0)), vec![]);
        // The commit is through by now, but the bucket was read before it was.
        assert_eq!(sweep.advance(0, None, at(20, 0)), None);
        sweep.begin(at(20, 500)).expect("nothing is being read");
        let read = swept(at(20, 500), &[(10, &[entry(10, 1)])]);
        assert_eq!(sweep.take(read, at(20, 500)).len(), 1);
    }

    #[test]
    fn an_entry_that_is_not_due_yet_is_given_by_a_later_sweep() {
        let mut sweep = Sweep::new(DueBucket(10), at(10, 0));
        let early = swept(at(10, 50), &[(10, &[entry(10, 1)])]);
        assert_eq!(sweep.take(early, at(10, 50)), vec![]);
        let later = swept(at(10, 150), &[(10, &[entry(10, 1)])]);
        let hints = sweep.take(later, at(10, 150));
        assert_eq!(
            hints,
            vec![Hint {
                sequence: 0,
                entry: entry(10, 1)
            }]
        );
    }
}
