//! Chooses the framing of records when a role starts, and gets schema IDs from the schema registry.
//!
//! What must hold: **a role writes nothing, and is not ready, before it has its schema IDs**. It
//! waits for an unavailable registry. It exits with a hint if the registry refuses, or lacks a
//! schema that the role has no permission to register.

use std::time::Duration;

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_messages::{Framing, SchemaIds, Topics};
use waybill_node::config::Config;
use waybill_registry::{
    FramingChoice, Registry, SchemaCache, Subject, SubjectError, schema_ids, subjects,
};
use waybill_telemetry::health::Readiness;

/// The first and the longest pause before an unavailable registry is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The topics of the installation, with the framing of their records. Waits for the registry, if
/// one is configured.
///
/// # Errors
///
/// If the registry refuses, or lacks a schema that may not be registered.
pub(super) async fn topics(
    config: &Config,
    workflows: &Workflows,
    readiness: &Readiness,
) -> anyhow::Result<Topics> {
    let topics = Topics::new(&config.kafka.topic_prefix);
    let settings = &config.schema_registry;
    let Some(registry) = settings.client()? else {
        return Ok(topics);
    };
    let framing = match settings.framing {
        FramingChoice::SingleObject => {
            Framing::reading(std::sync::Arc::new(SchemaCache::new(registry)))
        }
        FramingChoice::Confluent => {
            let url = registry.url().to_owned();
            let known = readiness.expect(format!("schemas of the registry at {url}"));
            let subjects = subjects(&topics, &workflows.agents());
            let ids = wait_for_ids(&registry, &subjects, settings.auto_register).await?;
            known.set(true);
            tracing::info!(registry = url, "framing records with the registry's ids");
            Framing::confluent(ids, std::sync::Arc::new(SchemaCache::new(registry)))
        }
    };
    Ok(topics.framed(framing))
}

async fn wait_for_ids(
    registry: &Registry,
    subjects: &[Subject],
    register: bool,
) -> anyhow::Result<SchemaIds> {
    let mut pause = PAUSE_MIN;
    loop {
        match schema_ids(registry, subjects, register).await {
            Ok(ids) => return Ok(ids),
            Err(SubjectError::Registry(error)) if error.is_temporary() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    again_in = ?pause,
                    "waiting for the schema registry"
                );
                tokio::time::sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
            Err(error @ SubjectError::Missing { .. }) => {
                return Err(error).context(
                    "schemas are missing, and schemaRegistry.autoRegister is false: \
                     run `waybill schemas register`",
                );
            }
            Err(error @ SubjectError::Registry(_)) => {
                return Err(error).context("cannot use the schema registry");
            }
        }
    }
}
