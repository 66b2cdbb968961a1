//! Bits that rot, logs that lose their end, and disks that are full.

use std::fs;
use std::path::{Path, PathBuf};

use kafka_protocol::error::ResponseError;
use waybill_broker::{Broker, BrokerSettings, RepairError, repair_logs};

use super::*;
use crate::common::*;

const SYNCED: [(&str, &str); 1] = [("flush.messages", "1")];

/// Fills topic `t` with `count` batches of one record each and stops the broker as `kill -9` would,
/// as far as its files tell: without indexes.
async fn filled(dir: &Path, settings: &[(&str, &str)], count: usize) {
    let broker = broker(dir).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, settings).await;
    for n in 0..count {
        let answer = wire.produce("t", &plain(&[n as u8; 400])).await;
        assert_eq!(answer.error_code, 0);
    }
    assert!(broker.shutdown().await);
    forget_indexes(dir);
}

fn forget_indexes(dir: &Path) {
    for segment in segments(dir, "t") {
        fs::remove_file(segment.with_extension("index")).unwrap();
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn batch_bytes() -> usize {
    plain(&[0; 400]).len()
}

/// The error of a start on this directory, which must fail.
async fn refusal(dir: &Path) -> String {
    let mut config = BrokerSettings::new(dir);
    config.listen = "127.0.0.1:0".parse().unwrap();
    let refused = Broker::start(config)
        .await
        .expect_err("the start is refused");
    let mut text = refused.to_string();
    let mut source = std::error::Error::source(&refused);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The content of every file of the log.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| (path.clone(), fs::read(&path).unwrap());
    segments(dir, "t").into_iter().map(read).collect()
}

#[tokio::test]
async fn a_damaged_batch_before_valid_ones_in_the_active_segment_refuses_the_start() {
    // In the payload, in the length, in the base offset, in the magic, in the checksum.
    for within in [300, 9, 10, 11, 3, 7, 16, 18] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), &SYNCED, 30).await;
        let path = segments(dir.path(), "t").remove(0);
        flip(&path, 14 * batch_bytes() + within);
        let before = files(dir.path());
        let refusal = refusal(dir.path()).await;
        let position = format!("byte {}", 14 * batch_bytes());
        for named in [path.to_str().unwrap(), &position, "offset 14", "offset 15"] {
            assert!(refusal.contains(named), "{named} at {within}: {refusal}");
        }
        assert!(files(dir.path()) == before, "nothing was cut at {within}");
    }
}

#[tokio::test]
async fn a_closed_segment_that_is_damaged_or_cut_short_refuses_the_start() {
    let settings = [("flush.messages", "1"), ("segment.bytes", "2000")];
    type Harm = fn(&Path);
    let harms: [Harm; 3] = [
        |path| flip(path, batch_bytes() + 300),
        |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(2 * batch_bytes() as u64).unwrap();
        },
        |path| fs::remove_file(path).unwrap(),
    ];
    for harm in harms {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), &settings, 30).await;
        let path = segments(dir.path(), "t").remove(3);
        harm(&path);
        let before = files(dir.path());
        let refusal = refusal(dir.path()).await;
        assert!(refusal.contains("topic t"), "{refusal}");
        assert!(files(dir.path()) == before);
    }
}

#[tokio::test]
async fn a_log_that_ends_before_its_synced_end_refuses_the_start() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &SYNCED, 30).await;
    let path = segments(dir.path(), "t").remove(0);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(20 * batch_bytes() as u64).unwrap();
    let refusal = refusal(dir.path()).await;
    for named in [path.to_str().unwrap(), "offset 20", "offset 30"] {
        assert!(refusal.contains(named), "{named}: {refusal}");
    }
}

/// Offsets and payloads of everything in `t`.
async fn kept(dir: &Path, count: usize) -> Vec<(i64, Vec<u8>)> {
    let broker = broker(dir).await;
    let seen = read(broker.address(), "t", 1, count).await;
    assert!(broker.shutdown().await);
    seen.into_iter()
        .map(|seen| (seen.offset, seen.payload))
        .collect()
}

