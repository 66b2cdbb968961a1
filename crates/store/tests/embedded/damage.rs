//! Values on disk that cannot be read: they are named, and what a write replaces is kept aside.

use std::collections::BTreeMap;
use std::path::Path;

use waybill_engine::{OperationId, PartitionId, ReaderId};
use waybill_store::{LayoutGeneration, LeaseKey, Store};

use super::Embedded;
use super::contract::{Subject, fresh_id, row, rows, write};

#[tokio::test]
async fn a_value_that_cannot_be_read_is_corrupt_and_named() {
    let subject = Embedded::new();
    let id = fresh_id();
    let partition = PartitionId(3);
    let store = subject.store();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    drop(store);

    for (table, value, what, cause) in [
        ("state", &[9_u8, 0, 0][..], "state", "format 9"),
        ("state", &[3, 0, 0], "state", "ends early"),
        ("created", &[], "immutable part", "empty"),
    ] {
        // Each damage comes on top of an unharmed row.
        let subject = Embedded::new();
        let store = subject.store();
        store.write(rows([write(id, 1, true)])).await.unwrap();
        drop(store);
        damage(subject.dir.path(), table, id.0.as_bytes(), value);
        let read = subject.store().get_many(vec![id]).await.unwrap();
        let text = read[0].as_ref().unwrap_err().to_string();
        for part in [what, &id.to_string(), cause] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    let key = [&[1], &partition.0.to_be_bytes()[..]].concat();
    damage(subject.dir.path(), "leases", &key, &[3, 2]);
    let key = partition.0.to_be_bytes();
    damage(subject.dir.path(), "cursors", &key, &[3, 2]);
    let store = subject.store();
    let text = store.lease(LeaseKey::supervisor(partition)).await;
    let text = text.unwrap_err().to_string();
    let wanted = "lease of the supervisor of shard 3";
    assert!(text.contains(wanted), "{text}");
    assert_eq!(
        store
            .lease(LeaseKey::scheduler(
                LayoutGeneration(0),
                ReaderId(partition.0)
            ))
            .await
            .unwrap(),
        None
    );
    let text = store.due_cursor(partition).await.unwrap_err().to_string();
    assert!(text.contains("sweep cursor of shard 3"), "{text}");
    assert!(
        store.get_many(vec![id]).await.unwrap()[0]
            .as_ref()
            .is_ok_and(Option::is_some),
        "others stay readable"
    );
}

/// The whole old row, so that a person can still see what was asked for and how far it had got.
#[tokio::test]
async fn what_a_write_replaces_of_an_unreadable_row_is_kept_aside() {
    let subject = Embedded::new();
    let (both, state_only, healthy) = (fresh_id(), fresh_id(), fresh_id());
    let store = subject.store();
    let batch = rows([both, state_only, healthy].map(|id| write(id, 1, true)));
    store.write(batch).await.unwrap();
    drop(store);
    let created = stored(subject.dir.path(), "created");
    for id in [both, state_only] {
        subject.spoil(id).await;
    }

    let store = subject.store();
    let batch = rows([
        write(both, 2, true),
        write(state_only, 2, false),
        write(healthy, 2, true),
    ]);
    let written = store.write(batch).await.unwrap();
    let mut replaced: Vec<_> = written.replaced.iter().map(|row| row.id).collect();
    replaced.sort();
    let mut wanted = [both, state_only];
    wanted.sort();
    assert_eq!(replaced, wanted);
    drop(store);

    let aside = stored(subject.dir.path(), "corrupt");
    let aside_of = |id: OperationId| {
        let of_id = aside
            .iter()
            .filter(move |(key, _)| key[..16] == id.0.as_bytes()[..]);
        of_id.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let created_of_both = &created[&both.0.as_bytes()[..]];
    assert_eq!(
        aside_of(both),
        [UNREADABLE.to_vec(), created_of_both.clone()]
    );
    let created_of_state_only = &created[&state_only.0.as_bytes()[..]];
    assert_eq!(
        aside_of(state_only),
        [UNREADABLE.to_vec(), created_of_state_only.clone()]
    );
    assert_eq!(aside_of(healthy), Vec::<Vec<u8>>::new());
}

/// The state was at least as new as the immutable part, whose stamp can still be read.
#[tokio::test]
async fn a_write_below_what_can_be_read_of_a_damaged_row_changes_nothing() {
    let subject = Embedded::new();
    let id = fresh_id();
    let store = subject.store();
    store.write(rows([write(id, 5, true)])).await.unwrap();
    drop(store);
    subject.spoil(id).await;

    let store = subject.store();
    let written = store.write(rows([write(id, 4, true)])).await.unwrap();
    assert_eq!(written.replaced, []);
    assert!(store.get_many(vec![id]).await.unwrap()[0].is_err());
    let written = store.write(rows([write(id, 6, false)])).await.unwrap();
    assert_eq!(written.replaced.len(), 1);
    let read = store.get_many(vec![id]).await.unwrap();
    assert_eq!(read, [Ok(Some(row(id, 6, 5)))]);
    drop(store);
    assert_eq!(stored(subject.dir.path(), "corrupt").len(), 2);
}

#[tokio::test]
async fn a_row_of_which_nothing_can_be_read_gives_way_to_any_write_and_is_kept_aside_whole() {
    let subject = Embedded::new();
    let id = fresh_id();
    let store = subject.store();
    store.write(rows([write(id, 5, true)])).await.unwrap();
    drop(store);
    subject.spoil(id).await;
    damage(subject.dir.path(), "created", id.0.as_bytes(), &UNREADABLE);

    let store = subject.store();
    let written = store.write(rows([write(id, 2, false)])).await.unwrap();
    assert_eq!(written.replaced.len(), 1);
    store.write(rows([write(id, 3, true)])).await.unwrap();
    let read = store.get_many(vec![id]).await.unwrap();
    assert_eq!(read, [Ok(Some(row(id, 3, 3)))]);
    drop(store);
    let aside = stored(subject.dir.path(), "corrupt");
    assert_eq!(aside.into_values().collect::<Vec<_>>(), [UNREADABLE; 2]);
}

#[tokio::test]
async fn an_unreadable_immutable_part_is_kept_aside_whatever_the_stamp_of_the_write() {
    for stamp in [3, 5, 7] {
        let subject = Embedded::new();
        let id = fresh_id();
        let store = subject.store();
        store.write(rows([write(id, 5, true)])).await.unwrap();
        drop(store);
        damage(subject.dir.path(), "created", id.0.as_bytes(), &UNREADABLE);

        let store = subject.store();
        let written = store.write(rows([write(id, stamp, true)])).await.unwrap();
        assert_eq!(written.replaced.len(), 1, "stamp {stamp}");
        assert_eq!(written.replaced[0].what, "immutable part");
        let read = store.get_many(vec![id]).await.unwrap();
        assert_eq!(read, [Ok(Some(row(id, stamp.max(5), stamp)))]);
        drop(store);
        let aside = stored(subject.dir.path(), "corrupt");
        assert_eq!(aside.into_values().collect::<Vec<_>>(), [UNREADABLE]);
    }
}

/// No value of any format.
pub const UNREADABLE: [u8; 3] = [77, 1, 2];

/// Writes a value into a table behind the store's back.
pub fn damage(path: &Path, table: &str, key: &[u8], value: &[u8]) {
    let db = fjall::Database::builder(path).open().unwrap();
    let table = db
        .keyspace(table, fjall::KeyspaceCreateOptions::default)
        .unwrap();
    table.insert(key, value).unwrap();
    db.persist(fjall::PersistMode::SyncAll).unwrap();
}

/// Reads a whole table behind the store's back.
fn stored(path: &Path, table: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let db = fjall::Database::builder(path).open().unwrap();
    let table = db
        .keyspace(table, fjall::KeyspaceCreateOptions::default)
        .unwrap();
    let entries = table.iter().map(|entry| entry.into_inner().unwrap());
    entries
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}
