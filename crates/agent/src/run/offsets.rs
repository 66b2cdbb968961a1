//! How far each partition of the agents' topics is done.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use waybill_engine::{Offset, OffsetTracker, PartitionId};

/// A consumed record, and the assignment under which it was consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    /// The agent, as an index into those of the process.
    pub(super) agent: usize,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    assignment: u64,
}

/// The partitions that are assigned to this process.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    state: Mutex<State>,
    /// Told whenever the last open record is done.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    partitions: HashMap<(usize, PartitionId), Assigned>,
    assignments: u64,
    open: usize,
}

#[derive(Debug)]
struct Assigned {
    /// Tells this assignment from earlier ones of the same partition.
    assignment: u64,
    /// `None` until the first record shows where the partition is read from.
    tracker: Option<OffsetTracker>,
    committed: Option<Offset>,
}

impl Offsets {
    /// A partition was assigned.
    pub(super) fn assign(&self, agent: usize, partition: PartitionId) {
        let mut state = self.state();
        state.assignments += 1;
        let assigned = Assigned {
            assignment: state.assignments,
            tracker: None,
            committed: None,
        };
        if let Some(old) = state.partitions.insert((agent, partition), assigned) {
            state.forget(&old);
        }
    }

    /// A partition was taken away. Returns the offset to commit before it is given up.
    pub(super) fn revoke(&self, agent: usize, partition: PartitionId) -> Option<Offset> {
        let mut state = self.state();
        let assigned = state.partitions.remove(&(agent, partition))?;
        state.forget(&assigned);
        self.tell_if_idle(&state);
        // Also where it was committed already: that commit may have failed.
        assigned.tracker.map(|tracker| tracker.low())
    }

    /// A record was read. `None` if it was read before, or its partition is not assigned.
    pub(super) fn begin(
        &self,
        agent: usize,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Source> {
        let mut state = self.state();
        let assigned = state.partitions.get_mut(&(agent, partition))?;
        let assignment = assigned.assignment;
        let tracker = assigned
            .tracker
            .get_or_insert_with(|| OffsetTracker::new(offset));
        if !tracker.begin(offset) {
            return None;
        }
        state.open += 1;
        Some(Source {
            agent,
            partition,
            offset,
            assignment,
        })
    }

    /// There are no records before `next`, further than those that were begun.
    pub(super) fn pass(&self, agent: usize, partition: PartitionId, next: Offset) {
        let mut state = self.state();
        let assigned = state.partitions.get_mut(&(agent, partition));
        if let Some(tracker) = assigned.and_then(|assigned| assigned.tracker.as_mut()) {
            tracker.pass(Offset(next.0 - 1), 0);
        }
    }

    /// Whether the record's partition is still this process's.
    pub(super) fn holds(&self, source: Source) -> bool {
        self.state()
            .partitions
            .get(&(source.agent, source.partition))
            .is_some_and(|assigned| assigned.assignment == source.assignment)
    }

    /// A record is done. Harmless once its partition was taken away.
    pub(super) fn done(&self, source: Source) {
        let mut state = self.state();
        let Some(assigned) = state.partitions.get_mut(&(source.agent, source.partition)) else {
            return;
        };
        if assigned.assignment != source.assignment {
            return;
        }
        let Some(tracker) = &mut assigned.tracker else {
            return;
        };
        let before = tracker.pending();
        tracker.done(source.offset);
        state.open -= before - tracker.pending();
        self.tell_if_idle(&state);
    }

    /// What has moved since the last call: agent, partition, and the offset to commit.
    pub(super) fn take_commits(&self) -> Vec<(usize, PartitionId, Offset)> {
        let mut state = self.state();
        state
            .partitions
            .iter_mut()
            .filter_map(|((agent, partition), assigned)| {
                let offset = assigned.uncommitted()?;
                assigned.committed = Some(offset);
                Some((*agent, *partition, offset))
            })
            .collect()
    }

    /// How many records are not done.
    pub(super) fn open(&self) -> usize {
        self.state().open
    }

    /// Blocks until every record is done, or `until`.
    pub(super) fn wait_idle(&self, until: Instant) {
        let mut state = self.state();
        while state.open > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self
                .idle
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn tell_if_idle(&self, state: &State) {
        if state.open == 0 {
            self.idle.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, assigned: &Assigned) {
        self.open -= assigned.tracker.as_ref().map_or(0, OffsetTracker::pending);
    }
}

impl Assigned {
    fn uncommitted(&self) -> Option<Offset> {
        let low = self.tracker.as_ref()?.low();
        (self.committed != Some(low)).then_some(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    fn begun(offsets: &Offsets, count: i64) -> Vec<Source> {
        (0..count)
            .map(|offset| offsets.begin(0, P, Offset(100 + offset)).unwrap())
            .collect()
    }

    #[test]
    fn a_commit_never_passes_an_open_record() {
        let offsets = Offsets::default();
        offsets.assign(0, P);
        let sources = begun(&offsets, 3);
        offsets.done(sources[1]);
        assert_eq!(offsets.take_commits(), vec![(0, P, Offset(100))]);
        offsets.done(sources[0]);
        assert_eq!(offsets.take_commits(), vec![(0, P, Offset(102))]);
        assert_eq!(offsets.take_commits(), vec![]);
        offsets.done(sources[2]);
        assert_eq!(offsets.open(), 0);
        assert_eq!(offsets.revoke(0, P), Some(Offset(103)));
    }

    #[test]
    fn a_record_of_an_earlier_assignment_moves_nothing() {
        let offsets = Offsets::default();
        offsets.assign(0, P);
        let old = begun(&offsets, 1)[0];
        offsets.revoke(0, P);
        offsets.assign(0, P);
        let new = begun(&offsets, 1)[0];
        offsets.done(old);
        assert!(!offsets.holds(old));
        assert!(offsets.holds(new));
        assert_eq!(offsets.open(), 1);
        assert_eq!(offsets.take_commits(), vec![(0, P, Offset(100))]);
    }

    #[test]
    fn offsets_that_were_passed_over_are_committed_behind_what_was_begun_before() {
        let offsets = Offsets::default();
        offsets.assign(0, P);
        let open = begun(&offsets, 1)[0];
        offsets.pass(0, P, Offset(104));
        assert_eq!(offsets.take_commits(), vec![(0, P, Offset(100))]);
        offsets.done(open);
        assert_eq!(offsets.open(), 0);
        assert_eq!(offsets.take_commits(), vec![(0, P, Offset(104))]);
    }

    #[test]
    fn a_record_that_is_read_twice_is_begun_once() {
        let offsets = Offsets::default();
        offsets.assign(0, P);
        begun(&offsets, 2);
        assert_eq!(offsets.begin(0, P, Offset(101)), None);
        assert_eq!(offsets.begin(1, P, Offset(7)), None);
        assert_eq!(offsets.open(), 2);
    }
}
