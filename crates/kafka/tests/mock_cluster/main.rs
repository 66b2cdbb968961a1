//! The clients against librdkafka's built-in mock cluster, which speaks the real protocol over
//! local sockets.

mod consuming;
mod groups;
mod producing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, AdminError, ConsumerOptions, Delivery, Header, KafkaSettings, OutRecord,
    PartitionConsumer, PollLimits, Producer, ProducerOptions, RawRecord, Settlement,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const ALL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 64 * 1024 * 1024,
};

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;
pub(crate) type BatchProducer = Producer<Arc<Settlement>>;
pub(crate) type OneProducer = Producer<Box<oneshot::Sender<Delivery>>>;

pub(crate) fn cluster(topic: &str, partitions: i32) -> (Cluster, KafkaSettings) {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    (cluster, settings)
}

pub(crate) fn send_batch(producer: &BatchProducer, topic: &str, partition: u32, values: &[&[u8]]) {
    let (settlement, settled) = Settlement::channel(values.len());
    for value in values {
        let record = OutRecord::new(topic, PartitionId(partition), b"key", value);
        producer.send(&record, Arc::clone(&settlement)).unwrap();
    }
    assert_eq!(settled.blocking_recv(), Ok(Ok(())));
}

pub(crate) fn send_one(producer: &OneProducer, record: &OutRecord<'_>) -> Delivery {
    let (sender, receiver) = oneshot::channel();
    producer.send(record, Box::new(sender)).unwrap();
    receiver.blocking_recv().unwrap()
}

/// Polls until `count` records came.
pub(crate) fn read(consumer: &PartitionConsumer, count: usize) -> Vec<RawRecord> {
    let deadline = Instant::now() + PATIENCE;
    let mut records = Vec::new();
    while records.len() < count {
        assert!(
            Instant::now() < deadline,
            "{} of {count} records came",
            records.len()
        );
        consumer
            .poll(ALL, Duration::from_millis(200), &mut |record| {
                records.push(record.to_raw())
            })
            .unwrap();
    }
    records
}

pub(crate) fn values(records: &[RawRecord]) -> Vec<&[u8]> {
    records
        .iter()
        .map(|record| record.value.as_deref().unwrap())
        .collect()
}

#[test]
fn what_is_sent_is_read_back_with_key_headers_and_timestamp() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let headers = [
        Header {
            key: "traceparent",
            value: Some(b"00-ab"),
        },
        Header {
            key: "empty",
            value: Some(b""),
        },
        Header {
            key: "none",
            value: None,
        },
    ];
    let record = OutRecord {
        topic: "t",
        partition: PartitionId(1),
        key: Some(b"k"),
        value: Some(b"v"),
        headers: &headers,
        timestamp_ms: Some(1_700_000_000_123),
    };
    let delivery = send_one(&producer, &record);
    assert_eq!(
        delivery,
        Delivery {
            partition: PartitionId(1),
            offset: Some(Offset(0)),
            result: Ok(())
        }
    );
    send_one(
        &producer,
        &OutRecord {
            value: None,
            key: None,
            headers: &[],
            ..record
        },
    );

    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(1), Offset(0))])
        .unwrap();
    let records = read(&consumer, 2);
    assert_eq!(
        records[0],
        RawRecord {
            topic: "t".to_owned(),
            partition: PartitionId(1),
            offset: Offset(0),
            timestamp_ms: Some(1_700_000_000_123),
            key: Some(b"k".to_vec()),
            value: Some(b"v".to_vec()),
            headers: vec![
                ("traceparent".to_owned(), Some(b"00-ab".to_vec())),
                ("empty".to_owned(), Some(Vec::new())),
                ("none".to_owned(), None),
            ],
        }
    );
    assert_eq!(records[0].headers()[..], headers);
    assert_eq!((&records[1].key, &records[1].value), (&None, &None));
    assert!(records[1].headers.is_empty());
}

#[tokio::test]
async fn topics_are_looked_at() {
    let (_cluster, settings) = cluster("t", 3);
    let admin = Admin::new(&settings, "admin").unwrap();
    admin.wait_ready(PATIENCE).await.unwrap();
    assert_eq!(admin.topic_partitions("t").await.unwrap(), Some(3));
    admin.create_topics(&[]).await.unwrap();
}

#[tokio::test]
async fn a_broker_that_never_comes_is_waited_for_no_longer_than_asked() {
    let admin = Admin::new(&KafkaSettings::new("127.0.0.1:1"), "admin").unwrap();
    let started = Instant::now();
    let error = admin
        .wait_ready(Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(matches!(error, AdminError::NotReady { .. }), "{error:?}");
    assert!(started.elapsed() < PATIENCE);
}
