//! The state store and the recovery topic, which survive every process.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;
use waybill_engine::{OperationId, OperationRow, PartitionId, Recovery, Timestamp};
use waybill_state::{
    AttentionCursor, AttentionEntry, AttentionPage, CorruptRow, DueBucket, DueEntry, Lease, RowRead,
};

/// What is stored of an index shard, and of the partition with the same number.
#[derive(Debug, Default)]
pub struct Shard {
    pub lease: Option<Lease>,
    pub cursor: Option<DueBucket>,
    pub entries: BTreeSet<DueEntry>,
    pub attention: BTreeSet<AttentionEntry>,
    /// The recovery topic.
    pub recoveries: Vec<(OperationId, Option<Timestamp>)>,
    /// How many of them the scheduler has done.
    pub done: usize,
}

#[derive(Debug, Default)]
pub struct Store {
    pub shards: Vec<Shard>,
    pub rows: BTreeMap<OperationId, OperationRow>,
    pub unreadable: BTreeSet<OperationId>,
}

impl Store {
    pub fn take_lease(&mut self, shard: usize, seen: Option<&Lease>, lease: Lease) -> bool {
        let stored = &mut self.shards[shard].lease;
        let is_written = stored.as_ref() == seen;
        if is_written {
            *stored = Some(lease);
        }
        is_written
    }

    pub fn renew_lease(&mut self, shard: usize, lease: Lease) -> bool {
        let stored = &mut self.shards[shard].lease;
        let is_written = stored.as_ref().is_some_and(|stored| {
            let is_same = (stored.owner, stored.epoch) == (lease.owner, lease.epoch);
            *stored == lease || (is_same && stored.renewal < lease.renewal)
        });
        if is_written {
            *stored = Some(lease);
        }
        is_written
    }

    pub fn due(
        &self,
        shard: usize,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> Vec<DueEntry> {
        let first = DueEntry {
            due: bucket.start(),
            operation: OperationId(Uuid::nil()),
        };
        let from = self.shards[shard].entries.range(first..);
        let of_bucket = from.take_while(|entry| entry.due < bucket.end());
        let rest = of_bucket.filter(|entry| after.is_none_or(|after| **entry > after));
        rest.take(limit).copied().collect()
    }

    pub fn attention_page(
        &self,
        shard: usize,
        cursor: AttentionCursor,
        limit: usize,
    ) -> AttentionPage {
        let entries = self.shards[shard].attention.iter();
        let rest = entries.filter(|entry| cursor.after.is_none_or(|after| **entry > after));
        let entries: Vec<AttentionEntry> = rest.take(limit).copied().collect();
        let is_full = entries.len() == limit;
        let next = entries
            .last()
            .filter(|_| is_full)
            .map(|&after| AttentionCursor {
                after: Some(after),
                ..cursor
            });
        AttentionPage { entries, next }
    }

    pub fn get_many(&self, ids: &[OperationId]) -> Vec<RowRead> {
        let read = |id: &OperationId| match self.unreadable.contains(id) {
            true => Err(CorruptRow {
                id: *id,
                what: "state",
                cause: "damaged".to_owned(),
            }),
            false => Ok(self.rows.get(id).cloned()),
        };
        ids.iter().map(read).collect()
    }

    pub fn append(&mut self, shard: usize, recovery: &Recovery) {
        let record = (recovery.operation, recovery.due);
        self.shards[shard].recoveries.push(record);
    }

    /// The partition of an operation.
    pub fn partition_of(&self, operation: OperationId) -> PartitionId {
        let partitions = u32::try_from(self.shards.len()).unwrap();
        waybill_engine::partition_for(operation, partitions)
    }
}
