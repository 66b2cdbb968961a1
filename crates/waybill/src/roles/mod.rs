//! The wiring of roles: from the configuration to running parts.
//!
//! Each role is started the same way whether it is alone in its process or beside all others: the
//! difference is only which are started, and where the broker and the services are.

mod agents;
mod alerts;
mod embedded;
mod ingestion;
mod instance;
mod samples;
mod scheduler;
mod store;
mod supervisor;
mod topics;
mod trim;

use std::net::SocketAddr;
use std::sync::Arc;

use waybill_engine::Workflows;
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;
use waybill_store::Store;

use crate::admin::Admin;
use crate::cli::Role;
use crate::config::{Config, Environment, load_workflows};
use crate::shutdown::{Running, Stage};

pub(crate) use agents::load_file as load_agents_file;

/// What the roles have in common that take requests in, decide and supervise.
struct World {
    kafka: KafkaSettings,
    topics: Topics,
    workflows: Arc<Workflows>,
    store: Arc<dyn Store>,
}

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
        Role::Ingestion => {
            let world = world(role, config, None, running).await?;
            ingestion::start(config, &world, running).await.map(drop)
        }
        Role::Scheduler => {
            let world = world(role, config, None, running).await?;
            scheduler::start(config, environment, &world, admin, running)
        }
        Role::Supervisor => {
            let world = world(role, config, None, running).await?;
            supervisor::start(config, &world, running);
            alerts::start(config, &world.kafka, running)
        }
        Role::Up {
            agents,
            services,
            samples,
        } => {
            let broker = match config.kafka.brokers {
                Some(_) => None,
                None => Some(embedded::broker(config, running).await?),
            };
            let world = world(role, config, broker, running).await?;
            let services = match services {
                true => embedded::services(config, running).await?.to_string(),
                false => config.services.elsewhere(),
            };
            if agents {
                let kafka = world.kafka.clone();
                agents::start(config, kafka, &services, &world.workflows, admin, running).await?;
            }
            alerts::start(config, &world.kafka, running)?;
            scheduler::start(config, environment, &world, admin, running)?;
            if config.supervisor.enabled {
                supervisor::start(config, &world, running);
            }
            if broker.is_some() {
                let (kafka, store, partitions) =
                    (world.kafka.clone(), world.store.clone(), config.partitions);
                let requests = world.topics.requests().to_owned();
                running.spawn(
                    Stage::Scheduler,
                    "trimming of finished requests",
                    move |stop| trim::run(kafka, requests, partitions, store, stop),
                );
            }
            let http = ingestion::start(config, &world, running).await?;
            if samples > 0 {
                samples::start(samples, http, world.kafka, config, admin, running);
            }
            Ok(())
        }
    }
}

/// Finds the workflows, makes what is missing of the topics, and opens the store.
async fn world(
    role: Role,
    config: &Config,
    broker: Option<SocketAddr>,
    running: &Running,
) -> anyhow::Result<World> {
    let workflows = load_workflows(&config.workflows)?;
    let kafka = kafka_settings(config, broker);
    topics::create(config, &kafka, &workflows).await?;
    Ok(World {
        kafka,
        topics: topic_names(config),
        workflows: Arc::new(workflows),
        store: store::open(role, config, running).await?,
    })
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

/// How to reach the brokers: the configured ones, else the embedded one.
pub(crate) fn kafka_settings(config: &Config, embedded: Option<SocketAddr>) -> KafkaSettings {
    let brokers = match (&config.kafka.brokers, embedded) {
        (Some(brokers), _) => brokers.join(","),
        (None, Some(address)) => address.to_string(),
        (None, None) => String::new(),
    };
    let mut settings = KafkaSettings::new(brokers);
    let properties = config.kafka.properties.iter();
    settings
        .properties
        .extend(properties.map(|(name, value)| (name.into(), value.into())));
    settings
}

fn topic_names(config: &Config) -> Topics {
    Topics::new(&config.kafka.topic_prefix)
}
