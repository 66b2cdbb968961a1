use std::time::Duration;

use waybill_disk::is_full;
use waybill_wire::batch::BatchHeader;
use waybill_wire::batch::made::batch;

use super::*;
use crate::log::faults::{self, Op};
use crate::log::{AppendError, Appended, Condition, SyncedEnds, system_disk};
use crate::log::{SyncQueue, SyncThreads};
use crate::stats::Counters;

const MINUTE_MS: u64 = 60_000;
/// Milliseconds since the Unix epoch: of 1970, of 2026 and of 2100.
const TIMES_MS: [i64; 3] = [0, 1_790_000_000_000, 4_102_444_800_000];

fn open(dir: &Path) -> Topics {
    let limits = Limits {
        disk: system_disk(),
        producers_max: 10,
        syncs: SyncQueue::new(
            Arc::new(Counters::default()),
            SyncedEnds::load(system_disk(), dir, None).unwrap(),
        ),
        low_on_disk: Arc::default(),
    };
    let meta = Arc::new(Meta::open(&dir.join("meta")).unwrap());
    Topics::open(dir, 10, limits, meta).unwrap()
}

/// Segments of one batch each that expire after an hour.
fn an_hour() -> TopicConfig {
    TopicConfig {
        retention: Some(Duration::from_secs(3_600)),
        segment_bytes: 1,
        ..TopicConfig::default()
    }
}

fn append(topics: &Topics, timestamp: i64) {
    append_batch(topics, &[timestamp]);
}

fn append_batch(topics: &Topics, timestamps: &[i64]) {
    let batch = batch(-1, -1, -1, timestamps);
    let header = BatchHeader::of_produced(&batch).unwrap();
    let topic = topics.get("t").unwrap();
    topic.partitions[0].append(&header, &batch).unwrap();
}

fn log_start(topics: &Topics) -> i64 {
    topics.get("t").unwrap().partitions[0].log_start()
}

#[test]
fn retention_ignores_changes_of_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let topics = open(dir.path());
    topics.create("t", 1, an_hour()).unwrap();
    for timestamp in TIMES_MS {
        append(&topics, timestamp);
    }
    topics.apply_retention_at(0);
    for timestamp in TIMES_MS {
        append(&topics, timestamp);
    }
    topics.apply_retention_at(30 * MINUTE_MS);
    topics.apply_retention_at(60 * MINUTE_MS);
    assert_eq!(log_start(&topics), 0);
    topics.apply_retention_at(60 * MINUTE_MS + 1);
    assert_eq!(log_start(&topics), 3);
    topics.apply_retention_at(90 * MINUTE_MS);
    assert_eq!(log_start(&topics), 3);
    // The last one is in the active segment, which goes, too.
    topics.apply_retention_at(90 * MINUTE_MS + 1);
    assert_eq!(log_start(&topics), 6);
}

#[test]
fn ages_continue_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let topics = open(dir.path());
    topics.create("t", 1, an_hour()).unwrap();
    append(&topics, TIMES_MS[0]);
    topics.apply_retention_at(10 * MINUTE_MS);
    topics.apply_retention_at(40 * MINUTE_MS);
    topics.close().unwrap();
    drop(topics);

    let topics = open(dir.path());
    let resumed = topics.run_time.now_ms();
    assert!((40 * MINUTE_MS..70 * MINUTE_MS).contains(&resumed));
    topics.apply_retention_at(70 * MINUTE_MS);
    assert_eq!(log_start(&topics), 0);
    topics.apply_retention_at(70 * MINUTE_MS + 1);
    assert_eq!(log_start(&topics), 1);
}

