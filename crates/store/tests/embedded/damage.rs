//! Unreadable values on disk: they are named, and set aside when a write replaces them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{OperationId, PartitionId, ShardId, Timestamp};
use waybill_store::{
    AttentionCursor, AttentionEntry, AttentionOrder, DueBucket, DueEntry, EmbeddedConfig,
    EmbeddedRestore, EmbeddedStore, LayoutGeneration, Lease, LeaseKey, RowRead, RowWrite, Store,
    StoreError, WriteBatch,
};

use super::Embedded;
use super::contract::{Subject, fresh_id, row, rows, write};

#[tokio::test]
async fn an_unreadable_value_is_reported_as_corrupt() {
    let subject = Embedded::new();
    let id = fresh_id();
    let partition = PartitionId(3);
    let store = subject.store();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    drop(store);

    for (table, value, what, cause) in [
        ("state", &[9_u8, 0, 0][..], "state", "format 9"),
        ("state", &[1, 0, 0], "state", "ends early"),
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
    let wanted = "lease of the supervisor of index shard 3";
    assert!(text.contains(wanted), "{text}");
    assert_eq!(
        store
            .lease(LeaseKey::scheduler(
                LayoutGeneration(0),
                ShardId(partition.0)
            ))
            .await
            .unwrap(),
        None
    );
    let text = store.due_cursor(partition).await.unwrap_err().to_string();
    assert!(text.contains("sweep cursor of index shard 3"), "{text}");
    assert!(
        store.get_many(vec![id]).await.unwrap()[0]
            .as_ref()
            .is_ok_and(Option::is_some),
        "others stay readable"
    );
}

/// The whole old row, so that a person can still see the request and its progress.
#[tokio::test]
async fn the_replaced_value_of_an_unreadable_row_is_kept_aside() {
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
async fn a_write_below_the_stamp_of_a_damaged_row_is_ignored() {
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
async fn any_write_replaces_a_fully_unreadable_row_and_copies_it_to_corrupt() {
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
async fn an_unreadable_immutable_part_is_always_kept_aside() {
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

/// A value of no format.
pub const UNREADABLE: [u8; 3] = [77, 1, 2];

/// Writes a value into a table, bypassing the store.
pub fn damage(path: &Path, table: &str, key: &[u8], value: &[u8]) {
    let db = fjall::Database::builder(path).open().unwrap();
    let table = db
        .keyspace(table, fjall::KeyspaceCreateOptions::default)
        .unwrap();
    table.insert(key, value).unwrap();
    db.persist(fjall::PersistMode::SyncAll).unwrap();
}

/// Reads a whole table, bypassing the store.
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

/// Changes one byte of a data block of the largest file of a table, which is written out first.
fn damage_a_block(path: &Path, table: &str) -> std::path::PathBuf {
    use fjall::AbstractTree;

    let file = {
        let db = fjall::Database::builder(path).open().unwrap();
        let keyspace = db
            .keyspace(table, fjall::KeyspaceCreateOptions::default)
            .unwrap();
        keyspace.rotate_memtable_and_wait().unwrap();
        let version = keyspace.tree.current_version();
        let files = version.iter_tables().map(|table| table.path.to_path_buf());
        files
            .max_by_key(|file| file.metadata().unwrap().len())
            .expect("the table was written out")
    };
    let mut bytes = std::fs::read(&file).unwrap();
    // Data blocks come first, each after a header of 33 bytes.
    let at = match bytes.len() {
        0..4_096 => 34,
        len => len / 3,
    };
    bytes[at] ^= 0x10;
    std::fs::write(&file, bytes).unwrap();
    // The file would be restored from one.
    let _ = std::fs::remove_dir_all(path.join("copies"));
    file
}

#[tokio::test]
async fn a_damaged_block_makes_its_rows_unreadable_and_no_others() {
    for table in ["state", "created"] {
        let subject = Embedded::new();
        let ids: Vec<_> = (0..2_000).map(|_| fresh_id()).collect();
        let store = subject.store();
        store
            .write(rows(ids.iter().map(|&id| write(id, 1, true))))
            .await
            .unwrap();
        assert!(store.damage().is_empty());
        drop(store);
        let file = damage_a_block(subject.dir.path(), table);

        let store = subject.store();
        let read = store.get_many(ids.clone()).await.unwrap();
        let damaged: Vec<_> = read.iter().filter_map(|row| row.as_ref().err()).collect();
        assert!((1..500).contains(&damaged.len()), "{}", damaged.len());
        for (id, row) in ids.iter().zip(&read) {
            assert!(
                row.is_err() || *row == Ok(Some(self::row(*id, 1, 1))),
                "{id}"
            );
        }
        let report = store.damage();
        let named = report.parts.len() as u64 + report.more;
        assert_eq!(named, damaged.len() as u64);
        let text = report.parts[0].to_string();
        let id = damaged[0].id.to_string();
        for part in [table, &id, "checksum", &file.display().to_string()] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }

        // The export continues after it, too.
        let listed = store.rows().filter_map(|row| row.unwrap().ok()).count();
        assert_eq!(listed, ids.len() - damaged.len(), "{table}");

        // New rows and old ones can be written, those of the block as well.
        let again = [damaged[0].id, ids[0], fresh_id()];
        let written = store
            .write(rows(again.map(|id| write(id, 2, true))))
            .await
            .unwrap();
        assert!(written.replaced.iter().any(|row| row.id == damaged[0].id));
        for row in store.get_many(again.to_vec()).await.unwrap() {
            assert!(matches!(row, Ok(Some(_))), "{row:?}");
        }
    }
}

#[tokio::test]
async fn listings_continue_after_a_damaged_block_in_either_order() {
    let subject = Embedded::new();
    let index_shard = PartitionId(0);
    let entry = |n: i64| AttentionEntry {
        at: Timestamp(n * 100),
        operation: fresh_id(),
    };
    let attention: Vec<_> = (0..3_000).map(entry).collect();
    let due: Vec<_> = attention
        .iter()
        .map(|entry| DueEntry {
            due: entry.at,
            operation: entry.operation,
        })
        .collect();
    let store = subject.store();
    let batch = WriteBatch {
        due: due.iter().map(|&entry| (index_shard, entry)).collect(),
        attention: attention
            .iter()
            .map(|&entry| (index_shard, entry))
            .collect(),
        ..WriteBatch::default()
    };
    store.write(batch).await.unwrap();
    store
        .advance_due_cursor(index_shard, DueBucket(7))
        .await
        .unwrap();
    drop(store);
    for table in ["attention", "due", "cursors"] {
        damage_a_block(subject.dir.path(), table);
    }

    let store = subject.store();
    for order in [AttentionOrder::OldestFirst, AttentionOrder::NewestFirst] {
        let mut found = Vec::new();
        let mut cursor = Some(AttentionCursor::new(
            order,
            Timestamp(0),
            Timestamp(i64::MAX),
        ));
        while let Some(next) = cursor {
            let page = store
                .attention_page(vec![index_shard], next, 100)
                .await
                .unwrap();
            found.extend(page.entries);
            cursor = page.next;
        }
        if order == AttentionOrder::NewestFirst {
            found.reverse();
        }
        assert!(found.is_sorted_by_key(|entry| entry.at), "{order:?}");
        let (first, last) = (attention[0], attention[attention.len() - 1]);
        assert_eq!(
            (found[0], found[found.len() - 1]),
            (first, last),
            "{order:?}"
        );
        let passed = attention.len() - found.len();
        assert!((1..1_500).contains(&passed), "{order:?}: {passed}");
    }
    let bucket = DueBucket::of(Timestamp(0));
    let found = store
        .due(index_shard, bucket, None, usize::MAX)
        .await
        .unwrap();
    assert_eq!((found[0], found.last()), (due[0], due.last()));
    assert!(found.len() < due.len());
    // Everything that is left in the index is looked at again.
    assert_eq!(store.due_cursor(index_shard).await.unwrap(), Some(bucket));
    let moved = DueBucket(8);
    store.advance_due_cursor(index_shard, moved).await.unwrap();
    assert_eq!(store.due_cursor(index_shard).await.unwrap(), Some(moved));

    let report = store.damage();
    for wanted in ["attention", "due", "cursors"] {
        assert!(
            report.parts.iter().any(|part| part.table == Some(wanted)),
            "{wanted}"
        );
    }
    assert!(
        report
            .parts
            .iter()
            .any(|part| part.entries.contains("index shard 0"))
    );
}

/// A store's only journal, without the room that it was made with.
fn journal_of(subject: &Embedded) -> std::path::PathBuf {
    // Cuts that room off.
    drop(subject.store());
    let files = std::fs::read_dir(subject.dir.path()).unwrap();
    let mut journals = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    journals.next().unwrap()
}

/// Whatever byte changes: either the store is not opened and names the file, or every row is there.
#[tokio::test]
async fn a_changed_byte_in_a_journal_is_detected() {
    let subject = Embedded::new();
    let ids: Vec<_> = (0..6).map(|_| fresh_id()).collect();
    let store = subject.store();
    for &id in &ids {
        store.write(rows([write(id, 1, true)])).await.unwrap();
    }
    drop(store);
    let journal = journal_of(&subject);
    let whole = std::fs::read(&journal).unwrap();
    let last = whole
        .windows(4)
        .rposition(|bytes| bytes == b"FJL\x03")
        .unwrap();
    let record = journal.with_file_name("synced");
    let synced = std::fs::read(&record).unwrap();
    let mut refused = 0;
    for at in (0..last + 4).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&journal, bytes).unwrap();
        std::fs::write(&record, &synced).unwrap();
        match EmbeddedStore::open(EmbeddedConfig::new(subject.dir.path())) {
            Ok(store) => {
                let read = store.get_many(ids.clone()).await.unwrap();
                assert!(
                    read.iter().all(|row| matches!(row, Ok(Some(_)))),
                    "byte {at}"
                );
            }
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                for part in [journal.to_str().unwrap(), "offset", "rm "] {
                    assert!(
                        text.contains(part),
                        "byte {at}: {part:?} is not in {text:?}"
                    );
                }
            }
        }
    }
    assert!(refused > 0);

    // A torn end was never acknowledged, and is cut.
    let mut before = whole[..last].windows(4);
    let before = before
        .rposition(|bytes| bytes == b"FJL\x03")
        .map_or(0, |at| at + 4);
    let torn = &whole[before..usize::midpoint(before, last)];
    std::fs::write(&journal, [&whole, torn].concat()).unwrap();
    std::fs::write(&record, &synced).unwrap();
    let read = subject.store().get_many(ids.clone()).await.unwrap();
    assert!(read.iter().all(|row| matches!(row, Ok(Some(_)))));
}

/// Its damaged rows stay unreadable, though older states of them could be read, and all others are
/// as they were.
#[tokio::test]
async fn a_store_stopped_by_a_damaged_block_is_rebuilt_from_its_readable_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = EmbeddedConfig::new(dir.path().join("store"));
    config.memtable_bytes = 64 << 10;
    let ids: Vec<_> = (0..400).map(|_| fresh_id()).collect();
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let batch = rows(ids.iter().map(|&id| write(id, 1, true)));
    store.write(batch).await.unwrap();
    drop(store);
    damage_a_block(&config.path, "state");
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let read = store.get_many(ids.clone()).await.unwrap();
    let damaged: Vec<_> = ids
        .iter()
        .zip(&read)
        .filter(|(_, row)| row.is_err())
        .collect();
    let damaged: Vec<_> = damaged.into_iter().map(|(id, _)| *id).collect();
    assert!(!damaged.is_empty());

    // More and more rows of the same operations, until the files are compacted.
    let healthy: Vec<_> = ids
        .iter()
        .copied()
        .filter(|id| !damaged.contains(id))
        .collect();
    let mut stamp = 1;
    let error = loop {
        let next = rows(healthy.iter().map(|&id| write(id, stamp + 1, false)));
        match store.write(next).await {
            Ok(_) => stamp += 1,
            // It is opened again first: the cause may have passed.
            Err(StoreError::Reopening { .. }) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
        assert!(stamp < 10_000, "no compaction has met the damage");
    };
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    store.refuses_writes().await;
    let cause = store.damage().refused.expect("writes are refused");
    assert!(cause.contains("a file is damaged"), "{cause}");
    drop(store);

    let store = EmbeddedStore::open(config.clone()).unwrap();
    for (id, read) in ids.iter().zip(store.get_many(ids.clone()).await.unwrap()) {
        match damaged.contains(id) {
            true => {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("was rebuilt"), "{error}");
            }
            false => assert_eq!(read, Ok(Some(self::row(*id, stamp, 1)))),
        }
    }
    let again = rows(ids.iter().map(|&id| write(id, stamp + 1, true)));
    store.write(again).await.unwrap();
    let kept = std::fs::read_dir(dir.path()).unwrap();
    let mut kept = kept.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(kept.any(|name| name.starts_with("store.damaged-")));
}

