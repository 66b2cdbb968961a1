//! The store of one machine: an embedded key-value store (fjall) in one directory, owned by one
//! process.
//!
//! * **One writer.** One thread makes every change: it takes all waiting calls, writes them as one
//!   atomic, synced batch and then answers each caller. So changes are compared with stored values
//!   without locks, and concurrent callers share a sync. See `embedded/writer.rs`.
//! * **Readers read snapshots.** They see a whole batch or none of it, and only once it is synced.
//! * **Nothing unreadable is destroyed.** A write that replaces a corrupt row keeps its bytes
//!   aside; the purge skips it.
//! * **A damaged block harms only its entries.** See `embedded/damage.rs`.
//! * **A damaged file is never opened at the cost of rows.** See the crate `disk`.
//! * **A full disk is temporary.** Until there is room, writes fail and reads continue. Once there
//!   is room the store is opened again in place. See `embedded/reopening.rs`.
//! * **Flushes and compactions never stall for good.** Full memtables are rotated after a commit,
//!   and a commit first waits for the worker, by our own rules. See `embedded/flushing.rs`.
//! * **Retention affects reads first.** A row past its retention reads as absent immediately. Its
//!   bytes are purged later, in bounded steps: see `embedded/purge.rs`. Retention does not depend
//!   on the wall clock: see `embedded/retention.rs`.
//!
//! Deliberately absent: settings that trade durability for speed.

mod attention;
mod backup;
mod damage;
mod flushing;
mod group;
mod lock;
mod purge;
mod rebuild;
mod recent;
mod reopening;
mod retention;
mod tables;
mod write_back;
mod writer;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use waybill_engine::{OperationId, PartitionId};

pub use self::backup::{EmbeddedRestore, EmbeddedSnapshot, StoreEntry};
use self::group::EncodedBatch;
use self::purge::Purge;
pub use self::rebuild::LOST_OPERATIONS;
use self::reopening::Reopening;
pub use self::reopening::WriteFailure;
use self::tables::Tables;
use self::writer::{Command, Reply, Writer};
use crate::{
    AttentionCursor, AttentionPage, CorruptRow, DamageReport, DueBucket, DueEntry, KeptRow, Layout,
    Lease, LeaseKey, ReplyKey, RowRead, Store, StoreError, WriteBatch, Written,
};

/// How an [`EmbeddedStore`] is opened. Every bound that it has is here.
///
/// Memory is about `cache_bytes`, plus `memtable_bytes` for each of the two row tables (and as much
/// again, three times over at worst, while full ones wait for the disk), plus 50 bytes for each
/// of `recent_stamps`, plus what callers have queued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbeddedConfig {
    /// The directory, made if absent. Nothing else may write in it.
    pub path: PathBuf,
    /// How many bytes of blocks read from disk are kept in memory. Default: 8 MiB.
    pub cache_bytes: u64,
    /// How many bytes of new rows a row table gathers in memory before it writes them out; the
    /// larger it is, the more of an operation's short-lived states never reach a table on disk.
    /// Default: 4 MiB.
    pub memtable_bytes: u64,
    /// The bytes of full journal files from which on the tables that still need the oldest one are
    /// flushed; at least 64 MiB. The file being written takes about another 64 MiB. Default: 64
    /// MiB.
    pub journal_bytes_max: u64,
    /// How many threads flush and compact tables. With more than one, the first only flushes, and
    /// spins while another compacts. That costs about a fifth more CPU per row, and helps only if
    /// compactions are so long that full tables pile up. Default: 1.
    pub worker_threads: usize,
    /// How many calls may wait for the writer; further callers wait for room. Default: 64.
    pub queued_calls_max: usize,
    /// After how many rows the writer stops taking more calls into one synced batch. A single call
    /// is never split. Default: 4096.
    pub group_rows_max: usize,
    /// For how many operations the stamp is remembered, so that their next write needs no read; at
    /// most twice as many are held. Should exceed the number of operations in flight. Default:
    /// 32,768.
    pub recent_stamps: usize,
    /// How often to look for rows past their retention and deadline entries behind the cursor.
    /// Default: 10 s.
    pub purge_interval: Duration,
    /// How many rows, and how many deadline entries per index shard, one such pass removes at most.
    /// Default: 65,536.
    pub purge_entries_max: usize,
    /// How many attention entries that are over a day old one such pass looks at, each with its
    /// row, to remove those with a purged or `Processed` operation. A walk over all of them begins
    /// once an hour. Default: 4,096.
    pub attention_checks_max: usize,
}

