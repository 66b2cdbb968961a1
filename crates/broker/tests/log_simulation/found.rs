//! Faults that the simulation has found, each with the few operations that lead to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::BytesMut;
use waybill_disk::files::{Disk, Open};
use waybill_simulated_disk::{Loss, Op, SimulatedDisk};
use waybill_wire::batch::BatchHeader;
use waybill_wire::batch::made::batch;

use super::super::partition::{Condition, Limits, Partition};
use super::super::read::ReadError;
use super::super::segment::{LogError, index_path, segment_path};
use super::super::sync_threads::{Chores, SyncQueue};
use super::super::synced::SyncedEnds;
use super::machine::{KEY, data_dir, log_dir};
use crate::TopicConfig;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A segment for each batch of one record.
fn config() -> TopicConfig {
    TopicConfig {
        flush_messages: Some(1),
        segment_bytes: 1,
        retention: None,
        ..TopicConfig::default()
    }
}

fn ends(disk: &SimulatedDisk) -> SyncedEnds {
    SyncedEnds::load(Arc::new(disk.clone()), data_dir(), disk.boot_id()).unwrap()
}

fn open(disk: &SimulatedDisk, config: TopicConfig) -> Result<Arc<Partition>, LogError> {
    let limits = Limits {
        disk: Arc::new(disk.clone()),
        producers_max: 10,
        syncs: SyncQueue::new(Arc::default(), ends(disk)),
        low_on_disk: Arc::default(),
    };
    let bytes = Arc::new(AtomicU64::new(0));
    let dir = log_dir().to_owned();
    Partition::open("t".into(), KEY, dir, config, 0, bytes, limits).map(Arc::new)
}

fn append(partition: &Arc<Partition>, timestamps: &[i64]) {
    let batch = batch(-1, -1, -1, timestamps);
    let header = BatchHeader::of_produced(&batch).unwrap();
    partition.append(&header, &batch).unwrap();
}

fn sync(partition: &Arc<Partition>, disk: &SimulatedDisk) {
    let job = partition.begin_sync();
    let result = job.run(disk);
    result.unwrap();
    let round = vec![(Arc::clone(partition), job)];
    partition.limits.syncs.end_round(round);
}

/// Four synced segments of one record each.
fn segments(disk: &SimulatedDisk) -> Arc<Partition> {
    let partition = open(disk, config()).unwrap();
    for timestamp in 0..4 {
        append(&partition, &[timestamp]);
    }
    sync(&partition, disk);
    partition
}

#[test]
fn a_power_loss_during_a_trim_leaves_no_gap() {
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        segments(&disk).delete_records(3).unwrap();
        disk.restart(Loss::Sectors(512));
        let opened = open(&disk, config());
        assert!(opened.is_ok(), "seed {seed}: {:?}", opened.err());
    }
}

#[test]
fn a_log_does_not_begin_again_at_zero_after_a_trim() {
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let partition = open(&disk, config()).unwrap();
        for timestamp in 0..2 {
            append(&partition, &[timestamp]);
        }
        // Its names are not synced yet, nor will they be: the sync in progress has taken them.
        drop(partition.begin_sync());
        disk.crash_after(seed % 4);
        _ = partition.delete_records(1);
        disk.restart(Loss::Sectors(512));
        let left = disk.files(log_dir());
        assert!(
            !left.is_empty(),
            "seed {seed}: no segment says where it ends"
        );
    }
}

#[test]
fn a_segment_that_could_not_be_deleted_is_deleted_before_the_next() {
    // The index of the first segment is missing yet: its removal fails without a fault.
    for op in [Op::Remove, Op::SyncDir] {
        let disk = SimulatedDisk::new(1);
        let partition = segments(&disk);
        disk.fail(op, 0, EIO);
        partition.delete_records(1).unwrap_err();
        assert_eq!(partition.log_start(), 1);
        partition.delete_records(3).unwrap();
        assert_eq!(disk.files(log_dir()).len(), 1);
        disk.restart(Loss::Process);
        assert_eq!(open(&disk, config()).unwrap().log_start(), 3);
    }
}

#[test]
fn a_torn_tail_that_was_cut_does_not_return() {
    let disk = SimulatedDisk::new(1);
    let partition = segments(&disk);
    partition.close().unwrap();
    partition.limits.syncs.ends.store().unwrap();
    // Torn, in a segment whose batches are all known to be synced.
    let path = Path::new("/data/log/00000000000000000003.log");
    let file = (&disk as &dyn Disk).open(path, Open::Append).unwrap();
    file.append_all(&mut [std::io::IoSlice::new(b"torn")])
        .unwrap();
    file.sync().unwrap();
    disk.restart(Loss::Process);

    let partition = open(&disk, config()).unwrap();
    // Begins the next segment, whose start finds the one before whole.
    append(&partition, &[4]);
    disk.restart(Loss::Process);
    assert_eq!(open(&disk, config()).unwrap().high_watermark(), 5);
    disk.restart(Loss::Everything);
    assert_eq!(open(&disk, config()).unwrap().high_watermark(), 5);
}

