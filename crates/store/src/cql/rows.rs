//! Operation rows: their partitions, how a group commit is written, how rows are read.
//!
//! * **The database compares stamps.** Each write carries its stamp as CQL's write timestamp. State
//!   and immutable part are cells of their own, and each keeps the value with the highest stamp.
//!   The stamp that is read back is the write time of the state's cell. The state is one blob, so
//!   that it is never a mixture of two writes; the columns next to it are for people.
//! * **Nothing is deleted, and no null is written**, so that rows leave no tombstones. Columns that
//!   a write does not give stay unset. Retention is a TTL on all cells of the last write; a write
//!   of all cells without a TTL removes it.
//! * **Rows of one slot share a partition.** Those of one commit and slot form one unlogged batch,
//!   which is one mutation: each request costs a server more than each row. See [`slot`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, MaybeUnset};
use uuid::Uuid;
use waybill_clock::wall_clock;
use waybill_engine::{
    Created, OperationId, OperationRow, OperationState, Stamp, Timestamp, partition_for,
};

use super::link::Link;
use super::unreadable::{Damage, Part, Unreadable};
use crate::codec::{self, Encoder};
use crate::{CorruptRow, KeptRow, RowRead, RowWrite, StoreError};

/// How many slots there are at a time. Divides usual numbers of partitions, so that the rows of one
/// scheduler's commit fall into few slots.
const SLOTS: u32 = 8;

/// How much time one slot spans.
const SLOT_MS: i64 = 4_000;

/// How many bytes of rows one batch holds at most, unless a single row has more.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// How many rows one batch holds at most.
const BATCH_ROWS_MAX: usize = 64;

/// No TTL: CQL's way to say so.
const FOR_GOOD: i32 = 0;

/// The end of 32-bit seconds, less a day: servers before Cassandra 5 refuse what expires later.
const LAST_EXPIRY_S: u64 = i32::MAX as u64 - 86_400;

/// The longest TTL that CQL takes: 20 years.
const TTL_S_MAX: u64 = 20 * 365 * 86_400;

/// How many rows one page of a scan has.
const SCAN_ROWS: i32 = 500;

/// Reads and writes rows.
pub(super) struct Rows {
    update: PreparedStatement,
    select: PreparedStatement,
    scan: String,
    unreadable: Unreadable,
    row_bytes_max: usize,
}

/// The partition of an operation's row. Never changes: rows are found by it.
///
/// The server's own ids (UUIDv7) contain their time of creation. Those of some seconds share a few
/// slots, so that operations in progress at the same time are stored together, and a slot stops
/// growing after its time. At 5,000 operations per second a slot holds 2,500 rows. A caller's id
/// (UUIDv5) contains no time and has its own slot. Slots of the former are not negative, those of
/// the latter are.
fn slot(id: OperationId) -> i64 {
    if id.0.get_version_num() == 7 {
        let (high, _) = id.0.as_u64_pair();
        let made_ms = (high >> 16).cast_signed();
        let among = i64::from(partition_for(id, SLOTS).0);
        return made_ms / SLOT_MS * i64::from(SLOTS) + among;
    }
    let (high, low) = id.0.as_u64_pair();
    (high ^ low).cast_signed() | i64::MIN
}

/// Rows as they are bound to the statement, by slot.
pub(super) struct EncodedRows(BTreeMap<i64, Vec<Encoded>>);

/// A row as it is bound to the statement.
struct Encoded {
    id: OperationId,
    slot: i64,
    stamp: i64,
    ttl_s: i32,
    body: Vec<u8>,
    created: Option<Vec<u8>>,
    state: &'static str,
    epoch: i64,
    next_due: CqlTimestamp,
    failure_count: i32,
    updated_at: CqlTimestamp,
}

/// The statement's values, in its order.
type Values<'a> = (
    i64,
    i32,
    &'a [u8],
    MaybeUnset<&'a [u8]>,
    &'static str,
    i64,
    CqlTimestamp,
    i32,
    CqlTimestamp,
    i64,
    Uuid,
);

/// The cells of a row that is read: body, its write time, immutable part, its write time.
type Cells<'a> = (Option<&'a [u8]>, Option<i64>, Option<&'a [u8]>, Option<i64>);

/// The cells of a scanned row: id, body, its write time, its TTL, immutable part.
type Scanned = (
    Uuid,
    Option<Vec<u8>>,
    Option<i64>,
    Option<i32>,
    Option<Vec<u8>>,
);

