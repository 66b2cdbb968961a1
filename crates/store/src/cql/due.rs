//! The deadline index: a partition for each bucket of each index shard.
//!
//! Entries are hints that are never deleted: each expires a while after its instant. Only the last
//! of the swept buckets are read again, so that no reader meets expired entries. The cursor of an
//! index shard is written at the timestamp of its bucket, so that the later of two cursors wins
//! without a transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use waybill_clock::wall_clock;
use waybill_engine::{OperationId, PartitionId, Timestamp};

use super::link::Link;
use super::rows::ttl_s;
use crate::{DueBucket, DueEntry, StoreError, keys};

/// How many entries one batch holds at most.
const BATCH_ENTRIES_MAX: usize = 100;

/// How many entries one request reads at most.
const PAGE: usize = 5_000;

/// Reads and writes the deadline index.
pub(super) struct Due {
    insert: PreparedStatement,
    select: PreparedStatement,
    write_cursor: PreparedStatement,
    select_cursor: PreparedStatement,
    kept: Duration,
}

/// An entry as it is bound to the statement: index shard, bucket, entry, TTL.
type Values = (i64, i64, [u8; keys::ENTRY_KEY_LEN], i32);

impl Due {
    pub(super) async fn new(
        link: &Link,
        keyspace: &str,
        kept: Duration,
    ) -> Result<Self, StoreError> {
        let (due, cursors) = (format!("{keyspace}.due"), format!("{keyspace}.due_cursors"));
        Ok(Self {
            insert: link
                .prepare(format!(
                    "INSERT INTO {due} (shard, bucket, entry) VALUES (?, ?, ?) USING TTL ?"
                ))
                .await?,
            select: link
                .prepare(format!(
                    "SELECT entry FROM {due} WHERE shard = ? AND bucket = ? AND entry > ? \
                     ORDER BY entry ASC LIMIT ?"
                ))
                .await?,
            write_cursor: link
                .prepare(format!(
                    "UPDATE {cursors} USING TIMESTAMP ? SET bucket = ? WHERE shard = ?"
                ))
                .await?,
            select_cursor: link
                .prepare(format!("SELECT bucket FROM {cursors} WHERE shard = ?"))
                .await?,
            kept,
        })
    }

    /// Writes entries, those of a bucket together.
    pub(super) async fn write(
        &self,
        link: &Link,
        entries: &[(PartitionId, DueEntry)],
    ) -> Result<(), StoreError> {
        let now = wall_clock();
        let mut buckets: BTreeMap<(i64, i64), Vec<Values>> = BTreeMap::new();
        for (index_shard, entry) in entries {
            let (index_shard, bucket) = (i64::from(index_shard.0), DueBucket::of(entry.due).0);
            let key = keys::entry(entry.due, entry.operation);
            let bound = (index_shard, bucket, key, self.ttl_s(entry.due, now));
            buckets
                .entry((index_shard, bucket))
                .or_default()
                .push(bound);
        }
        let batches = buckets
            .values()
            .flat_map(|entries| entries.chunks(BATCH_ENTRIES_MAX));
        let writes = batches
            .map(|entries| write_batch(link, "writing the deadline index", &self.insert, entries));
        link.all(writes.collect()).await
    }

    /// An entry is kept until its instant, and then for as long as supervisors may be unavailable.
    fn ttl_s(&self, due: Timestamp, now: Timestamp) -> i32 {
        ttl_s(due.since(now).saturating_add(self.kept), now)
    }

    /// Reads a part of a bucket.
    pub(super) async fn read(
        &self,
        link: &Link,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> Result<Vec<DueEntry>, StoreError> {
        let after = after.map(|after| keys::entry(after.due, after.operation));
        // Nothing precedes the empty key.
        let mut after = after.map_or(Vec::new(), Vec::from);
        let mut found = Vec::new();
        while found.len() < limit {
            let page = PAGE.min(limit - found.len());
            let wanted = i32::try_from(page).unwrap_or(i32::MAX);
            let values = (i64::from(index_shard.0), bucket.0, after.as_slice(), wanted);
            let keys =
                read_entries(link, "reading the deadline index", &self.select, values).await?;
            found.extend(
                keys.iter()
                    .map(|&(due, operation)| DueEntry { due, operation }),
            );
            match keys.last() {
                Some(&(due, operation)) if keys.len() == page => {
                    after = keys::entry(due, operation).to_vec();
                }
                Some(_) | None => break,
            }
        }
        Ok(found)
    }

    /// Reads an index shard's cursor.
    pub(super) async fn cursor(
        &self,
        link: &Link,
        index_shard: PartitionId,
    ) -> Result<Option<DueBucket>, StoreError> {
        let values = (i64::from(index_shard.0),);
        let mut rows: Vec<(i64,)> = link
            .rows("reading a sweep cursor", &self.select_cursor, values)
            .await?;
        Ok(rows.pop().map(|(bucket,)| DueBucket(bucket)))
    }

    /// Moves an index shard's cursor, if that is forward.
    pub(super) async fn advance(
        &self,
        link: &Link,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> Result<(), StoreError> {
        let (stamp, _) = cursor.bounds();
        let values = (stamp.0, cursor.0, i64::from(index_shard.0));
        let write = || link.session.execute_unpaged(&self.write_cursor, values);
        link.repeat("advancing a sweep cursor", write).await?;
        Ok(())
    }
}

/// Writes entries of one partition.
pub(super) async fn write_batch<V>(
    link: &Link,
    action: &'static str,
    insert: &PreparedStatement,
    entries: &[V],
) -> Result<(), StoreError>
where
    V: SerializeRow,
{
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_is_idempotent(true);
    for _ in entries {
        batch.append_statement(insert.clone());
    }
    link.repeat(action, || link.session.batch(&batch, entries))
        .await?;
    Ok(())
}

/// Reads keys of entries, in the order of their partition.
pub(super) async fn read_entries(
    link: &Link,
    action: &'static str,
    select: &PreparedStatement,
    values: impl SerializeRow,
) -> Result<Vec<(Timestamp, OperationId)>, StoreError> {
    let failed =
        |error: Box<dyn std::error::Error + Send + Sync>| StoreError::unavailable(action, error);
    let rows = link
        .repeat(action, || link.session.execute_unpaged(select, &values))
        .await?
        .into_rows_result()
        .map_err(|error| failed(error.into()))?;
    let rows = rows
        .rows::<(&[u8],)>()
        .map_err(|error| failed(error.into()))?;
    rows.map(|row| {
        let (key,) = row.map_err(|error| failed(error.into()))?;
        keys::read_entry(key).ok_or_else(|| StoreError::Corrupt {
            what: "key",
            key: action.to_owned(),
            cause: format!(
                "its {} bytes are not a key of the deadline index: {key:02x?}",
                key.len()
            ),
        })
    })
    .collect()
}