#[tokio::test]
async fn a_repair_removes_damaged_batches_only_and_keeps_their_bytes() {
    let settings = [("flush.messages", "1"), ("segment.bytes", "2000")];
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &settings, 30).await;
    let whole = kept(dir.path(), 30).await;
    forget_indexes(dir.path());
    // Four batches per segment. Segments are damaged inside, at the end, cut short, and missing.
    let paths = segments(dir.path(), "t");
    flip(&paths[1], batch_bytes() + 300);
    flip(&paths[2], 3 * batch_bytes() + 9);
    fs::write(
        &paths[4],
        &fs::read(&paths[4]).unwrap()[..batch_bytes() + 5],
    )
    .unwrap();
    fs::remove_file(&paths[6]).unwrap();
    let lost = [5, 11, 17, 18, 19, 24, 25, 26, 27];
    let damaged = files(dir.path());
    refusal(dir.path()).await;

    let found = repair_logs(dir.path(), Some("t"), Some(0), false).unwrap();
    let offsets: Vec<_> = found
        .iter()
        .flat_map(|repair| repair.first_offset..repair.first_offset + repair.records as i64)
        .collect();
    assert_eq!(offsets, lost, "{found:?}");
    assert!(files(dir.path()) == damaged, "nothing is changed unasked");
    assert!(!dir.path().join("damaged").exists());
    for (topic, partition) in [("t", 1), ("other", 0)] {
        let unknown = repair_logs(dir.path(), Some(topic), Some(partition), true).unwrap_err();
        assert!(matches!(unknown, RepairError::Unknown { .. }), "{unknown}");
    }

    assert_eq!(repair_logs(dir.path(), None, None, true).unwrap(), found);
    let aside = found[0].aside.as_ref().unwrap();
    let old = damaged.iter().find(|(path, _)| *path == found[0].path);
    assert_eq!(
        fs::read(aside).unwrap(),
        old.unwrap().1[batch_bytes()..2 * batch_bytes()]
    );
    assert_eq!(repair_logs(dir.path(), None, None, true).unwrap(), []);
    let expected: Vec<_> = whole
        .into_iter()
        .filter(|(offset, _)| !lost.contains(offset))
        .collect();
    assert_eq!(kept(dir.path(), expected.len()).await, expected);
}

#[tokio::test]
async fn a_repair_of_a_truncated_log_never_reuses_its_offsets() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &SYNCED, 30).await;
    let path = segments(dir.path(), "t").remove(0);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(20 * batch_bytes() as u64 + 7).unwrap();
    let found = repair_logs(dir.path(), None, None, true).unwrap();
    let reported: Vec<_> = found
        .iter()
        .map(|repair| (repair.first_offset, repair.records, repair.bytes))
        .collect();
    assert_eq!(reported, [(20, 10, 7)]);
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let locked = repair_logs(dir.path(), None, None, true).unwrap_err();
    assert!(locked.to_string().contains("in use"), "{locked}");
    assert_eq!(wire.produce("t", &plain(b"next")).await.base_offset, 30);
    let seen = read(broker.address(), "t", 1, 21).await;
    assert_eq!(seen.last().map(|seen| seen.offset), Some(30));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_dry_run_of_a_repair_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &SYNCED, 30).await;
    let logs = dir.path().join("logs/t");
    for missing in [
        logs.join("0/00000000000000000000.log"),
        logs.join("0"),
        logs,
    ] {
        if missing.is_dir() {
            fs::remove_dir_all(&missing).unwrap();
        } else {
            fs::remove_file(&missing).unwrap();
        }
        let found = repair_logs(dir.path(), None, None, false).unwrap();
        let reported: Vec<_> = found
            .iter()
            .map(|repair| (repair.first_offset, repair.records, repair.bytes))
            .collect();
        assert_eq!(reported, [(0, 30, 0)]);
        assert!(!missing.exists(), "{} is made", missing.display());
    }
    repair_logs(dir.path(), None, None, true).unwrap();
    assert_eq!(repair_logs(dir.path(), None, None, false).unwrap(), []);
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(wire.produce("t", &plain(b"next")).await.base_offset, 30);
    assert!(broker.shutdown().await);
}

/// What looks like the front of a stored batch of so many bytes, and is none.
fn fake_front(base_offset: i64, bytes: usize) -> Vec<u8> {
    let mut front = plain(b"x")[..61].to_vec();
    front[..8].copy_from_slice(&base_offset.to_be_bytes());
    front[8..12].copy_from_slice(&(bytes as i32 - 12).to_be_bytes());
    front[12..16].copy_from_slice(&[0; 4]);
    front
}

