//! The tables of the embedded store, and everything that reads them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `state` | operation | stamp, expiry, mutable state |
//! | `created` | operation | stamp, immutable part |
//! | `expiry` | hour, operation | empty: the row's retention ends in that hour, or did once |
//! | `due` | index shard, due, operation | empty |
//! | `attention` | index shard, at, operation | empty |
//! | `leases` | role, generation (of layouts after the first), shard or index shard | lease |
//! | | 3 | layout |
//! | | 4 | the time of retention |
//! | | 5 | the reply key |
//! | `cursors` | index shard | first bucket that was not swept to its end |
//! | `corrupt` | operation, instant, part | a value of `state` or `created` as it was before that instant, when a write took the place of a row that could not be read |
//!
//! Nothing reads or removes the entries of `corrupt`: they are for a person, and there is at most
//! one row for each that was damaged.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::BlockSizePolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, Readable, Snapshot, UserValue};
use waybill_clock::wall_clock;
use waybill_disk::{Depth, Synced, prepare};
use waybill_engine::{OperationId, OperationRow, OperationState, PartitionId, Stamp, Timestamp};

use super::EmbeddedConfig;
use super::damage::{self, Damages, Order, Walk};
use super::lock::lock;
use super::retention::Retention;
use super::write_back::WriteBack;
use crate::codec::{self, Malformed, StateHeader};
use crate::keys::RowPart;
use crate::{
    CorruptRow, DueBucket, DueEntry, KeptRow, Layout, Lease, LeaseKey, ReplyKey, RowRead,
    StoreError, keys,
};

/// How much each table other than the row tables gathers in memory, in bytes: these receive few
/// writes.
const SMALL_MEMTABLE_BYTES: u64 = 1 << 20;

/// Target size of a compacted file, in bytes. A larger one makes a compaction write more at a time,
/// which slows syncs down. It must be several times the size of a memtable: there is one compaction
/// for each flush, and one between lower levels moves about a file.
const FILE_BYTES: u64 = 32 << 20;

/// The key-value store never rotates a memtable on its own: see `flushing.rs`.
const NO_ROTATION: u64 = u64::MAX;

/// The least that the key-value store accepts as the bound of its full journal files.
const JOURNAL_BYTES_LEAST: u64 = 64 << 20;

/// The open tables.
pub(super) struct Tables {
    /// `None` if nothing is flushed. The first field, because its thread holds a handle to `db`
    /// that must be dropped before.
    write_back: Option<WriteBack>,
    pub(super) db: Database,
    /// All batches are committed through this.
    pub(super) synced: Synced,
    pub(super) state: Keyspace,
    pub(super) created: Keyspace,
    pub(super) expiry: Keyspace,
    pub(super) due: Keyspace,
    pub(super) attention: Keyspace,
    pub(super) leases: Keyspace,
    pub(super) cursors: Keyspace,
    pub(super) corrupt: Keyspace,
    pub(super) lasting: Lasting,
    /// How much a row table gathers in memory, in bytes.
    row_memtable_bytes: u64,
}

/// State that is kept when the tables are opened again.
#[derive(Clone)]
pub(super) struct Lasting {
    /// The time by which rows are kept.
    pub(super) retention: Arc<Retention>,
    pub(super) damages: Arc<Damages>,
}

/// A stored state with its header, or why it cannot be read.
pub(super) type StateRead = Result<(StateHeader, OperationState), CorruptRow>;

/// A part of a row, as the write path sees it.
pub(super) struct Stored {
    /// Its bytes; `None` if they are in a damaged block.
    pub(super) bytes: Option<UserValue>,
    /// Its stamp, or why there is none to compare.
    pub(super) stamp: Result<Stamp, CorruptRow>,
}

impl Stored {
    fn found(
        found: Result<Option<UserValue>, CorruptRow>,
        stamp: impl FnOnce(&[u8]) -> Result<Stamp, CorruptRow>,
    ) -> Option<Self> {
        match found {
            Err(damaged) => Some(Self {
                bytes: None,
                stamp: Err(damaged),
            }),
            Ok(bytes) => bytes.map(|bytes| Self {
                stamp: stamp(&bytes),
                bytes: Some(bytes),
            }),
        }
    }
}

