//! The agents' role.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use waybill_agent::http::AgentsFile;
use waybill_agent::{Agents, AgentsConfig, Handler, InstancePlace};
use waybill_kafka::KafkaSettings;

use super::topic_names;
use crate::admin::Admin;
use crate::config::Config;
use crate::shutdown::{Running, Stage};

/// Where in the data directory the processes find their names.
const INSTANCES_DIR: &str = "agents";

/// Starts all configured agents against the services at `services` (`host:port`).
pub(super) async fn start(
    config: &Config,
    kafka: KafkaSettings,
    services: &str,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let settings = &config.agents;
    let handlers = load(config, services)?;
    let mut agents_config = AgentsConfig::new(kafka, topic_names(config));
    agents_config.group = format!("{}-agents", config.kafka.topic_prefix);
    let place = match &settings.instance_id {
        Some(_) => None,
        None => place(config),
    };
    agents_config.instance_id = settings
        .instance_id
        .clone()
        .or_else(|| place.as_ref().map(|place| place.id().to_owned()));
    agents_config.session_timeout = settings.session_timeout;
    agents_config.in_flight_max = settings.in_flight_max;
    let share = admin.readiness.expect("the agents' share of the work");
    let mut agents = Agents::start(agents_config, handlers)?;
    let ready = agents.ready();
    let show_ready = async move {
        ready.await;
        share.set(true);
        std::future::pending().await
    };
    running.spawn(Stage::Agents, "agents", |stop| async move {
        // The name is this process's for as long as the agents use it.
        let _place = place;
        tokio::select! {
            () = stop.cancelled() => {}
            ended = agents.ended() => return Ok(ended?),
            () = show_ready => {}
        }
        Ok(agents.shutdown().await?)
    });
    Ok(())
}

/// A name that this process finds again when it is started again on the same data directory, so
/// that its share of the work does not wait for its session to end after a `kill -9`. Works without
/// one where the directory cannot be written to.
fn place(config: &Config) -> Option<InstancePlace> {
    InstancePlace::take(&config.data_dir.join(INSTANCES_DIR))
        .inspect_err(|error| {
            tracing::info!(
                error = error as &dyn std::error::Error,
                "the agents join as somebody new at each start; set agents.instanceId to change that"
            );
        })
        .ok()
}

/// Every agent of the configuration, by name.
pub(super) fn load(
    config: &Config,
    services: &str,
) -> anyhow::Result<Vec<(String, Arc<dyn Handler>)>> {
    let variables = BTreeMap::from([("services".to_owned(), format!("http://{services}"))]);
    let mut handlers = Vec::new();
    if config.agents.built_in {
        let built_in = AgentsFile::from_yaml(waybill_drone_delivery::AGENTS_YAML)
            .and_then(|file| file.load(&variables))
            .context("the built-in drone-delivery agents")?;
        handlers.extend(built_in);
    }
    for path in &config.agents.files {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
        let of_file = AgentsFile::from_yaml(&text)
            .and_then(|file| file.load(&variables))
            .with_context(|| format!("the agents of {name}"))?;
        handlers.extend(of_file);
    }
    Ok(handlers)
}
