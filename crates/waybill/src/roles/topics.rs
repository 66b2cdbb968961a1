//! The topics, made with what each of them needs before anything reads or writes them.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_kafka::{Admin, KafkaSettings, TopicSpec};
use waybill_messages::Topics;

use super::topic_names;
use crate::config::Config;
use crate::limits::{DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX};

/// How long a broker may take to come up.
const BROKER_PATIENCE: Duration = Duration::from_secs(60);
/// How long a topic that was made may be unknown to the broker that is asked.
const TOPIC_PATIENCE: Duration = Duration::from_secs(30);
/// How long after it was unknown a topic is asked for again.
const TOPIC_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Segments of topics whose records are derived and soon forgotten.
const STEP_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// The smallest segment that the requests topic is given.
const SEGMENT_BYTES_MIN: u64 = 1024 * 1024;
/// What a partition of step requests or replies keeps on the embedded broker. Far more than can be
/// in flight.
const STEP_PARTITION_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// What a partition of status records, failed operations or dead letters keeps on it.
const RESULT_PARTITION_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// How long the topic that holds personal data keeps it at most.
const CONTACTS_RETENTION_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Creates what is missing, and checks that the number of partitions is the configured one.
pub(super) async fn create(
    config: &Config,
    kafka: &KafkaSettings,
    workflows: &Workflows,
) -> anyhow::Result<()> {
    let admin = Admin::new(kafka, "waybill-admin")?;
    admin
        .wait_ready(BROKER_PATIENCE)
        .await
        .context("no broker answers")?;
    let specs = specs(config, workflows);
    admin
        .create_topics(&specs)
        .await
        .context("the topics cannot be made")?;
    for spec in &specs {
        let found = known_partitions(&admin, &spec.name).await?;
        anyhow::ensure!(
            found == spec.partitions,
            "topic {} has {found} partitions, not {}: `partitions` and `kafka.stepPartitions` are fixed \
             once data exists",
            spec.name,
            spec.partitions
        );
    }
    Ok(())
}

/// How many partitions a topic has. A broker may answer before it has heard of a topic that was just
/// made, by this process or by another that starts beside it.
async fn known_partitions(admin: &Admin, topic: &str) -> anyhow::Result<u32> {
    let deadline = Instant::now() + TOPIC_PATIENCE;
    loop {
        if let Some(partitions) = admin.topic_partitions(topic).await? {
            return Ok(partitions);
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "topic {topic} was made, and the broker does not know it"
        );
        tokio::time::sleep(TOPIC_AGAIN_AFTER).await;
    }
}

fn specs(config: &Config, workflows: &Workflows) -> Vec<TopicSpec> {
    let names = topic_names(config);
    let embedded = config.kafka.brokers.is_none();
    let kept_for = |duration: Duration| ("retention.ms", duration.as_millis().to_string());
    // With three copies one may be away, and what is acknowledged still lies on two.
    let in_sync = match config.kafka.replication_factor {
        ..=2 => None,
        factor => Some(("min.insync.replicas", (factor - 1).to_string())),
    };
    let spec = |name: &str, settings: &[(&str, String)]| TopicSpec {
        name: name.to_owned(),
        partitions: config.partitions,
        replication: config.kafka.replication_factor,
        config: settings
            .iter()
            .chain(&in_sync)
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    };
    let sized = |bytes: u32| ("max.message.bytes", bytes.to_string());
    let mut requests = vec![
        kept_for(config.kafka.requests_retention),
        sized(RECORD_BYTES_MAX),
    ];
    let mut steps = vec![
        kept_for(config.kafka.steps_retention),
        sized(RECORD_BYTES_MAX),
        ("segment.bytes", STEP_SEGMENT_BYTES.to_string()),
    ];
    let mut results = vec![
        kept_for(config.kafka.results_retention),
        sized(RECORD_BYTES_MAX),
    ];
    let mut notices = vec![
        kept_for(config.kafka.results_retention.min(CONTACTS_RETENTION_MAX)),
        sized(RECORD_BYTES_MAX),
    ];
    // What an operator asks for is answered once it is there: as durable as a request.
    let mut recoveries = vec![
        kept_for(config.kafka.requests_retention),
        sized(RECORD_BYTES_MAX),
    ];
    let mut dead_letters = vec![
        kept_for(config.kafka.results_retention),
        sized(DEAD_LETTER_BYTES_MAX),
    ];
    if embedded {
        // On Kafka, replication makes an acknowledged record durable; here, the disk does.
        requests.push(("flush.messages", "1".to_owned()));
        recoveries.push(("flush.messages", "1".to_owned()));
        let bound = config.broker.requests_disk_bytes_max.as_u64();
        requests.push(("waybill.disk.bytes.max", bound.to_string()));
        // Space is given back by whole segments: a few of them must fit below the bound.
        let segment = (bound / (4 * u64::from(config.partitions))).clamp(
            SEGMENT_BYTES_MIN,
            config.broker.segment_bytes.as_u64().max(SEGMENT_BYTES_MIN),
        );
        requests.push(("segment.bytes", segment.to_string()));
        // One machine's disk: what can be derived again, or was told, is bounded by size as well.
        steps.push(("retention.bytes", STEP_PARTITION_BYTES_MAX.to_string()));
        results.push(("retention.bytes", RESULT_PARTITION_BYTES_MAX.to_string()));
        notices.push(("retention.bytes", RESULT_PARTITION_BYTES_MAX.to_string()));
        dead_letters.push(("retention.bytes", RESULT_PARTITION_BYTES_MAX.to_string()));
        recoveries.push(("retention.bytes", RESULT_PARTITION_BYTES_MAX.to_string()));
    }
    let mut specs = vec![
        spec(names.requests(), &requests),
        spec(names.step_replies(), &steps),
        spec(names.recovery(), &recoveries),
        spec(names.operation_status(), &results),
        spec(names.failed_operations(), &results),
        spec(names.operator_alerts(), &results),
        spec(names.owner_notices(), &notices),
        spec(&Topics::dead_letter(names.requests()), &dead_letters),
        spec(&Topics::dead_letter(names.step_replies()), &dead_letters),
        spec(&Topics::dead_letter(names.recovery()), &dead_letters),
    ];
    for agent in workflows.agents() {
        let topic = names.step_requests(&agent);
        specs.push(spec(&Topics::dead_letter(&topic), &dead_letters));
        specs.push(TopicSpec {
            partitions: config.kafka.step_partitions,
            ..spec(&topic, &steps)
        });
    }
    specs
}