impl Tables {
    /// Opens or makes the tables.
    pub(super) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        Self::open_with(config, config.worker_threads.max(1), None)
    }

    /// Opens the tables again, after those that `lasting` is from were closed.
    pub(super) fn reopen(config: &EmbeddedConfig, lasting: Lasting) -> Result<Self, StoreError> {
        Self::open_with(config, config.worker_threads.max(1), Some(lasting))
    }

    /// Opens tables for reading only: nothing is flushed or compacted.
    pub(super) fn open_idle(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        Self::open_with(config, 0, None)
    }

    fn open_with(
        config: &EmbeddedConfig,
        worker_threads: usize,
        lasting: Option<Lasting>,
    ) -> Result<Self, StoreError> {
        let failed = |error| match error {
            fjall::Error::Locked => StoreError::Locked {
                path: config.path.display().to_string(),
            },
            error => StoreError::unavailable("opening", error),
        };
        let lock = lock(&config.path)?;
        let prepared = prepare(&config.path, Depth::Opening)?;
        // The key-value store locks the directory itself.
        drop(lock);
        let db = Database::builder(&config.path)
            .cache_size(config.cache_bytes)
            .max_journaling_size(config.journal_bytes_max.max(JOURNAL_BYTES_LEAST))
            .worker_threads_unchecked(worker_threads)
            .open()
            .map_err(failed)?;
        let small = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(NO_ROTATION)
                .compaction_strategy(Arc::new(
                    Leveled::default().with_table_target_size(FILE_BYTES),
                ))
        };
        let rows = || small().data_block_size_policy(BlockSizePolicy::all(4 << 10));
        let leases = db.keyspace("leases", small).map_err(failed)?;
        let lasting = match lasting {
            Some(lasting) => lasting,
            None => {
                let damages = Arc::default();
                Lasting {
                    retention: Arc::new(Retention::open(&db, &leases, &damages)?),
                    damages,
                }
            }
        };
        let table = |name, options: &dyn Fn() -> KeyspaceCreateOptions| {
            db.keyspace(name, options).map_err(failed)
        };
        let [state, created] = [table("state", &rows)?, table("created", &rows)?];
        let [expiry, due] = [table("expiry", &small)?, table("due", &small)?];
        let [attention, cursors] = [table("attention", &small)?, table("cursors", &small)?];
        let corrupt = table("corrupt", &small)?;
        let all = [
            &state, &created, &expiry, &due, &attention, &leases, &cursors, &corrupt,
        ];
        let synced = Synced::begin(prepared, all)
            .map_err(|error| StoreError::unavailable("opening", error))?;
        let mut tables = Self {
            write_back: None,
            lasting,
            row_memtable_bytes: config.memtable_bytes,
            synced,
            state,
            created,
            expiry,
            due,
            attention,
            leases,
            cursors,
            corrupt,
            db,
        };
        if worker_threads > 0 {
            let all = tables.all().map(|(_, keyspace)| keyspace);
            tables.write_back = Some(WriteBack::start(&tables.db, all.into_iter())?);
        }
        Ok(tables)
    }

    /// All tables, by name. The names are part of the backup format.
    pub(super) fn all(&self) -> [(&'static str, &Keyspace); 8] {
        [
            ("state", &self.state),
            ("created", &self.created),
            ("expiry", &self.expiry),
            ("due", &self.due),
            ("attention", &self.attention),
            ("leases", &self.leases),
            ("cursors", &self.cursors),
            ("corrupt", &self.corrupt),
        ]
    }

    /// How many bytes a table gathers in memory before it is full.
    pub(super) fn memtable_bytes(&self, table: &str) -> u64 {
        match table {
            "state" | "created" => self.row_memtable_bytes,
            _ => SMALL_MEMTABLE_BYTES,
        }
    }

    /// Wakes the write-back thread. Called before a flush or a compaction writes files.
    pub(super) fn wake_write_back(&self) {
        if let Some(write_back) = &self.write_back {
            write_back.wake();
        }
    }

    /// Reads rows within their retention, in the order of `ids`.
    pub(super) fn rows(&self, ids: &[OperationId]) -> Result<Vec<RowRead>, StoreError> {
        let now = self.lasting.retention.now();
        let snapshot = self.db.snapshot();
        ids.iter().map(|&id| self.row(&snapshot, id, now)).collect()
    }

    fn row(
        &self,
        reader: &impl Readable,
        id: OperationId,
        now: Timestamp,
    ) -> Result<RowRead, StoreError> {
        let created = || {
            let found = reader.get(&self.created, keys::row(id));
            self.of_row(RowPart::Created, id, found, "reading rows")
        };
        let (header, state) = match self.state_of(reader, id)? {
            // Both parts are written and removed together: a disk has lost or misplaced the other.
            None => {
                return Ok(created()?.and_then(|created| match created {
                    None => Ok(None),
                    Some(_) => Err(CorruptRow {
                        id,
                        what: "row",
                        cause: "it has an immutable part but no state".to_owned(),
                    }),
                }));
            }
            Some(Err(corrupt)) => return Ok(Err(corrupt)),
            Some(Ok((header, _))) if header.has_expired(now) => return Ok(Ok(None)),
            Some(Ok(state)) => state,
        };
        let created = match created()? {
            Err(damaged) => Err(damaged),
            Ok(None) => Err(CorruptRow {
                id,
                what: "row",
                cause: "it has a state but no immutable part".to_owned(),
            }),
            Ok(Some(value)) => codec::created(&value)
                .map(|(_, created)| created)
                .map_err(|cause| corrupt_row(RowPart::Created, id, &cause)),
        };
        Ok(created.map(|created| {
            Some(OperationRow {
                id,
                created: Arc::new(created),
                state,
                stamp: header.stamp,
            })
        }))
    }

    /// Reads every row within its retention, and the wall time of its end if the store stays open.
    pub(super) fn kept_rows(
        self: Arc<Self>,
    ) -> impl Iterator<Item = Result<Result<KeptRow, CorruptRow>, StoreError>> {
        let (now, wall) = (self.lasting.retention.now(), wall_clock());
        // A damaged block hides rows in memory, but not those in other files.
        if let Err(error) = self.write_out(&self.state) {
            tracing::warn!(%error, "could not write out the rows in memory; rows between damaged entries may be left out");
        }
        let snapshot = self.db.snapshot();
        let (first, last) = (
            keys::row(OperationId(uuid::Uuid::nil())),
            keys::row(OperationId(uuid::Uuid::max())),
        );
        let all = &first[..]..=&last[..];
        self.walk(&snapshot, &self.state, all, Order::Ascending)
            .map(move |key| {
                let key = key?;
                let id = keys::read_row(&key).ok_or_else(|| bad_key("state", &key))?;
                let expires_at = match self.state_of(&snapshot, id)? {
                    Some(Ok((header, _))) => header.expires_at.map(|at| wall + at.since(now)),
                    Some(Err(_)) | None => None,
                };
                let row = self.row(&snapshot, id, now)?;
                Ok(row
                    .map(|row| row.map(|row| KeptRow { row, expires_at }))
                    .transpose())
            })
            .filter_map(Result::transpose)
    }

    /// Reads the state of a row.
    pub(super) fn state_of(
        &self,
        reader: &impl Readable,
        id: OperationId,
    ) -> Result<Option<StateRead>, StoreError> {
        let found = reader.get(&self.state, keys::row(id));
        Ok(
            match self.of_row(RowPart::State, id, found, "reading rows")? {
                Err(damaged) => Some(Err(damaged)),
                Ok(value) => value.map(|value| {
                    codec::state(&value).map_err(|cause| corrupt_row(RowPart::State, id, &cause))
                }),
            },
        )
    }

    /// The result of reading a part of a row; a damaged block makes the row corrupt.
    fn of_row(
        &self,
        part: RowPart,
        id: OperationId,
        found: fjall::Result<Option<UserValue>>,
        action: &'static str,
    ) -> Result<Result<Option<UserValue>, CorruptRow>, StoreError> {
        let error = match found {
            Ok(value) => return Ok(Ok(value)),
            Err(error) => error,
        };
        let Some(cause) = damage::cause(&error) else {
            return Err(failed(action)(error));
        };
        let (table, keyspace) = match part {
            RowPart::State => ("state", &self.state),
            RowPart::Created => ("created", &self.created),
        };
        let key = keys::row(id);
        self.lasting
            .damages
            .note(table, keyspace, &key[..]..=&key[..], &cause);
        Ok(Err(CorruptRow {
            id,
            what: part.in_words(),
            cause,
        }))
    }

    /// Walks over the keys of a table, and skips damage.
    pub(super) fn walk(
        &self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        span: RangeInclusive<&[u8]>,
        order: Order,
    ) -> Walk {
        let mut all = self.all().into_iter();
        let table = all.find(|(_, of)| of.id() == keyspace.id());
        let table = table.map_or("", |(table, _)| table);
        Walk::new(
            &self.lasting.damages,
            snapshot,
            (table, keyspace),
            span,
            order,
        )
    }

    /// Reads the part of a stored state that the write path compares.
    pub(super) fn stored_state(&self, id: OperationId) -> Result<Option<Stored>, StoreError> {
        let found = self.state.get(keys::row(id));
        let found = self.of_row(RowPart::State, id, found, "reading a stamp")?;
        Ok(Stored::found(found, |bytes| {
            codec::state(bytes)
                .map(|(header, _)| header.stamp)
                .map_err(|cause| corrupt_row(RowPart::State, id, &cause))
        }))
    }

    /// Reads the part of a stored immutable part that the write path compares.
    pub(super) fn stored_created(&self, id: OperationId) -> Result<Option<Stored>, StoreError> {
        let found = self.created.get(keys::row(id));
        let found = self.of_row(RowPart::Created, id, found, "reading a stamp")?;
        Ok(Stored::found(found, |bytes| {
            codec::created(bytes)
                .map(|(stamp, _)| stamp)
                .map_err(|cause| corrupt_row(RowPart::Created, id, &cause))
        }))
    }

    /// Reads a lease.
    pub(super) fn lease(&self, key: LeaseKey) -> Result<Option<Lease>, StoreError> {
        let stored = keys::lease(key);
        let found = self.leases.get(&stored);
        self.of_leases(&stored, found, "lease", &key)?
            .map(|value| codec::lease(&value).map_err(corrupt("lease", key)))
            .transpose()
    }

    /// The result of reading the table of leases. Entries in a damaged block are not guessed: a
    /// checkpoint that is too low or too high does harm.
    fn of_leases(
        &self,
        key: &[u8],
        found: fjall::Result<Option<UserValue>>,
        what: &'static str,
        of: &dyn Display,
    ) -> Result<Option<UserValue>, StoreError> {
        let error = match found {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let Some(cause) = damage::cause(&error) else {
            return Err(failed("reading a lease, the layout or the reply key")(
                error,
            ));
        };
        self.lasting
            .damages
            .note("leases", &self.leases, key..=key, &cause);
        Err(StoreError::Corrupt {
            what,
            key: of.to_string(),
            cause,
        })
    }

    /// Reads the layout.
    pub(super) fn layout(&self) -> Result<Option<Layout>, StoreError> {
        let found = self.leases.get(keys::LAYOUT);
        self.of_leases(&keys::LAYOUT, found, "layout", &"the schedulers")?
            .map(|value| codec::layout(&value).map_err(corrupt("layout", "the schedulers")))
            .transpose()
    }

    /// Reads the reply key.
    pub(super) fn reply_key(&self) -> Result<Option<ReplyKey>, StoreError> {
        let found = self.leases.get(keys::REPLY_KEY);
        self.of_leases(&keys::REPLY_KEY, found, "reply key", &"the installation")?
            .map(|value| codec::reply_key(&value).map_err(corrupt("reply key", "the installation")))
            .transpose()
    }

    /// Reads an index shard's sweep cursor. A damaged one counts as being at the first entry of the
    /// index shard's deadline index, so that all remaining entries are read again.
    pub(super) fn cursor(&self, index_shard: PartitionId) -> Result<Option<DueBucket>, StoreError> {
        let key = keys::partition(index_shard);
        let error = match self.cursors.get(key) {
            Ok(value) => {
                return value
                    .map(|value| {
                        codec::cursor(&value).map_err(corrupt(
                            "sweep cursor",
                            format!("index shard {index_shard}"),
                        ))
                    })
                    .transpose();
            }
            Err(error) => error,
        };
        let Some(cause) = damage::cause(&error) else {
            return Err(failed("reading a sweep cursor")(error));
        };
        self.lasting
            .damages
            .note("cursors", &self.cursors, &key[..]..=&key[..], &cause);
        let (nil, max) = (
            OperationId(uuid::Uuid::nil()),
            OperationId(uuid::Uuid::max()),
        );
        let first = keys::index(index_shard, Timestamp(i64::MIN), nil);
        let last = keys::index(index_shard, Timestamp(i64::MAX), max);
        let mut entries = self.walk(
            &self.db.snapshot(),
            &self.due,
            &first[..]..=&last[..],
            Order::Ascending,
        );
        let Some(key) = entries.next().transpose()? else {
            return Ok(None);
        };
        let (due, _) = keys::read_index(&key).ok_or_else(|| bad_key("due", &key))?;
        Ok(Some(DueBucket::of(due)))
    }

    /// Reads all sweep cursors except damaged ones.
    pub(super) fn cursors(&self) -> Result<Vec<(PartitionId, DueBucket)>, StoreError> {
        let first = keys::partition(PartitionId(0));
        let last = keys::partition(PartitionId(u32::MAX));
        let snapshot = self.db.snapshot();
        let mut cursors = Vec::new();
        let all = &first[..]..=&last[..];
        for key in self.walk(&snapshot, &self.cursors, all, Order::Ascending) {
            let key = key?;
            let index_shard = keys::read_partition(&key).ok_or_else(|| bad_key("cursors", &key))?;
            if let Some(cursor) = self.cursor(index_shard)? {
                cursors.push((index_shard, cursor));
            }
        }
        Ok(cursors)
    }

    /// Reads one bucket of the deadline index.
    pub(super) fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> Result<Vec<DueEntry>, StoreError> {
        let (first, last) = bucket.bounds();
        let end = keys::index(index_shard, last, OperationId(uuid::Uuid::max()));
        let begin = keys::index(index_shard, first, OperationId(uuid::Uuid::nil()));
        let after = after.map(|entry| keys::index(index_shard, entry.due, entry.operation));
        let start = after.map_or(begin, |after| after.max(begin));
        let span = &start[..]..=&end[..];
        self.walk(&self.db.snapshot(), &self.due, span, Order::Ascending)
            .filter(|key| !matches!((key, &after), (Ok(key), Some(after)) if **key == after[..]))
            .take(limit)
            .map(|key| {
                let key = key?;
                let (due, operation) =
                    keys::read_index(&key).ok_or_else(|| bad_key("due", &key))?;
                Ok(DueEntry { due, operation })
            })
            .collect()
    }

    /// Reads up to `limit` entries of the expiry index from hour `from` on and before hour `until`.
    pub(super) fn expired(
        &self,
        from: i64,
        until: i64,
        limit: usize,
    ) -> Result<Vec<(i64, OperationId)>, StoreError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let first = keys::expiry(from, OperationId(uuid::Uuid::nil()));
        let last = keys::expiry(until - 1, OperationId(uuid::Uuid::max()));
        let span = &first[..]..=&last[..];
        self.walk(&self.db.snapshot(), &self.expiry, span, Order::Ascending)
            .take(limit)
            .map(|key| {
                let key = key?;
                keys::read_expiry(&key).ok_or_else(|| bad_key("expiry", &key))
            })
            .collect()
    }

    /// Reads up to `limit` keys of an index shard's deadline entries from `from` on and before
    /// `until`.
    pub(super) fn due_keys(
        &self,
        index_shard: PartitionId,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<fjall::UserKey>, StoreError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let first = keys::index(index_shard, from, OperationId(uuid::Uuid::nil()));
        let until = Timestamp(until.0 - 1);
        let last = keys::index(index_shard, until, OperationId(uuid::Uuid::max()));
        let span = &first[..]..=&last[..];
        self.walk(&self.db.snapshot(), &self.due, span, Order::Ascending)
            .take(limit)
            .collect()
    }
}

