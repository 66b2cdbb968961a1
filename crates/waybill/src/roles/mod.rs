//! Wires the roles: turns the configuration into running parts.
//!
//! A role starts in the same way alone in its process or alongside others. The only differences are
//! which roles start, and where the broker and the services are.

mod agents;
mod alerts;
mod check;
mod connectivity;
mod embedded;
mod ingestion;
mod instance;
mod lifecycle;
mod ports;
mod registry;
mod samples;
mod scheduler;
mod store;
mod supervisor;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::Context as _;
use waybill_agent::AgentTransport;
use waybill_api::form::Forms;
use waybill_config::Environment;
use waybill_disk::is_created;
use waybill_drone_delivery::DroneDelivery;
use waybill_engine::Workflows;
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;
use waybill_node::Role;
use waybill_node::admin::{Admin, ProcessView};
use waybill_node::backup::Backups;
use waybill_node::config::Config;
use waybill_node::data_dir::{of_broker, of_store};
use waybill_node::disk::{DiskWatch, TopicSpace};
use waybill_node::instrumented_store::InstrumentedStore;
use waybill_node::preparation::{self, Part};
use waybill_node::shutdown::{Running, Stage};
use waybill_node::workflows::load_workflows;
use waybill_store::{OpenStore, Store};
use waybill_telemetry::health::LowDisk;
use waybill_topology::partition_map::PartitionMap;
use waybill_topology::topics::{self, BrokerKind, CompressionCheck};

use self::agents::Reached;

pub(crate) use agents::{
    built_in as built_in_agents, elsewhere as agents_elsewhere, load_file as load_agents_file,
    refuse_misspelt as refuse_misspelt_agents, variables_of,
};
pub(crate) use check::{agents_elsewhere_of, check_files_of, check_for, check_to_run};
pub(crate) use lifecycle::run;

/// The disk that the embedded broker and store of this process share.
#[derive(Default)]
struct Disk {
    low: LowDisk,
    store: Arc<OnceLock<Weak<dyn Store>>>,
}

impl Disk {
    /// Monitors its free space, if this process keeps a broker or a store on it.
    fn watch(role: Role, config: &Config, admin: &Admin, running: &Running) -> Self {
        if !Self::keeps_data(role, config) {
            return Self::default();
        }
        let free_min = config.storage.free_min;
        let watch = DiskWatch::new(&config.data_dir, free_min, &admin.readiness);
        let disk = Self {
            low: watch.low(),
            store: watch.store(),
        };
        running.spawn(Stage::Broker, "watch over the disk", |stop| watch.run(stop));
        disk
    }

    /// Whether a process keeps a broker or a store on the disk.
    fn keeps_data(role: Role, config: &Config) -> bool {
        Self::has_broker(role, config) || Self::has_store(role, config)
    }

    fn has_broker(role: Role, config: &Config) -> bool {
        match role {
            Role::Broker => true,
            Role::Up { .. } => config.kafka.brokers.is_none(),
            Role::Agents
            | Role::Services
            | Role::Ingestion
            | Role::Scheduler
            | Role::Supervisor => false,
        }
    }

    fn has_store(role: Role, config: &Config) -> bool {
        match role {
            Role::Up { .. } | Role::Ingestion | Role::Scheduler | Role::Supervisor => {
                config.store.is_exclusive()
            }
            Role::Broker | Role::Agents | Role::Services => false,
        }
    }

    /// The broker, the store and the services of a process.
    fn parts(role: Role, config: &Config) -> Vec<Part> {
        let dir = &config.data_dir;
        let has_services = matches!(role, Role::Services | Role::Up { services: true, .. });
        let (broker, store, services) = (of_broker(dir), of_store(dir), dir.join("services"));
        let mut parts = Vec::new();
        if Self::has_broker(role, config) {
            let is_created = is_created(&broker.join("meta"));
            parts.push(Part {
                dir: broker,
                is_created,
            });
        }
        if Self::has_store(role, config) {
            let is_created = is_created(&store);
            parts.push(Part {
                dir: store,
                is_created,
            });
        }
        if has_services {
            let is_created = services.join("ledger.ndjson").exists();
            parts.push(Part {
                dir: services,
                is_created,
            });
        }
        parts
    }
}

/// Creates the data directory of a role that needs one, before any listener starts.
///
/// # Errors
///
/// If the directory cannot be created or used.
fn prepare_data_dir(role: Role, config: &Config) -> anyhow::Result<()> {
    if Disk::keeps_data(role, config) || role == Role::Services {
        preparation::prepare(&config.data_dir).context("dataDir (--data-dir)")?;
    }
    Ok(())
}

/// The forms of requests that this program has.
fn forms() -> Forms {
    Forms::new([&DroneDelivery as _])
}

