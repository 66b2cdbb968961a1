//! Consumers of partitions that the caller names.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ApiKey, ProduceRequest, RequestHeader, TopicName};
use kafka_protocol::protocol::{Encodable as _, StrBytes};
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits, Polled,
    ProducerOptions,
};

use crate::{ALL, BatchProducer, PATIENCE, cluster, read, send_batch, values};

#[test]
fn a_poll_keeps_to_its_limits_and_the_next_goes_on_from_there() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b", b"c", b"d", b"e"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(1))])
        .unwrap();

    let mut seen = Vec::new();
    let mut take = |limits| {
        consumer
            .poll(limits, PATIENCE, &mut |record| seen.push(record.offset().0))
            .unwrap()
    };
    assert_eq!(
        take(PollLimits {
            records: 1,
            bytes: 1_000
        }),
        Polled {
            records: 1,
            bytes: 4
        }
    );
    // Four bytes each: the second reaches over the limit of five.
    assert_eq!(
        take(PollLimits {
            records: 9,
            bytes: 5
        }),
        Polled {
            records: 2,
            bytes: 8
        }
    );
    assert_eq!(
        take(PollLimits {
            records: 1,
            bytes: 1_000
        }),
        Polled {
            records: 1,
            bytes: 4
        }
    );
    assert_eq!(seen, [1, 2, 3, 4]);

    let started = Instant::now();
    let wait = Duration::from_millis(50);
    assert_eq!(
        consumer.poll(ALL, wait, &mut |_| panic!()).unwrap(),
        Polled::default()
    );
    assert!(started.elapsed() >= wait);
}

#[test]
fn partitions_are_added_and_removed_without_disturbing_the_others() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a0", b"a1"]);
    send_batch(&producer, "t", 1, &[b"b0", b"b1"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(values(&read(&consumer, 2)), [b"a0", b"a1"]);

    consumer.add(&[("t", PartitionId(1), Offset(1))]).unwrap();
    assert_eq!(values(&read(&consumer, 1)), [b"b1"]);
    send_batch(&producer, "t", 0, &[b"a2"]);
    assert_eq!(values(&read(&consumer, 1)), [b"a2"]);

    consumer.remove(&[("t", PartitionId(0))]).unwrap();
    send_batch(&producer, "t", 0, &[b"a3"]);
    send_batch(&producer, "t", 1, &[b"b2"]);
    assert_eq!(values(&read(&consumer, 1)), [b"b2"]);
    let quiet = consumer
        .poll(ALL, Duration::from_millis(100), &mut |_| panic!())
        .unwrap();
    assert_eq!(quiet, Polled::default());
}

#[test]
fn watermarks_tell_the_ends_of_a_partition() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b", b"c"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    let ends = consumer.watermarks("t", PartitionId(0), PATIENCE).unwrap();
    assert_eq!(ends, (Offset(0), Offset(3)));
}

#[test]
fn a_start_beyond_the_end_is_an_error_that_names_the_partition() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b", b"c"]);
    send_batch(&producer, "t", 1, &[b"a"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[
            ("t", PartitionId(0), Offset(3)),
            ("t", PartitionId(1), Offset(7)),
        ])
        .unwrap();

    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline);
        if let Err(error) = consumer.poll(ALL, Duration::from_millis(200), &mut |_| panic!()) {
            break error;
        }
    };
    match error {
        PollError::OffsetOutOfRange {
            topic,
            partition,
            offset,
            low,
            high,
        } => {
            assert_eq!((topic.as_str(), partition), ("t", PartitionId(1)));
            assert_eq!((offset, low, high), (Offset(7), Offset(0), Offset(1)));
        }
        other => panic!("{other:?}"),
    }
    // The other partition, read from its very end, goes on.
    send_batch(&producer, "t", 0, &[b"d"]);
    assert_eq!(values(&read(&consumer, 1)), [b"d"]);
}

