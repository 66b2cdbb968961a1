//! The agents' role.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use waybill_agent::http::AgentsFile;
use waybill_agent::{Agents, AgentsConfig, Handler};
use waybill_kafka::KafkaSettings;

use super::topic_names;
use crate::admin::Admin;
use crate::config::Config;
use crate::shutdown::{Running, Stage};

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
    agents_config.instance_id = settings.instance_id.clone();
    agents_config.session_timeout = settings.session_timeout;
    agents_config.in_flight_max = settings.in_flight_max;
    let started = admin.readiness.expect("the agents");
    let mut agents = Agents::start(agents_config, handlers)?;
    running.spawn(Stage::Agents, "agents", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = agents.ended() => return Ok(ended?),
        }
        Ok(agents.shutdown().await?)
    });
    started.set(true);
    Ok(())
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
