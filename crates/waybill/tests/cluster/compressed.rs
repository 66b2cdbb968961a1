//! Compressed batches on Kafka that would fill the memory of their consumers.

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use waybill_test_support::bombs::{CODECS, assert_refused, producer};

use crate::cluster::{Cluster, all_end_without_a_person, deliver};
use crate::member::Member;

/// The expanded size of a bomb. Several hundred MiB would fill the memory of a Kafka with default
/// settings.
const BOMB_BYTES: usize = 32 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decompression_bomb_reaches_no_role() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let mut roles = [
        cluster.scheduler("all", ""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
    ];
    for role in &roles {
        role.setup.ready().await;
    }
    let topics = [
        "operation-requests.v1",
        "step-replies.v1",
        "recovery.v1",
        "drone.requests.v1",
    ];
    let topics = topics.map(|topic| format!("{}.{topic}", cluster.name));
    let topics = topics.each_ref().map(String::as_str);
    for codec in CODECS {
        let producer = producer(&cluster.brokers, codec);
        assert_refused(&producer, &topics, BOMB_BYTES).await;
        let ids = deliver(&ingestion, &format!("beside-{codec}"), 5).await;
        all_end_without_a_person(&ingestion.setup, &ids).await;
    }
    assert!(roles.iter_mut().all(|role| !role.has_ended()));
    drop((services, ingestion, roles));
    cluster.remove().await;
}

/// On such a topic the sender decides how small a batch is, and the consumer's library expands all
/// of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_reads_a_topic_that_keeps_batches_compressed() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    // The scheduler creates the topics.
    let mut scheduler = cluster.scheduler("all", "");
    scheduler.setup.ready().await;
    scheduler.terminate();
    let replies = format!("{}.step-replies.v1", cluster.name);
    let drone = format!("{}.drone.requests.v1", cluster.name);
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    for topic in [&replies, &drone] {
        set_compression(&scheduler, &admin, topic, "producer").await;
    }
    for (role, topics) in [
        ("scheduler", &[&replies, &drone][..]),
        ("ingestion", &[&replies, &drone]),
        ("supervisor", &[&replies, &drone]),
        // Agents read only their own requests.
        ("agents", &[&drone]),
    ] {
        let refused = cluster.run(&[role, "--http", "127.0.0.1:0"]);
        assert!(!refused.status.success(), "{role}: {refused:?}");
        let message = String::from_utf8_lossy(&refused.stderr);
        for topic in topics {
            for part in [
                format!("topic {topic}: compression.type is producer, and must be uncompressed"),
                format!("--entity-name {topic} --add-config compression.type=uncompressed"),
            ] {
                assert!(message.contains(&part), "{role}: {part}: {message}");
            }
        }
    }
    drop(scheduler);
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_names_a_topic_that_begins_to_keep_batches_compressed() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let scheduler = cluster.scheduler("all", "");
    scheduler.setup.ready().await;
    let agents = cluster.agents(&services, "");
    agents.setup.ready().await;
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    let topic = format!("{}.drone.requests.v1", cluster.name);
    set_compression(&scheduler, &admin, &topic, "producer").await;
    for role in [&scheduler, &agents] {
        role.setup
            .eventually("readiness names the topic and the command", async || {
                let readiness = role.readiness().await.unwrap_or_default();
                readiness.contains(&format!("topic {topic}: compression.type is producer"))
                    && readiness.contains("--add-config compression.type=uncompressed")
            })
            .await;
    }
    set_compression(&scheduler, &admin, &topic, "uncompressed").await;
    for role in [&scheduler, &agents] {
        role.setup.ready().await;
    }
    drop((services, scheduler, agents));
    cluster.remove().await;
}

/// Sets how a topic keeps batches, and waits until brokers report that.
async fn set_compression(
    member: &Member,
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
    to: &str,
) {
    let resource = ResourceSpecifier::Topic(topic);
    let setting = AlterConfig::new(resource).set("compression.type", to);
    let altered = admin.alter_configs([&setting], &AdminOptions::new());
    altered.await.expect("the broker answers")[0]
        .as_ref()
        .expect("the topic can be altered");
    // The altered setting may reach other brokers later.
    member
        .setup
        .eventually("the topic is altered", async || {
            let described = admin.describe_configs([&resource], &AdminOptions::new());
            let described = described.await.expect("the broker answers");
            let topic = described[0].as_ref().expect("the topic exists");
            let setting = topic.get("compression.type");
            setting.and_then(|setting| setting.value.as_deref()) == Some(to)
        })
        .await;
}