#[test]
fn records_that_follow_a_lost_end_are_visible_after_the_next_restart() {
    let dir = tempfile::tempdir().unwrap();
    let topics = open(dir.path());
    topics.create("t", 1, TopicConfig::default()).unwrap();
    for timestamp in TIMES_MS {
        append(&topics, timestamp);
    }
    let topic = topics.get("t").unwrap();
    topics
        .meta
        .put_log_start(*topic.id.as_bytes(), 0, 3)
        .unwrap();
    topic.partitions[0].delete_records(2).unwrap();
    drop((topic, topics));
    // A power loss: the topic is not synced.
    let segment = partition_dir(&logs_dir(dir.path()), "t", 0).join("00000000000000000000.log");
    std::fs::write(&segment, b"").unwrap();

    let topics = open(dir.path());
    assert_eq!(log_start(&topics), 0);
    append(&topics, TIMES_MS[0]);
    drop(topics);
    let topics = open(dir.path());
    assert_eq!(log_start(&topics), 0);
    let partition = Arc::clone(&topics.get("t").unwrap().partitions[0]);
    assert_eq!(partition.high_watermark(), 1);
}

#[test]
fn the_ages_of_a_deleted_topic_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let topics = open(dir.path());
    let topic = topics.create("t", 1, an_hour()).unwrap();
    append(&topics, TIMES_MS[0]);
    topics.apply_retention_at(MINUTE_MS);
    assert_eq!(locked(&topics.ages).len(), 1);
    topics.delete("t").unwrap();
    topics.apply_retention_at(2 * MINUTE_MS);
    assert_eq!(locked(&topics.ages).len(), 0);
    let noted = topics.meta.ages(*topic.id.as_bytes(), 0).unwrap();
    assert_eq!(noted, SegmentAges::default());
}

#[test]
fn the_largest_timestamp_is_that_of_a_record_within_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let topics = open(dir.path());
    topics.create("t", 1, TopicConfig::default()).unwrap();
    append_batch(&topics, &[1, 2]);
    append_batch(&topics, &[3, 8, 5, 8]);
    append_batch(&topics, &[4, 7]);
    let partition = &topics.get("t").unwrap().partitions[0];
    assert_eq!(partition.largest_timestamp().unwrap(), Some((3, 8)));
}

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
const EIO: i32 = 5;
/// Longer than anything here takes; only a failing test waits for it.
const BOUND: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_start_after_a_crash_within_a_deletion_misses_no_files() {
    let synced = TopicConfig {
        flush_messages: Some(1),
        ..TopicConfig::default()
    };
    let fixture = Fixture::new(synced);
    let sync_to = fixture.append(0).unwrap().sync_to.unwrap();
    assert!(fixture.partition().synced(sync_to).await);
    let record = fixture.topics.meta.topics().unwrap().pop().unwrap().1;
    fixture.topics.delete("t").unwrap();
    // As if the process had died before the metadata changed.
    fixture.topics.meta.put_topic("t", &record).unwrap();
    let dir = fixture.dir;
    drop((fixture.topics, fixture.syncs, fixture._threads));
    let topics = open(dir.path());
    assert_eq!(topics.get("t").unwrap().partitions[0].high_watermark(), 0);
}

/// One topic `t` of one partition, with the threads that sync it.
struct Fixture {
    dir: tempfile::TempDir,
    topics: Topics,
    syncs: Arc<SyncQueue>,
    _threads: SyncThreads,
}

impl Fixture {
    fn new(config: TopicConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ends = SyncedEnds::load(system_disk(), dir.path(), None).unwrap();
        let syncs = SyncQueue::new(Arc::new(Counters::default()), ends);
        let limits = Limits {
            disk: system_disk(),
            producers_max: 10,
            syncs: Arc::clone(&syncs),
            low_on_disk: Arc::default(),
        };
        let meta = Arc::new(Meta::open(&dir.path().join("meta")).unwrap());
        let topics = Topics::open(dir.path(), 10, limits, meta).unwrap();
        topics.create("t", 1, config).unwrap();
        Self {
            _threads: SyncThreads::start(Arc::clone(&syncs)).unwrap(),
            dir,
            topics,
            syncs,
        }
    }

