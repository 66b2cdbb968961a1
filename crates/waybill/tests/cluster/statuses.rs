//! Reads the whole status topic.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use waybill_engine::OperationStatus;
use waybill_messages::{Record as _, Topics};
use waybill_test_support::setup::PATIENCE;

use crate::PARTITIONS;
use crate::cluster::Cluster;

/// Asserts that repeated status records are identical, and that there are at least `events_min`
/// different ones.
pub fn assert_each_event_has_one_version(cluster: &Cluster, events_min: usize) {
    let consumer: BaseConsumer = cluster.kafka_client();
    let topics = Topics::new(&cluster.name);
    let topic = topics.operation_status();
    let mut records = 0_i64;
    let mut from = TopicPartitionList::new();
    for partition in 0..PARTITIONS as i32 {
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, PATIENCE)
            .expect("the broker reports the end of the partition");
        records += high - low;
        from.add_partition_offset(topic, partition, Offset::Offset(low))
            .expect("the offset is one");
    }
    consumer.assign(&from).expect("the partitions are there");
    let mut versions: HashMap<uuid::Uuid, Vec<u8>> = HashMap::new();
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..records {
        let message = loop {
            assert!(
                Instant::now() < deadline,
                "the topic cannot be read to its end"
            );
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                break message;
            }
        };
        let bytes = message.payload().expect("a status has a value");
        let status = OperationStatus::decode(bytes).expect("a status can be read");
        let first = versions
            .entry(status.event_id)
            .or_insert_with(|| bytes.to_vec());
        assert_eq!(first, bytes, "two versions of one event: {status:?}");
    }
    println!("measured: {records} records of {} events", versions.len());
    assert!(versions.len() >= events_min, "{} events", versions.len());
}
