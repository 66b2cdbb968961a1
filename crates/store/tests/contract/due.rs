//! The deadline index: order, pages, cursor, and the index before the row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use waybill_engine::{PartitionId, Timestamp};
use waybill_store::{
    AttentionCursor, AttentionEntry, AttentionOrder, DueBucket, DueEntry, Store, WriteBatch,
};

use super::{Random, Subject, fresh_id, fresh_partition, reopen, write};

const SECOND: i64 = 1_000_000;

fn due_at(due: i64) -> DueEntry {
    DueEntry {
        due: Timestamp(due),
        operation: fresh_id(),
    }
}

fn due_batch(index_shard: PartitionId, entries: &[DueEntry]) -> WriteBatch {
    WriteBatch {
        due: entries.iter().map(|&entry| (index_shard, entry)).collect(),
        ..WriteBatch::default()
    }
}

async fn read_bucket(store: &dyn Store, index_shard: PartitionId, bucket: i64) -> Vec<DueEntry> {
    store
        .due(index_shard, DueBucket(bucket), None, usize::MAX)
        .await
        .unwrap()
}

pub async fn due_entries_are_read_in_order_from_their_bucket_only(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let mut entries: Vec<_> = [0, 1, 1, 500_000, 999_999]
        .into_iter()
        .flat_map(|micros| [7, 8, 9].map(|second| due_at(second * SECOND + micros)))
        .collect();
    Random::new(3).shuffle(&mut entries);
    for batch in entries.chunks(4) {
        store.write(due_batch(index_shard, batch)).await.unwrap();
    }
    entries.sort();
    for bucket in 6..=10 {
        let wanted: Vec<_> = entries
            .iter()
            .copied()
            .filter(|entry| DueBucket::of(entry.due) == DueBucket(bucket))
            .collect();
        assert_eq!(
            read_bucket(&*store, index_shard, bucket).await,
            wanted,
            "bucket {bucket}"
        );
    }
    assert_eq!(
        read_bucket(&*store, fresh_partition(), 8).await,
        [],
        "another index shard"
    );

    let store = reopen(subject, store).await;
    assert_eq!(read_bucket(&*store, index_shard, 8).await.len(), 5);
}

pub async fn a_due_entry_written_twice_is_read_once(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let entry = due_at(5 * SECOND);
    store
        .write(due_batch(index_shard, &[entry, entry]))
        .await
        .unwrap();
    store.write(due_batch(index_shard, &[entry])).await.unwrap();
    assert_eq!(read_bucket(&*store, index_shard, 5).await, [entry]);
}

pub async fn a_bucket_is_read_page_by_page(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let mut entries: Vec<_> = (0..103).map(|n| due_at(20 * SECOND + n / 10)).collect();
    entries.sort();
    store.write(due_batch(index_shard, &entries)).await.unwrap();
    store
        .write(due_batch(
            index_shard,
            &[due_at(19 * SECOND), due_at(21 * SECOND)],
        ))
        .await
        .unwrap();

    let mut read = Vec::new();
    loop {
        let after = read.last().copied();
        let page = store
            .due(index_shard, DueBucket(20), after, 10)
            .await
            .unwrap();
        assert!(page.len() <= 10);
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(read, entries);

    let bucket = DueBucket(20);
    let before = due_at(19 * SECOND);
    let behind = due_at(21 * SECOND);
    assert_eq!(
        store
            .due(index_shard, bucket, Some(before), 500)
            .await
            .unwrap(),
        entries
    );
    assert_eq!(
        store
            .due(index_shard, bucket, Some(behind), 500)
            .await
            .unwrap(),
        []
    );
    assert_eq!(store.due(index_shard, bucket, None, 0).await.unwrap(), []);
}

pub async fn the_cursor_moves_forward_only_and_survives_reopening(subject: &impl Subject) {
    let store = subject.open().await;
    let (index_shard, other) = (fresh_partition(), fresh_partition());
    assert_eq!(store.due_cursor(index_shard).await.unwrap(), None);
    for (advance, wanted) in [(10, 10), (30, 30), (20, 30), (30, 30), (31, 31)] {
        store
            .advance_due_cursor(index_shard, DueBucket(advance))
            .await
            .unwrap();
        assert_eq!(
            store.due_cursor(index_shard).await.unwrap(),
            Some(DueBucket(wanted))
        );
    }
    assert_eq!(store.due_cursor(other).await.unwrap(), None);
    let store = reopen(subject, store).await;
    assert_eq!(
        store.due_cursor(index_shard).await.unwrap(),
        Some(DueBucket(31))
    );
}

pub async fn the_cursor_leaves_entries_at_and_behind_it(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let entries = [due_at(40 * SECOND), due_at(41 * SECOND)];
    store.write(due_batch(index_shard, &entries)).await.unwrap();
    store
        .advance_due_cursor(index_shard, DueBucket(40))
        .await
        .unwrap();
    assert_eq!(read_bucket(&*store, index_shard, 40).await, [entries[0]]);
    assert_eq!(read_bucket(&*store, index_shard, 41).await, [entries[1]]);
}

pub async fn no_row_is_visible_before_its_index_entries(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let ids: Vec<_> = (0..100).map(|_| fresh_id()).collect();
    let done = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (store, ids, done) = (Arc::clone(&store), ids.clone(), Arc::clone(&done));
        async move {
            let mut seen_partly = 0;
            loop {
                let is_last = done.load(Ordering::Acquire);
                let rows = store.get_many(ids.clone()).await.unwrap();
                let due = store
                    .due(index_shard, DueBucket(60), None, usize::MAX)
                    .await
                    .unwrap();
                let at = Timestamp(60 * SECOND);
                let listing = AttentionCursor::new(AttentionOrder::OldestFirst, at, at);
                let page = store.attention_page(vec![index_shard], listing, usize::MAX);
                let attention = page.await.unwrap().entries;
                let rows = rows.into_iter().filter_map(Result::unwrap);
                let visible: Vec<_> = rows.map(|row| row.id).collect();
                for id in &visible {
                    assert!(due.iter().any(|entry| entry.operation == *id));
                    assert!(attention.iter().any(|entry| entry.operation == *id));
                }
                seen_partly += usize::from(!visible.is_empty() && visible.len() < ids.len());
                if is_last {
                    assert_eq!(visible.len(), ids.len());
                    return seen_partly;
                }
            }
        }
    });
    for &operation in &ids {
        let at = Timestamp(60 * SECOND);
        let batch = WriteBatch {
            due: vec![(index_shard, DueEntry { due: at, operation })],
            attention: vec![(index_shard, AttentionEntry { at, operation })],
            rows: vec![write(operation, 1, true)],
        };
        store.write(batch).await.unwrap();
    }
    done.store(true, Ordering::Release);
    assert!(
        reader.await.unwrap() > 0,
        "the reader saw nothing in between"
    );
}