/// Shared parts of ingestion, scheduler and supervisor.
struct Dependencies {
    kafka: KafkaSettings,
    topics: Topics,
    workflows: Arc<Workflows>,
    store: Arc<dyn Store>,
    /// The same store, for backups.
    opened: OpenStore,
    /// Whether the disk of the store or of the embedded broker is low on space.
    low_disk: LowDisk,
    partition_map: PartitionMap,
    broker: BrokerKind,
}

/// Starts the parts of a role. Started parts are pushed to `running`, even if a later one fails.
///
/// # Errors
///
/// If a part cannot be started.
async fn start(
    role: Role,
    config: &Config,
    environment: &Environment,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let disk = Disk::watch(role, config, admin, running);
    preparation::wait_for_room(
        &config.data_dir,
        &Disk::parts(role, config),
        &admin.readiness,
    )
    .await
    .context("dataDir (--data-dir)")?;
    match role {
        Role::Broker => embedded::broker(config, &disk.low, admin, running)
            .await
            .map(drop),
        Role::Services => embedded::services(config, running).await.map(drop),
        Role::Agents => {
            let workflows = load_workflows(&config.workflows)?;
            admin.set_process(process_view(role, config, &workflows));
            let kafka = config.kafka_settings(None);
            let names = registry::topics(config, &workflows, &admin.readiness).await?;
            let handlers = agents::load(config, &Reached::elsewhere(config), &workflows)?;
            if config.agents.transport == AgentTransport::Direct {
                tracing::warn!(
                    "agents.transport is direct: schedulers with this configuration call their own agents, and the \
                     agents of this process get no requests"
                );
            }
            connectivity::brokers(&kafka, names.step_replies(), admin, running)?;
            connectivity::group_commits(&kafka, admin, running);
            let own: Vec<&str> = handlers.iter().map(|(agent, _)| &**agent).collect();
            let compression = CompressionCheck::of_agents(&config.topology(), &kafka, &own)?;
            compression.check_at_start().await?;
            connectivity::compression(compression, admin, running);
            agents::start(config, kafka, names, handlers, admin, running).await
        }
        Role::Ingestion => {
            let dependencies = dependencies(role, config, None, &disk, admin, running).await?;
            connectivity::topics(&dependencies, admin, running)?;
            let config = &config.with_partitions(dependencies.partition_map.partitions());
            ingestion::start(config, &dependencies, admin, running)
                .await
                .map(drop)
        }
        Role::Scheduler => {
            let dependencies = dependencies(role, config, None, &disk, admin, running).await?;
            connectivity::topics(&dependencies, admin, running)?;
            let current = dependencies.partition_map.layout().scheme();
            let own =
                config
                    .scheduler
                    .shards_of_this_process(config.partitions, environment, current)?;
            let config = &config.with_partitions(dependencies.partition_map.partitions());
            let direct = match config.agents.transport {
                AgentTransport::Direct => {
                    agents::load(config, &Reached::elsewhere(config), &dependencies.workflows)?
                }
                AgentTransport::Topics => Vec::new(),
            };
            scheduler::start(config, own, direct, &dependencies, admin, running).await
        }
        Role::Supervisor => {
            let dependencies = dependencies(role, config, None, &disk, admin, running).await?;
            connectivity::topics(&dependencies, admin, running)?;
            let config = &config.with_partitions(dependencies.partition_map.partitions());
            connectivity::brokers(
                &dependencies.kafka,
                dependencies.topics.recovery(),
                admin,
                running,
            )?;
            connectivity::store(&dependencies, admin, running);
            connectivity::group_commits(&dependencies.kafka, admin, running);
            supervisor::start(config, &dependencies, running);
            alerts::start(config, &dependencies, running)
        }
        Role::Up {
            agents,
            services,
            samples,
        } => {
            let broker = match config.kafka.brokers {
                Some(_) => None,
                None => Some(embedded::broker(config, &disk.low, admin, running).await?),
            };
            let config = &broker
                .as_ref()
                .map_or_else(|| config.clone(), |broker| broker.with_login(config));
            let address = broker.as_ref().map(|broker| broker.own_address);
            let dependencies = dependencies(role, config, address, &disk, admin, running).await?;
            connectivity::topics(&dependencies, admin, running)?;
            connectivity::group_commits(&dependencies.kafka, admin, running);
            let backups = broker.and_then(|broker| Backups::of(&dependencies.opened, broker.logs));
            if let Some(backups) = backups {
                admin.set_backups(backups);
            }
            let current = dependencies.partition_map.layout().scheme();
            let own =
                config
                    .scheduler
                    .shards_of_this_process(config.partitions, environment, current)?;
            let config = &config.with_partitions(dependencies.partition_map.partitions());
            let services = match services {
                true => embedded::services(config, running).await?,
                false => Reached::elsewhere(config),
            };
            let mut direct = Vec::new();
            if agents {
                let handlers = agents::load(config, &services, &dependencies.workflows)?;
                let names: Vec<&str> = handlers.iter().map(|(name, _)| &**name).collect();
                for agent in agents::elsewhere(&dependencies.workflows, &names) {
                    tracing::warn!(
                        agent,
                        "a workflow names an agent that is neither built in nor in agents.files: its steps wait until \
                         another process runs it"
                    );
                }
                match config.agents.transport {
                    AgentTransport::Direct => direct = handlers,
                    AgentTransport::Topics => {
                        let (kafka, topics) =
                            (dependencies.kafka.clone(), dependencies.topics.clone());
                        agents::start(config, kafka, topics, handlers, admin, running).await?;
                    }
                }
            }
            alerts::start(config, &dependencies, running)?;
            scheduler::start(config, own, direct, &dependencies, admin, running).await?;
            if config.supervisor.enabled {
                supervisor::start(config, &dependencies, running);
            }
            let api = ingestion::start(config, &dependencies, admin, running).await?;
            if samples > 0 {
                samples::start(samples, api, dependencies, config, admin, running);
            }
            Ok(())
        }
    }
}

