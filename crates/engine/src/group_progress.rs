//! How far a group member has got in each of its partitions: which records are done, and which
//! offsets to commit.
//!
//! What must hold: a commit never passes a record that was begun and is not done. And a record
//! never counts as already read because an older log had a record at the same offset. If a topic
//! was recreated, or a log lost its end, the client finds its position beyond the end and reads the
//! log from its beginning, under the same assignment. So a record at a lower offset than the last
//! one begins another log: all records of the old one are forgotten, as if the partition had been
//! revoked and assigned again.
//!
//! This relies on the consumer: within one log it hands over records in ascending order. It resumes
//! only paused partitions, and never seeks backwards.

use std::collections::BTreeMap;

use crate::id::{Offset, PartitionId};
use crate::tracker::OffsetTracker;

/// The progress in all partitions that are assigned to the member. `T` identifies a topic.
#[derive(Debug)]
pub struct GroupProgress<T> {
    partitions: BTreeMap<(T, PartitionId), Assigned>,
    assignments: u64,
    open: usize,
}

/// A record that was read, and the assignment under which it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consumed<T> {
    /// Its topic.
    pub topic: T,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    assignment: u64,
}

impl<T> Consumed<T> {
    fn new(topic: T, partition: PartitionId, offset: Offset, assignment: u64) -> Self {
        Self {
            topic,
            partition,
            offset,
            assignment,
        }
    }
}

/// A record that was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun<T> {
    /// The record.
    pub record: Consumed<T>,
    /// How far the old log had been read, if the record begins another log: the topic was
    /// recreated, or lost its end. Unfinished records of the old log count no longer.
    pub old_log_read_to: Option<Offset>,
}

#[derive(Debug)]
struct Assigned {
    /// Distinguishes this assignment from earlier ones of the same partition.
    number: u64,
    /// `None` until the first record shows where the partition begins.
    tracker: Option<OffsetTracker>,
    committed: Option<Offset>,
}

impl Assigned {
    fn new(number: u64) -> Self {
        Self {
            number,
            tracker: None,
            committed: None,
        }
    }

    /// Begins the record at an offset, counts it as `open`, and returns the number of the
    /// assignment; `None` if it was begun before.
    fn begin(&mut self, offset: Offset, open: &mut usize) -> Option<u64> {
        let tracker = self
            .tracker
            .get_or_insert_with(|| OffsetTracker::new(offset));
        let is_new = tracker.begin(offset);
        *open += usize::from(is_new);
        is_new.then_some(self.number)
    }

    fn open(&self) -> usize {
        self.tracker.as_ref().map_or(0, OffsetTracker::pending)
    }
}

impl<T> Default for GroupProgress<T> {
    fn default() -> Self {
        Self {
            partitions: BTreeMap::new(),
            assignments: 0,
            open: 0,
        }
    }
}

impl<T: Copy + Ord> GroupProgress<T> {
    /// Records that a partition was assigned.
    pub fn assign(&mut self, topic: T, partition: PartitionId) {
        self.assignments += 1;
        let assigned = Assigned::new(self.assignments);
        if let Some(old) = self.partitions.insert((topic, partition), assigned) {
            self.open -= old.open();
        }
    }

    /// Records that a partition was revoked. Returns the offset to commit before it is given up,
    /// even if it was committed already: that commit may have failed.
    pub fn revoke(&mut self, topic: T, partition: PartitionId) -> Option<Offset> {
        let assigned = self.partitions.remove(&(topic, partition))?;
        self.open -= assigned.open();
        assigned.tracker.map(|tracker| tracker.low())
    }

    /// Begins a record that was handed over. `None` if its partition is not assigned.
    pub fn begin(&mut self, topic: T, partition: PartitionId, offset: Offset) -> Option<Begun<T>> {
        let assigned = self.partitions.get_mut(&(topic, partition))?;
        let read_to = assigned.tracker.as_ref().map(OffsetTracker::next);
        let old_log_read_to = read_to.filter(|read_to| offset < *read_to);
        if old_log_read_to.is_some() {
            self.open -= assigned.open();
            self.assignments += 1;
            *assigned = Assigned::new(self.assignments);
        }
        let assignment = assigned.begin(offset, &mut self.open)?;
        Some(Begun {
            record: Consumed::new(topic, partition, offset, assignment),
            old_log_read_to,
        })
    }

