//! The topics, made with what each of them needs before anything reads or writes them.

use std::time::Duration;

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_kafka::{Admin, KafkaSettings, TopicSpec};
use waybill_messages::Topics;

use super::topic_names;
use crate::config::Config;

/// How long a broker may take to come up.
const BROKER_PATIENCE: Duration = Duration::from_secs(60);
/// Room for a dead letter's headers beside the largest record of its source.
const DEAD_LETTER_HEADERS_BYTES: u64 = 64 * 1024;
/// The largest record batch that Kafka takes by default.
const MESSAGE_BYTES_MAX: u64 = 1024 * 1024 + 12;
/// Segments of topics whose records are derived and soon forgotten.
const STEP_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;

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
        let found = admin.topic_partitions(&spec.name).await?.unwrap_or(0);
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

fn specs(config: &Config, workflows: &Workflows) -> Vec<TopicSpec> {
    let names = topic_names(config);
    let embedded = config.kafka.brokers.is_none();
    let kept_for = |duration: Duration| ("retention.ms", duration.as_millis().to_string());
    let spec = |name: &str, settings: &[(&str, String)]| TopicSpec {
        name: name.to_owned(),
        partitions: config.partitions,
        replication: config.kafka.replication_factor,
        config: settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    };
    let mut requests = vec![kept_for(config.kafka.requests_retention)];
    let steps = [
        kept_for(config.kafka.steps_retention),
        ("segment.bytes", STEP_SEGMENT_BYTES.to_string()),
    ];
    let results = [kept_for(config.kafka.results_retention)];
    let dead_letters = [
        kept_for(config.kafka.results_retention),
        (
            "max.message.bytes",
            (MESSAGE_BYTES_MAX + DEAD_LETTER_HEADERS_BYTES).to_string(),
        ),
    ];
    if embedded {
        // On Kafka, replication makes an acknowledged record durable; here, the disk does.
        requests.push(("flush.messages", "1".to_owned()));
        requests.push((
            "waybill.disk.bytes.max",
            config.broker.requests_disk_bytes_max.as_u64().to_string(),
        ));
    }
    let mut specs = vec![
        spec(names.requests(), &requests),
        spec(names.step_replies(), &steps),
        spec(names.operation_status(), &results),
        spec(names.failed_operations(), &results),
        spec(&Topics::dead_letter(names.requests()), &dead_letters),
        spec(&Topics::dead_letter(names.step_replies()), &dead_letters),
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
