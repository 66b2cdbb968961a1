//! The clients against librdkafka's built-in mock cluster, which speaks the real protocol over
//! local sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, AdminError, ConsumerOptions, Delivery, ErrorCode, GroupConsumer, GroupHandler,
    GroupOptions, Header, KafkaSettings, OutRecord, PartitionConsumer, PollError, PollLimits,
    Polled, ProduceError, Producer, ProducerOptions, RawRecord, RecordRef, SendError, Settlement,
    TopicPartition,
};

const PATIENCE: Duration = Duration::from_secs(30);
const ALL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 64 * 1024 * 1024,
};

type Cluster = MockCluster<'static, DefaultProducerContext>;
type BatchProducer = Producer<Arc<Settlement>>;
type OneProducer = Producer<Box<oneshot::Sender<Delivery>>>;

fn cluster(topic: &str, partitions: i32) -> (Cluster, KafkaSettings) {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    (cluster, settings)
}

fn send_batch(producer: &BatchProducer, topic: &str, partition: u32, values: &[&[u8]]) {
    let (settlement, settled) = Settlement::channel(values.len());
    for value in values {
        let record = OutRecord::new(topic, PartitionId(partition), b"key", value);
        producer.send(&record, Arc::clone(&settlement)).unwrap();
    }
    assert_eq!(settled.blocking_recv(), Ok(Ok(())));
}

fn send_one(producer: &OneProducer, record: &OutRecord<'_>) -> Delivery {
    let (sender, receiver) = oneshot::channel();
    producer.send(record, Box::new(sender)).unwrap();
    receiver.blocking_recv().unwrap()
}

