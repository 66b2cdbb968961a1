//! Topics: created, described, deleted, and refused.

use std::collections::BTreeMap;

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    AdminError, ConsumerOptions, ErrorCode, OutRecord, PartitionConsumer, PartitionState,
    ProduceError, Producer, ProducerOptions, TopicSpec,
};

use crate::fixture::Fixture;
use crate::on_both_brokers;
use crate::support::{OneProducer, PATIENCE, send_batch, send_one};

on_both_brokers! {
    topics_are_made_looked_at_and_deleted
    what_cannot_be_a_topic_is_refused_by_the_same_code
    a_topic_is_described_with_its_copies_offsets_and_settings
    a_topic_that_is_only_tried_is_not_made
    a_recreated_topic_has_another_id
    records_that_were_deleted_move_the_start_of_their_partition
}

fn topics_are_made_looked_at_and_deleted(fixture: &Fixture) {
    let Fixture { admin, runtime, .. } = fixture;
    let topic = fixture.topic("t", 3);
    assert_eq!(
        runtime.block_on(admin.topic_partitions(&topic)).unwrap(),
        Some(3)
    );
    // An existing topic is left unchanged.
    let again = TopicSpec::new(topic.as_str(), 5);
    runtime.block_on(admin.create_topics(&[again])).unwrap();
    assert_eq!(
        runtime.block_on(admin.topic_partitions(&topic)).unwrap(),
        Some(3)
    );
    runtime.block_on(admin.create_topics(&[])).unwrap();
    fixture.delete(&topic);
    // A deleted topic stays deleted.
    runtime.block_on(admin.delete_topic(&topic)).unwrap();
}

fn a_topic_is_described_with_its_copies_offsets_and_settings(fixture: &Fixture) {
    let Fixture { admin, runtime, .. } = fixture;
    let topic = fixture.topic_with("t", 2, &[("retention.ms", "86400000")]);
    send_batch(&fixture.producer(), &topic, 1, &[b"a", b"b", b"c"]);
    fixture.delete_records(&topic, 0);

    let states = runtime.block_on(admin.partition_states(&topic)).unwrap();
    let expected = [0, 1].map(|partition| PartitionState {
        partition: PartitionId(partition),
        leader: Some(1),
        replicas: vec![1],
        in_sync: vec![1],
    });
    assert_eq!(states.as_deref(), Some(&expected[..]));
    let both = [PartitionId(0), PartitionId(1)];
    let offsets = runtime.block_on(admin.offsets(&topic, &both)).unwrap();
    assert_eq!(offsets, [(Offset(0), Offset(0)), (Offset(0), Offset(3))]);
    let none = fixture.name("none");
    let settings = runtime
        .block_on(admin.topic_settings(&[&none, &topic]))
        .unwrap();
    assert_eq!(settings.keys().collect::<Vec<_>>(), [&topic]);
    assert_eq!(settings[&topic]["retention.ms"], "86400000");
    assert_eq!(settings[&topic]["cleanup.policy"], "delete");

    assert_eq!(
        runtime.block_on(admin.partition_states(&none)).unwrap(),
        None
    );
    assert_eq!(
        runtime.block_on(admin.topic_settings(&[])).unwrap(),
        BTreeMap::new()
    );
}

fn a_topic_that_is_only_tried_is_not_made(fixture: &Fixture) {
    let Fixture { admin, runtime, .. } = fixture;
    let topic = TopicSpec::new(fixture.name("t"), 1);
    let tried = |topic: &TopicSpec| runtime.block_on(admin.try_topics(std::slice::from_ref(topic)));
    assert_eq!(tried(&topic).unwrap(), std::slice::from_ref(&topic.name));
    assert_eq!(
        runtime
            .block_on(admin.topic_partitions(&topic.name))
            .unwrap(),
        None
    );
    let bad = TopicSpec {
        config: vec![("no.such.setting".to_owned(), "1".to_owned())],
        ..topic.clone()
    };
    assert!(tried(&bad).is_err());
    // An existing topic would not be created.
    let there = TopicSpec::new(fixture.topic("u", 1), 1);
    assert_eq!(tried(&there).unwrap(), Vec::<String>::new());
}