#[test]
fn a_broker_that_goes_away_and_comes_back_is_waited_for() {
    let (cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(values(&read(&consumer, 1)), [b"a"]);

    cluster.broker_down(1).unwrap();
    let away = consumer
        .poll(ALL, Duration::from_millis(500), &mut |_| panic!())
        .unwrap();
    assert_eq!(away, Polled::default());
    cluster.broker_up(1).unwrap();
    send_batch(&producer, "t", 0, &[b"b"]);
    assert_eq!(values(&read(&consumer, 1)), [b"b"]);
}

#[test]
fn the_end_of_a_partition_is_told_also_where_a_control_record_lies_there() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b"]);
    append_commit_marker(&settings, "t");
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(
        read_to(&consumer, "t", Offset(3)),
        [Offset(0), Offset(1)],
        "the marker is no record"
    );
    let (_, end) = consumer.watermarks("t", PartitionId(0), PATIENCE).unwrap();
    assert_eq!(end, Offset(3));

    // One that arrives while nothing else does is noticed, too, and reading goes on behind it.
    append_commit_marker(&settings, "t");
    assert_eq!(read_to(&consumer, "t", Offset(4)), []);
    send_batch(&producer, "t", 0, &[b"c"]);
    assert_eq!(read_to(&consumer, "t", Offset(5)), [Offset(4)]);
}

#[test]
fn a_partition_that_is_read_from_its_end_is_told_to_be_read_to_there() {
    let (cluster, settings) = cluster("empty", 1);
    cluster.create_topic("read", 1, 1).unwrap();
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "read", 0, &[b"a", b"b"]);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    // Both partitions have the same number.
    consumer
        .add(&[("read", PartitionId(0), Offset(2))])
        .unwrap();
    assert_eq!(read_to(&consumer, "read", Offset(2)), []);
    consumer
        .add(&[("empty", PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(read_to(&consumer, "empty", Offset(0)), []);
}

/// Polls until the end of partition 0 of the topic is told to be at `end`. Returns the offsets of
/// the records handed over on the way, none of which may come after the end that covers it.
fn read_to(consumer: &PartitionConsumer, topic: &str, end: Offset) -> Vec<Offset> {
    let deadline = Instant::now() + PATIENCE;
    let mut offsets = Vec::new();
    let mut told = None;
    while told != Some(end) {
        assert!(
            Instant::now() < deadline,
            "the end is at {told:?}, not {end}"
        );
        let mut on_record = |record: waybill_kafka::RecordRef<'_>| {
            assert!(told.is_none_or(|told| told <= record.offset()));
            offsets.push(record.offset());
        };
        let mut ends = Vec::new();
        consumer
            .poll_with_positions(
                ALL,
                Duration::from_millis(200),
                &mut on_record,
                &mut |of, partition, position| {
                    assert_eq!(partition, PartitionId(0));
                    ends.extend((of == topic).then_some(position));
                },
            )
            .unwrap();
        told = ends.pop().or(told);
    }
    offsets
}

/// Appends the record that ends a transaction, as a transaction coordinator does, to partition 0.
fn append_commit_marker(settings: &KafkaSettings, topic: &str) {
    const COMMIT: &[u8] = &[0, 0, 0, 1];
    let marker = Record {
        transactional: true,
        control: true,
        delete_horizon: false,
        partition_leader_epoch: 0,
        producer_id: 7,
        producer_epoch: 0,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: -1,
        timestamp: 1_700_000_000_000,
        key: Some(Bytes::from_static(COMMIT)),
        value: Some(Bytes::from_static(&[0, 0, 0, 0, 0, 0])),
        headers: Default::default(),
    };
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut batch = BytesMut::new();
    RecordBatchEncoder::encode(&mut batch, [&marker], &options).unwrap();
    let partition = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(batch.freeze()));
    let topic = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_partition_data(vec![partition]);
    let request = ProduceRequest::default()
        .with_acks(1)
        .with_timeout_ms(1_000)
        .with_topic_data(vec![topic]);

    let version = 7;
    let mut body = BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(ApiKey::Produce as i16)
        .with_request_api_version(version)
        .encode(&mut body, ApiKey::Produce.request_header_version(version))
        .unwrap();
    request.encode(&mut body, version).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u32(body.len().try_into().unwrap());
    frame.put(body);
    let mut broker = TcpStream::connect(&settings.brokers).unwrap();
    broker.set_read_timeout(Some(PATIENCE)).unwrap();
    broker.write_all(&frame).unwrap();
    let mut length = [0; 4];
    broker.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    broker.read_exact(&mut answer).unwrap();
    // Behind the correlation id, one topic with its name, one partition and its number: the code.
    let error = answer.len() - (2 + 8 + 8 + 8 + 4);
    assert_eq!(answer[error..error + 2], [0, 0], "{answer:?}");
}