#[tokio::test]
async fn a_repair_keeps_valid_batches_after_a_damaged_one_with_false_headers() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &SYNCED).await;
    // Together they are more than a start goes over.
    let count = 100;
    let fakes = (0..count).flat_map(|n| fake_front(1_000, (count - n) * 61));
    let fakes: Vec<u8> = fakes.collect();
    for n in 0..7 {
        let batch = if n == 3 {
            plain(&fakes)
        } else {
            plain(&[n; 400])
        };
        assert_eq!(wire.produce("t", &batch).await.error_code, 0);
    }
    assert!(broker.shutdown().await);
    forget_indexes(dir.path());
    let path = segments(dir.path(), "t").remove(0);
    flip(&path, 3 * batch_bytes() + 62);
    let refusal = refusal(dir.path()).await;
    assert!(
        refusal.contains("others seem to follow from offset 1000"),
        "{refusal}"
    );

    let found = repair_logs(dir.path(), None, None, true).unwrap();
    let reported: Vec<_> = found
        .iter()
        .map(|repair| (repair.first_offset, repair.records))
        .collect();
    assert_eq!(reported, [(3, 1)]);
    let offsets: Vec<_> = kept(dir.path(), 6)
        .await
        .into_iter()
        .map(|(offset, _)| offset)
        .collect();
    assert_eq!(offsets, [0, 1, 2, 4, 5, 6]);
}

#[tokio::test]
async fn a_copy_of_a_damaged_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "2000")]).await;
    for n in 0..30_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    flip(&segments(dir.path(), "t")[2], batch_bytes() + 300);
    let logs = broker.logs();
    let snapshot = tokio::task::spawn_blocking(move || logs.snapshot());
    let snapshot = snapshot.await.unwrap().unwrap();
    let bad: Vec<_> = snapshot
        .segments()
        .iter()
        .filter_map(|segment| Some((segment.base, segment.verify().err()?)))
        .collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert_eq!(bad[0].0, 8);
    assert!(matches!(bad[0].1, waybill_broker::CopyError::Damaged(_)));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_batch_that_is_damaged_on_disk_is_answered_with_an_error_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("flush.messages", "1"), ("segment.bytes", "2000")];
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &settings).await;
    for n in 0..30_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    let closed = segments(dir.path(), "t").remove(2);
    // In the payload, in the length, in the base offset.
    for within in [300, 9, 11, 7] {
        let at = batch_bytes() + within;
        let whole = fs::read(&closed).unwrap();
        // In place, as rot comes: the broker has the file open.
        let write = |byte: u8| {
            let file = fs::OpenOptions::new().write(true).open(&closed).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[byte], at as u64).unwrap();
        };
        write(whole[at] ^ 0x10);
        let first: i64 = closed
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        let bad = first + 1;
        let answer = fetch(&mut wire, "t", first).await;
        let records = answer.records.unwrap();
        assert_eq!(answer.error_code, 0);
        assert_eq!(records.len(), batch_bytes(), "records before it are served");
        for offset in [bad, bad] {
            let answer = fetch(&mut wire, "t", offset).await;
            assert_eq!(
                answer.error_code,
                code(ResponseError::CorruptMessage),
                "{within}"
            );
            assert!(answer.records.is_none_or(|records| records.is_empty()));
        }
        assert_eq!(broker.stats().damaged_batches, 1);
        write(whole[at]);
    }
    let answer = fetch(&mut wire, "t", 0).await;
    assert_eq!(answer.error_code, 0);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_batch_whose_record_count_contradicts_its_content_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let good = plain(b"x");
    for count in [2, 3, 1_000_000] {
        let mut bad = good.to_vec();
        bad[23..27].copy_from_slice(&(count - 1_i32).to_be_bytes());
        bad[57..61].copy_from_slice(&count.to_be_bytes());
        checksum(&mut bad);
        let answer = wire.produce("t", &bad).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::InvalidRecord),
            "{count}"
        );
    }
    // A record after the last one that is counted.
    let mut more = good.to_vec();
    more.extend_from_within(61..);
    let length = more.len() as i32 - 12;
    more[8..12].copy_from_slice(&length.to_be_bytes());
    checksum(&mut more);
    let answer = wire.produce("t", &more).await;
    assert_eq!(answer.error_code, code(ResponseError::InvalidRecord));
    assert_eq!(wire.produce("t", &good).await.base_offset, 0);
    assert!(broker.shutdown().await);
}