impl EmbeddedConfig {
    /// The defaults, for the store in `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            cache_bytes: 8 << 20,
            memtable_bytes: 4 << 20,
            journal_bytes_max: 64 << 20,
            worker_threads: 1,
            queued_calls_max: 64,
            group_rows_max: 4096,
            recent_stamps: 32_768,
            purge_interval: Duration::from_secs(10),
            purge_entries_max: 65_536,
            attention_checks_max: 4_096,
        }
    }
}

/// The state store of one machine. See the [module](crate) for what holds.
///
/// Dropping it closes it, and waits until queued changes are written.
pub struct EmbeddedStore {
    path: PathBuf,
    tables: Arc<Reopening>,
    running: Mutex<Option<Running>>,
}

/// The threads of an open store, and what keeps them going.
struct Running {
    commands: mpsc::Sender<Command>,
    writer: JoinHandle<()>,
    purge: Purge,
}

impl EmbeddedStore {
    /// Opens the store, or creates it. Blocks while the journal is replayed after an unclean
    /// shutdown.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] if the directory is open already, [`StoreError::Damaged`] if
    /// acknowledged rows would be lost because a file is damaged, [`StoreError::Unavailable`] if it
    /// cannot be opened.
    pub fn open(config: EmbeddedConfig) -> Result<Self, StoreError> {
        rebuild::if_asked(&config)?;
        let tables = Arc::new(Reopening::open(config.clone())?);
        rebuild::report(&config.path, tables.damages());
        let (commands, queue) = mpsc::channel(config.queued_calls_max.max(1));
        let writer = Writer::spawn(Arc::clone(&tables), queue, &config)?;
        let purge = Purge::spawn(Arc::clone(&tables), commands.downgrade(), &config)?;
        Ok(Self {
            path: config.path,
            tables,
            running: Mutex::new(Some(Running {
                commands,
                writer,
                purge,
            })),
        })
    }

    /// Waits until the store refuses writes because a compaction met a damaged block or the disk
    /// fails. Returns why. The next [`EmbeddedStore::open`] rebuilds the store from the data that
    /// can be read.
    pub async fn refuses_writes(&self) -> String {
        self.tables.damages().refused().await
    }

    /// Every row that exists now, in no particular order, each readable or not. Blocks while the
    /// disk is read.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] instead of rows that the disk fails to read.
    pub fn rows(&self) -> impl Iterator<Item = Result<Result<KeptRow, CorruptRow>, StoreError>> {
        let (tables, failed) = match self.tables.get() {
            Ok(tables) => (Some(tables), None),
            Err(error) => (None, Some(Err(error))),
        };
        let rows = tables.map(|tables| tables.kept_rows());
        failed.into_iter().chain(rows.into_iter().flatten())
    }

    /// Closes the store: refuses new writes, completes waiting ones, and stops its threads. The
    /// directory is free for another process once the store is dropped, too.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the writer had ended before.
    pub async fn close(&self) -> Result<(), StoreError> {
        let Some(running) = self.take_running() else {
            return Ok(());
        };
        tokio::task::spawn_blocking(move || running.stop())
            .await
            .map_err(|error| StoreError::unavailable("closing", error))?
    }