    /// Begins an undecodable record at an offset. `None` if the partition is not assigned, or was
    /// read further: the client may meet undecodable records again.
    pub fn begin_undecodable(
        &mut self,
        topic: T,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Consumed<T>> {
        let assigned = self.partitions.get_mut(&(topic, partition))?;
        let assignment = assigned.begin(offset, &mut self.open)?;
        Some(Consumed::new(topic, partition, offset, assignment))
    }

    /// Records that there are no records between those that were begun and `next`.
    pub fn pass(&mut self, topic: T, partition: PartitionId, next: Offset) {
        let assigned = self.partitions.get_mut(&(topic, partition));
        if let Some(tracker) = assigned.and_then(|assigned| assigned.tracker.as_mut()) {
            tracker.pass(Offset(next.0 - 1), 0);
        }
    }

    /// Whether the member still owns the record's partition, under the same assignment.
    #[must_use]
    pub fn holds(&self, record: Consumed<T>) -> bool {
        let assigned = self.partitions.get(&(record.topic, record.partition));
        assigned.is_some_and(|assigned| assigned.number == record.assignment)
    }

    /// Marks a record as done. Has no effect after its partition was revoked.
    pub fn done(&mut self, record: Consumed<T>) {
        if let Some(assigned) = self.partitions.get_mut(&(record.topic, record.partition))
            && assigned.number == record.assignment
            && let Some(tracker) = &mut assigned.tracker
        {
            let before = tracker.pending();
            tracker.done(record.offset);
            self.open -= before - tracker.pending();
        }
    }

    /// The partitions that have advanced since the last call, each with the offset to commit.
    pub fn take_commits(&mut self) -> Vec<(T, PartitionId, Offset)> {
        let moved = |((topic, partition), assigned): (&(T, PartitionId), &mut Assigned)| {
            let low = assigned.tracker.as_ref()?.low();
            let before = assigned.committed.replace(low);
            (before != Some(low)).then_some((*topic, *partition, low))
        };
        self.partitions.iter_mut().filter_map(moved).collect()
    }

    /// The number of records that are not done.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// How far reading is ahead of the offsets that can be committed, over all partitions.
    #[must_use]
    pub fn ahead(&self) -> usize {
        let trackers = self.partitions.values().filter_map(|a| a.tracker.as_ref());
        let ahead = trackers.map(|tracker| tracker.next().0 - tracker.low().0);
        usize::try_from(ahead.sum::<i64>()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u8 = 0;
    const P: PartitionId = PartitionId(3);

    fn begin(progress: &mut GroupProgress<u8>, offset: i64) -> Consumed<u8> {
        let begun = progress.begin(T, P, Offset(offset)).unwrap();
        assert_eq!(begun.old_log_read_to, None);
        begun.record
    }

    fn begun(progress: &mut GroupProgress<u8>, count: i64) -> Vec<Consumed<u8>> {
        let offsets = 100..100 + count;
        offsets.map(|offset| begin(progress, offset)).collect()
    }

    fn assigned() -> GroupProgress<u8> {
        let mut progress = GroupProgress::default();
        progress.assign(T, P);
        progress
    }

    #[test]
    fn a_commit_never_passes_a_record_that_is_not_done() {
        let mut progress = assigned();
        let records = begun(&mut progress, 3);
        assert_eq!(progress.take_commits(), [(T, P, Offset(100))]);
        progress.done(records[1]);
        assert_eq!(progress.take_commits(), []);
        assert_eq!((progress.open(), progress.ahead()), (2, 3));
        progress.done(records[0]);
        assert_eq!(progress.take_commits(), [(T, P, Offset(102))]);
        assert_eq!((progress.open(), progress.ahead()), (1, 1));
        progress.done(records[2]);
        progress.done(records[2]);
        assert_eq!((progress.open(), progress.ahead()), (0, 0));
        assert_eq!(progress.revoke(T, P), Some(Offset(103)));
        assert_eq!(progress.revoke(T, P), None);
    }

    #[test]
    fn a_record_of_an_earlier_assignment_moves_nothing() {
        let mut progress = assigned();
        let old = begun(&mut progress, 1)[0];
        progress.revoke(T, P);
        assert_eq!(progress.open(), 0);
        progress.assign(T, P);
        let new = begun(&mut progress, 1)[0];
        progress.done(old);
        assert!(!progress.holds(old));
        assert!(progress.holds(new));
        assert_eq!(progress.open(), 1);
        assert_eq!(progress.take_commits(), [(T, P, Offset(100))]);
    }

    #[test]
    fn skipped_offsets_are_committed_after_earlier_records() {
        let mut progress = assigned();
        let open = begun(&mut progress, 1)[0];
        progress.pass(T, P, Offset(104));
        assert_eq!(progress.take_commits(), [(T, P, Offset(100))]);
        progress.done(open);
        assert_eq!(progress.open(), 0);
        assert_eq!(progress.take_commits(), [(T, P, Offset(104))]);
    }

    #[test]
    fn an_undecodable_record_read_again_is_begun_once_and_drops_nothing() {
        let mut progress = assigned();
        let open = begun(&mut progress, 2);
        let undecodable = progress.begin_undecodable(T, P, Offset(102)).unwrap();
        progress.pass(T, P, Offset(110));
        assert_eq!(progress.begin_undecodable(T, P, Offset(102)), None);
        assert!(open.iter().all(|record| progress.holds(*record)));
        assert_eq!(progress.open(), 3);
        progress.done(undecodable);
        assert_eq!(progress.take_commits(), [(T, P, Offset(100))]);
        for record in open {
            progress.done(record);
        }
        assert_eq!(progress.take_commits(), [(T, P, Offset(110))]);
    }

    #[test]
    fn a_recreated_log_is_read_from_its_beginning() {
        let mut progress = assigned();
        let old = begun(&mut progress, 3);
        progress.done(old[0]);
        assert_eq!(progress.take_commits(), [(T, P, Offset(101))]);

        let Begun {
            record: first,
            old_log_read_to,
        } = progress.begin(T, P, Offset(0)).unwrap();
        assert_eq!(old_log_read_to, Some(Offset(103)));
        assert!(progress.holds(first));
        assert!(old.iter().all(|record| !progress.holds(*record)));
        assert_eq!(progress.open(), 1);
        // Unfinished records of the old log commit nothing in the new one.
        for record in old {
            progress.done(record);
        }
        assert_eq!(progress.take_commits(), [(T, P, Offset(0))]);
        let second = begin(&mut progress, 1);
        progress.done(first);
        progress.done(second);
        assert_eq!(progress.open(), 0);
        assert_eq!(progress.take_commits(), [(T, P, Offset(2))]);
    }

    #[test]
    fn a_record_of_a_partition_that_is_not_assigned_is_not_begun() {
        let mut progress = assigned();
        assert_eq!(progress.begin(1, P, Offset(7)), None);
        assert_eq!(progress.begin_undecodable(1, P, Offset(7)), None);
        assert_eq!(progress.open(), 0);
    }
}
