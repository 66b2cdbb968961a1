//! Topics and their settings.

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    CreatePartitionsRequest, DeleteTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, MetadataRequest,
};

use crate::common::{topic_name, until};
use crate::{Client, Different, code, compare, create_request, delete_request, text};

const TOPIC: i8 = 2;
const SET: i8 = 0;
const DELETE: i8 = 1;

#[tokio::test]
async fn topics_are_created_extended_and_deleted_as_on_kafka() {
    compare(
        ask_for_topics,
        &[Different {
            question: "looking at an impossible topic",
            embedded: r#"("UnknownTopicOrPartition", 0, true)"#,
            kafka: r#"("InvalidTopicException", 0, true)"#,
            because: "no topic has that name; both report it missing",
        }],
    )
    .await;
}

async fn ask_for_topics(client: &mut Client) {
    let topic = client.topic("t", 2, &[]).await;
    let fresh = client.name("fresh");
    for (question, request) in [
        ("one that exists", create_request(&topic, 2, 1, &[])),
        ("a name with a space", create_request("a b", 1, 1, &[])),
        ("no name", create_request("", 1, 1, &[])),
        ("a name of dots", create_request("..", 1, 1, &[])),
        ("a long name", create_request(&"x".repeat(250), 1, 1, &[])),
        ("no partitions", create_request(&fresh, 0, 1, &[])),
        ("partitions below none", create_request(&fresh, -2, 1, &[])),
        ("no replicas", create_request(&fresh, 1, 0, &[])),
        ("too many replicas", create_request(&fresh, 1, 2, &[])),
        (
            "an unknown setting",
            create_request(&fresh, 1, 1, &[("burn", "1")]),
        ),
        (
            "a wrong value",
            create_request(&fresh, 1, 1, &[("retention.ms", "x")]),
        ),
        (
            "a tiny segment",
            create_request(&fresh, 1, 1, &[("segment.bytes", "1")]),
        ),
        (
            "only asked for",
            create_request(&fresh, 1, 1, &[]).with_validate_only(true),
        ),
    ] {
        let answer = client.wire.ask(7, &request).await;
        client.answered(
            format!("making {question}"),
            code(answer.topics[0].error_code),
        );
    }
    for (question, name, count) in [
        ("to fewer", topic.as_str(), 1),
        ("to as many", &topic, 2),
        ("one that does not exist", &fresh, 2),
        ("to more", &topic, 3),
    ] {
        let grown = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![grown])
            .with_timeout_ms(10_000);
        let answer = client.wire.ask(3, &request).await;
        let answer = code(answer.results[0].error_code);
        client.answered(format!("growing {question}"), answer);
    }
    let by_name = DeleteTopicState::default().with_name(Some(topic_name(&fresh)));
    let by_id = DeleteTopicState::default()
        .with_name(None)
        .with_topic_id(uuid::Uuid::from_u128(7 << 70));
    for (question, state) in [("by name", by_name), ("by id", by_id)] {
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![state])
            .with_timeout_ms(10_000);
        let answer = client.wire.ask(6, &request).await;
        let answer = code(answer.responses[0].error_code);
        client.answered(format!("deleting what does not exist {question}"), answer);
    }
    for (question, name) in [("unknown", fresh.as_str()), ("impossible", "a b")] {
        let wanted = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let topic = metadata(client, wanted).await;
        client.answered(
            format!("looking at an {question} topic"),
            (
                code(topic.error_code),
                topic.partitions.len(),
                topic.topic_id.is_nil(),
            ),
        );
    }
}

#[tokio::test]
async fn a_deleted_topic_is_unknown_as_on_kafka() {
    compare(ask_for_a_deleted_topic, &[]).await;
}

async fn ask_for_a_deleted_topic(client: &mut Client) {
    let name = client.topic("gone", 1, &[]).await;
    let by_name = || MetadataRequestTopic::default().with_name(Some(topic_name(&name)));
    let found = metadata(client, by_name()).await;
    assert_eq!(code(found.error_code), "OK");
    let deleted = client
        .wire
        .ask(6, &delete_request(std::slice::from_ref(&name)))
        .await;
    client.answered("deleting it", code(deleted.responses[0].error_code));
    // Kafka deletes it later.
    until("it is deleted", async || {
        metadata(client, by_name()).await.error_code != 0
    })
    .await;
    let by_id = MetadataRequestTopic::default()
        .with_name(None)
        .with_topic_id(found.topic_id);
    for (question, wanted) in [("by name", by_name()), ("by id", by_id)] {
        let topic = metadata(client, wanted).await;
        client.answered(
            format!("looking at it {question}"),
            (
                code(topic.error_code),
                topic.partitions.len(),
                topic.name.is_some(),
            ),
        );
    }
    let offsets = client.list_offsets(&name, 0, -1).await;
    client.answered("looking for its end", code(offsets.error_code));
    let again = client.wire.ask(6, &delete_request(&[name])).await;
    client.answered("deleting it again", code(again.responses[0].error_code));
}

