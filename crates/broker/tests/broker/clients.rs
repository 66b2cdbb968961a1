//! Ordinary clients use the broker as they use Kafka.

use std::time::{Duration, Instant};

use crate::common::*;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{FutureRecord, Producer};
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};

const MANY: &str = "many-partitions";

async fn send(
    producer: &rdkafka::producer::FutureProducer,
    topic: &str,
    partition: i32,
    payload: &[u8],
) -> i64 {
    let record = FutureRecord::<(), _>::to(topic)
        .partition(partition)
        .payload(payload);
    producer
        .send(record, Timeout::After(BOUND))
        .await
        .unwrap()
        .offset
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_consumed_with_every_kind_of_acknowledgement_and_codec() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    for (n, (acks, codec, flush)) in [
        ("0", "none", "9223372036854775807"),
        ("1", "gzip", "9223372036854775807"),
        ("all", "lz4", "9223372036854775807"),
        ("0", "snappy", "1"),
        ("1", "none", "1"),
        ("all", "gzip", "1"),
        ("all", "none", "10"),
    ]
    .into_iter()
    .enumerate()
    {
        let topic = format!("topic-{n}");
        create_topic(broker.address(), &topic, 1, &[("flush.messages", flush)]).await;
        let producer = producer(
            broker.address(),
            &[("acks", acks), ("compression.codec", codec)],
        );
        let payloads: Vec<Vec<u8>> = (0..100)
            .map(|i| format!("record {i} ").repeat(20).into_bytes())
            .collect();
        let sent = payloads.iter().map(|payload| {
            let record = FutureRecord::<(), _>::to(&topic).payload(payload);
            producer.send_result(record).unwrap()
        });
        for delivery in sent.collect::<Vec<_>>() {
            delivery.await.unwrap().unwrap();
        }
        let seen = read(broker.address(), &topic, 1, 100).await;
        assert_eq!(
            seen.iter().map(|s| s.payload.clone()).collect::<Vec<_>>(),
            payloads
        );
        assert_eq!(
            seen.iter().map(|s| s.offset).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
    }
    let stats = broker.stats();
    assert!(
        stats.syncs > 0 && stats.batches > 0 && stats.log_bytes > 0,
        "{stats:?}"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_partitions_are_produced_to_and_consumed_by_one_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), MANY, 100, &[]).await;
    let producer = producer(broker.address(), &[]);
    let mut deliveries = Vec::new();
    for n in 0..10_000 {
        let payload = format!("{n}");
        let record = FutureRecord::<(), _>::to(MANY)
            .partition(n % 100)
            .payload(&payload);
        deliveries.push(producer.send_result(record).unwrap());
    }
    for delivery in deliveries {
        delivery.await.unwrap().unwrap();
    }
    let seen = read(broker.address(), MANY, 100, 10_000).await;
    for partition in 0..100 {
        let payloads: Vec<_> = seen
            .iter()
            .filter(|s| s.partition == partition)
            .map(|s| {
                String::from_utf8(s.payload.clone())
                    .unwrap()
                    .parse::<i32>()
                    .unwrap()
            })
            .collect();
        assert_eq!(
            payloads,
            (0..100).map(|n| n * 100 + partition).collect::<Vec<_>>()
        );
    }
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_megabyte_pass() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), "large", 1, &[("flush.messages", "1")]).await;
    let producer = producer(broker.address(), &[("message.max.bytes", "2000000")]);
    let payload: Vec<u8> = (0..1_000_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    for n in 0..5 {
        assert_eq!(send(&producer, "large", 0, &payload).await, n);
    }
    let seen = read(broker.address(), "large", 1, 5).await;
    assert!(seen.iter().all(|s| s.payload == payload));
    let too_large = vec![0; 1_100_000];
    let record = FutureRecord::<(), _>::to("large").payload(&too_large);
    let (error, _) = producer
        .send(record, Timeout::After(BOUND))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge)
    );
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_producer_survives_a_broker_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = broker(dir.path()).await;
    let address = first.address();
    create_topic(address, "steady", 1, &[("flush.messages", "1")]).await;
    let producer = producer(
        address,
        &[
            ("enable.idempotence", "true"),
            ("reconnect.backoff.ms", "10"),
            ("reconnect.backoff.max.ms", "50"),
        ],
    );
    for n in 0..100 {
        assert_eq!(
            send(&producer, "steady", 0, format!("{n}").as_bytes()).await,
            n
        );
    }
    assert!(first.shutdown().await);
    let mut deliveries = Vec::new();
    for n in 100..150 {
        let payload = format!("{n}");
        let record = FutureRecord::<(), _>::to("steady")
            .partition(0)
            .payload(&payload);
        deliveries.push(producer.send_result(record).unwrap());
    }
    let second = broker_with(dir.path(), |config| config.listen = address).await;
    for delivery in deliveries {
        delivery.await.unwrap().unwrap();
    }
    let seen = read(address, "steady", 1, 150).await;
    let payloads: Vec<_> = seen
        .iter()
        .map(|s| String::from_utf8(s.payload.clone()).unwrap())
        .collect();
    assert_eq!(
        payloads,
        (0..150).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    assert!(producer.client().fatal_error().is_none());
    assert!(second.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_refused_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let producer = producer(broker.address(), &[("transactional.id", "tx")]);
    let started = Instant::now();
    let refused = tokio::task::spawn_blocking(move || producer.init_transactions(BOUND))
        .await
        .unwrap();
    assert!(refused.is_err());
    assert!(
        started.elapsed() < BOUND / 2,
        "the request was retried repeatedly"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_found_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), "timed", 1, &[("segment.bytes", "4096")]).await;
    let producer = producer(broker.address(), &[]);
    for n in 0..200_i64 {
        let record = FutureRecord::<(), _>::to("timed")
            .partition(0)
            .payload(&[7; 100][..])
            .timestamp(1_000_000 + n * 10);
        producer.send(record, Timeout::After(BOUND)).await.unwrap();
    }
    let address = broker.address();
    let found = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = client(address, &[("group.id", "unused")]).create().unwrap();
        [0, 1_000_000, 1_000_001, 1_001_005, 1_001_990, 1_001_991].map(|at| {
            let mut wanted = TopicPartitionList::new();
            wanted
                .add_partition_offset("timed", 0, Offset::Offset(at))
                .unwrap();
            let found = consumer.offsets_for_times(wanted, BOUND).unwrap();
            found.elements()[0].offset()
        })
    });
    let found = found.await.unwrap();
    let expected = [0, 0, 1, 101, 199].map(Offset::Offset);
    assert_eq!(found[..5], expected);
    assert_eq!(found[5], Offset::End, "nothing is as new");
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_grown_configured_and_deleted_by_an_admin_client() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let admin: AdminClient<DefaultClientContext> = client(broker.address(), &[]).create().unwrap();
    let options = AdminOptions::new();
    let new = |name| NewTopic::new(name, 2, TopicReplication::Fixed(1));
    let outcome = |results: Vec<rdkafka::admin::TopicResult>| {
        results
            .into_iter()
            .map(|r| r.map_err(|(_, code)| code))
            .next()
            .unwrap()
    };
    let validate = AdminOptions::new().validate_only(true);
    outcome(admin.create_topics([&new("t")], &validate).await.unwrap()).unwrap();
    assert_eq!(broker.stats().partitions, 0, "it was only validated");
    let created = admin
        .create_topics([&new("t").set("retention.ms", "5000")], &options)
        .await;
    outcome(created.unwrap()).unwrap();
    let refused = [
        (new("t"), RDKafkaErrorCode::TopicAlreadyExists),
        (new("not a name"), RDKafkaErrorCode::InvalidTopic),
        (
            new("u").set("retention.mss", "1"),
            RDKafkaErrorCode::InvalidConfig,
        ),
        (
            new("u").set("cleanup.policy", "compact"),
            RDKafkaErrorCode::InvalidConfig,
        ),
        (
            NewTopic::new("u", 1, TopicReplication::Fixed(3)),
            RDKafkaErrorCode::InvalidReplicationFactor,
        ),
        (
            NewTopic::new("u", 99_999, TopicReplication::Fixed(1)),
            RDKafkaErrorCode::InvalidPartitions,
        ),
    ];
    for (topic, code) in refused {
        let created = admin.create_topics([&topic], &options).await.unwrap();
        assert_eq!(outcome(created), Err(code), "{topic:?}");
    }
    let grown = admin
        .create_partitions([&NewPartitions::new("t", 5)], &options)
        .await
        .unwrap();
    outcome(grown).unwrap();
    let shrunk = admin
        .create_partitions([&NewPartitions::new("t", 4)], &options)
        .await
        .unwrap();
    assert_eq!(outcome(shrunk), Err(RDKafkaErrorCode::InvalidPartitions));
    assert_eq!(broker.stats().partitions, 5);

    let altered = AlterConfig::new(ResourceSpecifier::Topic("t")).set("segment.bytes", "5000");
    let described = async || {
        let topic = ResourceSpecifier::Topic("t");
        let results = admin.describe_configs([&topic], &options).await.unwrap();
        let config = results.into_iter().next().unwrap().unwrap();
        let value = |name| config.get(name).unwrap().value.clone().unwrap();
        (
            value("retention.ms"),
            value("segment.bytes"),
            value("flush.messages"),
        )
    };
    let before = described().await;
    assert_eq!(
        before,
        (
            "5000".into(),
            "67108864".into(),
            "9223372036854775807".into()
        )
    );
    // This client library sends the older AlterConfigs only, which is not offered.
    assert!(admin.alter_configs([&altered], &options).await.is_err());

    outcome(admin.delete_topics(&["t"], &options).await.unwrap()).unwrap();
    let again = outcome(admin.delete_topics(&["t"], &options).await.unwrap());
    assert_eq!(again, Err(RDKafkaErrorCode::UnknownTopicOrPartition));
    assert_eq!(broker.stats().log_bytes, 0);
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_is_created_only_if_that_is_enabled() {
    let dir = tempfile::tempdir().unwrap();
    for (on, expected) in [(false, 0), (true, 3)] {
        let broker = broker_with(&dir.path().join(on.to_string()), |config| {
            config.auto_create_topics = on;
            config.default_partitions = 3;
        })
        .await;
        let producer = producer(broker.address(), &[("message.timeout.ms", "3000")]);
        let record = FutureRecord::<(), _>::to("unknown").payload("x");
        let sent = producer.send(record, Timeout::After(BOUND)).await;
        assert_eq!(sent.is_ok(), on);
        assert_eq!(broker.stats().partitions, expected);
        assert!(broker.shutdown().await);
    }
}