/// Other files have rows between the keys of the damaged blocks, and so has the journal. Rows of
/// which both parts are damaged are known from their expiry.
#[tokio::test]
async fn a_rebuild_keeps_every_row_that_can_be_read_and_names_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(dir.path().join("store"));
    let batch = |ids: &[OperationId]| {
        rows(ids.iter().map(|&id| RowWrite {
            keep_for: Some(Duration::from_secs(86_400)),
            ..write(id, 1, true)
        }))
    };
    let ids: Vec<_> = (0..6_000).map(|_| fresh_id()).collect();
    let store = EmbeddedStore::open(config.clone()).unwrap();
    store.write(batch(&ids[..2_000])).await.unwrap();
    drop(store);
    for table in ["state", "created"] {
        damage_a_block(&config.path, table);
    }
    let store = EmbeddedStore::open(config.clone()).unwrap();
    store.write(batch(&ids[2_000..4_000])).await.unwrap();
    drop(store);
    write_out(&config.path, "state");
    write_out(&config.path, "created");
    let store = EmbeddedStore::open(config.clone()).unwrap();
    store.write(batch(&ids[4_000..])).await.unwrap();
    let before = store.get_many(ids.clone()).await.unwrap();
    let lost = |read: &[RowRead]| -> Vec<_> {
        let read = ids.iter().zip(read);
        read.filter(|(_, row)| row.is_err())
            .map(|(id, _)| *id)
            .collect()
    };
    let lost_before = lost(&before);
    assert!((1..1_000).contains(&lost_before.len()));
    // An export has the same rows.
    let exported = store.rows().filter(|row| row.as_ref().unwrap().is_ok());
    assert_eq!(exported.count(), ids.len() - lost_before.len());
    drop(store);

    std::fs::File::create(config.path.join("rebuild")).unwrap();
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let after = store.get_many(ids.clone()).await.unwrap();
    assert_eq!(lost(&after), lost_before);
    for (before, after) in before.iter().zip(&after) {
        if before.is_ok() {
            assert_eq!(before, after);
        }
    }
    // A store that is restored from its backup reports the same.
    let store = Arc::new(store);
    let held = Arc::clone(&store);
    let held = tokio::task::spawn_blocking(move || held.while_held(|| ()));
    let (snapshot, ()) = held.await.unwrap().unwrap();
    let restored = EmbeddedConfig::new(dir.path().join("restored"));
    let mut restore = EmbeddedRestore::begin(&restored.path).unwrap();
    for entry in snapshot.entries() {
        let entry = entry.unwrap();
        restore.put(entry.table, &entry.key, &entry.value).unwrap();
    }
    assert_eq!(restore.finish().unwrap(), lost_before.len());
    drop((snapshot, store));
    for config in [config, restored] {
        let store = EmbeddedStore::open(config.clone()).unwrap();
        let report = store.damage();
        let list = config.path.join("lost-operations");
        assert_eq!(report.parts[0].files, [list.to_str().unwrap()]);
        let listed = std::fs::read_to_string(&list).unwrap();
        let mut listed: Vec<_> = listed.lines().map(str::to_owned).collect();
        let mut wanted: Vec<_> = lost_before.iter().map(ToString::to_string).collect();
        listed.sort();
        wanted.sort();
        assert_eq!(listed, wanted);
        drop(store);
        std::fs::remove_file(list).unwrap();
        let store = EmbeddedStore::open(config).unwrap();
        assert!(store.damage().is_empty());
    }
}

