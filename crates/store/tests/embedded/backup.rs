//! Backups of a store that is being written to.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{OperationId, PartitionId, Timestamp};
use waybill_store::{
    DueBucket, DueEntry, EmbeddedConfig, EmbeddedRestore, EmbeddedSnapshot, EmbeddedStore,
    LeaseKey, Store, StoreError, WriteBatch,
};

use super::contract::{fresh_id, row, rows, write};

fn open(path: &Path) -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::open(EmbeddedConfig::new(path)).unwrap())
}

/// Holds commits back while `note` runs, from a thread that may wait.
async fn held<T: Send + 'static>(
    store: &Arc<EmbeddedStore>,
    note: impl FnOnce() -> T + Send + 'static,
) -> Result<(EmbeddedSnapshot, T), StoreError> {
    let store = store.clone();
    let held = tokio::task::spawn_blocking(move || store.while_held(note));
    held.await.unwrap()
}

async fn read(store: &EmbeddedStore, id: OperationId) -> Option<waybill_engine::OperationRow> {
    store.get_many(vec![id]).await.unwrap().remove(0).unwrap()
}

#[tokio::test]
async fn a_restored_store_has_exactly_the_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("first"));
    let (before, after) = (fresh_id(), fresh_id());
    let entry = DueEntry {
        due: Timestamp(5_000_000),
        operation: before,
    };
    let index_shard = PartitionId(3);
    let batch = WriteBatch {
        due: vec![(index_shard, entry)],
        ..rows([write(before, 1, true)])
    };
    store.write(batch).await.unwrap();
    store
        .advance_due_cursor(index_shard, DueBucket(4))
        .await
        .unwrap();
    let (snapshot, ()) = held(&store, || ()).await.unwrap();
    // Later changes: another row, and another state of the existing one.
    let later = rows([write(after, 2, true), write(before, 2, false)]);
    store.write(later).await.unwrap();

    let second = directory.path().join("second");
    let mut restore = EmbeddedRestore::begin(&second).unwrap();
    let mut operations = 0;
    for entry in snapshot.entries() {
        let entry = entry.unwrap();
        operations += u32::from(EmbeddedSnapshot::is_operation(&entry));
        restore.put(entry.table, &entry.key, &entry.value).unwrap();
    }
    let unknown = restore.put("nonsense", b"key", b"value").unwrap_err();
    assert!(unknown.to_string().contains("nonsense"), "{unknown}");
    restore.finish().unwrap();
    assert_eq!(operations, 1);

    let restored = open(&second);
    assert_eq!(read(&restored, before).await, Some(row(before, 1, 1)));
    assert_eq!(read(&restored, after).await, None);
    assert_eq!(read(&store, before).await, Some(row(before, 2, 1)));
    let due = restored
        .due(index_shard, DueBucket(5), None, 10)
        .await
        .unwrap();
    assert_eq!(due, [entry]);
    let cursor = restored.due_cursor(index_shard).await.unwrap();
    assert_eq!(cursor, Some(DueBucket(4)));
    let lease = restored
        .lease(LeaseKey::supervisor(index_shard))
        .await
        .unwrap();
    assert_eq!(lease, None);
}

#[tokio::test]
async fn held_back_commits_are_applied_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let (begun, may_write) = tokio::sync::oneshot::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let holding = tokio::spawn({
        let store = store.clone();
        async move {
            let note = move || {
                begun.send(()).unwrap();
                goes_on.recv_timeout(Duration::from_secs(1)).unwrap();
            };
            held(&store, note).await
        }
    });
    may_write.await.unwrap();
    let id = fresh_id();
    let mut writing = tokio::spawn({
        let store = store.clone();
        async move { store.write(rows([write(id, 1, true)])).await }
    });
    let early = tokio::time::timeout(Duration::from_millis(100), &mut writing).await;
    assert!(early.is_err(), "it was committed while commits were held");
    assert_eq!(read(&store, id).await, None);
    go_on.send(()).unwrap();
    writing.await.unwrap().unwrap();
    let (snapshot, ()) = holding.await.unwrap().unwrap();
    let entries = snapshot.entries().map(|entry| entry.unwrap().table);
    // The file in which the store keeps the time of retention.
    assert_eq!(entries.collect::<Vec<_>>(), ["leases"]);
    assert_eq!(read(&store, id).await, Some(row(id, 1, 1)));
}

#[tokio::test]
async fn holding_back_commits_for_too_long_fails_and_commits_continue() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let (begun, may_write) = tokio::sync::oneshot::channel();
    let holding = tokio::spawn({
        let store = store.clone();
        async move {
            let note = move || {
                begun.send(()).unwrap();
                is_over.recv().unwrap();
            };
            held(&store, note).await.map(|_| ())
        }
    });
    may_write.await.unwrap();
    store
        .write(rows([write(fresh_id(), 1, true)]))
        .await
        .unwrap();
    over.send(()).unwrap();
    let refused = holding.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, StoreError::Unavailable { .. }),
        "{refused}"
    );

    store.close().await.unwrap();
    let closed = held(&store, || panic!("a closed store holds nothing")).await;
    assert!(closed.is_err());
}