#[test]
fn a_batch_that_was_cut_off_does_not_return_behind_a_new_one() {
    let unsynced = TopicConfig {
        flush_messages: None,
        segment_bytes: 1 << 20,
        ..config()
    };
    for seed in 0..300 {
        let disk = SimulatedDisk::new(seed);
        let partition = open(&disk, unsynced).unwrap();
        partition.limits.syncs.ends.logs_are_open().unwrap();
        // The second one is in another sector than the beginning of the first.
        append(&partition, &[0; 50]);
        append(&partition, &[0]);
        let file = (&disk as &dyn Disk).open(&segment_path(log_dir(), 0), Open::Write);
        let file = file.unwrap();
        // A power failure leaves the second batch, but not all of the first one.
        file.write_all_at(b"damaged", 100).unwrap();
        file.sync().unwrap();
        disk.restart(Loss::Nothing);
        let partition = open(&disk, unsynced).unwrap();
        assert_eq!(partition.high_watermark(), 0);
        append(&partition, &[1; 50]);
        disk.restart(Loss::Sectors(512));
        let end = open(&disk, unsynced).unwrap().high_watermark();
        assert!(end <= 50, "seed {seed}: {end}");
    }
}

#[test]
fn what_a_full_disk_did_not_sync_is_not_reported_as_damage() {
    let unsynced = TopicConfig {
        flush_messages: None,
        ..config()
    };
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let partition = open(&disk, unsynced).unwrap();
        for timestamp in 0..2 {
            append(&partition, &[timestamp; 100]);
        }
        let syncs = &partition.limits.syncs;
        let mut chores = Chores::new(Arc::clone(syncs));
        disk.fail(Op::Sync, 0, ENOSPC);
        for chore in syncs.take_chores(Some(Duration::ZERO)).unwrap() {
            chores.perform(chore);
        }
        assert_eq!(partition.condition(), Condition::Full);
        for _ in 0..20 {
            disk.evict();
        }
        let found = partition.offset_at_time(0);
        let is_right = matches!(found, Ok(Some((0, 0))) | Err(ReadError::Offline));
        assert!(is_right, "seed {seed}: {found:?}");
        let read = partition.read(0, 1 << 20, true, &mut BytesMut::new());
        let is_right = matches!(read, Ok(_) | Err(ReadError::Offline));
        assert!(is_right, "seed {seed}: {read:?}");
    }
}

/// Appends what is missing of four batches, and loses the power after the next start.
fn append_again_and_lose_power(disk: &SimulatedDisk, partition: &Arc<Partition>) {
    for timestamp in partition.high_watermark()..4 {
        append(partition, &[timestamp]);
    }
    disk.restart(Loss::Process);
    let partition = open(disk, config()).unwrap();
    assert_eq!(partition.high_watermark(), 4);
    partition.limits.syncs.ends.logs_are_open().unwrap();
    disk.restart(Loss::Everything);
    let opened = open(disk, config()).map(|partition| partition.high_watermark());
    assert!(matches!(opened, Ok(4)), "{opened:?}");
}

#[test]
fn an_index_whose_segment_a_power_loss_removed_does_not_count_for_a_new_one() {
    for seed in 0..10 {
        for changes in 0..15 {
            let disk = SimulatedDisk::new(seed);
            let partition = open(&disk, config()).unwrap();
            partition.limits.syncs.ends.logs_are_open().unwrap();
            for timestamp in 0..4 {
                append(&partition, &[timestamp]);
            }
            disk.restart(Loss::Process);
            // Where the indexes of closed segments are stored, but not all names are synced.
            disk.crash_after(changes);
            let _ = open(&disk, config());
            disk.cancel_crash();
            disk.restart(Loss::Sectors(512));
            append_again_and_lose_power(&disk, &open(&disk, config()).unwrap());
        }
    }
}

#[test]
fn an_index_of_a_segment_that_was_removed_does_not_count_for_a_new_one() {
    let disk = SimulatedDisk::new(1);
    let partition = open(&disk, config()).unwrap();
    partition.limits.syncs.ends.logs_are_open().unwrap();
    for timestamp in 0..4 {
        append(&partition, &[timestamp]);
    }
    disk.restart(Loss::Process);
    // Indexes the closed segments.
    open(&disk, config()).unwrap();
    // A power failure damages the second one, as far as the record of synced ends can say.
    let file = (&disk as &dyn Disk).open(&segment_path(log_dir(), 1), Open::Write);
    file.unwrap().write_all_at(b"damaged", 0).unwrap();
    disk.remove(&index_path(log_dir(), 1)).unwrap();
    disk.restart(Loss::Nothing);

    let partition = open(&disk, config()).unwrap();
    assert_eq!(partition.high_watermark(), 1);
    append_again_and_lose_power(&disk, &partition);
}

