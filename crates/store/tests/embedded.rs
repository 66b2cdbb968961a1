//! The embedded store: the contract of every store, and the faults of a store on disk.

#[path = "embedded/backup.rs"]
mod backup;
mod contract;
#[path = "embedded/damage.rs"]
mod damage;
#[path = "embedded/files.rs"]
mod files;
#[path = "embedded/full.rs"]
mod full;

use std::collections::HashSet;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{Random, Subject, created, fresh_id, rows, state, write};
use futures_util::FutureExt;
use uuid::Uuid;
use waybill_engine::{Epoch, OperationId, OwnerId, PartitionId, Stamp, Timestamp};
use waybill_store::{
    AttentionCursor, AttentionEntry, AttentionOrder, DueBucket, DueEntry, EmbeddedConfig,
    EmbeddedStore, LayoutGeneration, Lease, LeaseKey, LeaseRole, RowWrite, Store, StoreError,
    WriteBatch,
};

/// The embedded store in its own directory.
struct Embedded {
    dir: tempfile::TempDir,
}

impl Embedded {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn store(&self) -> EmbeddedStore {
        EmbeddedStore::open(EmbeddedConfig::new(self.dir.path())).unwrap()
    }
}

impl Subject for Embedded {
    fn open(&self) -> impl Future<Output = Arc<dyn Store>> + Send {
        std::future::ready(Arc::new(self.store()) as Arc<dyn Store>)
    }

    fn spoil(&self, id: OperationId) -> impl Future<Output = ()> + Send {
        let unreadable = &damage::UNREADABLE;
        damage::damage(self.dir.path(), "state", id.0.as_bytes(), unreadable);
        std::future::ready(())
    }
}

contract_tests!(Embedded::new());

#[test]
fn an_embedded_store_allows_one_process() {
    assert!(Embedded::new().store().is_exclusive());
}

/// With a memory of one stamp, nearly every write must read the stored row.
#[tokio::test]
async fn the_higher_stamp_wins_after_recent_stamps_are_forgotten() {
    let subject = Embedded::new();
    let mut config = EmbeddedConfig::new(subject.dir.path());
    config.recent_stamps = 1;
    let store = EmbeddedStore::open(config).unwrap();
    let ids: Vec<_> = (0..50).map(|_| fresh_id()).collect();
    let mut random = Random::new(23);
    let mut writes: Vec<_> = ids
        .iter()
        .flat_map(|&id| (1..=6).map(move |stamp| write(id, stamp, stamp % 3 == 1)))
        .collect();
    random.shuffle(&mut writes);
    for batch in writes.chunks(7) {
        store.write(rows(batch.to_vec())).await.unwrap();
    }
    for row in store.get_many(ids).await.unwrap() {
        let row = row.unwrap().unwrap();
        assert_eq!((row.stamp, row.state), (Stamp(6), state(6)));
        assert_eq!(row.created, created(4));
    }
}

/// Small tables, so that all writes have been through flushes and compactions.
#[tokio::test]
async fn rows_survive_compactions() {
    let subject = Embedded::new();
    let config = || {
        let mut config = EmbeddedConfig::new(subject.dir.path());
        config.memtable_bytes = 64 << 10;
        config
    };
    let ids: Vec<_> = (0..5_000).map(|_| fresh_id()).collect();
    let store = EmbeddedStore::open(config()).unwrap();
    for stamp in 1..=4 {
        for batch in ids.chunks(500) {
            store
                .write(rows(batch.iter().map(|&id| write(id, stamp, stamp == 1))))
                .await
                .unwrap();
        }
    }
    drop(store);
    let store = EmbeddedStore::open(config()).unwrap();
    store
        .write(rows(ids.iter().map(|&id| write(id, 3, false))))
        .await
        .unwrap();
    for row in store.get_many(ids).await.unwrap() {
        let row = row.unwrap().unwrap();
        assert_eq!((row.stamp, row.state), (Stamp(4), state(4)));
        assert_eq!(row.created, created(1));
    }
}

