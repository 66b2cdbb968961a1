//! Disks that fail, and disks that are full.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tempfile::TempDir;
use waybill_disk::write_back::WRITE_BACK_BYTES;
use waybill_wire::batch::BatchHeader;
use waybill_wire::batch::made::{batch, batch_of_one};

use super::disk::faults::{self, Op};
use super::segment::segment_path;
use super::*;
use crate::TopicConfig;
use crate::log::{SyncQueue, SyncThreads};
use crate::stats::{Counters, Stats};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
const KEY: ([u8; 16], i32) = ([7; 16], 0);
/// Longer than anything here takes; only a failing test waits for it.
const BOUND: Duration = Duration::from_secs(60);

/// A partition with the threads that serve it, in its own directory.
struct Fixture {
    partition: Arc<Partition>,
    syncs: Arc<SyncQueue>,
    counters: Arc<Counters>,
    _threads: SyncThreads,
}

fn synced() -> TopicConfig {
    TopicConfig {
        flush_messages: Some(1),
        ..TopicConfig::default()
    }
}

fn log_dir(dir: &TempDir) -> PathBuf {
    dir.path().join("log")
}

fn stored_ends(dir: &TempDir) -> SyncedEnds {
    SyncedEnds::load(system_disk(), dir.path(), None).unwrap()
}

/// The same, on a machine whose present start has this id.
fn ends_after_boot(dir: &TempDir, boot: &str) -> SyncedEnds {
    SyncedEnds::load(system_disk(), dir.path(), Some(boot.to_owned())).unwrap()
}

impl Fixture {
    fn open(dir: &TempDir, config: TopicConfig) -> Result<Self, LogError> {
        Self::open_with(dir, config, stored_ends(dir))
    }

    fn open_with(dir: &TempDir, config: TopicConfig, ends: SyncedEnds) -> Result<Self, LogError> {
        let counters = Arc::new(Counters::default());
        let syncs = SyncQueue::new(Arc::clone(&counters), ends);
        let threads = SyncThreads::start(Arc::clone(&syncs)).unwrap();
        let limits = Limits {
            disk: system_disk(),
            producers_max: 10,
            syncs: Arc::clone(&syncs),
            low_on_disk: Arc::default(),
        };
        let bytes = Arc::new(AtomicU64::new(0));
        let partition = Partition::open("t".into(), KEY, log_dir(dir), config, 0, bytes, limits)?;
        Ok(Self {
            partition: Arc::new(partition),
            syncs,
            counters,
            _threads: threads,
        })
    }

    fn append(&self, batch: &Bytes) -> Result<Appended, AppendError> {
        let header = BatchHeader::of_produced(batch).unwrap();
        self.partition.append(&header, batch)
    }

    /// Appends one record and waits until it is synced. Returns whether it is.
    async fn produce(&self) -> Result<bool, AppendError> {
        let appended = self.append(&one())?;
        let Some(sync_to) = appended.sync_to else {
            return Ok(true);
        };
        let synced = tokio::time::timeout(BOUND, self.partition.synced(sync_to));
        Ok(synced.await.expect("the sync has an outcome"))
    }

    fn read(&self) -> Result<usize, ReadError> {
        let mut out = BytesMut::new();
        self.partition.read(0, 1 << 20, true, &mut out)
    }

    async fn until_offline(&self) -> String {
        let failed = tokio::time::timeout(BOUND, self.syncs.failed());
        let cause = failed.await.expect("the failure is reported");
        assert_eq!(self.partition.condition(), Condition::Offline);
        cause
    }
}

fn one() -> Bytes {
    batch(-1, -1, -1, &[1])
}

/// A roll after every second batch.
fn rolling(config: TopicConfig) -> TopicConfig {
    TopicConfig {
        segment_bytes: 2 * one().len() as u64,
        ..config
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn indexes(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().path());
    names
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "index")
        })
        .count()
}

#[tokio::test]
async fn a_failed_sync_takes_the_partition_offline_and_its_records_stay_invisible() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, synced()).unwrap();
    assert!(fixture.produce().await.unwrap());
    let before = fixture.read().unwrap();
    faults::plan(dir.path(), Op::Sync, EIO, 1);
    assert!(
        !fixture.produce().await.unwrap(),
        "the record is not acknowledged"
    );
    let cause = fixture.until_offline().await;
    assert!(
        cause.contains("cannot sync partition 0 of topic t"),
        "{cause}"
    );
    assert_eq!(fixture.partition.high_watermark(), 1);
    assert!(matches!(fixture.read(), Err(ReadError::Offline)));
    let refused = fixture.append(&one()).unwrap_err();
    assert!(refused.to_string().contains("os error 5"), "{refused}");
    // The disk would take it now.
    fixture.partition.set_config(synced());
    let file = LogFile::open(
        &*system_disk(),
        log_dir(&dir).join("00000000000000000000.log"),
    )
    .unwrap();
    file.sync(&*system_disk()).unwrap();
    assert_eq!(fixture.partition.high_watermark(), 1);
    assert!(before > 0);
    assert!(fixture.partition.close().is_ok(), "nothing is written");
    assert_eq!(indexes(&log_dir(&dir)), 0);
}

