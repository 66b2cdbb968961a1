//! The state store: one row per operation, the leases of partitions, the deadline index and the
//! attention table.
//!
//! What must hold here, for every implementation (the contract suite in `tests/contract` checks
//! it):
//!
//! * **Durable means synced.** A write that returned `Ok` survives `kill -9` and a power loss.
//! * **A batch is whole.** Of a [`WriteBatch`] that returned `Ok` everything is there; of one that
//!   returned an error, what is there is unknown, and the batch may be repeated.
//! * **The higher stamp stands.** Of two writes of one row the one with the higher [`Stamp`] is
//!   what is read afterwards, whichever arrived first. State and immutable part are weighed each
//!   by itself, so that a write without [`RowWrite::created`] leaves the immutable part as it is.
//! * **Index before row.** No row of a [`WriteBatch`] is visible before every index entry of the
//!   same batch is durable.
//! * **A lease has one owner.** [`Store::take_lease`] and [`Store::renew_lease`] are conditional:
//!   of two contenders for one epoch at most one succeeds.
//!
//! Deliberately absent: any query by state, tenant or age over the rows. Lists read the attention
//! table; due work is read from the deadline index.

mod codec;
mod due;
mod embedded;
mod error;
mod keys;
mod lease;
mod row;

use std::fmt;

use futures_util::future::BoxFuture;
#[cfg(doc)]
use waybill_engine::Stamp;
use waybill_engine::{OperationId, OperationRow, PartitionId};

pub use due::{AttentionEntry, DueBucket, DueEntry};
pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use error::StoreError;
pub use lease::{Checkpoint, Lease};
pub use row::{RowWrite, WriteBatch};

/// The state store.
///
/// Every method may be called from many tasks at once. Futures are boxed because one is made per
/// group commit, never per record. Dropping a future does not undo what it began: the write may
/// still happen.
pub trait Store: fmt::Debug + Send + Sync {
    /// Whether this process is the only one that can have the store open, so that leases of older
    /// processes are known to be dead.
    fn is_exclusive(&self) -> bool;

    /// Writes a batch durably. A row whose stamp is below the stored one changes nothing, and
    /// neither does one that is repeated as it was. Whoever writes other content under a stamp that
    /// was used cannot know which of the two stands.
    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Reads rows, in the order of `ids`; `None` where there is none, or its retention has passed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if any of the rows cannot be decoded, or has a state but no
    /// immutable part.
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
    /// one still has its owner and epoch, and a lower `renewal`. Returns whether `lease` is what is
    /// stored now: repeating a renewal that was written, word for word, is `true` again.
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

    /// Moves the sweep cursor of a shard durably; entries before it may be forgotten. The cursor
    /// never moves back: a lower one than the stored changes nothing.
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