#[tokio::test]
async fn a_closed_store_refuses_writes_and_frees_its_directory() {
    let subject = Embedded::new();
    let store = subject.store();
    let id = fresh_id();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    let error = store.write(rows([write(id, 2, false)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        "the store is closed"
    );
    drop(store);
    let row = subject
        .store()
        .get_many(vec![id])
        .await
        .unwrap()
        .remove(0)
        .unwrap()
        .unwrap();
    assert_eq!(row.stamp, Stamp(1));
}

#[tokio::test]
async fn closing_finishes_waiting_writes() {
    let subject = Embedded::new();
    let store = subject.store();
    let ids: Vec<_> = (0..50).map(|_| fresh_id()).collect();
    let mut writes = ids
        .iter()
        .map(|&id| store.write(rows([write(id, 1, true)])))
        .collect::<futures_util::future::JoinAll<_>>();
    // Each is polled once and is then in the queue, which has room for all of them.
    let finished_already = (&mut writes).now_or_never();
    store.close().await.unwrap();
    let written = match finished_already {
        Some(written) => written,
        None => (&mut writes).await,
    };
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    drop(writes);
    drop(store);
    let read = subject.store().get_many(ids).await.unwrap();
    assert!(read.into_iter().all(|row| row.unwrap().is_some()));
}

#[tokio::test]
async fn a_hundred_thousand_entries_are_listed_in_milliseconds_a_page() {
    const ENTRIES: i64 = 100_000;
    let subject = Embedded::new();
    let store = subject.store();
    let index_shards: Vec<_> = (0..10).map(PartitionId).collect();
    let entry = |n: i64| AttentionEntry {
        at: Timestamp(n * 1_000_000),
        operation: OperationId(Uuid::from_u128(n.unsigned_abs().into())),
    };
    let entries: Vec<_> = index_shards
        .iter()
        .cycle()
        .copied()
        .zip((0..ENTRIES).map(entry))
        .collect();
    for part in entries.chunks(10_000) {
        let batch = WriteBatch {
            attention: part.to_vec(),
            ..WriteBatch::default()
        };
        store.write(batch).await.unwrap();
    }
    for order in [AttentionOrder::OldestFirst, AttentionOrder::NewestFirst] {
        let all = AttentionCursor::new(order, Timestamp(i64::MIN), Timestamp(i64::MAX));
        let (mut listed, mut took) = (Vec::new(), Vec::new());
        let mut next = Some(all);
        while let Some(cursor) = next {
            let began = Instant::now();
            let page = store.attention_page(index_shards.clone(), cursor, 100);
            let page = page.await.unwrap();
            took.push(began.elapsed());
            listed.extend(page.entries);
            next = page.next;
        }
        let mut wanted: Vec<_> = (0..ENTRIES).map(entry).collect();
        wanted.sort_by(|one, other| order.compare(one, other));
        assert!(
            listed == wanted,
            "{order:?}: an entry is missing or out of order"
        );
        took.sort();
        let median = took[took.len() / 2];
        println!(
            "{order:?}: {median:?} a page, at most {:?}",
            took[took.len() - 1]
        );
        assert!(median < Duration::from_millis(10), "{median:?} a page");
    }
}

#[test]
fn a_second_open_is_refused_with_the_path() {
    let subject = Embedded::new();
    let _store = subject.store();
    let error = EmbeddedStore::open(EmbeddedConfig::new(subject.dir.path())).unwrap_err();
    assert!(matches!(&error, StoreError::Locked { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains(subject.dir.path().to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn a_path_that_is_a_file_is_an_error_with_its_cause() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = EmbeddedStore::open(EmbeddedConfig::new(file.path())).unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { .. }),
        "{error:?}"
    );
    assert!(std::error::Error::source(&error).is_some());
}

/// Marks a child process of this test, and names its directory.
const CHILD_DIR: &str = "WAYBILL_STORE_TEST_DIR";

/// The directory of this process, if it is a child of [`child`].
fn child_dir() -> Option<std::ffi::OsString> {
    std::env::var_os(CHILD_DIR)
}

/// Runs the named test of this binary in its own process.
fn child(test: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

#[test]
fn another_process_is_refused_while_the_store_is_open() {
    if let Some(dir) = child_dir() {
        let error = EmbeddedStore::open(EmbeddedConfig::new(dir)).unwrap_err();
        println!("\nopen: {error}");
        return;
    }
    let subject = Embedded::new();
    let store = subject.store();
    let output = child(
        "another_process_is_refused_while_the_store_is_open",
        subject.dir.path(),
    )
    .wait_with_output()
    .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let wanted = format!(
        "open: the data directory {} is in use by another process",
        subject.dir.path().display()
    );
    assert!(output.lines().any(|line| line == wanted), "{output}");
    drop(store);
    drop(subject.store());
}

/// A child writes from several tasks and prints what was acknowledged. It is killed at random
/// moments, again and again, and everything that it ever printed must be there.
#[test]
fn acknowledged_writes_survive_kill_9() {
    const TEST: &str = "acknowledged_writes_survive_kill_9";
    if let Some(dir) = child_dir() {
        write_until_killed(Path::new(&dir));
    }
    let subject = Embedded::new();
    let mut random = Random::new(99);
    let mut acknowledged: HashSet<(OperationId, i64)> = HashSet::new();
    let mut renewed = None;
    for round in 0..8 {
        let enough = acknowledged.len() + 50 + random.below(1_500);
        let mut child = child(TEST, subject.dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let start = Instant::now();
        // Lines in the pipe when the child dies were printed before: they count, too.
        let mut is_killed = false;
        while let Some(Ok(line)) = lines.next() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["row", id, stamp] => {
                    acknowledged.insert((id.parse().unwrap(), stamp.parse().unwrap()));
                }
                ["lease", renewal] => renewed = renewed.max(Some(renewal.parse().unwrap())),
                _ => {}
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the child is too slow"
            );
            if !is_killed && acknowledged.len() >= enough {
                child.kill().unwrap();
                is_killed = true;
            }
        }
        assert!(is_killed, "round {round}: the child ended early");
        child.wait().unwrap();
        assert_all_there(&subject.store(), &acknowledged, renewed);
    }
    assert!(renewed.is_some());
}

const LEASED: LeaseKey = LeaseKey {
    role: LeaseRole::Scheduler,
    generation: LayoutGeneration(0),
    number: 1,
};

/// Acknowledgements are printed a call at a time, after it returned.
fn write_until_killed(dir: &Path) -> ! {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Arc::new(EmbeddedStore::open(EmbeddedConfig::new(dir)).unwrap());
        println!();
        let lease = store.lease(LEASED).await.unwrap();
        let mut writers: Vec<_> = (0..4)
            .map(|writer| tokio::spawn(write_rows(Arc::clone(&store), writer)))
            .collect();
        writers.push(tokio::spawn(renew(Arc::clone(&store), lease)));
        for writer in writers {
            writer.await.unwrap();
        }
    });
    unreachable!("the writers end with the process")
}

async fn write_rows(store: Arc<EmbeddedStore>, writer: u64) {
    let mut random = Random::new(writer + 1 + u64::from(std::process::id()));
    loop {
        let ids: Vec<_> = (0..=random.below(20)).map(|_| fresh_id()).collect();
        for stamp in 1..=2 {
            let due = ids.iter().map(|&operation| {
                let due = Timestamp(stamp);
                (PartitionId(0), DueEntry { due, operation })
            });
            let batch = WriteBatch {
                due: due.collect(),
                ..rows(ids.iter().map(|&id| RowWrite {
                    keep_for: (stamp == 2).then_some(Duration::from_secs(3_600)),
                    ..write(id, stamp, stamp == 1)
                }))
            };
            store.write(batch).await.unwrap();
            let lines: String = ids.iter().map(|id| format!("row {id} {stamp}\n")).collect();
            std::io::stdout().write_all(lines.as_bytes()).unwrap();
        }
    }
}

async fn renew(store: Arc<EmbeddedStore>, mut seen: Option<Lease>) {
    loop {
        let renewal = seen.as_ref().map_or(0, |lease| lease.renewal) + 1;
        let lease = Lease {
            owner: Some(OwnerId(Uuid::from_u128(std::process::id().into()))),
            epoch: Epoch(1),
            renewal,
            duration: Duration::from_secs(1),
            stamp_limit: Stamp(i64::try_from(renewal).unwrap()),
            ..Lease::new(LEASED, PartitionId(1))
        };
        assert!(store.take_lease(seen, lease.clone()).await.unwrap());
        let line = format!("lease {renewal}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        seen = Some(lease);
    }
}

fn assert_all_there(
    store: &EmbeddedStore,
    acknowledged: &HashSet<(OperationId, i64)>,
    renewed: Option<u64>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ids: Vec<_> = acknowledged.iter().map(|(id, _)| *id).collect();
        let read = store.get_many(ids).await.unwrap();
        let due: HashSet<_> = store
            .due(PartitionId(0), DueBucket(0), None, usize::MAX)
            .await
            .unwrap()
            .into_iter()
            .collect();
        for ((id, stamp), row) in acknowledged.iter().zip(read) {
            let row = row
                .unwrap()
                .unwrap_or_else(|| panic!("{id} was acknowledged and is lost"));
            assert!(
                row.stamp.0 >= *stamp,
                "{id} has stamp {:?}, not {stamp}",
                row.stamp
            );
            assert_eq!(row.state, state(row.stamp.0));
            assert_eq!(row.created, created(1));
            let entry = DueEntry {
                due: Timestamp(*stamp),
                operation: *id,
            };
            assert!(due.contains(&entry), "{entry:?} is lost");
        }
        let lease = store.lease(LEASED).await.unwrap();
        assert!(lease.map(|lease| lease.renewal) >= renewed);
    });
}