async fn metadata(client: &mut Client, wanted: MetadataRequestTopic) -> MetadataResponseTopic {
    let request = MetadataRequest::default().with_topics(Some(vec![wanted]));
    client.wire.ask(12, &request).await.topics.remove(0)
}

#[tokio::test]
async fn settings_are_described_and_changed_as_on_kafka() {
    compare(
        ask_for_settings,
        &[
            Different {
                question: "cleanup.policy as made: type, read-only, sensitive",
                embedded: "(2, false, false)",
                kafka: "(7, false, false)",
                because: "the setting has one value here, and a list in Kafka",
            },
            Different {
                question: "max.message.bytes as made: type, read-only, sensitive",
                embedded: "(5, false, false)",
                kafka: "(3, false, false)",
                because: "all numbers are long here",
            },
            Different {
                question: "segment.bytes as made: type, read-only, sensitive",
                embedded: "(5, false, false)",
                kafka: "(3, false, false)",
                because: "all numbers are long here",
            },
            Different {
                question: "max.message.bytes as made: source",
                embedded: "5",
                kafka: "1",
                because: "a value that equals the default is the default here, said or not",
            },
            Different {
                question: "cleanup.policy as changed: type, read-only, sensitive",
                embedded: "(2, false, false)",
                kafka: "(7, false, false)",
                because: "the setting has one value here, and a list in Kafka",
            },
            Different {
                question: "max.message.bytes as changed: type, read-only, sensitive",
                embedded: "(5, false, false)",
                kafka: "(3, false, false)",
                because: "all numbers are long here",
            },
            Different {
                question: "segment.bytes as changed: type, read-only, sensitive",
                embedded: "(5, false, false)",
                kafka: "(3, false, false)",
                because: "all numbers are long here",
            },
            Different {
                question: "max.message.bytes as changed: source",
                embedded: "5",
                kafka: "1",
                because: "a value that equals the default is the default here, said or not",
            },
            Different {
                question: "changing by an unknown operation",
                embedded: r#""InvalidConfig""#,
                kafka: r#""UnknownServerError""#,
                because: "Kafka's answer is a bug",
            },
            Different {
                question: "changing to nothing",
                embedded: r#""OK""#,
                kafka: r#""InvalidRequest""#,
                because: "the broker restores the default, as for a delete",
            },
        ],
    )
    .await;
}

async fn ask_for_settings(client: &mut Client) {
    let settings = [
        ("retention.ms", "60000"),
        ("max.message.bytes", "1048588"),
        ("segment.bytes", "2097152"),
    ];
    let topic = client.topic("t", 1, &settings).await;
    describe(client, &topic, "as made").await;
    for (question, name, operation, value) in [
        ("an unknown one", "burn", SET, Some("1")),
        ("to a wrong value", "retention.ms", SET, Some("soon")),
        ("to nothing", "retention.ms", SET, None),
        ("beyond its range", "max.message.bytes", SET, Some("-1")),
        ("as if a list", "retention.ms", 2, Some("1")),
        ("one", "retention.bytes", SET, Some("1000000")),
        ("another back", "retention.ms", DELETE, None),
        ("by an unknown operation", "retention.ms", 9, Some("1")),
    ] {
        let answer = alter(client, TOPIC, &topic, name, operation, value).await;
        client.answered(format!("changing {question}"), answer);
    }
    let unknown = client.name("unknown");
    let answer = alter(client, TOPIC, &unknown, "retention.ms", SET, Some("1")).await;
    client.answered("changing one of an unknown topic", answer);
    describe(client, &topic, "as changed").await;
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(&unknown))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = client.wire.ask(4, &request).await;
    client.answered(
        "those of an unknown topic",
        code(answer.results[0].error_code),
    );
}

/// Settings that both brokers have.
async fn describe(client: &mut Client, topic: &str, when: &str) {
    let names = [
        "cleanup.policy",
        "flush.messages",
        "max.message.bytes",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
    ];
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configuration_keys(Some(names.map(text).to_vec()));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = client.wire.ask(4, &request).await;
    for config in &answer.results[0].configs {
        let value = config.value.as_deref();
        let kind = (config.config_type, config.read_only, config.is_sensitive);
        let name = &*config.name;
        client.answered(format!("{name} {when}: value"), value);
        client.answered(format!("{name} {when}: source"), config.config_source);
        client.answered(format!("{name} {when}: type, read-only, sensitive"), kind);
    }
}

async fn alter(
    client: &mut Client,
    kind: i8,
    resource: &str,
    name: &str,
    operation: i8,
    value: Option<&str>,
) -> String {
    let setting = AlterableConfig::default()
        .with_name(text(name))
        .with_config_operation(operation)
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configs(vec![setting]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    code(client.wire.ask(1, &request).await.responses[0].error_code)
}
