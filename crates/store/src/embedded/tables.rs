//! The tables of the embedded store, and everything that reads them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `state` | operation | stamp, expiry, mutable state |
//! | `created` | operation | stamp, immutable part |
//! | `expiry` | hour, operation | empty: the row's retention ends in that hour, or did once |
//! | `due` | shard, due, operation | empty |
//! | `attention` | shard, at, operation | empty |
//! | `leases` | role, generation (of layouts after the first), reader or shard | lease |
//! | | 3 | layout |
//! | | 4 | the time of retention |
//! | `cursors` | shard | first bucket that was not swept to its end |
//! | `corrupt` | operation, instant, part | a value of `state` or `created` as it was before that instant, when a write took the place of a row that could not be read |
//!
//! Nothing reads or removes what is in `corrupt`: it is there for a person, and holds no more than
//! one row for each that was damaged.

use std::ops::Bound;
use std::sync::Arc;

use fjall::config::BlockSizePolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, Readable, UserValue};
use waybill_clock::wall_clock;
use waybill_engine::{OperationId, OperationRow, OperationState, PartitionId, Stamp, Timestamp};

use super::retention::Retention;
use super::{EmbeddedConfig, journal};
use crate::codec::{self, Malformed, StateHeader};
use crate::{
    CorruptRow, DueBucket, DueEntry, KeptRow, Layout, Lease, LeaseKey, RowRead, StoreError, keys,
};

/// What the tables other than the row tables gather in memory each, in bytes: little is written to
/// them.
const SMALL_MEMTABLE_BYTES: u64 = 1 << 20;

/// The least that the key-value store accepts as the bound of its full journal files.
const JOURNAL_BYTES_LEAST: u64 = 64 << 20;

/// The open tables.
pub(super) struct Tables {
    pub(super) db: Database,
    pub(super) state: Keyspace,
    pub(super) created: Keyspace,
    pub(super) expiry: Keyspace,
    pub(super) due: Keyspace,
    pub(super) attention: Keyspace,
    pub(super) leases: Keyspace,
    pub(super) cursors: Keyspace,
    pub(super) corrupt: Keyspace,
    /// The time by which rows are kept.
    pub(super) retention: Retention,
}

/// A stored state with its header, or why it cannot be read.
pub(super) type StateRead = Result<(StateHeader, OperationState), CorruptRow>;

/// A part of a row as the write path finds it.
pub(super) struct Stored {
    /// Its bytes.
    pub(super) bytes: UserValue,
    /// Its stamp, or why there is none to weigh.
    pub(super) stamp: Result<Stamp, CorruptRow>,
}

