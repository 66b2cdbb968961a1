use std::time::Duration;

use super::*;
use crate::log::{BatchHeader, SyncedEnds, test_batch};
use crate::stats::Counters;
use crate::sync::SyncQueue;

const MINUTE_MS: u64 = 60_000;
/// Milliseconds since the Unix epoch: of 1970, of 2026 and of 2100.
const TIMES_MS: [i64; 3] = [0, 1_790_000_000_000, 4_102_444_800_000];

fn open(dir: &Path) -> Topics {
    let limits = Limits {
        producers_max: 10,
        syncs: SyncQueue::new(Arc::new(Counters::default()), SyncedEnds::load(dir)),
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
    let batch = test_batch(-1, -1, -1, timestamps);
    let header = BatchHeader::of_produced(&batch).unwrap();
    let topic = topics.get("t").unwrap();
    topic.partitions[0].append(&header, &batch).unwrap();
}

fn log_start(topics: &Topics) -> i64 {
    topics.get("t").unwrap().partitions[0].log_start()
}

#[test]
fn an_hour_is_an_hour_of_the_broker_whatever_the_wall_clock_has_said() {
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
fn ages_go_on_where_they_were_after_a_restart() {
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
fn nothing_is_remembered_of_the_ages_of_a_deleted_topic() {
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
