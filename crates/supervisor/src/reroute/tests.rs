//! The rerouter on librdkafka's mock cluster.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use uuid::Uuid;
use waybill_engine::{OperationId, partition_for};
use waybill_kafka::{OutRecord, Producer, ProducerOptions, Settlement};
use waybill_store::Layout;

use super::*;

#[test]
fn a_misrouted_record_is_rerouted_unchanged() {
    let operation = OperationId(Uuid::from_u128(7));
    let record = RawRecord {
        topic: "waybill.recovery.v1".to_owned(),
        partition: PartitionId(11),
        offset: Offset(17),
        timestamp_ms: Some(5),
        key: Some(operation.key().to_vec()),
        value: Some(b"value".to_vec()),
        headers: vec![("own".to_owned(), None)],
    };
    let expected = RawRecord {
        partition: partition_for(operation, 4),
        ..record.clone()
    };
    assert_eq!(to_own_partition(record.clone(), 4), expected);
    let without_key = RawRecord {
        key: None,
        ..record
    };
    assert!(to_own_partition(without_key, 4).partition < PartitionId(4));
}

struct Fixture {
    cluster: MockCluster<'static, DefaultProducerContext>,
    topics: Topics,
    rerouter: Rerouter,
    /// How many records were written to the dropped partition.
    put: usize,
}

const LEFT_OVER: PartitionId = PartitionId(1);

impl Fixture {
    fn new(layout: Layout) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        for source in Source::ALL {
            cluster.create_topic(topics.of(source), 2, 1).unwrap();
        }
        let kafka = KafkaSettings::new(cluster.bootstrap_servers());
        let partition_map = PartitionMap::of(layout);
        let metrics = Arc::new(SupervisorMetrics::new());
        let publisher = Publisher::new(
            &kafka,
            &topics,
            partition_map.clone(),
            1_000,
            metrics.clone(),
        );
        let publisher = Arc::new(publisher.unwrap());
        let rerouter = Rerouter::new(&kafka, &topics, partition_map, publisher, metrics);
        Self {
            cluster,
            topics,
            rerouter: rerouter.unwrap(),
            put: 0,
        }
    }

    fn kafka(&self) -> KafkaSettings {
        KafkaSettings::new(self.cluster.bootstrap_servers())
    }

    /// Writes requests to the dropped partition, each with its offset as its value.
    async fn put(&mut self, count: usize) {
        self.put_on(Source::Requests, count).await;
    }

    async fn put_on(&mut self, source: Source, count: usize) {
        let options = ProducerOptions::new("deaf");
        let producer: Producer<Arc<Settlement>> = Producer::new(&self.kafka(), &options).unwrap();
        for _ in 0..count {
            let key = OperationId(Uuid::from_u128(self.put as u128)).key();
            let value = self.put.to_string().into_bytes();
            let record = OutRecord::new(self.topics.of(source), LEFT_OVER, &key, &value);
            let (settlement, settled) = Settlement::channel(1);
            producer.send(&record, settlement).unwrap();
            settled.await.unwrap().unwrap();
            self.put += 1;
        }
    }

    /// Reroutes repeatedly until requests are done up to `until`.
    async fn reroute(&self, done: TopicOffsets, until: i64) -> TopicOffsets {
        self.reroute_on(Source::Requests, done, until).await
    }

    async fn reroute_on(&self, source: Source, mut done: TopicOffsets, until: i64) -> TopicOffsets {
        loop {
            let (now, sent) = self.rerouter.reroute(LEFT_OVER, done).await;
            sent.unwrap();
            done = now;
            if done.on(source) >= Offset(until) {
                return done;
            }
        }
    }

    /// The rerouted requests, in order, by their original offset.
    fn rerouted(&self) -> Vec<usize> {
        self.rerouted_on(Source::Requests)
    }

    fn rerouted_on(&self, source: Source) -> Vec<usize> {
        let options = ConsumerOptions::new("rerouted");
        let consumer = PartitionConsumer::new(&self.kafka(), &options).unwrap();
        let (topic, home) = (self.topics.of(source), PartitionId(0));
        let (_, end) = consumer.watermarks(topic, home, POLL_TIMEOUT * 20).unwrap();
        consumer.add(&[(topic, home, Offset(0))]).unwrap();
        let mut values = Vec::new();
        while (values.len() as i64) < end.0 {
            let polled = consumer.poll(LIMITS, POLL_TIMEOUT, &mut |record| {
                let raw = record.to_raw();
                let value = String::from_utf8(raw.value.unwrap()).unwrap();
                values.push(value.parse().unwrap());
            });
            polled.unwrap();
        }
        values
    }
}

fn at(requests: i64) -> TopicOffsets {
    TopicOffsets {
        requests: Offset(requests),
        ..TopicOffsets::default()
    }
}

/// Two partitions become one; the other one ended at `end`.
fn shrunk(layout: &Layout, end: i64) -> Layout {
    let layout = layout
        .intended(1)
        .unwrap()
        .with_boundaries(vec![at(0)])
        .unwrap();
    let layout = layout.announced(Vec::new()).unwrap();
    layout.moved(vec![at(0), at(end)]).unwrap()
}

#[tokio::test]
async fn records_written_after_a_partition_ended_are_rerouted_once_and_in_order() {
    let mut fixture = Fixture::new(shrunk(&Layout::first(2), 2));
    fixture.put(5).await;
    let done = fixture.reroute(TopicOffsets::default(), 5).await;
    assert_eq!(done, at(5));
    assert_eq!(fixture.rerouted(), [2, 3, 4]);
    assert_eq!(fixture.reroute(done, 5).await, done);
    fixture.put(2).await;
    assert_eq!(fixture.reroute(done, 7).await, at(7));
    assert_eq!(fixture.rerouted(), [2, 3, 4, 5, 6]);
    let (of_another, sent) = fixture.rerouter.reroute(PartitionId(0), at(0)).await;
    sent.unwrap();
    assert_eq!(of_another, at(0), "that one is read");
}

#[tokio::test]
async fn high_priority_requests_are_rerouted_on_their_own_topic() {
    let high_priority = Source::HighPriority;
    let mut fixture = Fixture::new(shrunk(&Layout::first(2), 0));
    fixture.put_on(high_priority, 3).await;
    let done = fixture
        .reroute_on(high_priority, TopicOffsets::default(), 3)
        .await;
    assert_eq!((done.high_priority, done.requests), (Offset(3), Offset(0)));
    assert_eq!(fixture.rerouted_on(high_priority), [0, 1, 2]);
    let requests = fixture.rerouted();
    assert!(requests.is_empty(), "{requests:?}");
}

#[tokio::test]
async fn each_retired_range_of_a_partition_is_rerouted_separately() {
    let first = shrunk(&Layout::first(2), 2).settled(&[]).unwrap();
    let read = first.intended(2).unwrap().announced(vec![at(4)]).unwrap();
    let read = read.moved(vec![at(0)]).unwrap().settled(&[]).unwrap();
    let mut fixture = Fixture::new(shrunk(&read, 6));
    fixture.put(8).await;
    let done = fixture.reroute(TopicOffsets::default(), 8).await;
    assert_eq!(done, at(8));
    assert_eq!(fixture.rerouted(), [2, 3, 6, 7]);
}