#[tokio::test]
async fn a_sync_that_fails_while_a_segment_is_closed_takes_the_partition_offline() {
    for config in [TopicConfig::default(), synced()] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::open(&dir, rolling(config)).unwrap();
        let syncs = config.flush_messages.is_some();
        for _ in 0..2 {
            assert!(fixture.produce().await.unwrap());
        }
        faults::plan(dir.path(), Op::Sync, EIO, 1);
        assert_eq!(fixture.produce().await.unwrap(), !syncs);
        fixture.until_offline().await;
        assert!(fixture.append(&one()).is_err());
    }
}

#[tokio::test]
async fn a_directory_or_an_index_that_cannot_be_written_takes_the_partition_offline() {
    for op in [Op::SyncDir, Op::Replace] {
        for config in [TopicConfig::default(), synced()] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::open(&dir, rolling(config)).unwrap();
            for _ in 0..2 {
                assert!(fixture.produce().await.unwrap());
            }
            faults::plan(dir.path(), op, EIO, 1);
            let _ = fixture.produce().await;
            fixture.until_offline().await;
        }
    }
}

#[tokio::test]
async fn one_thread_syncs_a_file() {
    let dir = tempfile::tempdir().unwrap();
    faults::record(dir.path());
    let fixture = Fixture::open(&dir, rolling(synced())).unwrap();
    for n in 0..40 {
        assert!(fixture.produce().await.unwrap());
        // The sync thread continues with the files that it has begun.
        if n == 20 {
            fixture
                .partition
                .set_config(rolling(TopicConfig::default()));
        }
    }
    until("all closed segments have indexes", || {
        indexes(&log_dir(&dir)) == 19
    });
    let mut threads: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    for (op, path, thread) in faults::recorded(dir.path()) {
        if op == Op::Sync {
            threads.entry(path).or_default().insert(thread);
        }
    }
    assert!(threads.len() >= 19, "{threads:?}");
    for (path, threads) in &threads {
        assert_eq!(threads.len(), 1, "{}: {threads:?}", path.display());
    }
}

#[test]
fn unsynced_logs_start_write_back_every_256_kib() {
    let large = batch_of_one(&[0; 300_000]);
    assert!(large.len() as u64 >= WRITE_BACK_BYTES);
    let config = TopicConfig {
        segment_bytes: 2 * large.len() as u64,
        ..TopicConfig::default()
    };
    let dir = tempfile::tempdir().unwrap();
    faults::record(dir.path());
    let fixture = Fixture::open(&dir, config).unwrap();
    fixture.append(&one()).unwrap();
    for _ in 0..3 {
        fixture.append(&large).unwrap();
    }
    // One of them is in the first segment, behind the small batch, and two are in the second.
    let written_back = || {
        let recorded = faults::recorded(dir.path());
        let threads = recorded.into_iter().filter(|(op, ..)| *op == Op::WriteBack);
        threads.map(|(_, _, thread)| thread).collect::<Vec<_>>()
    };
    until("all is written back", || written_back().len() == 3);
    assert_eq!(written_back(), ["broker-close"; 3]);
}

#[tokio::test]
async fn what_is_synced_needs_no_write_back() {
    let dir = tempfile::tempdir().unwrap();
    faults::record(dir.path());
    let fixture = Fixture::open(&dir, synced()).unwrap();
    let large = batch_of_one(&[0; 300_000]);
    for _ in 0..3 {
        let sync_to = fixture.append(&large).unwrap().sync_to.unwrap();
        assert!(fixture.partition.synced(sync_to).await);
    }
    drop(fixture);
    let recorded = faults::recorded(dir.path());
    assert!(recorded.iter().any(|(op, ..)| *op == Op::Sync));
    assert!(recorded.iter().all(|(op, ..)| *op != Op::WriteBack));
}

