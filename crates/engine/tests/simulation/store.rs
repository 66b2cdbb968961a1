//! The state store and the logs, which survive every process.

use std::collections::BTreeMap;
use std::rc::Rc;

use waybill_engine::{
    ByPriority, Epoch, FailedOperation, KeyHash, OperationId, OperationRow, PartitionId, Priority,
    Recovery, RowChange, ShardHandover, ShardId, ShardingScheme, Source, Stamp, StepReply,
    Timestamp, TopicOffsets,
};

use crate::scheduler::offset;
use crate::supervisors::IndexShardLease;
use crate::workload::Record;

/// How long an owner may act after it has sent a renewal.
pub const LEASE_MICROS: u64 = 1_000_000;
/// The allowance of owners and candidates for delay.
pub const LEASE_MARGIN_MICROS: u64 = 100_000;

/// The offsets up to which the logs of a partition were read and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint(pub TopicOffsets);

impl Checkpoint {
    /// Builds a checkpoint from the offset of each log.
    pub fn of(at: impl Fn(Source) -> usize) -> Self {
        let mut offsets = TopicOffsets::default();
        for source in Source::ALL {
            *offsets.on_mut(source) = offset(at(source));
        }
        Self(offsets)
    }

    /// The offset in one of the logs.
    pub fn on(&self, source: Source) -> usize {
        usize::try_from(self.0.on(source).0).unwrap()
    }
}

/// The key of a lease: the generation of the layout, and the shard.
pub type LeaseKey = (usize, ShardId);

/// The lease row of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    pub owner: usize,
    pub epoch: Epoch,
    pub stamp_limit: Stamp,
    pub checkpoint: Checkpoint,
    /// When it was last written.
    pub changed_at: Timestamp,
    /// Its owner has released it.
    pub is_free: bool,
    /// A shard of the next layout has ended it for good.
    pub is_ended: bool,
    /// The records beyond its checkpoint that the shards it follows have done.
    pub handover: ShardHandover,
}

/// A row that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spoilt;

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    Stands,
    /// The stored row has a higher stamp.
    Fenced,
    /// The stored row has the same stamp.
    Clash,
}

/// The logs of one partition, and its part of the deadline index.
#[derive(Debug, Default)]
pub struct PartitionLogs {
    pub requests: ByPriority<Vec<Record>>,
    /// `None` at the position of a transaction's marker.
    pub replies: Vec<Option<Rc<StepReply>>>,
    pub recoveries: Vec<Rc<Recovery>>,
    pub failed: Vec<Rc<FailedOperation>>,
    /// The offset up to which supervisors have consumed `failed`, as far as is known.
    pub failed_next: usize,
    /// The deadline index, by bucket.
    pub index: BTreeMap<i64, Vec<(Timestamp, OperationId)>>,
    /// Buckets below this were swept.
    pub cursor: i64,
    /// The supervisor that sweeps them.
    pub sweeper: Option<IndexShardLease>,
}

#[derive(Debug, Default)]
pub struct Store {
    pub logs: Vec<PartitionLogs>,
    /// The sharding scheme of every generation; the last one is current.
    pub layouts: Vec<ShardingScheme>,
    pub leases: BTreeMap<LeaseKey, Lease>,
    rows: Vec<Row>,
    pub attention: Vec<OperationId>,
    /// Rows that cannot be read until this time, or until they are written.
    pub spoilt: BTreeMap<OperationId, Timestamp>,
}

#[derive(Debug)]
struct Row {
    row: OperationRow,
    /// The immutable columns have their own stamp.
    created: Stamp,
}

/// The bucket of the deadline index that an instant belongs to.
pub fn bucket_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

impl PartitionLogs {
    /// The number of records in a log.
    pub fn len(&self, source: Source) -> usize {
        match source {
            Source::Requests => self.requests[Priority::Normal].len(),
            Source::HighPriority => self.requests[Priority::High].len(),
            Source::Replies => self.replies.len(),
            Source::Recoveries => self.recoveries.len(),
        }
    }
}

impl Store {
    pub fn row(&self, id: OperationId) -> Option<&OperationRow> {
        let mut rows = self.rows.iter();
        rows.find(|stored| stored.row.id == id)
            .map(|stored| &stored.row)
    }

    /// The current sharding scheme, and its generation.
    pub fn layout(&self) -> (usize, ShardingScheme) {
        let generation = self.layouts.len() - 1;
        (generation, self.layouts[generation])
    }

    /// The offsets up to which the records with a key are done on a partition's logs, by any shard.
    pub fn reached(&self, partition: usize, key: KeyHash) -> Checkpoint {
        let partition = PartitionId(u32::try_from(partition).unwrap());
        let newest = self.layouts.iter().enumerate().rev();
        let mut newest = newest.filter_map(|(generation, scheme)| {
            self.leases.get(&(generation, scheme.taker(partition, key)))
        });
        let Some(lease) = newest.next() else {
            return Checkpoint::default();
        };
        Checkpoint::of(|source| {
            let mut at = lease.checkpoint.on(source);
            while lease.handover.had_done(source, offset(at), key) {
                at += 1;
            }
            at
        })
    }

    /// The same offsets for an operation.
    pub fn reached_of(&self, partition: usize, id: OperationId) -> Checkpoint {
        self.reached(partition, KeyHash::of(&id.key()))
    }

    /// Reads a row as the processes do.
    pub fn read(&self, id: OperationId, now: Timestamp) -> Result<Option<&OperationRow>, Spoilt> {
        match self.spoilt.get(&id) {
            Some(until) if *until > now => Err(Spoilt),
            Some(_) | None => Ok(self.row(id)),
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = &OperationRow> {
        self.rows.iter().map(|stored| &stored.row)
    }

    /// Writes a row, unless the stored one has a higher stamp.
    pub fn write(&mut self, change: RowChange, ignore_stamps: bool) -> Written {
        let Some(stored) = self
            .rows
            .iter_mut()
            .find(|stored| stored.row.id == change.id)
        else {
            self.rows.push(Row {
                created: change.stamp,
                row: OperationRow {
                    id: change.id,
                    created: change.created.expect("the first write has all columns"),
                    state: change.state,
                    stamp: change.stamp,
                },
            });
            return Written::Stands;
        };
        if let Some(created) = change.created
            && stored.created < change.stamp
        {
            stored.created = change.stamp;
            stored.row.created = created;
        }
        if stored.row.stamp == change.stamp {
            return Written::Clash;
        }
        if stored.row.stamp > change.stamp && !ignore_stamps {
            return Written::Fenced;
        }
        stored.row.stamp = change.stamp;
        stored.row.state = change.state;
        self.spoilt.remove(&change.id);
        Written::Stands
    }

    pub fn index(&mut self, partition: usize, due: Timestamp, operation: OperationId) {
        let bucket = self.logs[partition]
            .index
            .entry(bucket_of(due))
            .or_default();
        bucket.push((due, operation));
    }
}
