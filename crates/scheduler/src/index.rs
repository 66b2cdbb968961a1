//! Writes entries of the deadline index where a sweep finds them, whatever the clocks say.
//!
//! A sweep reads a bucket until it is well in the past, moves its cursor over it, and then reads it
//! a last time. So it finds an entry behind the cursor only if the entry was visible before the
//! cursor moved. The writer of an entry therefore reads the cursor *afterwards*, and writes an
//! entry that is behind it once more, further on.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;
use waybill_clock::{boot_clock, wall_clock};
use waybill_engine::{PartitionId, Timestamp};
use waybill_state::{DueBucket, DueEntry, WriteBatch, Written};
use waybill_store::{Store, StoreError};

/// Ensures that the sweep of an index shard begins no later than now: stores a cursor if there is
/// none, before any entry is written.
///
/// # Errors
///
/// If the store fails.
pub async fn begin(store: &dyn Store, index_shard: PartitionId) -> Result<(), StoreError> {
    let asked_at = wall_clock();
    let stored = store.due_cursor(index_shard).await?;
    match DueBucket::first_cursor(stored, asked_at) {
        Some(cursor) => store.advance_due_cursor(index_shard, cursor).await,
        None => Ok(()),
    }
}

/// Writes a commit, and writes its index entries again until none is behind its sweep's cursor.
/// `now` is the time of the engines' decisions.
pub async fn write(
    store: &dyn Store,
    batch: WriteBatch,
    now: Timestamp,
) -> Result<Written, StoreError> {
    let began = boot_clock();
    let mut due = batch.due.clone();
    let written = store.write(batch).await?;
    while !due.is_empty() {
        let cursors = cursors(store, &due).await?;
        due = late(&due, &cursors, now + boot_clock().since(began));
        if !due.is_empty() {
            tracing::warn!(
                entries = due.len(),
                "a sweep passed new entries of the deadline index; writing them again for a later \
                 time"
            );
            let again = WriteBatch {
                due: due.clone(),
                ..WriteBatch::default()
            };
            store.write(again).await?;
        }
    }
    Ok(written)
}

/// The sweep cursors of the index shards of these entries.
async fn cursors(
    store: &dyn Store,
    due: &[(PartitionId, DueEntry)],
) -> Result<BTreeMap<PartitionId, DueBucket>, StoreError> {
    let index_shards: BTreeSet<PartitionId> =
        due.iter().map(|(index_shard, _)| *index_shard).collect();
    let reads = index_shards.into_iter().map(async |index_shard| {
        let cursor = store.due_cursor(index_shard).await?;
        Ok::<_, StoreError>(cursor.map(|cursor| (index_shard, cursor)))
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}

/// The entries behind the cursors, as they are written once more.
fn late(
    due: &[(PartitionId, DueEntry)],
    cursors: &BTreeMap<PartitionId, DueBucket>,
    now: Timestamp,
) -> Vec<(PartitionId, DueEntry)> {
    let again = due.iter().filter_map(|(index_shard, entry)| {
        let cursor = *cursors.get(index_shard)?;
        Some((*index_shard, entry.ahead_of(cursor, now)?))
    });
    again.collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::OperationId;
    use waybill_store::{EmbeddedConfig, EmbeddedStore};

    use super::*;

    fn entry(second: i64) -> DueEntry {
        DueEntry {
            due: Timestamp(second * 1_000_000),
            operation: OperationId(Uuid::from_u128(7)),
        }
    }

    #[tokio::test]
    async fn an_entry_behind_the_cursor_is_rewritten_ahead_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let [swept, other] = [PartitionId(0), PartitionId(1)];
        store
            .advance_due_cursor(swept, DueBucket(100))
            .await
            .unwrap();
        let batch = WriteBatch {
            due: vec![(swept, entry(99)), (swept, entry(100)), (other, entry(99))],
            ..WriteBatch::default()
        };
        write(&store, batch, Timestamp(50_000_000)).await.unwrap();
        let mut found = Vec::new();
        for (index_shard, bucket) in [(swept, 100), (swept, 101), (swept, 51), (other, 101)] {
            found.push(
                store
                    .due(index_shard, DueBucket(bucket), None, 10)
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(found, [vec![entry(100)], vec![entry(101)], vec![], vec![]]);
    }
}
