//! The store on a cluster: ScyllaDB or Apache Cassandra, over CQL.
//!
//! * **Rows are written without transactions.** The database keeps the value with the higher write
//!   timestamp, which is the stamp. The leases determine who may use which stamps. See
//!   `cql/rows.rs`.
//! * **Only lightweight transactions change leases and the layout**, and one inserts the reply key.
//!   Nothing else uses them. See `cql/leases.rs`, `cql/layouts.rs` and `cql/secrets.rs`.
//! * **A batch goes in two rounds**: the rows follow once every index entry is acknowledged. Each
//!   round is many concurrent requests, within [`CqlConfig::in_flight_max`].
//! * **Reads and writes use a local quorum.** Every later reader sees all acknowledged writes.
//! * **Reads meet no tombstones.** Rows and deadline entries expire and are not read again;
//!   attention entries are deleted in ranges, see `cql/walk.rs`.
//! * **Unknown is not failed.** `cql/link.rs` describes repeats, time-outs and the meaning of
//!   errors.
//!
//! Operations that are in progress at the same time share a partition. Measured on one Cassandra
//! 5.0.8 that syncs its commit log, on two cores, rows of 1 KB, commits of 10, 100 and 500 rows
//! (`examples/cql_row_layout.rs`): a row per partition key 3,600, 3,600 and 3,000 rows per second,
//! for 280 to 420 µs of the server's CPU each; unlogged batches of 8 slots 3,600, 14,900 and
//! 25,600, for 270, 100 and 30 µs. With 65,536 slots nothing is gained, and few slots for all time
//! would be partitions without end: so slots follow the time that is in the server's own ids.
//!
//! Deliberately absent: indexes, scans of rows by anything that runs, logged batches, counters, and
//! reads before writes.

mod answer;
mod attention;
mod clocks;
mod config;
mod details;
mod due;
mod error;
mod layouts;
mod leases;
mod link;
mod rows;
mod schema;
mod secrets;
mod server;
mod unreadable;
mod walk;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use tokio::task::JoinHandle;
use waybill_engine::{OperationId, PartitionId};

use self::attention::Attention;
pub use self::config::{CqlCertificate, CqlConfig, CqlLogin, CqlReplication, CqlTls};
pub(crate) use self::details::CqlDetails;
use self::due::Due;
pub use self::error::CqlError;
use self::layouts::Layouts;
use self::leases::Leases;
use self::link::Link;
use self::rows::Rows;
use self::secrets::Secrets;
pub use self::server::{CqlKeyspace, CqlProblem, CqlReport, CqlServer};
use self::walk::Walk;
use crate::{
    AttentionCursor, AttentionPage, DueBucket, DueEntry, EveryRow, Layout, Lease, LeaseKey,
    ReplyKey, RowRead, Store, StoreError, WriteBatch, Written,
};

/// The state store on ScyllaDB or Apache Cassandra. See the [module](crate) for what holds.
///
/// Dropping it ends its connections; requests in progress may still take effect.
pub struct CqlStore {
    keyspace: String,
    link: Arc<Link>,
    rows: Arc<Rows>,
    due: Due,
    attention: Attention,
    leases: Leases,
    layouts: Layouts,
    secrets: Secrets,
    walk: Option<JoinHandle<()>>,
}

impl CqlStore {
    /// Creates the keyspace and its tables, or the missing ones. An existing keyspace is left as it
    /// is, so that others may create it. Changes nothing if nothing is missing.
    ///
    /// The future is boxed, so that this crate compiles it rather than the crate that awaits it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if the servers or the keyspace are unsuitable, or the schema is
    /// newer than this program; [`StoreError::Unavailable`] or [`StoreError::Unknown`] if it could
    /// not be created.
    pub fn migrate(config: &CqlConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(Self::migrated(config))
    }

    async fn migrated(config: &CqlConfig) -> Result<(), StoreError> {
        let link = Link::new(config).await?;
        schema::migrate(&link, config).await
    }

