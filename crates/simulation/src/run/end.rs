//! Whether a run has ended: all operations have, and no process has anything left to do.

use waybill_engine::{OperationId, PartitionId, ShardId, Source, TopicOffsets};
use waybill_state::LeaseKey;

use crate::history::Rule;
use crate::run::Run;
use crate::schedulers::Scheduler;
use crate::store::position;

impl Run {
    /// Whether the run has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_calm()
            && self.queue.is_idle()
            && self.agents_rest()
            && self.store.rows().all(|row| {
                if self.is_refused(self.home_of(row.id)) {
                    return true;
                }
                let waits = self.judge.was_unreadable(row.id) && self.is_to_be_looked_at(row.id);
                let has_ended = self.judge.is_announced(row) || self.judge.may_be_silent(row);
                has_ended && !waits
            })
            && self
                .store
                .layout
                .scheme()
                .all()
                .all(|shard| self.is_at_rest(shard) || self.refuse(shard))
    }

    /// Whether an entry of the deadline index will wake an operation.
    fn is_to_be_looked_at(&self, operation: OperationId) -> bool {
        let mut logs = self.store.logs.iter();
        logs.any(|logs| logs.will_wake(operation))
    }

    /// Whether no process runs any shard of a partition, because its log has lost requests.
    pub fn is_refused(&self, partition: usize) -> bool {
        let scheme = self.store.layout.scheme();
        let mut shards = scheme.of_partition(PartitionId(u32::try_from(partition).unwrap()));
        shards.any(|shard| self.refuse(shard))
    }

    /// Whether every process refuses to run a shard whose log has lost requests that are not done.
    fn refuse(&self, shard: ShardId) -> bool {
        let key = LeaseKey::scheduler(self.store.layout.generation(), shard);
        let partition = self.store.layout.scheme().partition_of(shard);
        // A partition without a lease has never run.
        let lease = self.store.leases.get(&key);
        let done = lease.map_or_else(TopicOffsets::default, |lease| lease.checkpoint.at);
        let logs = &self.store.logs[partition.0 as usize];
        let mut sources = Source::ALL.into_iter();
        let has_lost =
            sources.any(|source| position(&done, source) < logs.first[Self::index_of(source)]);
        has_lost && self.schedulers.iter().all(|process| process.refuses(shard))
    }

    fn is_at_rest(&self, shard: ShardId) -> bool {
        let key = LeaseKey::scheduler(self.store.layout.generation(), shard);
        let Some(lease) = self.store.leases.get(&key) else {
            return false;
        };
        let logs = &self.store.logs[lease.partition.0 as usize];
        let idle = self
            .schedulers
            .iter()
            .any(|process| process.rests_with(lease));
        let last_reply = logs.replies.iter().rposition(Option::is_some);
        let checkpoint = &lease.checkpoint.at;
        let is_done = |source| position(checkpoint, source) == logs.len(source);
        idle && is_done(Source::Requests)
            && is_done(Source::HighPriority)
            && position(checkpoint, Source::Replies) >= last_reply.map_or(0, |last| last + 1)
            && is_done(Source::Recoveries)
            && logs.failed_next == logs.failed.len()
    }

    pub(super) fn report_unfinished(&mut self) {
        let left = self
            .store
            .rows()
            .find(|row| !self.judge.is_announced(row) && !self.judge.may_be_silent(row));
        let operation = left.map(|row| row.id);
        let state = left.map(|row| row.state.clone());
        let logs = self.store.logs.iter();
        let logs: Vec<_> = logs
            .map(|logs| {
                let ends = Source::ALL.map(|source| logs.len(source));
                (ends, logs.failed_next, logs.failed.len())
            })
            .collect();
        let schedulers: Vec<_> = self.schedulers.iter().map(Scheduler::describe).collect();
        let agents = self.agents.describe(self.now);
        let leases = self.store.leases.clone();
        let layout = self.store.layout.clone();
        self.fail(Rule::Lost, operation, || {
            let leases = &leases;
            format!(
                "the operation did not end: {state:?}\nlogs {logs:?}\n{layout}\n{leases:#?}\n\
                 {schedulers:#?}\nagents {agents:#?}"
            )
        });
    }
}