#[tokio::test]
async fn an_unsynced_batch_is_rewritten_before_it_is_visible() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, synced()).unwrap();
    for _ in 0..3 {
        assert!(fixture.produce().await.unwrap());
    }
    faults::plan(dir.path(), Op::Sync, EIO, 1);
    assert!(!fixture.produce().await.unwrap());
    drop(fixture);
    // The pages are clean by now: a sync alone would succeed and write nothing.
    for op in [Op::Rewrite, Op::Sync] {
        faults::plan(dir.path(), op, EIO, 1);
        let refused = Fixture::open(&dir, synced())
            .err()
            .expect("it is not opened");
        assert!(format!("{refused:?}").contains("code: 5"), "{refused:?}");
    }
    faults::record(dir.path());
    let fixture = Fixture::open(&dir, synced()).unwrap();
    let ops: Vec<_> = faults::recorded(dir.path())
        .into_iter()
        .map(|(op, _, _)| op)
        .filter(|op| matches!(op, Op::Rewrite | Op::Sync))
        .collect();
    assert_eq!(ops, [Op::Rewrite, Op::Sync]);
    assert_eq!(fixture.partition.high_watermark(), 4);
    assert_eq!(fixture.read().unwrap(), 4 * one().len());
    fixture.partition.close().unwrap();
    fixture.syncs.ends.store().unwrap();
    drop(fixture);
    // Data that is known to be synced is not rewritten.
    faults::record(dir.path());
    let fixture = Fixture::open(&dir, synced()).unwrap();
    assert_eq!(fixture.partition.high_watermark(), 4);
    let recorded = faults::recorded(dir.path());
    assert!(
        recorded.iter().all(|(op, ..)| *op != Op::Rewrite),
        "{recorded:?}"
    );
}

#[tokio::test]
async fn the_synced_end_is_stored_before_its_records_are_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, rolling(synced())).unwrap();
    for count in 1..=5 {
        assert!(fixture.produce().await.unwrap());
        assert_eq!(stored_ends(&dir).of(KEY), Some(count));
    }
    faults::plan(dir.path(), Op::Sync, EIO, 1);
    assert!(!fixture.produce().await.unwrap());
    fixture.until_offline().await;
    drop(fixture);
    assert_eq!(stored_ends(&dir).of(KEY), Some(5));
}

#[tokio::test]
async fn a_full_disk_refuses_whole_batches_until_there_is_room() {
    for errno in [ENOSPC, EDQUOT] {
        for config in [TopicConfig::default(), synced()] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::open(&dir, rolling(config)).unwrap();
            let mut appended = 0;
            // In the middle of a segment, and at the start of one.
            for op in [Op::Append, Op::Create, Op::Append] {
                assert!(fixture.produce().await.unwrap());
                assert!(fixture.produce().await.unwrap());
                appended += 2;
                faults::plan(dir.path(), op, errno, 2);
                for _ in 0..2 {
                    let refused = fixture.append(&one()).unwrap_err();
                    assert!(matches!(refused, AppendError::Full), "{refused}");
                }
                assert_eq!(fixture.partition.condition(), Condition::Online);
                assert_eq!(fixture.partition.high_watermark(), appended);
            }
            assert!(fixture.produce().await.unwrap());
            appended += 1;
            let stats = fixture.counters.snapshot(Stats::default());
            assert_eq!(stats.disk_full, 6);
            drop(fixture);
            let fixture = Fixture::open(&dir, config).unwrap();
            assert_eq!(fixture.partition.high_watermark(), appended);
        }
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_cut_off_or_written_takes_the_partition_offline() {
    for ops in [
        vec![(Op::Append, EIO)],
        vec![(Op::Append, ENOSPC), (Op::Cut, EIO)],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::open(&dir, synced()).unwrap();
        assert!(fixture.produce().await.unwrap());
        for (op, errno) in ops {
            faults::plan(dir.path(), op, errno, 1);
        }
        let refused = fixture.append(&one()).unwrap_err();
        assert!(matches!(refused, AppendError::Offline { .. }), "{refused}");
        fixture.until_offline().await;
        drop(fixture);
        // Part of a batch is a torn tail.
        let fixture = Fixture::open(&dir, synced()).unwrap();
        assert_eq!(fixture.partition.high_watermark(), 1);
    }
}

#[tokio::test]
async fn an_index_that_does_not_fit_on_the_disk_is_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, rolling(synced())).unwrap();
    faults::plan(dir.path(), Op::Replace, ENOSPC, 3);
    for _ in 0..3 {
        assert!(fixture.produce().await.unwrap());
    }
    until("there is an index", || indexes(&log_dir(&dir)) == 1);
    assert_eq!(fixture.partition.condition(), Condition::Online);
    let path = log_dir(&dir).join("00000000000000000000.index");
    std::fs::remove_file(path).unwrap();
    faults::plan(dir.path(), Op::Replace, ENOSPC, 2);
    fixture.partition.close().unwrap();
    drop(fixture);
    let fixture = Fixture::open(&dir, rolling(synced())).unwrap();
    assert_eq!(fixture.partition.high_watermark(), 3);
}