    /// Queries the servers' versions and settings, and the state of the store's schema. Changes
    /// nothing.
    ///
    /// The future is boxed, so that this crate compiles it rather than the crate that awaits it.
    ///
    /// # Errors
    ///
    /// If the servers cannot be queried. Problems that they report are in [`CqlReport::problems`].
    pub fn check(config: &CqlConfig) -> BoxFuture<'_, Result<CqlReport, StoreError>> {
        Box::pin(Self::checked(config))
    }

    async fn checked(config: &CqlConfig) -> Result<CqlReport, StoreError> {
        let link = Link::new(config).await?;
        schema::report(&link, config).await
    }

    /// Connects to a store that [`migrate`](Self::migrate) created.
    ///
    /// The future is boxed, so that this crate compiles it, and all that it spawns, rather than the
    /// crate that awaits it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if the store cannot be used as it is, with what to do about it;
    /// [`StoreError::Unavailable`] if the servers do not answer.
    pub fn connect(config: CqlConfig) -> BoxFuture<'static, Result<Self, StoreError>> {
        Box::pin(Self::connected(config))
    }

    async fn connected(config: CqlConfig) -> Result<Self, StoreError> {
        let link = Arc::new(Link::new(&config).await?);
        schema::require(&link, &config).await?;
        let keyspace = config.keyspace;
        let rows = Arc::new(Rows::new(&link, &keyspace, config.row_bytes_max).await?);
        let walk = match config.attention_walk_interval {
            None => None,
            Some(interval) => {
                let walk = Walk::new(Arc::clone(&link), Arc::clone(&rows), &keyspace).await?;
                Some(tokio::spawn(walk.run(interval)))
            }
        };
        Ok(Self {
            due: Due::new(&link, &keyspace, config.due_index_retention).await?,
            attention: Attention::new(&link, &keyspace).await?,
            leases: Leases::new(&link, &keyspace).await?,
            layouts: Layouts::new(&link, &keyspace).await?,
            secrets: Secrets::new(&link, &keyspace).await?,
            keyspace,
            link,
            rows,
            walk,
        })
    }

    /// Every row that exists now, in no particular order, each readable or not. Reads the whole
    /// table, page by page: only for moving a store elsewhere.
    ///
    /// Future and stream are boxed, so that this crate compiles them rather than the crate that
    /// reads them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the servers do not answer, also instead of a page.
    pub fn rows(&self) -> BoxFuture<'_, Result<EveryRow<'_>, StoreError>> {
        Box::pin(async { Ok(self.rows.all(&self.link).await?.boxed()) })
    }

    async fn write_batch(&self, batch: WriteBatch) -> Result<Written, StoreError> {
        // A row that is too long is found before anything is written.
        let rows = self.rows.encode(&batch.rows)?;
        let due = self.due.write(&self.link, &batch.due);
        let attention = self.attention.write(&self.link, &batch.attention);
        let (due, attention) = futures_util::future::join(due, attention).await;
        due?;
        attention?;
        self.rows.write(&self.link, &rows).await?;
        let replaced = self.rows.replaced(&batch.rows);
        Ok(Written { replaced })
    }
}

impl Drop for CqlStore {
    fn drop(&mut self) {
        if let Some(walk) = &self.walk {
            walk.abort();
        }
    }
}

impl fmt::Debug for CqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqlStore")
            .field("keyspace", &self.keyspace)
            .field("datacenter", &self.link.datacenter)
            .finish_non_exhaustive()
    }
}

impl Store for CqlStore {
    fn is_exclusive(&self) -> bool {
        false
    }

    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<Written, StoreError>> {
        self.write_batch(batch).boxed()
    }

    fn get_many(&self, ids: Vec<OperationId>) -> BoxFuture<'_, Result<Vec<RowRead>, StoreError>> {
        async move { self.rows.read(&self.link, &ids).await }.boxed()
    }

    fn lease(&self, key: LeaseKey) -> BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        self.leases.read(&self.link, key).boxed()
    }

    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { self.leases.take(&self.link, seen.as_ref(), &lease).await }.boxed()
    }

    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { self.leases.renew(&self.link, &lease).await }.boxed()
    }

    fn layout(&self) -> BoxFuture<'_, Result<Option<Layout>, StoreError>> {
        self.layouts.read(&self.link).boxed()
    }

    fn set_layout(
        &self,
        seen: Option<Layout>,
        layout: Layout,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { self.layouts.set(&self.link, seen.as_ref(), &layout).await }.boxed()
    }

    fn reply_key(&self, candidate: ReplyKey) -> BoxFuture<'_, Result<ReplyKey, StoreError>> {
        async move { self.secrets.reply_key(&self.link, candidate).await }.boxed()
    }

    fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>> {
        self.due
            .read(&self.link, index_shard, bucket, after, limit)
            .boxed()
    }

    fn due_cursor(
        &self,
        index_shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>> {
        self.due.cursor(&self.link, index_shard).boxed()
    }

    fn advance_due_cursor(
        &self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.due.advance(&self.link, index_shard, cursor).boxed()
    }

    fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<AttentionPage, StoreError>> {
        async move {
            self.attention
                .page(&self.link, &index_shards, cursor, limit)
                .await
        }
        .boxed()
    }
}