impl Tables {
    /// Opens or makes the tables.
    pub(super) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let failed = |error| match error {
            fjall::Error::Locked => StoreError::Locked {
                path: config.path.display().to_string(),
            },
            error => StoreError::unavailable("opening", error),
        };
        journal::write_again(&config.path)
            .map_err(|error| StoreError::unavailable("opening", error))?;
        let db = Database::builder(&config.path)
            .cache_size(config.cache_bytes)
            .max_journaling_size(config.journal_bytes_max.max(JOURNAL_BYTES_LEAST))
            .worker_threads(config.worker_threads.max(1))
            .open()
            .map_err(failed)?;
        let rows = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(config.memtable_bytes)
                .data_block_size_policy(BlockSizePolicy::all(4 << 10))
        };
        let small = || KeyspaceCreateOptions::default().max_memtable_size(SMALL_MEMTABLE_BYTES);
        let leases = db.keyspace("leases", small).map_err(failed)?;
        Ok(Self {
            retention: Retention::open(&leases)?,
            state: db.keyspace("state", rows).map_err(failed)?,
            created: db.keyspace("created", rows).map_err(failed)?,
            expiry: db.keyspace("expiry", small).map_err(failed)?,
            due: db.keyspace("due", small).map_err(failed)?,
            attention: db.keyspace("attention", small).map_err(failed)?,
            leases,
            cursors: db.keyspace("cursors", small).map_err(failed)?,
            corrupt: db.keyspace("corrupt", small).map_err(failed)?,
            db,
        })
    }

    /// All of them, by name. The names are part of what backups are made of.
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

    /// Reads rows in the order of `ids`, those whose retention is not over.
    pub(super) fn rows(&self, ids: &[OperationId]) -> Result<Vec<RowRead>, StoreError> {
        let now = self.retention.now();
        let snapshot = self.db.snapshot();
        ids.iter().map(|&id| self.row(&snapshot, id, now)).collect()
    }

    fn row(
        &self,
        reader: &impl Readable,
        id: OperationId,
        now: Timestamp,
    ) -> Result<RowRead, StoreError> {
        let (header, state) = match self.state_of(reader, id)? {
            None => return Ok(Ok(None)),
            Some(Err(corrupt)) => return Ok(Err(corrupt)),
            Some(Ok((header, _))) if header.has_expired(now) => return Ok(Ok(None)),
            Some(Ok(state)) => state,
        };
        let created = reader
            .get(&self.created, keys::row(id))
            .map_err(failed("reading rows"))?;
        let created = match created.as_deref().map(codec::created) {
            None => Err(CorruptRow {
                id,
                what: "row",
                cause: "it has a state but no immutable part".to_owned(),
            }),
            Some(Err(cause)) => Err(corrupt_row("immutable part", id, &cause)),
            Some(Ok((_, created))) => Ok(created),
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

    /// Reads every row whose retention is not over, and when that ends by the wall clock if the store stays open.
    pub(super) fn kept_rows(
        &self,
    ) -> impl Iterator<Item = Result<Result<KeptRow, CorruptRow>, StoreError>> {
        let (now, wall) = (self.retention.now(), wall_clock());
        let snapshot = self.db.snapshot();
        snapshot
            .iter(&self.state)
            .map(move |entry| {
                let key = entry.key().map_err(failed("reading rows"))?;
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
        let value = reader
            .get(&self.state, keys::row(id))
            .map_err(failed("reading rows"))?;
        Ok(value
            .map(|value| codec::state(&value).map_err(|cause| corrupt_row("state", id, &cause))))
    }

    /// Reads what the write path weighs of a stored state.
    pub(super) fn stored_state(&self, id: OperationId) -> Result<Option<Stored>, StoreError> {
        let value = self
            .state
            .get(keys::row(id))
            .map_err(failed("reading a stamp"))?;
        Ok(value.map(|bytes| Stored {
            stamp: codec::state(&bytes)
                .map(|(header, _)| header.stamp)
                .map_err(|cause| corrupt_row("state", id, &cause)),
            bytes,
        }))
    }

    /// Reads what the write path weighs of a stored immutable part.
    pub(super) fn stored_created(&self, id: OperationId) -> Result<Option<Stored>, StoreError> {
        let value = self
            .created
            .get(keys::row(id))
            .map_err(failed("reading a stamp"))?;
        Ok(value.map(|bytes| Stored {
            stamp: codec::created(&bytes)
                .map(|(stamp, _)| stamp)
                .map_err(|cause| corrupt_row("immutable part", id, &cause)),
            bytes,
        }))
    }

    /// Reads a lease.
    pub(super) fn lease(&self, key: LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.leases
            .get(keys::lease(key))
            .map_err(failed("reading a lease"))?
            .map(|value| codec::lease(&value).map_err(corrupt("lease", key)))
            .transpose()
    }

    /// Reads the layout.
    pub(super) fn layout(&self) -> Result<Option<Layout>, StoreError> {
        self.leases
            .get(keys::LAYOUT)
            .map_err(failed("reading the layout"))?
            .map(|value| codec::layout(&value).map_err(corrupt("layout", "the schedulers")))
            .transpose()
    }

    /// Reads a shard's sweep cursor.
    pub(super) fn cursor(&self, shard: PartitionId) -> Result<Option<DueBucket>, StoreError> {
        self.cursors
            .get(keys::partition(shard))
            .map_err(failed("reading a sweep cursor"))?
            .map(|value| {
                codec::cursor(&value).map_err(corrupt("sweep cursor", format!("shard {shard}")))
            })
            .transpose()
    }

    /// Reads all sweep cursors.
    pub(super) fn cursors(&self) -> Result<Vec<(PartitionId, DueBucket)>, StoreError> {
        self.cursors
            .iter()
            .map(|entry| {
                let (key, value) = entry
                    .into_inner()
                    .map_err(failed("reading sweep cursors"))?;
                let shard = keys::read_partition(&key).ok_or_else(|| bad_key("cursors", &key))?;
                let cursor = codec::cursor(&value)
                    .map_err(corrupt("sweep cursor", format!("shard {shard}")))?;
                Ok((shard, cursor))
            })
            .collect()
    }

    /// Reads one bucket of the deadline index.
    pub(super) fn due(
        &self,
        shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> Result<Vec<DueEntry>, StoreError> {
        let (first, last) = bucket.bounds();
        let end = keys::index(shard, last, OperationId(uuid::Uuid::max()));
        let first = Bound::Included(keys::index(shard, first, OperationId(uuid::Uuid::nil())));
        let start = match after.map(|entry| keys::index(shard, entry.due, entry.operation)) {
            Some(after) if after >= end => return Ok(Vec::new()),
            Some(after) => later(first, Bound::Excluded(after)),
            None => first,
        };
        self.db
            .snapshot()
            .range(&self.due, (start, Bound::Included(end)))
            .take(limit)
            .map(|item| {
                let key = item.key().map_err(failed("reading the deadline index"))?;
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
        let nil = OperationId(uuid::Uuid::nil());
        if from >= until {
            return Ok(Vec::new());
        }
        self.expiry
            .range(keys::expiry(from, nil)..keys::expiry(until, nil))
            .take(limit)
            .map(|item| {
                let key = item.key().map_err(failed("reading the expiry index"))?;
                keys::read_expiry(&key).ok_or_else(|| bad_key("expiry", &key))
            })
            .collect()
    }

    /// Reads up to `limit` keys of a shard's deadline entries from `from` on and before `until`.
    pub(super) fn due_keys(
        &self,
        shard: PartitionId,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<fjall::UserKey>, StoreError> {
        let nil = OperationId(uuid::Uuid::nil());
        if from >= until {
            return Ok(Vec::new());
        }
        self.due
            .range(keys::index(shard, from, nil)..keys::index(shard, until, nil))
            .take(limit)
            .map(|item| item.key().map_err(failed("reading the deadline index")))
            .collect()
    }
}

/// Of two lower bounds the one that admits less.
fn later<K: Ord>(first: Bound<K>, after: Bound<K>) -> Bound<K> {
    match (&first, &after) {
        (Bound::Included(first_key), Bound::Excluded(after_key)) if after_key < first_key => first,
        _ => after,
    }
}

pub(super) fn failed(action: &'static str) -> impl Fn(fjall::Error) -> StoreError {
    move |error| StoreError::unavailable(action, error)
}

fn corrupt_row(what: &'static str, id: OperationId, cause: &Malformed) -> CorruptRow {
    CorruptRow {
        id,
        what,
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
        cause: format!("{} bytes are none of its keys: {key:02x?}", key.len()),
    }
}