/// Makes the checksum of a batch right again.
fn checksum(batch: &mut [u8]) {
    let sum = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&sum.to_be_bytes());
}

/// A separate file system of a few MiB. Dropping it unmounts it.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with a message, if nothing can be mounted.
    fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"])
            .arg(dir.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        println!("SKIPPED: no tmpfs can be mounted here, so no disk was filled");
        None
    }

    /// Fills the file system; remove the file to free it.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("filler");
        let mut file = fs::File::create(&path).unwrap();
        let piece = [7; 4096];
        while std::io::Write::write(&mut file, &piece).is_ok_and(|written| written > 0) {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a failed test may still have files open in it.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_records_and_recovers_without_a_restart() {
    let Some(disk) = SmallDisk::mount(8) else {
        return;
    };
    let dir = disk.0.path().join("broker");
    let broker = broker(&dir).await;
    let mut wire = Wire::connect(broker.address()).await;
    let settings = [("flush.messages", "1"), ("segment.bytes", "100000")];
    create(&mut wire, "t", 1, &settings).await;
    create(&mut wire, "other", 1, &[]).await;
    let filler = disk.fill();
    let mut taken = 0;
    let refused = loop {
        let answer = wire.produce("t", &plain(&[0; 40_000])).await;
        if answer.error_code != 0 {
            break answer;
        }
        taken += 1;
        assert!(taken < 1_000, "the disk is never full");
    };
    let storage_error = code(ResponseError::KafkaStorageError);
    assert_eq!(refused.error_code, storage_error);
    assert!(refused.error_message.unwrap().contains("full"));
    // Readers and the process continue.
    assert_eq!(offset_at(&mut wire, "t", -1).await, taken);
    let failed = tokio::time::timeout(std::time::Duration::from_millis(50), broker.failed());
    assert!(failed.await.is_err(), "a full disk is no failed disk");
    // It starts on a full disk as well, after a kill, which leaves no index behind.
    assert!(broker.shutdown().await);
    forget_indexes_of(&dir);
    fs::remove_file(&filler).unwrap();
    disk.fill();
    let broker = self::broker(&dir).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(offset_at(&mut wire, "t", -1).await, taken);
    let answer = wire.produce("t", &plain(&[0; 40_000])).await;
    assert_eq!(answer.error_code, storage_error);
    fs::remove_file(&filler).unwrap();
    let answer = wire.produce("t", &plain(&[0; 40_000])).await;
    assert_eq!((answer.error_code, answer.base_offset), (0, taken));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn commits_and_topic_creation_resume_after_a_full_disk() {
    let Some(disk) = SmallDisk::mount(8) else {
        return;
    };
    let dir = disk.0.path().join("broker");
    let broker = broker(&dir).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    assert_eq!(commit(&mut wire, 1, "").await, 0);
    let filler = disk.fill();
    // The journal has some room of its own.
    let long = "x".repeat(2_000);
    let mut refused = 0;
    for offset in 0..200 {
        refused = commit(&mut wire, offset, &long).await;
        if refused != 0 {
            break;
        }
    }
    assert_ne!(refused, 0, "there is no room for offsets");
    let full = create(&mut wire, "later", 1, &[]).await;
    assert_eq!(full, code(ResponseError::KafkaStorageError));
    fs::remove_file(&filler).unwrap();
    until("offsets are committed", async || {
        commit(&mut wire, 7, "").await == 0
    })
    .await;
    assert_eq!(create(&mut wire, "later", 1, &[]).await, 0);
    assert!(broker.shutdown().await);
    let broker = self::broker(&dir).await;
    let mut wire = Wire::connect(broker.address()).await;
    let fetched = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_topics(None);
    let fetched = wire.ask(5, &fetched).await;
    assert_eq!(fetched.topics[0].partitions[0].committed_offset, 7);
    assert!(broker.shutdown().await);
}

/// Commits an offset of `t` for the group `g`.
async fn commit(wire: &mut Wire, offset: i64, metadata: &str) -> i16 {
    use kafka_protocol::messages::offset_commit_request::{
        OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(StrBytes::from_string(metadata.to_owned())));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let answer = wire.ask(7, &request).await;
    answer.topics[0].partitions[0].error_code
}

fn forget_indexes_of(dir: &Path) {
    for segment in segments(dir, "t") {
        let _ = fs::remove_file(segment.with_extension("index"));
    }
}
