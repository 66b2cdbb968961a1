//! How far a receiver has had the alerts of each partition.

use std::collections::HashMap;
use std::fmt;

use waybill_engine::{Offset, OffsetTracker, PartitionId};

/// A record that was read, and the assignment under which it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    partition: PartitionId,
    offset: Offset,
    assignment: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} offset {}", self.partition, self.offset)
    }
}

/// The partitions that are assigned to this process.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    assigned: HashMap<PartitionId, Assigned>,
    assignments: u64,
}

#[derive(Debug)]
struct Assigned {
    /// Tells this assignment from earlier ones of the same partition.
    number: u64,
    /// `None` until the first record shows where the partition is read from.
    tracker: Option<OffsetTracker>,
    committed: Option<Offset>,
}

impl Partitions {
    /// A partition was assigned.
    pub(super) fn assign(&mut self, partition: PartitionId) {
        self.assignments += 1;
        let assigned = Assigned {
            number: self.assignments,
            tracker: None,
            committed: None,
        };
        self.assigned.insert(partition, assigned);
    }

    /// A partition was taken away. Returns the offset to commit before it is given up.
    pub(super) fn revoke(&mut self, partition: PartitionId) -> Option<Offset> {
        // Also where it was committed already: that commit may have failed.
        let tracker = self.assigned.remove(&partition)?.tracker?;
        Some(tracker.low())
    }

    /// A record was read. `None` if it was read before, or its partition is not assigned.
    pub(super) fn begin(&mut self, partition: PartitionId, offset: Offset) -> Option<Place> {
        let assigned = self.assigned.get_mut(&partition)?;
        let tracker = assigned
            .tracker
            .get_or_insert_with(|| OffsetTracker::new(offset));
        tracker.begin(offset).then_some(Place {
            partition,
            offset,
            assignment: assigned.number,
        })
    }

    /// A record need not be read again. Harmless once its partition was taken away.
    pub(super) fn done(&mut self, place: Place) {
        if let Some(assigned) = self.assigned.get_mut(&place.partition)
            && assigned.number == place.assignment
            && let Some(tracker) = &mut assigned.tracker
        {
            tracker.done(place.offset);
        }
    }

    /// What has moved since the last call, each with the offset to commit.
    pub(super) fn take_commits(&mut self) -> Vec<(PartitionId, Offset)> {
        let moved = |(partition, assigned): (&PartitionId, &mut Assigned)| {
            let low = assigned.tracker.as_ref()?.low();
            let before = assigned.committed.replace(low);
            (before != Some(low)).then_some((*partition, low))
        };
        self.assigned.iter_mut().filter_map(moved).collect()
    }

    /// How far reading is ahead of what can be committed, in records over all partitions.
    pub(super) fn ahead(&self) -> usize {
        let trackers = self.assigned.values().filter_map(|a| a.tracker.as_ref());
        let ahead = trackers.map(|tracker| tracker.next().0 - tracker.low().0);
        usize::try_from(ahead.sum::<i64>()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    fn begun(partitions: &mut Partitions, count: i64) -> Vec<Place> {
        (100..100 + count)
            .map(|offset| partitions.begin(P, Offset(offset)).unwrap())
            .collect()
    }

    #[test]
    fn a_commit_never_passes_an_alert_that_is_not_settled() {
        let mut partitions = Partitions::default();
        partitions.assign(P);
        let places = begun(&mut partitions, 3);
        assert_eq!(partitions.take_commits(), [(P, Offset(100))]);
        partitions.done(places[1]);
        assert_eq!(partitions.take_commits(), []);
        assert_eq!(partitions.ahead(), 3);
        partitions.done(places[0]);
        assert_eq!(partitions.take_commits(), [(P, Offset(102))]);
        assert_eq!(partitions.ahead(), 1);
        partitions.done(places[2]);
        assert_eq!(partitions.ahead(), 0);
        assert_eq!(partitions.revoke(P), Some(Offset(103)));
        assert_eq!(partitions.revoke(P), None);
    }

    #[test]
    fn an_alert_of_an_earlier_assignment_moves_nothing() {
        let mut partitions = Partitions::default();
        partitions.assign(P);
        let old = begun(&mut partitions, 1)[0];
        partitions.revoke(P);
        partitions.assign(P);
        begun(&mut partitions, 1);
        partitions.done(old);
        assert_eq!(partitions.revoke(P), Some(Offset(100)));
    }

    #[test]
    fn a_record_that_is_read_twice_or_is_somebody_elses_is_begun_no_second_time() {
        let mut partitions = Partitions::default();
        partitions.assign(P);
        begun(&mut partitions, 2);
        assert_eq!(partitions.begin(P, Offset(101)), None);
        assert_eq!(partitions.begin(PartitionId(4), Offset(7)), None);
    }
}