/// Flips a bit in the batch with this number, of one record, in the first segment.
fn flip(dir: &TempDir, number: usize) {
    let path = segment_path(&log_dir(dir), 0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(number + 1) * one().len() - 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

/// A partition on a machine that has booted for this time. Four records are appended to it.
fn appended_after_boot(dir: &TempDir, config: TopicConfig, boot: &str) -> Result<i64, LogError> {
    let ends = ends_after_boot(dir, boot);
    let fixture = Fixture::open_with(dir, config, ends)?;
    fixture.syncs.ends.logs_are_open().unwrap();
    let end = fixture.partition.high_watermark();
    for _ in 0..4 {
        fixture.append(&one()).unwrap();
    }
    Ok(end)
}

#[test]
fn unsynced_damage_is_a_torn_tail_only_after_a_reboot() {
    let dir = TempDir::new().unwrap();
    let unsynced = TopicConfig::default();
    appended_after_boot(&dir, unsynced, "first").unwrap();
    flip(&dir, 2);
    let refused = appended_after_boot(&dir, unsynced, "first");
    assert!(matches!(refused, Err(LogError::Damaged(_))), "{refused:?}");
    // A start that opens no log changes nothing.
    let ends = ends_after_boot(&dir, "second");
    ends.store().unwrap();
    let end = appended_after_boot(&dir, unsynced, "second").unwrap();
    assert_eq!(end, 2);
    let end = appended_after_boot(&dir, unsynced, "second").unwrap();
    assert_eq!(end, 6);
}

#[tokio::test]
async fn synced_damage_refuses_the_log_after_a_reboot_too() {
    let dir = TempDir::new().unwrap();
    let ends = ends_after_boot(&dir, "first");
    let fixture = Fixture::open_with(&dir, synced(), ends).unwrap();
    for _ in 0..3 {
        assert!(fixture.produce().await.unwrap());
    }
    drop(fixture);
    // Also the last one, which nothing follows.
    for number in [1, 2] {
        flip(&dir, number);
        let refused = appended_after_boot(&dir, synced(), "second");
        assert!(matches!(refused, Err(LogError::Damaged(_))), "{refused:?}");
        flip(&dir, number);
    }
}

#[tokio::test]
async fn a_log_without_its_files_refuses_the_start_and_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, synced()).unwrap();
    assert!(fixture.produce().await.unwrap());
    drop(fixture);
    std::fs::remove_dir_all(log_dir(&dir)).unwrap();
    let refused = Fixture::open(&dir, synced()).map(drop).unwrap_err();
    assert!(
        refused.to_string().contains("has no segment files"),
        "{refused}"
    );
    // A good copy can be put in its place.
    assert_eq!(std::fs::read_dir(log_dir(&dir)).unwrap().count(), 0);
}

#[tokio::test]
async fn a_partition_that_is_offline_is_not_searched_for_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, synced()).unwrap();
    assert!(fixture.produce().await.unwrap());
    assert!(fixture.partition.offset_at_time(0).unwrap().is_some());
    faults::plan(dir.path(), Op::Sync, EIO, 1);
    assert!(!fixture.produce().await.unwrap());
    let found = fixture.partition.offset_at_time(0);
    assert!(matches!(found, Err(ReadError::Offline)), "{found:?}");
    let found = fixture.partition.largest_timestamp();
    assert!(matches!(found, Err(ReadError::Offline)), "{found:?}");
}

#[tokio::test]
async fn synced_ends_that_cannot_be_stored_are_retried_and_block_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::open(&dir, synced()).unwrap();
    // A directory cannot be written as a file.
    for name in ["synced-0", "synced-1"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    for _ in 0..3 {
        assert!(fixture.produce().await.unwrap());
    }
    assert_eq!(fixture.partition.condition(), Condition::Online);
    assert!(!fixture.syncs.ends_are_stored());
    for name in ["synced-0", "synced-1"] {
        std::fs::remove_dir(dir.path().join(name)).unwrap();
    }
    until("the end is stored", || stored_ends(&dir).of(KEY) == Some(3));
    until("that is noticed", || fixture.syncs.ends_are_stored());
}
