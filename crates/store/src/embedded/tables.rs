//! The tables of the embedded store, and everything that reads them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `state` | operation | stamp, expiry, mutable state |
//! | `created` | operation | stamp, immutable part |
//! | `expiry` | hour, operation | empty: the row's retention ends in that hour, or did once |
//! | `due` | shard, due, operation | empty |
//! | `attention` | shard, at, operation | empty |
//! | `leases` | partition | lease |
//! | `cursors` | shard | first bucket that was not swept to its end |

use std::ops::Bound;
use std::sync::Arc;

use fjall::config::BlockSizePolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, Readable, Snapshot};
use waybill_engine::{OperationId, OperationRow, PartitionId, Stamp, Timestamp};

use super::EmbeddedConfig;
use crate::codec::{self, Malformed, StateHeader};
use crate::due::day_bounds;
use crate::{AttentionEntry, DueBucket, DueEntry, Lease, StoreError, keys};

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
        Ok(Self {
            state: db.keyspace("state", rows).map_err(failed)?,
            created: db.keyspace("created", rows).map_err(failed)?,
            expiry: db.keyspace("expiry", small).map_err(failed)?,
            due: db.keyspace("due", small).map_err(failed)?,
            attention: db.keyspace("attention", small).map_err(failed)?,
            leases: db.keyspace("leases", small).map_err(failed)?,
            cursors: db.keyspace("cursors", small).map_err(failed)?,
            db,
        })
    }

    /// Reads rows in the order of `ids`.
    pub(super) fn rows(
        &self,
        ids: &[OperationId],
        now: Timestamp,
    ) -> Result<Vec<Option<OperationRow>>, StoreError> {
        let snapshot = self.db.snapshot();
        ids.iter().map(|&id| self.row(&snapshot, id, now)).collect()
    }

    fn row(
        &self,
        snapshot: &Snapshot,
        id: OperationId,
        now: Timestamp,
    ) -> Result<Option<OperationRow>, StoreError> {
        let action = "reading rows";
        let key = keys::row(id);
        let Some(state) = snapshot.get(&self.state, key).map_err(failed(action))? else {
            return Ok(None);
        };
        let (header, state) = codec::state(&state).map_err(corrupt("state", id))?;
        if header.has_expired(now) {
            return Ok(None);
        }
        let created = snapshot
            .get(&self.created, key)
            .map_err(failed(action))?
            .ok_or_else(|| StoreError::Corrupt {
                what: "row",
                key: id.to_string(),
                cause: "it has a state but no immutable part".to_owned(),
            })?;
        let created = codec::created(&created).map_err(corrupt("immutable part", id))?;
        Ok(Some(OperationRow {
            id,
            created: Arc::new(created),
            state,
            stamp: header.stamp,
        }))
    }

    /// Reads what the write path weighs of a stored state.
    pub(super) fn state_header(&self, id: OperationId) -> Result<Option<StateHeader>, StoreError> {
        self.state
            .get(keys::row(id))
            .map_err(failed("reading a stamp"))?
            .map(|value| codec::state_header(&value).map_err(corrupt("state", id)))
            .transpose()
    }

    /// Reads the stamp of a stored immutable part.
    pub(super) fn created_stamp(&self, id: OperationId) -> Result<Option<Stamp>, StoreError> {
        self.created
            .get(keys::row(id))
            .map_err(failed("reading a stamp"))?
            .map(|value| codec::created_stamp(&value).map_err(corrupt("immutable part", id)))
            .transpose()
    }

    /// Reads a partition's lease.
    pub(super) fn lease(&self, partition: PartitionId) -> Result<Option<Lease>, StoreError> {
        self.leases
            .get(keys::partition(partition))
            .map_err(failed("reading a lease"))?
            .map(|value| {
                codec::lease(&value).map_err(corrupt("lease", format!("partition {partition}")))
            })
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
        let after = after.map(|entry| (entry.due, entry.operation));
        self.index(
            "due",
            &self.due,
            shard,
            bucket.bounds(),
            after,
            limit,
            |due, operation| DueEntry { due, operation },
        )
    }

    /// Reads one day of the attention table.
    pub(super) fn attention(
        &self,
        shard: PartitionId,
        day: i64,
        after: Option<AttentionEntry>,
        limit: usize,
    ) -> Result<Vec<AttentionEntry>, StoreError> {
        let after = after.map(|entry| (entry.at, entry.operation));
        self.index(
            "attention",
            &self.attention,
            shard,
            day_bounds(day),
            after,
            limit,
            |at, operation| AttentionEntry { at, operation },
        )
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a page of an index has this many bounds"
    )]
    fn index<T>(
        &self,
        name: &'static str,
        table: &Keyspace,
        shard: PartitionId,
        (first, last): (Timestamp, Timestamp),
        after: Option<(Timestamp, OperationId)>,
        limit: usize,
        entry: impl Fn(Timestamp, OperationId) -> T,
    ) -> Result<Vec<T>, StoreError> {
        let end = keys::index(shard, last, OperationId(uuid::Uuid::max()));
        let first = Bound::Included(keys::index(shard, first, OperationId(uuid::Uuid::nil())));
        let start = match after.map(|(at, id)| keys::index(shard, at, id)) {
            Some(after) if after >= end => return Ok(Vec::new()),
            Some(after) => later(first, Bound::Excluded(after)),
            None => first,
        };
        self.db
            .snapshot()
            .range(table, (start, Bound::Included(end)))
            .take(limit)
            .map(|item| {
                let key = item.key().map_err(failed("reading an index"))?;
                let (at, id) = keys::read_index(&key).ok_or_else(|| bad_key(name, &key))?;
                Ok(entry(at, id))
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

fn failed(action: &'static str) -> impl Fn(fjall::Error) -> StoreError {
    move |error| StoreError::unavailable(action, error)
}

fn corrupt(what: &'static str, key: impl ToString) -> impl FnOnce(Malformed) -> StoreError {
    move |cause| StoreError::Corrupt {
        what,
        key: key.to_string(),
        cause: cause.to_string(),
    }
}

fn bad_key(table: &'static str, key: &[u8]) -> StoreError {
    StoreError::Corrupt {
        what: "key",
        key: format!("table {table}"),
        cause: format!("{} bytes are none of its keys: {key:02x?}", key.len()),
    }
}