    fn partition(&self) -> Arc<Partition> {
        Arc::clone(&self.topics.get("t").unwrap().partitions[0])
    }

    /// Appends the batch of an idempotent producer with this sequence number.
    fn append(&self, sequence: i32) -> Result<Appended, AppendError> {
        let batch = numbered(sequence);
        let header = BatchHeader::of_produced(&batch).unwrap();
        self.partition().append(&header, &batch)
    }

    fn fails(&self, op: Op, errno: i32) {
        faults::plan(self.dir.path(), op, errno, 1);
    }

    async fn until(&self, condition: Condition) {
        let partition = self.partition();
        let reached = async {
            while partition.condition() != condition {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(BOUND, reached).await;
        assert!(reached.is_ok(), "it is {:?}", partition.condition());
    }
}

fn numbered(sequence: i32) -> bytes::Bytes {
    batch(7, 0, sequence, &[1])
}

/// Whether `partition` is synced up to `offset`.
async fn is_synced(partition: &Partition, offset: i64) -> bool {
    let synced = tokio::time::timeout(BOUND, partition.synced(offset));
    synced.await.expect("the sync has an outcome")
}

fn synced() -> TopicConfig {
    TopicConfig {
        flush_messages: Some(1),
        ..TopicConfig::default()
    }
}

#[tokio::test]
async fn a_batch_not_synced_on_a_full_disk_is_rewritten_before_it_is_acknowledged() {
    for errno in [ENOSPC, EDQUOT] {
        let fixture = Fixture::new(synced());
        fixture.append(0).unwrap();
        assert!(is_synced(&fixture.partition(), 1).await);
        fixture.fails(Op::Sync, errno);
        let old = fixture.partition();
        assert_eq!(fixture.append(1).unwrap().sync_to, Some(2));
        assert!(!is_synced(&old, 2).await, "the record is not acknowledged");
        assert_eq!(old.condition(), Condition::Full);
        // A repeated batch is no better than a new one, and reads continue.
        for sequence in [1, 2] {
            let refused = fixture.append(sequence).unwrap_err();
            assert!(matches!(refused, AppendError::Full), "{refused}");
        }
        let mut out = bytes::BytesMut::new();
        let read = old.read(0, 1 << 20, true, &mut out).unwrap();
        assert_eq!(read, numbered(0).len());
        let failed = tokio::time::timeout(Duration::from_millis(50), fixture.syncs.failed());
        assert!(failed.await.is_err(), "a full disk is no failed disk");

        fixture.fails(Op::Rewrite, errno);
        assert!(!fixture.topics.reopen_full(), "it is still full");
        fixture.fails(Op::Sync, errno);
        assert!(!fixture.topics.reopen_full(), "it is still full");
        assert!(matches!(fixture.append(1), Err(AppendError::Full)));
        faults::record(fixture.dir.path());
        assert!(fixture.topics.reopen_full());
        let recorded = faults::recorded(fixture.dir.path()).into_iter();
        let written: Vec<_> = recorded
            .map(|(op, ..)| op)
            .filter(|op| matches!(op, Op::Rewrite | Op::Sync))
            .collect();
        assert_eq!(written, [Op::Rewrite, Op::Sync]);

        let new = fixture.partition();
        assert_eq!(new.high_watermark(), 2);
        let repeated = fixture.append(1).unwrap();
        assert_eq!((repeated.base_offset, repeated.sync_to), (1, Some(2)));
        assert!(is_synced(&new, 2).await);
        assert_eq!(fixture.append(2).unwrap().base_offset, 2);
        assert!(is_synced(&new, 3).await);
        assert!(
            !is_synced(&old, 2).await,
            "its outcome was already reported"
        );
        assert_eq!(fixture.topics.totals().0, 3 * numbered(0).len() as u64);
        fixture.topics.close().unwrap();
    }
}

#[tokio::test]
async fn a_batch_lost_to_a_full_disk_is_cut_off_and_never_acknowledged() {
    let fixture = Fixture::new(synced());
    fixture.append(0).unwrap();
    assert!(is_synced(&fixture.partition(), 1).await);
    fixture.fails(Op::Sync, ENOSPC);
    fixture.append(1).unwrap();
    let old = fixture.partition();
    assert!(!is_synced(&old, 2).await);
    // Like file systems that drop the pages they could not write.
    let path = old.path().join("00000000000000000000.log");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(numbered(0).len() as u64 + 7).unwrap();
    assert!(fixture.topics.reopen_full());
    let new = fixture.partition();
    assert_eq!(new.high_watermark(), 1);
    for sequence in [1, 2] {
        let appended = fixture.append(sequence).unwrap();
        assert_eq!(appended.base_offset, i64::from(sequence));
    }
    assert!(is_synced(&new, 3).await);
    assert!(!is_synced(&old, 2).await, "another batch has its offset");
    assert_eq!(fixture.topics.totals().0, 3 * numbered(0).len() as u64);
}

#[tokio::test]
async fn a_partition_recovers_from_a_full_disk_at_the_end_of_a_segment() {
    for config in [TopicConfig::default(), synced()] {
        for op in [Op::Sync, Op::SyncDir] {
            let fixture = Fixture::new(TopicConfig {
                segment_bytes: 2 * numbered(0).len() as u64,
                ..config
            });
            for sequence in [0, 1] {
                let appended = fixture.append(sequence).unwrap();
                if let Some(sync_to) = appended.sync_to {
                    assert!(is_synced(&fixture.partition(), sync_to).await);
                }
            }
            fixture.fails(op, ENOSPC);
            fixture.append(2).unwrap();
            fixture.until(Condition::Full).await;
            assert!(matches!(fixture.append(3), Err(AppendError::Full)));
            // Neither a client nor retention removes a segment in the meantime.
            let old = fixture.partition();
            assert_eq!(old.delete_records(2).unwrap(), 2);
            fixture.topics.apply_retention_at(MINUTE_MS);
            assert!(fixture.topics.reopen_full());
            let new = fixture.partition();
            assert_eq!((new.log_start(), new.high_watermark()), (2, 3));
            assert_eq!(fixture.append(3).unwrap().base_offset, 3);
            assert_eq!(new.delete_records(2).unwrap(), 2);
            let files = fs::read_dir(new.path()).unwrap();
            let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
            assert_eq!(names, ["00000000000000000002.log"]);
            fixture.topics.close().unwrap();
        }
    }
}

#[tokio::test]
async fn a_disk_that_fails_when_a_partition_is_reopened_takes_it_offline() {
    let fixture = Fixture::new(synced());
    fixture.fails(Op::Sync, ENOSPC);
    fixture.append(0).unwrap();
    fixture.until(Condition::Full).await;
    fixture.fails(Op::Rewrite, EIO);
    assert!(fixture.topics.reopen_full(), "it is not tried again");
    assert_eq!(fixture.partition().condition(), Condition::Offline);
    let cause = tokio::time::timeout(BOUND, fixture.syncs.failed());
    let cause = cause.await.unwrap();
    for part in ["cannot reopen partition 0 of topic t", "os error 5"] {
        assert!(cause.contains(part), "{cause}");
    }
}

#[tokio::test]
async fn a_deleted_topic_is_not_reopened_and_a_shutdown_reports_unsynced_records() {
    let fixture = Fixture::new(synced());
    fixture.fails(Op::Sync, ENOSPC);
    fixture.append(0).unwrap();
    fixture.until(Condition::Full).await;
    let error = fixture.topics.close().unwrap_err();
    assert!(is_full(&error), "{error}");
    let path = fixture.partition().path().to_owned();
    fixture.topics.delete("t").unwrap();
    assert!(fixture.topics.reopen_full());
    assert!(!path.exists());
}
