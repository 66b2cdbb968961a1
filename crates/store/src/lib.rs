//! The state store: one row per operation, the leases of partitions, the deadline index and the
//! attention table.
//!
//! What must hold here, for every implementation (the contract suite in `tests/` checks it):
//!
//! * **Durable means synced.** A write that returned `Ok` survives `kill -9` and a power loss.
//! * **The higher stamp stands.** Of two writes of one row the one with the higher [`Stamp`] is
//!   what is read afterwards, whichever arrived first.
//! * **Index before row.** No row of a [`WriteBatch`] is visible before every index entry of the
//!   same batch is durable.
//! * **A lease has one owner.** [`Store::take_lease`] and [`Store::renew_lease`] are conditional:
//!   of two contenders for one epoch at most one succeeds.
//!
//! Deliberately absent: any query by state, tenant or age over the rows. Lists read the attention
//! table; due work is read from the deadline index.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationRow, OperationState, OwnerId, PartitionId, Stamp,
    Timestamp,
};

/// One write of one operation's row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowWrite {
    /// The operation.
    pub id: OperationId,
    /// The immutable columns: given at create and once more with the final state.
    pub created: Option<Arc<Created>>,
    /// The mutable state.
    pub state: OperationState,
    /// The write's stamp.
    pub stamp: Stamp,
    /// For a final state: how long the whole row is kept from now.
    pub keep_for: Option<Duration>,
}

/// An entry of the deadline index: a hint that something is due for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DueEntry {
    /// When it is due.
    pub due: Timestamp,
    /// The operation.
    pub operation: OperationId,
}

/// A slot of the deadline index: one second of due times in one shard (the shard is the partition).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DueBucket(pub i64);

impl DueBucket {
    /// How much time one bucket spans.
    pub const WIDTH: Duration = Duration::from_secs(1);

    /// The bucket that holds `due`.
    #[must_use]
    pub fn of(due: Timestamp) -> Self {
        Self(due.as_micros().div_euclid(1_000_000))
    }

    /// The first instant after the bucket.
    #[must_use]
    pub fn end(self) -> Timestamp {
        Timestamp((self.0 + 1).saturating_mul(1_000_000))
    }
}

/// An entry of the attention table: an operation that lingers, failed or is parked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttentionEntry {
    /// Since when it needs attention; decides the day that it is listed under.
    pub at: Timestamp,
    /// The operation.
    pub operation: OperationId,
}

/// Everything that one group commit writes. All of it is durable, or the outcome is an error.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WriteBatch {
    /// Deadline index entries by shard, durable before any row of the batch is visible.
    pub due: Vec<(PartitionId, DueEntry)>,
    /// Attention entries by shard.
    pub attention: Vec<(PartitionId, AttentionEntry)>,
    /// Rows.
    pub rows: Vec<RowWrite>,
}

/// The offsets below which every record of a partition is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// A fingerprint of the last request record below `requests`; `None` at the log's start.
    pub requests_fingerprint: Option<u64>,
}

/// The lease of one partition: who owns it, until when, and how far it has got.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// The partition.
    pub partition: PartitionId,
    /// The owner; `None` after a clean release.
    pub owner: Option<OwnerId>,
    /// The number of this ownership.
    pub epoch: Epoch,
    /// Counts renewals: a lease whose `epoch` and `renewal` stand still has a silent owner.
    pub renewal: u64,
    /// How long the owner may act after each renewal.
    pub duration: Duration,
    /// Stamps of the owner's writes lie below this.
    pub stamp_limit: Stamp,
    /// Below these offsets everything is done.
    pub checkpoint: Checkpoint,
    /// The offset of the next request record that the owner has not yet consumed durably.
    pub consumed: Offset,
}

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk or the database failed.
    #[error("{action} failed in the state store")]
    Unavailable {
        /// What was attempted.
        action: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stored value cannot be decoded.
    #[error("the stored {what} of {key} cannot be read: {cause}")]
    Corrupt {
        /// What kind of value it is.
        what: &'static str,
        /// Its key, for people.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Another process has the embedded store open.
    #[error("the data directory {path} is in use by another process")]
    Locked {
        /// The directory.
        path: String,
    },
}

/// The state store.
///
/// Every method may be called from many tasks at once. Futures are boxed because one is made per
/// group commit, never per record.
pub trait Store: fmt::Debug + Send + Sync {
    /// Whether this process is the only one that can have the store open, so that leases of older
    /// processes are known to be dead.
    fn is_exclusive(&self) -> bool;

    /// Writes a batch durably.
    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Reads rows, in the order of `ids`; `None` where there is none, or its retention has passed.
    fn get_many(
        &self,
        ids: Vec<OperationId>,
    ) -> BoxFuture<'_, Result<Vec<Option<OperationRow>>, StoreError>>;

    /// Reads a partition's lease; `None` if it was never taken.
    fn lease(&self, partition: PartitionId) -> BoxFuture<'_, Result<Option<Lease>, StoreError>>;

    /// Takes a lease: writes `lease` if the stored one is still exactly `seen`. Returns whether it
    /// was written.
    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Renews a lease, moving checkpoint, consumed and stamp limit: writes `lease` if the stored
    /// one still has its owner and epoch. Returns whether it was written.
    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Reads up to `limit` entries of one bucket of a shard, in order, after `after`.
    fn due(
        &self,
        shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>>;

    /// The first bucket of a shard that was not swept to its end; `None` before the first advance.
    fn due_cursor(
        &self,
        shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>>;

    /// Moves the sweep cursor of a shard durably; entries before it may be forgotten.
    fn advance_due_cursor(
        &self,
        shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Reads up to `limit` attention entries of one shard and day (days since the Unix epoch), in
    /// order, after `after`.
    fn attention(
        &self,
        shard: PartitionId,
        day: i64,
        after: Option<AttentionEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<AttentionEntry>, StoreError>>;
}
