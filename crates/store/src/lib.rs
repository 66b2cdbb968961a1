//! The state store: one row per operation, the leases of schedulers and supervisors, the layout of
//! the shards, the deadline index and the attention table.
//!
//! What must hold here, for every implementation (the contract suite in `tests/contract` checks
//! it):
//!
//! * **Durable means synced.** A write that returned `Ok` survives `kill -9` and a power loss.
//! * **A batch is whole.** If writing a [`WriteBatch`] returned `Ok`, all of it is stored; if it
//!   returned an error, the stored state is unknown, and the batch may be repeated.
//! * **The higher stamp wins.** Of two writes of one row, reads return the one with the higher
//!   [`Stamp`], whichever arrived first. State and immutable part are compared separately, so that
//!   a write without [`RowWrite::created`] leaves the immutable part as it is.
//! * **A corrupt row harms only itself.** Reads return a result for each row, and a write with a
//!   higher stamp replaces an unreadable row without failing its batch.
//! * **A damaged block harms only its entries.** Rows in it are corrupt; a listing continues after
//!   it. [`Store::damage`] reports what was skipped.
//! * **A reopened row stays.** A final row that is written again without retention is kept for
//!   good, and no pending purge removes it.
//! * **Index before row.** No row of a [`WriteBatch`] is visible before every index entry of the
//!   same batch is durable.
//! * **A lease has one owner.** [`Store::take_lease`] and [`Store::renew_lease`] are conditional:
//!   of two contenders for one epoch at most one succeeds. One that has ended is never taken again.
//! * **A layout has one successor.** [`Store::set_layout`] is conditional likewise.
//! * **There is one reply key.** [`Store::reply_key`] returns the same one to every caller, for as
//!   long as the store exists. (Two datacentres of a CQL cluster that create it at the same moment
//!   are the exception: see `cql/secrets.rs`.)
//!
//! Deliberately absent: any query by state, tenant or age over the rows. Lists read the attention
//! table; due work is read from the deadline index. ([`OpenStore::rows`] reads all rows, to move a
//! whole store elsewhere.)

mod backend;
mod codec;
mod config;
mod cql;
mod damage;
mod embedded;
mod error;
mod keys;
mod reply_key;
mod report;
mod row_codec;

use std::fmt;

use futures_util::future::BoxFuture;
#[cfg(doc)]
use waybill_engine::Stamp;
use waybill_engine::{OperationId, PartitionId};

pub use backend::{Backend, EveryRow, OpenStore};
pub use config::{RequestTimeout, ScyllaConfig, StoreConfig};
pub use cql::{
    CqlCertificate, CqlConfig, CqlError, CqlKeyspace, CqlLogin, CqlProblem, CqlReplication,
    CqlReport, CqlServer, CqlStore, CqlTls,
};
pub use damage::{DamageReport, DamagedPart};
pub use embedded::{
    EmbeddedConfig, EmbeddedRestore, EmbeddedSnapshot, EmbeddedStore, LOST_OPERATIONS, StoreEntry,
    WriteFailure,
};
pub use error::StoreError;
pub use reply_key::ReplyKey;
pub use report::{ProblemArea, ServerClock, StoreProblem, StoreReport};
#[doc(hidden)]
pub use row_codec::{RowBytes, RowCodec};
pub use waybill_state::{
    AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage, Checkpoint, CorruptRow,
    CurrentLeases, DUE_BUCKETS_REREAD, DueBucket, DueEntry, KeptRow, Layout, LayoutError,
    LayoutGeneration, Lease, LeaseKey, LeaseRole, Retired, RowRead, RowWrite, WriteBatch, Written,
};

/// The state store.
///
/// Every method may be called from many tasks at the same time. Futures are boxed because one is
/// made per group commit, never per record. Dropping a future does not undo the work that it began:
/// the write may still happen.
pub trait Store: fmt::Debug + Send + Sync {
    /// Whether this process is the only one that can have the store open, so that leases of older
    /// processes are known to be dead.
    fn is_exclusive(&self) -> bool;

    /// How many damaged parts were found since the store was opened. Cheap.
    fn damaged_parts(&self) -> u64 {
        0
    }

    /// The damage found since the store was opened. A database looks after its own disks and
    /// reports nothing here.
    fn damage(&self) -> DamageReport {
        DamageReport::default()
    }

    /// Why every write currently fails; `None` if writes do not fail, or if that is known only once
    /// one fails. The failure ends on its own.
    fn write_failure(&self) -> Option<WriteFailure> {
        None
    }

    /// Writes a batch durably. A row whose stamp is below the stored one changes nothing, and
    /// neither does an exact repetition. If different content is written under a used stamp, either
    /// of the two may be kept. Unreadable rows fail nothing: they are replaced, and named in the
    /// answer.
    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<Written, StoreError>>;

    /// Reads rows, with a result for each, in the order of `ids`. A row is corrupt if it cannot be
    /// decoded, or has a state but no immutable part.
    fn get_many(&self, ids: Vec<OperationId>) -> BoxFuture<'_, Result<Vec<RowRead>, StoreError>>;

    /// Reads a lease; `None` if it was never taken.
    fn lease(&self, key: LeaseKey) -> BoxFuture<'_, Result<Option<Lease>, StoreError>>;

    /// Takes a lease: writes `lease` if the stored one of its key is still exactly `seen`. Returns
    /// whether it was written.
    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Renews a lease, moving checkpoint, consumed and stamp limit: writes `lease` if the stored
    /// one still has its owner and epoch, and a lower `renewal`. Returns whether `lease` is what is
    /// stored now: repeating a renewal that was written, word for word, is `true` again.
    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Reads the layout; `None` if none was ever written, so that [`Layout::first`] applies.
    fn layout(&self) -> BoxFuture<'_, Result<Option<Layout>, StoreError>>;

    /// Replaces the layout: writes `layout` if the stored one is still `seen`. Returns whether
    /// `layout` is what is stored now.
    fn set_layout(
        &self,
        seen: Option<Layout>,
        layout: Layout,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The reply key of the installation. If there is none yet, `candidate` becomes it; of several
    /// callers at the same time, one succeeds and all get its key.
    fn reply_key(&self, candidate: ReplyKey) -> BoxFuture<'_, Result<ReplyKey, StoreError>>;

    /// Reads up to `limit` entries of one bucket of an index shard, in order, after `after`.
    fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>>;

    /// The first bucket of an index shard that is not completely swept; `None` before the first
    /// advance. An entry before it might not be found, unless it was written before the cursor got
    /// there.
    fn due_cursor(
        &self,
        index_shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>>;

    /// Moves the sweep cursor of an index shard durably; entries more than [`DUE_BUCKETS_REREAD`]
    /// buckets before it may be forgotten. The cursor never moves back: a lower one than the stored
    /// changes nothing.
    fn advance_due_cursor(
        &self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Lists attention entries of `index_shards` page by page, merged into the cursor's order.
    /// Begin with [`AttentionCursor::new`], and continue with [`AttentionPage::next`] until that is
    /// `None`.
    ///
    /// A page has at most `limit` entries. The work of one call is bounded, so it may have fewer,
    /// or none, although more follow. Entries written behind the cursor in the meantime are not
    /// listed; nothing is listed twice.
    ///
    /// An entry may be forgotten from a day after its instant on, if the operation's row no longer
    /// exists by then, or is final without being parked. So a caller that reopens an operation
    /// writes a new entry once it needs attention again.
    fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<AttentionPage, StoreError>>;
}
