//! The progress in each partition of the agents' topics, shared by the polling thread and the
//! workers.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use waybill_engine::{Begun, Consumed, GroupProgress, Offset, PartitionId};

/// A consumed record. `topic` is the index of the agent in this process.
pub(super) type Source = Consumed<usize>;

/// The partitions that are assigned to this process.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    progress: Mutex<GroupProgress<usize>>,
    /// Notified whenever the last open record is done.
    idle: Condvar,
}

impl Offsets {
    /// Records that a partition was assigned.
    pub(super) fn assign(&self, agent: usize, partition: PartitionId) {
        self.progress().assign(agent, partition);
    }

    /// Records that a partition was revoked. Returns the offset to commit before it is given up.
    pub(super) fn revoke(&self, agent: usize, partition: PartitionId) -> Option<Offset> {
        let mut progress = self.progress();
        let offset = progress.revoke(agent, partition);
        self.notify_if_idle(&progress);
        offset
    }

    /// Begins a record of the agent's topic. `None` if its partition is not assigned.
    pub(super) fn begin(
        &self,
        agent: usize,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Begun<usize>> {
        self.progress().begin(agent, partition, offset)
    }

    /// Begins an undecodable record at an offset. `None` if the partition is not assigned, or was
    /// read further.
    pub(super) fn begin_unread(
        &self,
        agent: usize,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Source> {
        self.progress().begin_unread(agent, partition, offset)
    }

    /// Records that there are no records between those that were begun and `next`.
    pub(super) fn pass(&self, agent: usize, partition: PartitionId, next: Offset) {
        self.progress().pass(agent, partition, next);
    }

    /// Whether this process still owns the record's partition.
    pub(super) fn holds(&self, source: Source) -> bool {
        self.progress().holds(source)
    }

    /// Marks a record as done. Has no effect after its partition was revoked.
    pub(super) fn done(&self, source: Source) {
        let mut progress = self.progress();
        progress.done(source);
        self.notify_if_idle(&progress);
    }

    /// The partitions that have advanced since the last call: agent, partition, and the offset to
    /// commit.
    pub(super) fn take_commits(&self) -> Vec<(usize, PartitionId, Offset)> {
        self.progress().take_commits()
    }

    /// The number of records that are not done.
    pub(super) fn open(&self) -> usize {
        self.progress().open()
    }

    /// Blocks until every record is done, or `until`.
    pub(super) fn wait_idle(&self, until: Instant) {
        let mut progress = self.progress();
        while progress.open() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            progress = self
                .idle
                .wait_timeout(progress, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn notify_if_idle(&self, progress: &GroupProgress<usize>) {
        if progress.open() == 0 {
            self.idle.notify_all();
        }
    }

    fn progress(&self) -> MutexGuard<'_, GroupProgress<usize>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