/// As a block that the disk has written to another place would leave it.
#[tokio::test]
async fn a_row_without_one_of_its_parts_is_unreadable_rather_than_unknown() {
    for part in ["state", "created"] {
        let dir = tempfile::tempdir().unwrap();
        let (id, unknown) = (fresh_id(), fresh_id());
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        store.write(rows([write(id, 1, true)])).await.unwrap();
        drop(store);
        {
            let db = fjall::Database::builder(dir.path()).open().unwrap();
            let options = fjall::KeyspaceCreateOptions::default;
            let table = db.keyspace(part, options).unwrap();
            let key = table.iter().next().unwrap().key().unwrap();
            table.remove(key).unwrap();
            db.persist(fjall::PersistMode::SyncAll).unwrap();
        }
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let read = store.get_many(vec![id, unknown]).await.unwrap();
        let cause = read[0].as_ref().unwrap_err().to_string();
        assert!(cause.contains("part"), "{cause}");
        assert_eq!(read[1], Ok(None));
    }
}

/// The disk was full when the new store was to take the place of the old one. Then a person has
/// replaced the damaged file.
#[tokio::test]
async fn a_repaired_store_is_not_replaced_by_its_rebuild() {
    for (is_repaired, has_journal) in [(false, true), (true, true), (true, false)] {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(dir.path().join("store"));
        let ids: Vec<_> = (0..2_000).map(|_| fresh_id()).collect();
        let batch = rows(ids.iter().map(|&id| write(id, 1, true)));
        let store = EmbeddedStore::open(config.clone()).unwrap();
        store.write(batch).await.unwrap();
        drop(store);
        let file = damage_a_block(&config.path, "state");
        let made = dir.path().join("store.rebuilt");
        drop(EmbeddedStore::open(EmbeddedConfig::new(&made)).unwrap());
        if is_repaired {
            let mut bytes = std::fs::read(&file).unwrap();
            let at = bytes.len() / 3;
            bytes[at] ^= 0x10;
            std::fs::write(&file, bytes).unwrap();
        }
        if !has_journal {
            // Another file was forgotten.
            std::fs::remove_file(config.path.join("0.jnl")).unwrap();
            let error = EmbeddedStore::open(config.clone()).unwrap_err();
            assert!(matches!(error, StoreError::Damaged(_)), "{error:?}");
            assert!(made.exists() && config.path.exists());
            continue;
        }
        let store = EmbeddedStore::open(config).unwrap();
        let read = store.get_many(ids).await.unwrap();
        let is_old = read.iter().all(|row| matches!(row, Ok(Some(_))));
        assert_eq!(is_old, is_repaired);
        assert!(!made.exists());
    }
}

