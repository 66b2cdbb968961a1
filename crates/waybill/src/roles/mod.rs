//! The wiring of roles: from the configuration to running parts.
//!
//! Each role is started the same way whether it is alone in its process or beside all others: the
//! difference is only which are started, and where the broker and the services are.

mod agents;
mod alerts;
mod embedded;
mod instance;
mod pipeline;
mod samples;
mod topics;
mod trim;

use std::net::SocketAddr;

use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;

use crate::admin::Admin;
use crate::cli::Role;
use crate::config::{Config, Environment, load_workflows};
use crate::shutdown::Running;

pub(crate) use agents::load_file as load_agents_file;

/// Starts the parts of a role. What is started is pushed to `running`, also when a later part
/// fails to start.
///
/// # Errors
///
/// If a part cannot be started.
pub async fn start(
    role: Role,
    config: &Config,
    environment: &Environment,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    match role {
        Role::Broker => embedded::broker(config, running).await.map(drop),
        Role::Services => embedded::services(config, running).await.map(drop),
        Role::Agents => {
            let workflows = load_workflows(&config.workflows)?;
            let kafka = kafka_settings(config, None);
            let services = config.services.elsewhere();
            agents::start(config, kafka, &services, &workflows, admin, running).await
        }
        Role::Up {
            agents,
            services,
            samples,
        } => {
            let workflows = load_workflows(&config.workflows)?;
            let broker = match config.kafka.brokers {
                Some(_) => None,
                None => Some(embedded::broker(config, running).await?),
            };
            let kafka = kafka_settings(config, broker);
            topics::create(config, &kafka, &workflows).await?;
            let services = match services {
                true => embedded::services(config, running).await?.to_string(),
                false => config.services.elsewhere(),
            };
            if agents {
                let kafka = kafka.clone();
                agents::start(config, kafka, &services, &workflows, admin, running).await?;
            }
            alerts::start(config, &kafka, running)?;
            let http = pipeline::start(
                config,
                environment,
                kafka.clone(),
                workflows,
                admin,
                running,
            )
            .await?;
            if samples > 0 {
                samples::start(samples, http, kafka, config, admin, running);
            }
            Ok(())
        }
    }
}

/// Checks what a configuration refers to: its workflows and its agents, alone and together.
///
/// # Errors
///
/// If a file cannot be read, or what it says cannot work.
pub fn check(config: &Config) -> anyhow::Result<()> {
    let workflows = load_workflows(&config.workflows)?;
    agents::load(config, &config.services.elsewhere(), &workflows)?;
    Ok(())
}

/// How to reach the brokers: the configured ones, or the embedded one.
fn kafka_settings(config: &Config, embedded: Option<SocketAddr>) -> KafkaSettings {
    let configured = config.kafka.brokers.iter().flatten().cloned();
    let brokers: Vec<String> = configured
        .chain(embedded.map(|address| address.to_string()))
        .collect();
    let mut settings = KafkaSettings::new(brokers.join(","));
    let properties = config.kafka.properties.iter();
    settings
        .properties
        .extend(properties.map(|(name, value)| (name.into(), value.into())));
    settings
}

fn topic_names(config: &Config) -> Topics {
    Topics::new(&config.kafka.topic_prefix)
}
