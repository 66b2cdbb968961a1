//! Batches with a right checksum whose records librdkafka cannot parse.
//!
//! Apache Kafka keeps such a batch byte for byte, and the mock cluster checks only the batch's
//! header. The embedded broker refuses it.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    ConsumerOptions, DamageKind, DamagedLog, KafkaSettings, PartitionConsumer, PollError,
    PollLimits, ProducerOptions,
};
use waybill_test_support::batches::batch;

use crate::fixture::Fixture;
use crate::raw::{append_batch, poison_record, record};
use crate::support::{A_WHILE, ALL, BatchProducer, PATIENCE, send_batch};
use crate::transactions::Transactional;

/// A good record before an unparsable one, and one after it that no client can reach.
fn poison() -> Vec<u8> {
    batch(
        0,
        &[record(0, b"good"), poison_record(1), record(2, b"hidden")],
    )
}

/// Asserts what a consumer of the poisoned partition 0 and the healthy partition 1 reports.
fn assert_stall_is_reported(settings: &KafkaSettings, topic: &str) {
    let producer = BatchProducer::new(settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, topic, 0, &[b"before"]);
    append_batch(settings, topic, &poison());
    send_batch(&producer, topic, 0, &[b"behind"]);
    let consumer = PartitionConsumer::new(settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[
            (topic, PartitionId(0), Offset(0)),
            (topic, PartitionId(1), Offset(0)),
        ])
        .unwrap();
    let (mut read, logs) = read_until_damaged(&consumer, |at| {
        // The other partition keeps delivering records.
        send_batch(&producer, topic, 1, &[format!("{at}").as_bytes()]);
    });
    read.retain(|(partition, _)| *partition == 0);
    assert_eq!(read, [(0, 0), (0, 1)]);
    let [log] = &logs[..] else {
        panic!("one partition is damaged: {logs:?}")
    };
    let named = (log.topic.as_str(), log.partition, log.offset);
    assert_eq!(named, (topic, PartitionId(0), Offset(2)));
    assert_eq!(log.cause, "records at this offset cannot be parsed");
    // After one occurrence, it may be a fault of the broker.
    assert_eq!((log.kind, log.next), (DamageKind::Undecodable, None));

    // It is no longer assigned. The other one is read on.
    send_batch(&producer, topic, 1, &[b"later"]);
    let mut values = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while !values.contains(&b"later".to_vec()) {
        assert!(Instant::now() < deadline);
        let polled = consumer.poll(ALL, A_WHILE, &mut |record| {
            assert_eq!(record.partition(), PartitionId(1));
            values.push(record.value().unwrap().to_vec());
        });
        polled.unwrap();
    }
}

/// Polls until damage is reported. Returns the partitions and offsets of the records that arrived
/// before.
fn read_until_damaged(
    consumer: &PartitionConsumer,
    mut between: impl FnMut(usize),
) -> (Vec<(u32, i64)>, Vec<DamagedLog>) {
    let deadline = Instant::now() + PATIENCE;
    let mut read = Vec::new();
    for at in 0.. {
        assert!(
            Instant::now() < deadline,
            "no damage was reported: {read:?}"
        );
        let polled = consumer.poll(ALL, A_WHILE, &mut |record| {
            read.push((record.partition().0, record.offset().0));
        });
        match polled {
            Ok(_) if at % 10 == 0 => between(at),
            Ok(_) => {}
            Err(PollError::Damaged(logs)) => return (read, logs),
            Err(error) => panic!("{error:?}"),
        }
    }
    unreachable!()
}

#[test]
fn a_partition_that_stalls_without_an_error_is_reported_as_damaged() {
    let (_cluster, settings) = super::mock_cluster::cluster("t", 2);
    assert_stall_is_reported(&settings, "t");
}

#[test]
fn a_partition_of_apache_kafka_that_stalls_without_an_error_is_reported_as_damaged() {
    if let Some(fixture) = Fixture::apache_kafka() {
        let topic = fixture.topic_with("t", 2, &[("compression.type", "uncompressed")]);
        assert_stall_is_reported(&fixture.settings, &topic);
    }
}

/// Longer than a stall takes to be reported.
const LONG: Duration = Duration::from_secs(16);

fn quiet_for_long(consumer: &PartitionConsumer) {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        consumer.poll(ALL, A_WHILE, &mut |_| panic!()).unwrap();
    }
}

