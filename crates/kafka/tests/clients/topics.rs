//! Topics: made, looked at, deleted, and refused.

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{AdminError, ErrorCode, TopicSpec};

use crate::on_both_brokers;
use crate::support::{PATIENCE, send_batch};
use crate::world::World;

on_both_brokers! {
    topics_are_made_looked_at_and_deleted
    what_cannot_be_a_topic_is_refused_by_the_same_code
    records_that_were_deleted_move_the_start_of_their_partition
}

fn topics_are_made_looked_at_and_deleted(world: &World) {
    let World { admin, runtime, .. } = world;
    let topic = world.topic("t", 3);
    assert_eq!(
        runtime.block_on(admin.topic_partitions(&topic)).unwrap(),
        Some(3)
    );
    // One that exists is left as it is.
    let again = TopicSpec::new(topic.as_str(), 5);
    runtime.block_on(admin.create_topics(&[again])).unwrap();
    assert_eq!(
        runtime.block_on(admin.topic_partitions(&topic)).unwrap(),
        Some(3)
    );
    runtime.block_on(admin.create_topics(&[])).unwrap();
    world.delete(&topic);
    // And one that is gone stays gone.
    runtime.block_on(admin.delete_topic(&topic)).unwrap();
}

fn what_cannot_be_a_topic_is_refused_by_the_same_code(world: &World) {
    let good = TopicSpec::new(world.name("t"), 1);
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
        let refused = world
            .runtime
            .block_on(world.admin.create_topics(std::slice::from_ref(&topic)));
        match refused {
            Err(AdminError::Topic { code, .. }) => assert_eq!(code, expected, "{topic:?}"),
            other => panic!("{topic:?}: {other:?}"),
        }
    }
    let found = world.admin.topic_partitions(&good.name);
    assert_eq!(world.runtime.block_on(found).unwrap(), None);
}

fn records_that_were_deleted_move_the_start_of_their_partition(world: &World) {
    let topic = world.topic("t", 1);
    send_batch(&world.producer(), &topic, 0, &[b"a", b"b", b"c"]);
    world.delete_records(&topic, 2);
    let consumer = world.consumer(&topic, 0, 2);
    let ends = || {
        let (low, high) = consumer
            .watermarks(&topic, PartitionId(0), PATIENCE)
            .unwrap();
        (low.0, high.0)
    };
    assert_eq!(ends(), (2, 3));
    // Less than is gone already changes nothing; all of them leaves an empty partition.
    world.delete_records(&topic, 1);
    assert_eq!(ends(), (2, 3));
    world.delete_records(&topic, 3);
    assert_eq!(ends(), (3, 3));

    // Beyond the end is refused.
    let below = [(PartitionId(0), Offset(4))];
    let refused = world
        .runtime
        .block_on(world.admin.delete_records(&topic, &below));
    let Err(AdminError::Request { source, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        source.rdkafka_error_code(),
        Some(ErrorCode::OffsetOutOfRange)
    );
}
