//! Compressed batches on Kafka that would fill the memory of their consumers.

use std::fs::{Permissions, write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::batches::{batch, produce, set_topic, tiny_records};
use waybill_test_support::bombs::{CODECS, assert_refused, producer, send};
use waybill_test_support::memory::MemoryLimit;
use waybill_test_support::setup::PATIENCE;

use crate::cluster::{Cluster, all_end_without_a_person, deliver};
use crate::member::Member;

/// The expanded size of a bomb. Several hundred MiB would fill the memory of a Kafka with default
/// settings.
const BOMB_BYTES: usize = 32 << 20;
/// The same of a bomb that only its consumers expand. With gzip or zstd, it is small enough for a
/// topic.
const LARGE_BOMB_BYTES: usize = 400 << 20;
/// The same of one of many.
const SMALL_BOMB_BYTES: usize = 15 << 20;
/// As many as fit into a batch.
const TINY_RECORDS: u64 = 100_000;
/// The memory of a role that reads it.
const MEMORY_BYTES: u64 = 256 << 20;
/// The topics that the roles read, without their prefix.
const TOPICS: [&str; 4] = [
    "operation-requests.v1",
    "step-replies.v1",
    "recovery.v1",
    "drone.requests.v1",
];

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
    let topics = TOPICS.map(|topic| format!("{}.{topic}", cluster.name));
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

/// The bombs come in while a topic keeps batches compressed, and the roles start on them later. No
/// start dies of one, so that none has to be skipped because of a start that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_that_kafka_has_kept_is_skipped_and_kills_no_reader() {
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
    for role in &mut roles {
        role.setup.ready().await;
        role.terminate();
    }
    let topics = TOPICS.map(|topic| format!("{}.{topic}", cluster.name));
    let tiny = batch(0, &tiny_records(TINY_RECORDS));
    for topic in &topics {
        set_compression(&cluster, &ingestion, topic, "producer").await;
        for codec in ["gzip", "zstd"] {
            let zeroes = vec![0; LARGE_BOMB_BYTES];
            let sent = send(&producer(&cluster.brokers, codec), topic, &zeroes).await;
            sent.unwrap_or_else(|error| panic!("{topic}: {codec}: {error}"));
        }
        // Each is within the limit of one batch, and one fetch has room for hundreds.
        let zstd = producer(&cluster.brokers, "zstd");
        let zeroes = vec![0; SMALL_BOMB_BYTES];
        for _ in 0..100 {
            send(&zstd, topic, &zeroes).await.expect("it is small");
        }
        // Each empty record takes some 500 bytes of memory.
        for _ in 0..20 {
            assert_eq!(produce(&cluster.brokers, topic, &tiny), 0);
        }
        set_compression(&cluster, &ingestion, topic, "uncompressed").await;
    }
    let ids = deliver(&ingestion, "behind", 20).await;

    let limits = roles
        .each_ref()
        .map(|_| MemoryLimit::new_or_skip(MEMORY_BYTES));
    let scripts = tempfile::tempdir().expect("a directory can be made");
    for (number, role) in roles.iter_mut().enumerate() {
        if let Some(limit) = &limits[number] {
            let script = scripts.path().join(number.to_string());
            let program = Path::new(env!("CARGO_BIN_EXE_waybill"));
            write(&script, limit.script(program)).expect("the script can be written");
            std::fs::set_permissions(&script, Permissions::from_mode(0o755))
                .expect("it can be run");
            role.setup.set_program(&script);
        }
        role.start_again();
    }
    let consumer: BaseConsumer = cluster.kafka_client();
    for topic in &topics {
        let dead_letters = format!("{topic}.dlq");
        ingestion
            .setup
            .eventually(&format!("{dead_letters} names them"), async || {
                let ends = consumer.fetch_watermarks(&dead_letters, 0, PATIENCE);
                ends.is_ok_and(|(_, end)| end > 0)
            })
            .await;
    }
    all_end_without_a_person(&ingestion.setup, &ids).await;
    for (role, limit) in roles.iter_mut().zip(&limits) {
        assert!(!role.has_ended());
        assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
    }
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
    for topic in [&replies, &drone] {
        set_compression(&cluster, &scheduler, topic, "producer").await;
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
    let topic = format!("{}.drone.requests.v1", cluster.name);
    set_compression(&cluster, &scheduler, &topic, "producer").await;
    for role in [&scheduler, &agents] {
        role.setup
            .eventually("readiness names the topic and the command", async || {
                let readiness = role.readiness().await.unwrap_or_default();
                readiness.contains(&format!("topic {topic}: compression.type is producer"))
                    && readiness.contains("--add-config compression.type=uncompressed")
            })
            .await;
    }
    set_compression(&cluster, &scheduler, &topic, "uncompressed").await;
    for role in [&scheduler, &agents] {
        role.setup.ready().await;
    }
    drop((services, scheduler, agents));
    cluster.remove().await;
}

/// Sets how a topic keeps batches, and waits until brokers report that.
async fn set_compression(cluster: &Cluster, member: &Member, topic: &str, to: &str) {
    let code = set_topic(&cluster.brokers, topic, "compression.type", to);
    assert_eq!(code, 0, "{topic} can be altered");
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    let resource = ResourceSpecifier::Topic(topic);
    // The altered setting may reach brokers later.
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