pub(super) fn failed(action: &'static str) -> impl Fn(fjall::Error) -> StoreError {
    move |error| StoreError::unavailable(action, error)
}

fn corrupt_row(part: RowPart, id: OperationId, cause: &Malformed) -> CorruptRow {
    CorruptRow {
        id,
        what: part.in_words(),
        cause: cause.to_string(),
    }
}

fn corrupt(what: &'static str, key: impl ToString) -> impl FnOnce(Malformed) -> StoreError {
    move |cause| StoreError::Corrupt {
        what,
        key: key.to_string(),
        cause: cause.to_string(),
    }
}

pub(super) fn bad_key(table: &'static str, key: &[u8]) -> StoreError {
    StoreError::Corrupt {
        what: "key",
        key: format!("table {table}"),
        cause: format!(
            "its {} bytes are not a key of this table: {key:02x?}",
            key.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn opening_rewrites_the_journal_unless_the_store_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(dir.path());
        let tables = Tables::open(&config).unwrap();
        tables.corrupt.insert("key", "value").unwrap();
        drop(tables);
        let entries = fs::read_dir(dir.path()).unwrap();
        let journals: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
            .collect();
        assert!(!journals.is_empty());
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let age = || {
            for path in &journals {
                let file = File::options().write(true).open(path).unwrap();
                file.set_modified(long_ago).unwrap();
            }
        };
        let is_written = || {
            journals
                .iter()
                .all(|path| fs::metadata(path).unwrap().modified().unwrap() > long_ago)
        };
        age();
        let tables = Tables::open(&config).unwrap();
        assert!(is_written());
        age();
        let second = Tables::open(&config).err();
        assert!(
            matches!(second, Some(StoreError::Locked { .. })),
            "{second:?}"
        );
        assert!(!is_written(), "the journal of an open store is left alone");
        drop(tables);
    }
}