impl Rows {
    pub(super) async fn new(
        link: &Link,
        keyspace: &str,
        row_bytes_max: usize,
    ) -> Result<Self, StoreError> {
        let table = format!("{keyspace}.operations");
        Ok(Self {
            update: link
                .prepare(format!(
                    "UPDATE {table} USING TIMESTAMP ? AND TTL ? SET body = ?, created = ?, \
                     state = ?, epoch = ?, next_due = ?, failure_count = ?, updated_at = ? \
                     WHERE slot = ? AND id = ?"
                ))
                .await?,
            select: link
                .prepare(format!(
                    "SELECT body, WRITETIME(body), created, WRITETIME(created) FROM {table} \
                     WHERE slot = ? AND id = ?"
                ))
                .await?,
            scan: format!("SELECT id, body, WRITETIME(body), TTL(body), created FROM {table}"),
            unreadable: Unreadable::new(link, keyspace).await?,
            row_bytes_max,
        })
    }

    /// Encodes rows, those of a slot together.
    pub(super) fn encode(&self, rows: &[RowWrite]) -> Result<EncodedRows, StoreError> {
        let mut encoder = Encoder::default();
        let mut by_slot: BTreeMap<i64, Vec<Encoded>> = BTreeMap::new();
        let now = wall_clock();
        for row in rows {
            let row = Encoded::new(row, &mut encoder, now);
            if row.bytes() > self.row_bytes_max {
                return Err(StoreError::RowTooLong {
                    id: row.id,
                    bytes: row.bytes(),
                    bytes_max: self.row_bytes_max,
                });
            }
            by_slot.entry(row.slot).or_default().push(row);
        }
        Ok(EncodedRows(by_slot))
    }

    /// Writes rows.
    pub(super) async fn write(&self, link: &Link, rows: &EncodedRows) -> Result<(), StoreError> {
        let batches = rows.0.values().flat_map(|rows| Batches { rest: rows });
        let writes = batches.map(|rows| self.write_batch(link, rows));
        link.all(writes.collect()).await
    }

    /// The rows that were found unreadable before and are now replaced.
    pub(super) fn replaced(&self, rows: &[RowWrite]) -> Vec<CorruptRow> {
        self.unreadable.replaced(rows)
    }

    /// Writes rows of one slot.
    async fn write_batch(&self, link: &Link, rows: &[Encoded]) -> Result<(), StoreError> {
        const ACTION: &str = "writing rows";
        if let [row] = rows {
            let write = || link.session.execute_unpaged(&self.update, row.values());
            link.repeat(ACTION, write).await?;
            return Ok(());
        }
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_is_idempotent(true);
        for _ in rows {
            batch.append_statement(self.update.clone());
        }
        let values: Vec<_> = rows.iter().map(Encoded::values).collect();
        link.repeat(ACTION, || link.session.batch(&batch, &values))
            .await?;
        Ok(())
    }

    /// Reads rows, each separately.
    pub(super) async fn read(
        &self,
        link: &Link,
        ids: &[OperationId],
    ) -> Result<Vec<RowRead>, StoreError> {
        let mut answers: Vec<RowRead> = vec![Ok(None); ids.len()];
        let places = ids.iter().zip(answers.iter_mut());
        let reads = places.map(|(&id, answer)| async move {
            *answer = self.read_one(link, id).await?;
            Ok(())
        });
        link.all(reads.collect()).await?;
        Ok(answers)
    }

    /// Reads every stored row, page by page. Rows written in the meantime may or may not be
    /// included.
    pub(super) async fn all(
        &self,
        link: &Link,
    ) -> Result<impl Stream<Item = Result<Result<KeptRow, CorruptRow>, StoreError>>, StoreError>
    {
        const ACTION: &str = "reading all rows";
        let mut scan = link.prepare(self.scan.clone()).await?;
        scan.set_page_size(SCAN_ROWS);
        let pages = link.session.execute_iter(scan, ()).await;
        let pages = pages.map_err(|error| StoreError::unavailable(ACTION, error))?;
        let rows = pages.rows_stream::<Scanned>();
        let rows = rows.map_err(|error| StoreError::unavailable(ACTION, error))?;
        Ok(rows.filter_map(async |row| match row {
            Err(error) => Some(Err(StoreError::unavailable(ACTION, error))),
            Ok(row) => kept(row, wall_clock()).transpose().map(Ok),
        }))
    }