    fn take_running(&self) -> Option<Running> {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Hands a change to the writer and waits for its answer.
    async fn change<T>(
        &self,
        action: &'static str,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, StoreError> {
        let commands = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|running| running.commands.clone())
            .ok_or_else(|| StoreError::unavailable(action, Closed))?;
        let (reply, answer) = oneshot::channel();
        commands
            .send(command(reply))
            .await
            .map_err(|_| StoreError::unavailable(action, Closed))?;
        drop(commands);
        answer
            .await
            .map_err(|_| StoreError::unavailable(action, Closed))?
    }

    /// Reads on a thread that may wait for the disk.
    fn read<T: Send + 'static>(
        &self,
        action: &'static str,
        read: impl FnOnce(&Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let tables = Arc::clone(&self.tables);
        async move {
            tokio::task::spawn_blocking(move || read(&*tables.get()?))
                .await
                .map_err(|error| StoreError::unavailable(action, error))?
        }
        .boxed()
    }
}

impl Running {
    fn stop(self) -> Result<(), StoreError> {
        let Self {
            commands,
            writer,
            purge,
        } = self;
        purge.stop();
        drop(commands);
        writer
            .join()
            .map_err(|_| StoreError::unavailable("closing", "the writer panicked"))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        if let Some(running) = self.take_running()
            && let Err(error) = running.stop()
        {
            tracing::error!(path = %self.path.display(), %error, "the state store did not close");
        }
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Store for EmbeddedStore {
    fn is_exclusive(&self) -> bool {
        true
    }

    fn damaged_parts(&self) -> u64 {
        self.tables.damages().count()
    }

    fn damage(&self) -> DamageReport {
        self.tables.damages().report()
    }

    /// A later write opens the store again, once there is room.
    fn write_failure(&self) -> Option<WriteFailure> {
        self.tables.failure()
    }

    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<Written, StoreError>> {
        async move {
            if batch.is_empty() {
                return Ok(Written::default());
            }
            let batch = EncodedBatch::new(&batch, self.tables.retention().now());
            self.change("writing rows", |reply| Command::Write(batch, reply))
                .await
        }
        .boxed()
    }

    fn get_many(&self, ids: Vec<OperationId>) -> BoxFuture<'_, Result<Vec<RowRead>, StoreError>> {
        self.read("reading rows", move |tables| tables.rows(&ids))
    }

    fn lease(&self, key: LeaseKey) -> BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        self.read("reading a lease", move |tables| tables.lease(key))
    }

    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change("taking a lease", |reply| Command::TakeLease {
            seen,
            lease,
            reply,
        })
        .boxed()
    }

    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change("renewing a lease", |reply| Command::RenewLease {
            lease,
            reply,
        })
        .boxed()
    }

    fn layout(&self) -> BoxFuture<'_, Result<Option<Layout>, StoreError>> {
        self.read("reading the layout", Tables::layout)
    }

    fn set_layout(
        &self,
        seen: Option<Layout>,
        layout: Layout,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change("replacing the layout", |reply| Command::SetLayout {
            seen,
            layout,
            reply,
        })
        .boxed()
    }

    fn reply_key(&self, candidate: ReplyKey) -> BoxFuture<'_, Result<ReplyKey, StoreError>> {
        self.change("reading the reply key", |reply| Command::ReplyKey {
            candidate,
            reply,
        })
        .boxed()
    }

    fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>> {
        self.read("reading the deadline index", move |tables| {
            tables.due(index_shard, bucket, after, limit)
        })
    }

    fn due_cursor(
        &self,
        index_shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>> {
        self.read("reading a sweep cursor", move |tables| {
            tables.cursor(index_shard)
        })
    }

    fn advance_due_cursor(
        &self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.change("advancing a sweep cursor", move |reply| {
            Command::AdvanceCursor {
                index_shard,
                cursor,
                reply,
            }
        })
        .boxed()
    }

    fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<AttentionPage, StoreError>> {
        self.read("reading the attention table", move |tables| {
            tables.attention_page(index_shards, cursor, limit)
        })
    }
}

/// The store is closed, or its writer has ended.
#[derive(Debug, thiserror::Error)]
#[error("the store is closed")]
struct Closed;