fn group_consumer(address: std::net::SocketAddr, settings: &[(&str, &str)]) -> StreamConsumer {
    let mut config = client(
        address,
        &[
            ("group.id", "group"),
            ("auto.offset.reset", "earliest"),
            ("heartbeat.interval.ms", "100"),
            ("enable.auto.commit", "false"),
        ],
    );
    for (name, value) in settings {
        config.set(*name, *value);
    }
    let consumer: StreamConsumer = config.create().unwrap();
    consumer.subscribe(&["shared"]).unwrap();
    consumer
}

/// How many partitions each consumer has, while all are polled.
async fn assigned(consumers: &[&StreamConsumer], expected: &[usize]) {
    until(&format!("the assignment is {expected:?}"), async || {
        for consumer in consumers {
            let _ = tokio::time::timeout(Duration::from_millis(20), consumer.recv()).await;
        }
        let mut counts: Vec<_> = consumers
            .iter()
            .map(|c| c.assignment().unwrap().count())
            .collect();
        counts.sort_unstable();
        counts == expected
    })
    .await;
}

/// Leaves the group before the client ends. One that ends while its group rebalances can hang for
/// ever: librdkafka drops the request to give partitions up when the member has just left, and the
/// application waits for its reply.
async fn leave(consumer: StreamConsumer) {
    consumer.unsubscribe();
    assigned(&[&consumer], &[0]).await;
    tokio::task::spawn_blocking(|| drop(consumer))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_rebalances_as_members_join_and_leave() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), "shared", 6, &[]).await;
    for strategy in ["range", "roundrobin", "cooperative-sticky"] {
        let group = format!("group-{strategy}");
        let settings = [
            ("group.id", &*group),
            ("partition.assignment.strategy", strategy),
        ];
        let first = group_consumer(broker.address(), &settings);
        assigned(&[&first], &[6]).await;
        let second = group_consumer(broker.address(), &settings);
        assigned(&[&first, &second], &[3, 3]).await;
        let third = group_consumer(broker.address(), &settings);
        assigned(&[&first, &second, &third], &[2, 2, 2]).await;
        leave(second).await;
        assigned(&[&first, &third], &[3, 3]).await;
        leave(first).await;
        leave(third).await;
    }
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_resumes_at_its_commit_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = broker(dir.path()).await;
    let address = first.address();
    create_topic(address, "shared", 1, &[]).await;
    let producer = producer(address, &[]);
    for n in 0..20_u8 {
        send(&producer, "shared", 0, &[n]).await;
    }
    let take = async |consumer: &StreamConsumer, count: u8| {
        let mut seen = Vec::new();
        for _ in 0..count {
            let record = tokio::time::timeout(BOUND, consumer.recv())
                .await
                .unwrap()
                .unwrap();
            seen.push(record.payload().unwrap()[0]);
            let mut offsets = TopicPartitionList::new();
            let next = Offset::Offset(record.offset() + 1);
            offsets.add_partition_offset("shared", 0, next).unwrap();
            consumer.commit(&offsets, CommitMode::Sync).unwrap();
        }
        seen
    };
    let consumer = group_consumer(address, &[]);
    assert_eq!(take(&consumer, 10).await, (0..10).collect::<Vec<_>>());
    drop(consumer);
    assert!(first.shutdown().await);
    let second = broker_with(dir.path(), |config| config.listen = address).await;
    let consumer = group_consumer(address, &[]);
    assert_eq!(take(&consumer, 10).await, (10..20).collect::<Vec<_>>());
    let stats = second.stats();
    assert_eq!((stats.groups, stats.groups_max), (1, 1_000));
    assert_eq!(stats.stored_groups_max, 10_000);

    let (group, topics) = tokio::task::spawn_blocking(move || {
        let group = consumer.fetch_group_list(Some("group"), BOUND).unwrap();
        let group = group.groups()[0].state().to_owned();
        let metadata = consumer.fetch_metadata(None, BOUND).unwrap();
        (group, metadata.topics().len())
    })
    .await
    .unwrap();
    assert_eq!((group.as_str(), topics), ("Stable", 1));
    until("the stored group is counted", async || {
        second.stats().stored_groups == 1
    })
    .await;
    assert!(second.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_assigns_its_own_partitions_commits_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), "own", 1, &[]).await;
    let address = broker.address();
    let read_back = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = client(address, &[("group.id", "own")]).create().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset("own", 0, Offset::Offset(7))
            .unwrap();
        consumer.assign(&offsets).unwrap();
        consumer.commit(&offsets, CommitMode::Sync).unwrap();
        consumer.committed(BOUND).unwrap().elements()[0].offset()
    });
    assert_eq!(read_back.await.unwrap(), Offset::Offset(7));
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_that_restarts_takes_over_long_before_its_session_ends() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    create_topic(broker.address(), "shared", 4, &[]).await;
    let settings = |id| [("group.instance.id", id), ("session.timeout.ms", "60000")];
    let one = group_consumer(broker.address(), &settings("one"));
    let two = group_consumer(broker.address(), &settings("two"));
    assigned(&[&one, &two], &[2, 2]).await;
    let partitions = |consumer: &StreamConsumer| {
        let assigned = consumer.assignment().unwrap();
        assigned
            .elements()
            .iter()
            .map(|p| p.partition())
            .collect::<Vec<_>>()
    };
    let had = partitions(&one);
    // A static member does not leave when it goes.
    drop(one);
    let restarted = Instant::now();
    let one = group_consumer(broker.address(), &settings("one"));
    assigned(&[&one, &two], &[2, 2]).await;
    assert_eq!(partitions(&one), had);
    assert!(
        restarted.elapsed() < Duration::from_secs(30),
        "it waited for its session to end"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_hop_from_produce_to_a_waiting_consumer_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    for (topic, flush) in [("fast", "9223372036854775807"), ("synced", "1")] {
        create_topic(broker.address(), topic, 1, &[("flush.messages", flush)]).await;
        let producer = producer(broker.address(), &[]);
        let consumer: StreamConsumer = client(
            broker.address(),
            &[("group.id", "hop"), ("fetch.queue.backoff.ms", "1")],
        )
        .create()
        .unwrap();
        let mut assigned = TopicPartitionList::new();
        assigned
            .add_partition_offset(topic, 0, Offset::Beginning)
            .unwrap();
        consumer.assign(&assigned).unwrap();
        let mut hops = Vec::new();
        for n in 0..500_u32 {
            let payload = n.to_be_bytes();
            let record = FutureRecord::<(), _>::to(topic)
                .partition(0)
                .payload(&payload[..]);
            let started = Instant::now();
            let delivery = producer.send_result(record).unwrap();
            let seen = tokio::time::timeout(BOUND, consumer.recv())
                .await
                .unwrap()
                .unwrap();
            hops.push(started.elapsed());
            assert_eq!(seen.payload().unwrap(), payload);
            delivery.await.unwrap().unwrap();
        }
        hops.sort_unstable();
        println!(
            "hop through librdkafka, {topic} topic: p50 {:?}, p90 {:?}, p99 {:?}",
            hops[250], hops[450], hops[495]
        );
    }
    assert!(broker.shutdown().await);
}