#[tokio::test]
async fn a_backup_of_a_damaged_store_fails_and_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let ids: Vec<_> = (0..2_000).map(|_| fresh_id()).collect();
    let batch = rows(ids.iter().map(|&id| write(id, 1, true)));
    let store = EmbeddedStore::open(EmbeddedConfig::new(&path)).unwrap();
    store.write(batch).await.unwrap();
    drop(store);
    let file = damage_a_block(&path, "created");
    let store = EmbeddedStore::open(EmbeddedConfig::new(&path)).unwrap();
    let held = tokio::task::spawn_blocking(move || store.while_held(|| ()));
    let (snapshot, ()) = held.await.unwrap().unwrap();
    let error = snapshot.entries().find_map(Result::err).unwrap();
    let error = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

/// A lease cannot be guessed, so that the store does not open.
#[tokio::test]
async fn a_rebuild_that_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(dir.path().join("store"));
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let ids: Vec<_> = (0..2_000).map(|_| fresh_id()).collect();
    let batch = rows(ids.iter().map(|&id| write(id, 1, true)));
    store.write(batch).await.unwrap();
    let partition = PartitionId(0);
    let lease = Lease::new(LeaseKey::supervisor(partition), partition);
    assert!(store.take_lease(None, lease).await.unwrap());
    drop(store);
    for table in ["state", "leases"] {
        damage_a_block(&config.path, table);
    }
    std::fs::File::create(config.path.join("rebuild")).unwrap();
    let error = EmbeddedStore::open(config).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    let left = std::fs::read_dir(dir.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["store"]);
}

/// Writes the rows in memory to a file of their own.
fn write_out(path: &Path, table: &str) {
    let db = fjall::Database::builder(path).open().unwrap();
    let keyspace = db
        .keyspace(table, fjall::KeyspaceCreateOptions::default)
        .unwrap();
    keyspace.rotate_memtable_and_wait().unwrap();
}