    async fn read_one(&self, link: &Link, id: OperationId) -> Result<RowRead, StoreError> {
        const ACTION: &str = "reading rows";
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            StoreError::unavailable(ACTION, error)
        };
        let key = (slot(id), id.0);
        let answer = link
            .repeat(ACTION, || link.session.execute_unpaged(&self.select, key))
            .await?;
        let rows = answer
            .into_rows_result()
            .map_err(|error| failed(error.into()))?;
        let cells = rows
            .maybe_first_row::<Cells>()
            .map_err(|error| failed(error.into()))?;
        let Some((Some(body), Some(stamp), created, created_stamp)) = cells else {
            return Ok(Ok(None));
        };
        let (part, cause) = match (codec::bare::<OperationState>(body), created) {
            (Ok(state), Some(created)) => match codec::bare::<Created>(created) {
                Ok(created) => {
                    return Ok(Ok(Some(OperationRow {
                        id,
                        created: Arc::new(created),
                        state,
                        stamp: Stamp(stamp),
                    })));
                }
                Err(cause) => (Part::Created, cause.to_string()),
            },
            (Ok(_), None) => {
                let cause = "it has a state but no immutable part".to_owned();
                let what = "row";
                return Ok(Err(CorruptRow { id, what, cause }));
            }
            (Err(cause), _) => (Part::State, cause.to_string()),
        };
        let damage = Damage {
            corrupt: CorruptRow {
                id,
                what: part.what(),
                cause,
            },
            part,
            state: (body, stamp),
            created: created.zip(created_stamp),
        };
        Ok(Err(self.unreadable.found(link, damage).await))
    }
}

/// A row as it was scanned; `None` if it has no state.
fn kept(scanned: Scanned, now: Timestamp) -> Result<Option<KeptRow>, CorruptRow> {
    let (id, Some(body), Some(stamp), ttl_s, created) = scanned else {
        return Ok(None);
    };
    let id = OperationId(id);
    let corrupt = |what, cause: String| CorruptRow { id, what, cause };
    let state = codec::bare(&body).map_err(|cause| corrupt("state", cause.to_string()))?;
    let Some(created) = created else {
        let cause = "it has a state but no immutable part".to_owned();
        return Err(corrupt("row", cause));
    };
    let created = codec::bare::<Created>(&created)
        .map_err(|cause| corrupt("immutable part", cause.to_string()))?;
    let ttl_s = ttl_s.and_then(|ttl_s| u64::try_from(ttl_s).ok());
    Ok(Some(KeptRow {
        row: OperationRow {
            id,
            created: Arc::new(created),
            state,
            stamp: Stamp(stamp),
        },
        expires_at: ttl_s.map(|ttl_s| now + Duration::from_secs(ttl_s)),
    }))
}

impl Encoded {
    fn new(row: &RowWrite, encoder: &mut Encoder, now: Timestamp) -> Self {
        let state = &row.state;
        let millis = |at: Timestamp| CqlTimestamp(at.as_millis());
        Self {
            id: row.id,
            slot: slot(row.id),
            stamp: row.stamp.0,
            ttl_s: row
                .keep_for
                .map_or(FOR_GOOD, |keep_for| ttl_s(keep_for, now)),
            body: encoder.bare(state).to_vec(),
            created: row
                .created
                .as_deref()
                .map(|created| encoder.bare(created).to_vec()),
            state: state.state.as_str(),
            epoch: i64::try_from(state.epoch.0).unwrap_or(i64::MAX),
            // For people, the Unix epoch means "never": a null would be a tombstone.
            next_due: state.next_due.map_or(CqlTimestamp(0), millis),
            failure_count: i32::try_from(state.failure_count).unwrap_or(i32::MAX),
            updated_at: millis(state.updated_at),
        }
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.created.as_ref().map_or(0, Vec::len)
    }

    fn values(&self) -> Values<'_> {
        let created = self.created.as_deref();
        (
            self.stamp,
            self.ttl_s,
            &self.body,
            created.map_or(MaybeUnset::Unset, MaybeUnset::Set),
            self.state,
            self.epoch,
            self.next_due,
            self.failure_count,
            self.updated_at,
            self.slot,
            self.id.0,
        )
    }
}

/// A duration as CQL's TTL: whole seconds, at least one, rounded up. A row that would expire after
/// the last instant that all servers support is kept for good.
pub(super) fn ttl_s(keep_for: Duration, now: Timestamp) -> i32 {
    let now_s = now.since(Timestamp(0)).as_secs();
    let whole_s = keep_for.as_secs();
    let seconds = whole_s
        .saturating_add(u64::from(keep_for.subsec_nanos() > 0))
        .max(1);
    let ends = now_s.saturating_add(seconds);
    if seconds > TTL_S_MAX || ends > LAST_EXPIRY_S {
        return FOR_GOOD;
    }
    i32::try_from(seconds).unwrap_or(FOR_GOOD)
}

/// Rows of one slot, cut into batches.
struct Batches<'a> {
    rest: &'a [Encoded],
}

impl<'a> Iterator for Batches<'a> {
    type Item = &'a [Encoded];

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = 0;
        let fits = self.rest.iter().take(BATCH_ROWS_MAX).take_while(|row| {
            bytes += row.bytes();
            bytes <= BATCH_BYTES_MAX
        });
        let len = fits.count().max(1).min(self.rest.len());
        let (batch, rest) = self.rest.split_at(len);
        self.rest = rest;
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests;