#[test]
fn an_unreachable_broker_is_not_a_stall() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("t", 1, 1).unwrap();
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b", b"c"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    let one = PollLimits { records: 1, ..ALL };
    while consumer.poll(one, A_WHILE, &mut |_| {}).unwrap().records == 0 {}
    cluster.broker_down(1).unwrap();
    // Read from here again, where no broker reports further records.
    let at = [("t", PartitionId(0))];
    consumer.remove(&at).unwrap();
    consumer.add(&[("t", PartitionId(0), Offset(1))]).unwrap();
    quiet_for_long(&consumer);
    cluster.broker_up(1).unwrap();
    assert_eq!(crate::support::read(&consumer, 2).len(), 2);
}

#[test]
fn an_open_transaction_is_not_a_stall() {
    let Some(fixture) = Fixture::apache_kafka() else {
        return;
    };
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a"]);
    let writer = Transactional::new(&fixture);
    writer.write_two(&topic);
    quiet_for_long(&fixture.consumer(&topic, 0, 1));
}

/// Reads partition 0 from its start as the scheduler does, which adds a damaged partition again:
/// later at the same offset, or after undecodable records. Returns the offsets of its records, and
/// the skipped ranges.
fn read_over_poison(
    settings: &KafkaSettings,
    topic: &str,
    records: usize,
) -> (Vec<i64>, Vec<(i64, i64)>) {
    let consumer = PartitionConsumer::new(settings, &ConsumerOptions::new("c")).unwrap();
    let from = |offset| [(topic, PartitionId(0), offset)];
    consumer.assign(&from(Offset(0))).unwrap();
    let deadline = Instant::now() + PATIENCE * 3;
    let (mut offsets, mut passed) = (Vec::new(), Vec::new());
    while offsets.len() < records {
        assert!(Instant::now() < deadline, "{offsets:?} {passed:?}");
        let polled = consumer.poll(ALL, A_WHILE, &mut |record| offsets.push(record.offset().0));
        match polled {
            Ok(_) => {}
            Err(PollError::Damaged(logs)) => {
                for log in logs {
                    assert_eq!(log.kind, DamageKind::Undecodable);
                    passed.extend(log.next.map(|next| (log.offset.0, next.0)));
                    consumer.add(&from(log.next.unwrap_or(log.offset))).unwrap();
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    (offsets, passed)
}

#[test]
fn records_after_an_unparsable_one_are_read() {
    let (_cluster, settings) = super::mock_cluster::cluster("t", 1);
    append_batch(&settings, "t", &poison());
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"behind"]);
    assert_eq!(
        read_over_poison(&settings, "t", 3),
        (vec![0, 2, 3], vec![(1, 2)])
    );
}

/// The batches of others are between the unreadable ones.
#[test]
fn a_search_skips_no_readable_record() {
    let (_cluster, settings) = super::mock_cluster::cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    for _ in 0..3 {
        append_batch(&settings, "t", &batch(0, &[poison_record(0)]));
    }
    send_batch(&producer, "t", 0, &[b"good"]);
    append_batch(&settings, "t", &not_compressed(&vec![record(0, b"a"); 100]));
    append_batch(&settings, "t", &not_compressed(&vec![record(0, b"b"); 7]));
    send_batch(&producer, "t", 0, &[b"behind"]);
    assert_eq!(
        read_over_poison(&settings, "t", 2),
        (vec![3, 111], vec![(0, 3), (4, 111)])
    );
}

/// A batch that claims to be compressed with zstd, and is not.
fn not_compressed(records: &[Vec<u8>]) -> Vec<u8> {
    batch(4, records)
}

/// Every form of record that Apache Kafka is known to keep and librdkafka cannot parse.
#[test]
fn reading_continues_after_records_that_apache_kafka_accepted() {
    let Some(fixture) = Fixture::apache_kafka() else {
        return;
    };
    let topic = fixture.topic_with("t", 1, &[("compression.type", "uncompressed")]);
    let append = |records: &[Vec<u8>]| append_batch(&fixture.settings, &topic, &batch(0, records));
    let body = &record(0, b"a")[1..];
    let long = |length: u8| vec![length | 0x80, 0x80, 0x80, 0x80, 0x70];
    let whole_length = long(u8::try_from(body.len()).unwrap() * 2);
    append(&[[&whole_length, body].concat(), record(1, b"hidden")]);
    let value_length = [&[11 * 2, 0, 0, 0, 0][..], &long(2), b"v\0"].concat();
    append(&[value_length, record(1, b"good")]);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"good"]);
    append(&[record(0, b"good"), poison_record(1)]);
    let (offsets, passed) = read_over_poison(&fixture.settings, &topic, 3);
    eprintln!("read {offsets:?}, passed over {passed:?}");
    assert!(offsets.contains(&4) && offsets.contains(&5), "{offsets:?}");
    assert!(passed.iter().all(|(first, next)| {
        offsets
            .iter()
            .all(|offset| offset < first || offset >= next)
    }));
}