#[test]
fn what_an_earlier_process_failed_to_sync_is_written_again_before_it_counts_as_synced() {
    let unsynced = TopicConfig {
        flush_messages: None,
        segment_bytes: 1 << 20,
        ..config()
    };
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let partition = open(&disk, unsynced).unwrap();
        append(&partition, &[0; 200]);
        disk.fail(Op::Sync, 0, EIO);
        partition.close().unwrap_err();
        disk.restart(Loss::Process);
        let partition = open(&disk, unsynced).unwrap();
        partition.close().unwrap();
        disk.restart(Loss::Everything);
        let opened = open(&disk, unsynced).unwrap();
        assert_eq!(opened.high_watermark(), 200, "seed {seed}");
    }
}

#[test]
fn a_stored_end_survives_a_crash_before_its_name_was_synced() {
    let disk = SimulatedDisk::new(1);
    let first = ends(&disk);
    first.note(KEY, 10);
    first.store().unwrap();
    // Between the sync of the second file and that of the directory.
    first.note(KEY, 20);
    disk.crash_after(3);
    first.store().unwrap_err();
    disk.restart(Loss::Process);
    let next = ends(&disk);
    for end in [30, 40] {
        next.note(KEY, end);
        next.store().unwrap();
    }
    disk.restart(Loss::Everything);
    assert_eq!(ends(&disk).of(KEY), Some(40));
}

#[test]
fn a_stored_end_survives_a_failed_sync_and_a_torn_write() {
    let mut torn = 0;
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        let first = ends(&disk);
        for end in [10, 20] {
            first.note(KEY, end);
            first.store().unwrap();
        }
        // The third is in memory only, and is read as the newest.
        first.note(KEY, 30);
        disk.fail(Op::Sync, 0, EIO);
        first.store().unwrap_err();
        disk.restart(Loss::Process);
        let next = ends(&disk);
        next.note(KEY, 40);
        for changes in 0..6 {
            disk.crash_after(changes);
            torn += usize::from(next.store().is_err());
            disk.restart(Loss::Tail);
            let found = ends(&disk).of(KEY);
            assert!(found >= Some(20), "seed {seed}, {changes}: {found:?}");
        }
    }
    assert!(torn > 50);
}

#[test]
fn ends_of_an_interrupted_write_do_not_return() {
    let disk = SimulatedDisk::new(1);
    let first = ends(&disk);
    for end in [10, 20, 30] {
        first.note(KEY, end);
        first.store().unwrap();
    }
    // The newest is damaged, and the write of the next one is not synced.
    let newest = (&disk as &dyn Disk).open(Path::new("/data/synced-1"), Open::Write);
    let newest = newest.unwrap();
    newest.write_all_at(&[0xff; 4], 30).unwrap();
    newest.sync().unwrap();
    let older = (&disk as &dyn Disk).open(Path::new("/data/synced-0"), Open::Write);
    older.unwrap().write_all_at(&[0xff; 4], 30).unwrap();
    let next = ends(&disk);
    assert_eq!(next.of(KEY), None);
    next.note(KEY, 50);
    next.store().unwrap();
    disk.restart(Loss::Everything);
    assert_eq!(ends(&disk).of(KEY), Some(50));
}

#[test]
fn ends_that_cannot_be_read_refuse_the_start() {
    let disk = SimulatedDisk::new(1);
    let first = ends(&disk);
    for end in [10, 20] {
        first.note(KEY, end);
        first.store().unwrap();
    }
    disk.restart(Loss::Process);
    for others in 0..2 {
        disk.fail(Op::Open, others, EIO);
        let loaded = SyncedEnds::load(Arc::new(disk.clone()), data_dir(), disk.boot_id());
        assert!(loaded.is_err(), "the older ends are not taken instead");
    }
    assert_eq!(ends(&disk).of(KEY), Some(20));
}

#[test]
fn a_time_is_found_behind_a_segment_that_has_it_before_the_log_start() {
    let disk = SimulatedDisk::new(1);
    let two_batches = TopicConfig {
        segment_bytes: 2 * batch(-1, -1, -1, &[50]).len() as u64,
        ..config()
    };
    let partition = open(&disk, two_batches).unwrap();
    for timestamp in [50, 1, 60, 61, 2] {
        append(&partition, &[timestamp]);
    }
    sync(&partition, &disk);
    assert_eq!(partition.delete_records(1).unwrap(), 1);
    assert_eq!(partition.offset_at_time(50).unwrap(), Some((2, 60)));
}

#[test]
fn a_start_continues_after_interrupted_and_short_reads() {
    let disk = SimulatedDisk::new(1);
    drop(segments(&disk));
    disk.set_short(true);
    for _ in 0..50 {
        disk.restart(Loss::Process);
        let partition = open(&disk, config()).unwrap();
        let mut out = BytesMut::new();
        partition.read(0, 1 << 20, true, &mut out).unwrap();
    }
}
