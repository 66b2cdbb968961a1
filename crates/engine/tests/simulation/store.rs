//! The state store and the logs: what outlives every process.

use std::collections::BTreeMap;
use std::rc::Rc;

use waybill_engine::{
    Epoch, FailedOperation, OperationId, OperationRow, Recovery, RowChange, Stamp, StepReply,
    Timestamp,
};

use crate::supervisors::ShardLease;
use crate::workload::Record;

/// How long an owner may act after a renewal was sent.
pub const LEASE_MICROS: u64 = 1_000_000;
/// What owners and candidates allow for delay.
pub const LEASE_MARGIN_MICROS: u64 = 100_000;

/// How far the three logs of a partition were read and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    pub requests: usize,
    pub replies: usize,
    pub recoveries: usize,
}

/// The lease row of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub owner: usize,
    pub epoch: Epoch,
    pub stamp_limit: Stamp,
    pub checkpoint: Checkpoint,
    /// When it was last written.
    pub changed_at: Timestamp,
    /// Its owner has given it back.
    pub is_free: bool,
}

/// A row that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spoilt;

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    Stands,
    /// A write with a higher stamp was there.
    Fenced,
    /// Another write with this very stamp was there.
    Clash,
}

/// The stores and logs of one partition.
#[derive(Debug, Default)]
pub struct Shard {
    pub requests: Vec<Record>,
    /// `None` where a transaction's marker lies.
    pub replies: Vec<Option<Rc<StepReply>>>,
    pub recoveries: Vec<Rc<Recovery>>,
    pub failed: Vec<Rc<FailedOperation>>,
    /// How far supervisors are known to have consumed `failed`.
    pub failed_next: usize,
    pub lease: Option<Lease>,
    /// The deadline index, by bucket.
    pub index: BTreeMap<i64, Vec<(Timestamp, OperationId)>>,
    /// Buckets below this were swept.
    pub cursor: i64,
    /// The supervisor that sweeps them.
    pub sweeper: Option<ShardLease>,
}

#[derive(Debug, Default)]
pub struct Store {
    pub shards: Vec<Shard>,
    rows: Vec<Row>,
    pub attention: Vec<OperationId>,
    /// Rows that cannot be read until then, or until they are written.
    pub spoilt: BTreeMap<OperationId, Timestamp>,
}

#[derive(Debug)]
struct Row {
    row: OperationRow,
    /// The immutable columns have a stamp of their own.
    created: Stamp,
}

/// The bucket of the deadline index that an instant belongs to.
pub fn bucket_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

impl Store {
    pub fn row(&self, id: OperationId) -> Option<&OperationRow> {
        let mut rows = self.rows.iter();
        rows.find(|stored| stored.row.id == id)
            .map(|stored| &stored.row)
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

    /// Of two writes, the one with the higher stamp stands.
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

    pub fn index(&mut self, shard: usize, due: Timestamp, operation: OperationId) {
        let bucket = self.shards[shard].index.entry(bucket_of(due)).or_default();
        bucket.push((due, operation));
    }
}
