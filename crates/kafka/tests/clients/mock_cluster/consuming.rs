//! Consumers of partitions that the caller names.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::records::{Record, TimestampType};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{ConsumerOptions, KafkaSettings, PartitionConsumer, Polled, ProducerOptions};

use super::cluster;
use crate::raw::append;
use crate::support::{ALL, BatchProducer, NOTHING, PATIENCE, read, read_to, send_batch, values};

#[test]
fn the_client_waits_for_a_broker_that_restarts() {
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
fn the_end_of_a_partition_is_reported_even_at_a_control_record() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a", b"b"]);
    append_commit_marker(&settings, "t");
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(
        read_to(&consumer, "t", 3),
        [0, 1],
        "the marker is no record"
    );
    let (_, end) = consumer.watermarks("t", PartitionId(0), PATIENCE).unwrap();
    assert_eq!(end, Offset(3));

    // A marker that arrives alone is noticed, too, and reading continues after it.
    append_commit_marker(&settings, "t");
    assert_eq!(read_to(&consumer, "t", 4), NOTHING);
    send_batch(&producer, "t", 0, &[b"c"]);
    assert_eq!(read_to(&consumer, "t", 5), [4]);
}

/// Appends the record that ends a transaction to partition 0, as a transaction coordinator does.
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
    append(settings, topic, &[marker]);
}

/// The mock cluster has no controller.
#[test]
fn the_id_of_a_topic_is_known_without_a_controller() {
    let (_cluster, settings) = cluster("t", 1);
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    let id = consumer.topic_id("t", PartitionId(0), PATIENCE);
    assert!(id.unwrap().is_some());
}