/// What a process runs, for commands that must have the same configuration.
fn process_view(role: Role, config: &Config, workflows: &Workflows) -> ProcessView {
    ProcessView::new(
        role,
        &config.kafka.topic_prefix,
        &config.data_dir,
        workflows,
    )
}

/// Loads the workflows, creates missing topics, gets schema IDs from the schema registry, and opens
/// the store.
async fn dependencies(
    role: Role,
    config: &Config,
    broker: Option<SocketAddr>,
    disk: &Disk,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<Dependencies> {
    let workflows = load_workflows(&config.workflows)?;
    admin.set_process(process_view(role, config, &workflows));
    let kafka = config.kafka_settings(broker);
    let opened = store::open(role, config, running).await?;
    let store: Arc<dyn Store> = Arc::new(InstrumentedStore::new(opened.store()));
    let damaged_store = Arc::downgrade(&store);
    admin.readiness.add_warnings(move || {
        let report = damaged_store.upgrade().map(|store| store.damage());
        store::messages_of(&report.unwrap_or_default())
    });
    disk.store.get_or_init(|| Arc::downgrade(&store));
    let (partition_map, follower) = PartitionMap::follow(store.clone(), config.partitions)
        .await
        .context("cannot read the partition map")?;
    let partitions = partition_map.partitions();
    if partitions != config.partitions {
        let configured = config.partitions;
        tracing::warn!(
            partitions,
            configured,
            "the number of partitions in the state store overrides the configured one: set partitions to \
             {partitions}; `waybill topics grow` changes to more partitions, and `waybill topics shrink` to fewer"
        );
    }
    if let Some(becomes) = partition_map.layout().becomes() {
        tracing::warn!(
            partitions,
            becomes,
            "a change of the number of partitions is in progress: schedulers continue it, and so does `waybill \
             topics grow {becomes}`, or `shrink`"
        );
    }
    let config = &config.with_partitions(partitions);
    if broker.is_some() {
        disk_bounds(config, &workflows);
    }
    let (may_have, is_alone) = (
        partition_map.layout().valid_topic_partitions(),
        store.is_exclusive(),
    );
    let broker =
        topics::create(&config.topology(), &kafka, &workflows, &may_have, is_alone).await?;
    if broker == BrokerKind::Kafka {
        let topology = config.topology();
        let check = CompressionCheck::of_installation(&topology, &kafka, &workflows)?;
        connectivity::compression(check, admin, running);
    }
    running.spawn(Stage::Scheduler, "watch over the layout", |stop| {
        follower.run(stop)
    });
    Ok(Dependencies {
        kafka,
        topics: registry::topics(config, &workflows, &admin.readiness).await?,
        workflows: Arc::new(workflows),
        store,
        opened,
        low_disk: disk.low.clone(),
        partition_map,
        broker,
    })
}

/// Warns if the topics of the embedded broker may exceed its disk.
fn disk_bounds(config: &Config, workflows: &Workflows) {
    if let Some(message) = disk_bounds_exceed(config, workflows) {
        tracing::warn!(advice = message, "the topics may outgrow the disk");
    }
}

/// A warning if the topics of the embedded broker may exceed the space that the file system of
/// `dataDir` has for them; `None` also if the brokers are external or that file system cannot be
/// read.
pub(crate) fn disk_bounds_exceed(config: &Config, workflows: &Workflows) -> Option<String> {
    if config.kafka.brokers.is_some() {
        return None;
    }
    let space = TopicSpace::of(&config.data_dir, config.storage.free_min).ok()?;
    let bounds = topics::disk_bytes_max(&config.topology(), workflows);
    space.exceeded_by(bounds, &config.data_dir)
}