/// Polls until `count` records came.
fn read(consumer: &PartitionConsumer, count: usize) -> Vec<RawRecord> {
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

fn values(records: &[RawRecord]) -> Vec<&[u8]> {
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
fn a_record_that_never_left_is_refused_and_one_without_an_answer_is_unknown() {
    let (cluster, settings) = cluster("t", 1);
    let mut options = ProducerOptions::new("p");
    options.delivery_timeout = Duration::from_secs(1);
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");

    // A broker that takes requests and answers too late.
    let producer = OneProducer::new(&settings, &options).unwrap();
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    cluster
        .broker_round_trip_time(1, Duration::from_secs(4))
        .unwrap();
    let sent = send_one(&producer, &record).result;
    assert!(
        matches!(sent, Err(ProduceError::OutcomeUnknown { .. })),
        "{sent:?}"
    );
    drop(producer);

    // A broker that was never there.
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let producer = OneProducer::new(&nowhere, &options).unwrap();
    let sent = send_one(&producer, &record).result;
    assert_eq!(
        sent,
        Err(ProduceError::Refused {
            code: ErrorCode::MessageTimedOut
        })
    );
}

#[test]
fn a_record_that_the_broker_refuses_is_refused() {
    let (cluster, settings) = cluster("t", 1);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    cluster.request_errors(
        rdkafka::types::RDKafkaApiKey::Produce,
        &[rdkafka::types::RDKafkaRespErr::RD_KAFKA_RESP_ERR_POLICY_VIOLATION],
    );
    let refused = send_one(&producer, &record).result.unwrap_err();
    assert_eq!(
        refused,
        ProduceError::Refused {
            code: ErrorCode::PolicyViolation
        }
    );
    assert!(refused.is_permanent());
    // A permanent refusal of one record does not end the producer.
    assert_eq!(producer.fatal_error(), None);
    assert_eq!(send_one(&producer, &record).result, Ok(()));
}

#[test]
fn a_full_queue_and_an_oversized_record_give_the_token_back() {
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let mut options = ProducerOptions::new("p");
    options.queue_records_max = 2;
    options.message_bytes_max = 2_000;
    let producer = BatchProducer::new(&nowhere, &options).unwrap();
    let (settlement, mut settled) = Settlement::channel(3);
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    producer.send(&record, Arc::clone(&settlement)).unwrap();
    producer.send(&record, Arc::clone(&settlement)).unwrap();
    assert_eq!(producer.in_flight(), 2);

    let refused = producer.send(&record, Arc::clone(&settlement)).unwrap_err();
    assert!(matches!(refused, SendError::QueueFull(_)), "{refused:?}");
    let started = Instant::now();
    let waited = Duration::from_millis(30);
    let refused = producer
        .send_or_wait(&record, Arc::clone(&settlement), waited)
        .unwrap_err();
    assert!(matches!(refused, SendError::QueueFull(_)), "{refused:?}");
    assert!(started.elapsed() >= waited);

    let large = OutRecord::new("t", PartitionId(0), b"k", &[0; 3_000]);
    let refused = producer.send(&large, Arc::clone(&settlement)).unwrap_err();
    let (token, error) = refused.into_parts();
    assert_eq!(
        error,
        ProduceError::Refused {
            code: ErrorCode::MessageSizeTooLarge
        }
    );
    token.fail(error);
    assert_eq!(settlement.open(), 2);
    assert!(settled.try_recv().is_err());

    // The producer's end settles what it still held.
    drop(producer);
    assert_eq!(settled.try_recv(), Ok(Err(error)));
}

#[test]
fn flushing_waits_for_every_acknowledgement() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let (settlement, mut settled) = Settlement::channel(1_000);
    for _ in 0..1_000 {
        let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
        producer.send(&record, Arc::clone(&settlement)).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    // The producer's own thread may be telling the last of them right now.
    let deadline = Instant::now() + PATIENCE;
    while producer.in_flight() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(settled.try_recv(), Ok(Ok(())));
}

/// What a member of a group was told, and what it wants committed when it gives partitions up.
#[derive(Default)]
struct Member {
    held: Vec<PartitionId>,
    read: BTreeMap<PartitionId, Vec<Vec<u8>>>,
    next: BTreeMap<PartitionId, Offset>,
    revoked: usize,
}

impl GroupHandler for Member {
    fn record(&mut self, record: RecordRef<'_>) {
        assert!(
            self.held.contains(&record.partition()),
            "a record of a partition not held"
        );
        self.read
            .entry(record.partition())
            .or_default()
            .push(record.value().unwrap().to_vec());
        self.next.insert(record.partition(), record.offset().next());
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        self.held
            .extend(partitions.iter().map(|held| held.partition));
    }

    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        lost: bool,
    ) -> Vec<(TopicPartition, Offset)> {
        assert!(!lost);
        self.revoked += partitions.len();
        self.held
            .retain(|held| !partitions.iter().any(|gone| gone.partition == *held));
        partitions
            .iter()
            .filter_map(|gone| Some((gone.clone(), self.next.remove(&gone.partition)?)))
            .collect()
    }
}

impl Member {
    fn read_count(&self) -> usize {
        self.read.values().map(Vec::len).sum()
    }
}

fn poll_until(
    members: &mut [(&GroupConsumer, &mut Member)],
    mut done: impl FnMut(&[(&GroupConsumer, &mut Member)]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(members) {
        assert!(Instant::now() < deadline, "the group did not get there");
        for (consumer, member) in members.iter_mut() {
            consumer
                .poll(ALL, Duration::from_millis(50), *member)
                .unwrap();
        }
    }
}

#[test]
fn a_group_member_starts_at_the_beginning_and_its_successor_where_it_committed() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a0", b"a1"]);
    send_batch(&producer, "t", 1, &[b"b0"]);

    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    let mut member = Member::default();
    poll_until(&mut [(&first, &mut member)], |members| {
        members[0].1.read_count() == 3
    });
    assert_eq!(member.held.len(), 2);
    assert_eq!(member.read[&PartitionId(0)], [b"a0", b"a1"]);
    first.commit(&[("t", PartitionId(0), Offset(1))]).unwrap();
    // What it says when its partitions are revoked is committed too: here, nothing of partition 0.
    member.next.remove(&PartitionId(0));
    first.close(PATIENCE, &mut member);
    assert_eq!((member.held.len(), member.revoked), (0, 2));

    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    send_batch(&producer, "t", 1, &[b"b1"]);
    let mut member = Member::default();
    poll_until(&mut [(&second, &mut member)], |members| {
        members[0].1.read_count() == 2
    });
    assert_eq!(member.read[&PartitionId(0)], [b"a1"]);
    assert_eq!(member.read[&PartitionId(1)], [b"b1"]);
}

#[test]
fn a_second_member_takes_over_some_partitions_where_the_first_stopped() {
    let (_cluster, settings) = cluster("t", 4);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    for partition in 0..4 {
        send_batch(&producer, "t", partition, &[b"0"]);
    }
    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    let mut one = Member::default();
    poll_until(&mut [(&first, &mut one)], |members| {
        members[0].1.read_count() == 4
    });

    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    let mut two = Member::default();
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members.iter().all(|(_, member)| member.held.len() == 2)
    });
    // The first kept two partitions all along.
    assert_eq!(one.revoked, 2);
    for partition in 0..4 {
        send_batch(&producer, "t", partition, &[b"1"]);
    }
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members
            .iter()
            .map(|(_, member)| member.read_count())
            .sum::<usize>()
            >= 8
    });
    for partition in (0..4).map(PartitionId) {
        let mut read = one.read.remove(&partition).unwrap_or_default();
        read.extend(two.read.remove(&partition).unwrap_or_default());
        assert_eq!(read, [b"0", b"1"], "partition {partition}");
    }
    // Members that are dropped without closing end too.
    drop(second);
    drop(first);
}

#[test]
fn consumers_of_an_unreachable_broker_end_when_they_are_dropped() {
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let started = Instant::now();
    let mut options = ConsumerOptions::new("c");
    options.group_for_lag = Some("lag".to_owned());
    let consumer = PartitionConsumer::new(&nowhere, &options).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    let polled = consumer
        .poll(ALL, Duration::from_millis(50), &mut |_| panic!())
        .unwrap();
    assert_eq!(polled, Polled::default());
    consumer.commit_copy(&[("t", PartitionId(0), Offset(5))]);
    drop(consumer);
    let member = GroupConsumer::new(&nowhere, &GroupOptions::new("g", "c")).unwrap();
    member.subscribe(&["t"]).unwrap();
    drop(member);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
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