fn a_recreated_topic_has_another_id(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let consumer = PartitionConsumer::new(&fixture.settings, &ConsumerOptions::new("c")).unwrap();
    let id = || consumer.topic_id(&topic, PartitionId(0), PATIENCE);
    let first = id().unwrap().expect("both brokers give IDs");
    assert_eq!(id().unwrap(), Some(first), "it stays");
    fixture.delete(&topic);
    let missing = id().unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::UnknownTopicOrPartition));
    assert_eq!(fixture.topic("t", 1), topic);
    let second = id().unwrap().expect("both brokers give IDs");
    assert_ne!(second, first);
    assert!(consumer.topic_id("a\0b", PartitionId(0), PATIENCE).is_err());
}

#[test]
fn no_topic_is_created_automatically_even_if_the_broker_allows_it() {
    let fixture = Fixture::embedded_with(|config| config.auto_create_topics = true);
    let topic = fixture.name("t");
    let mut settings = fixture.settings.clone();
    // After this time librdkafka considers an unknown topic as nonexistent.
    let property = "topic.metadata.propagation.max.ms".to_owned();
    settings.properties.insert(property, "100".to_owned());
    let producer: OneProducer = Producer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let delivery = send_one(
        &producer,
        &OutRecord::new(&topic, PartitionId(0), b"k", b"v"),
    );
    let code = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(delivery.result, Err(ProduceError::Refused { code }));
    let topics = fixture.runtime.block_on(fixture.admin.topics()).unwrap();
    assert!(!topics.contains_key(&topic), "{topics:?}");
}

fn what_cannot_be_a_topic_is_refused_by_the_same_code(fixture: &Fixture) {
    let good = TopicSpec::new(fixture.name("t"), 1);
    let with = |name: &str, value: &str| TopicSpec {
        config: vec![(name.to_owned(), value.to_owned())],
        ..good.clone()
    };
    let named = |name: String| TopicSpec {
        name,
        ..good.clone()
    };
    let cases = [
        (named("a space".to_owned()), ErrorCode::InvalidTopic),
        (named("..".to_owned()), ErrorCode::InvalidTopic),
        (named("long".repeat(63)), ErrorCode::InvalidTopic),
        (
            TopicSpec {
                partitions: 0,
                ..good.clone()
            },
            ErrorCode::InvalidPartitions,
        ),
        (
            TopicSpec {
                replication: 3,
                ..good.clone()
            },
            ErrorCode::InvalidReplicationFactor,
        ),
        (with("no.such.setting", "1"), ErrorCode::InvalidConfig),
        (with("retention.ms", "long"), ErrorCode::InvalidConfig),
        (with("max.message.bytes", "-1"), ErrorCode::InvalidConfig),
        (with("cleanup.policy", "burn"), ErrorCode::InvalidConfig),
    ];
    for (topic, expected) in cases {
        let refused = fixture
            .runtime
            .block_on(fixture.admin.create_topics(std::slice::from_ref(&topic)));
        match refused {
            Err(AdminError::Topic { code, .. }) => assert_eq!(code, expected, "{topic:?}"),
            other => panic!("{topic:?}: {other:?}"),
        }
    }
    let found = fixture.admin.topic_partitions(&good.name);
    assert_eq!(fixture.runtime.block_on(found).unwrap(), None);
}

fn records_that_were_deleted_move_the_start_of_their_partition(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b", b"c"]);
    fixture.delete_records(&topic, 2);
    let consumer = fixture.consumer(&topic, 0, 2);
    let ends = || {
        let (low, high) = consumer
            .watermarks(&topic, PartitionId(0), PATIENCE)
            .unwrap();
        (low.0, high.0)
    };
    assert_eq!(ends(), (2, 3));
    // A bound below the first offset changes nothing; deleting all records leaves an empty
    // partition.
    fixture.delete_records(&topic, 1);
    assert_eq!(ends(), (2, 3));
    fixture.delete_records(&topic, 3);
    assert_eq!(ends(), (3, 3));

    // An offset beyond the end is refused.
    let below = [(PartitionId(0), Offset(4))];
    let refused = fixture
        .runtime
        .block_on(fixture.admin.delete_records(&topic, &below));
    let Err(AdminError::Request { source, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        source.rdkafka_error_code(),
        Some(ErrorCode::OffsetOutOfRange)
    );
}
