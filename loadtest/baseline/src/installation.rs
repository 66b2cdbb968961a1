//! The broker, topics and store of a baseline: created for it and removed afterwards.
//!
//! The topics have the settings of `waybill up`, on the same kind of broker. Durability is the same
//! too: requests are synced before they are acknowledged, and rows before a write is answered. Data
//! that can be derived again is written back by the operating system.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use scylla::client::session_builder::SessionBuilder;
use uuid::Uuid;
use waybill_broker::{Broker, BrokerSettings};
use waybill_kafka::{Admin, KafkaSettings, TopicSpec};
use waybill_messages::Topics;
use waybill_store::{Store, StoreConfig};

use super::calls::Step;

/// The maximum time until a broker answers first.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where a baseline runs.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Directory for the embedded broker and store: created, and removed at the end. It must not
    /// exist. Default: a temporary directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Kafka brokers to use instead of the embedded one.
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// ScyllaDB or Cassandra node to use instead of the embedded store.
    #[arg(long, value_name = "HOST:PORT")]
    scylla: Option<String>,
    /// Number of partitions of operations. Default: as in Waybill.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub partitions: u32,
    /// Number of partitions of each agent's topic. Default: as in Waybill.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub step_partitions: u32,
    /// Number of replicas of each record and row, with --brokers and --scylla.
    #[arg(long, default_value_t = 1)]
    replication: u8,
    /// A property of librdkafka for all clients, as `NAME=VALUE`. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = property)]
    property: Vec<(String, String)>,
}

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A running installation.
pub struct Installation {
    /// The settings of clients.
    pub kafka: KafkaSettings,
    /// The topics, for this run alone.
    pub topics: Topics,
    /// The store, for this run alone.
    pub store: Arc<dyn Store>,
    /// The number of partitions of the operation topics.
    pub partitions: u32,
    /// The number of partitions of each agent's topic.
    pub step_partitions: u32,
    broker: Option<Broker>,
    /// The keyspace, and the node that drops it.
    keyspace: Option<(String, String)>,
    dir: Option<DataDir>,
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
struct DataDir(PathBuf);

impl Installation {
    /// Starts the embedded parts, and creates topics and tables.
    ///
    /// # Errors
    ///
    /// If a part cannot be started or created.
    pub async fn open(arguments: &Arguments) -> anyhow::Result<Self> {
        let suffix = Uuid::new_v4().simple().to_string();
        let dir = DataDir::make(arguments, &suffix)?;
        let (broker, brokers) = match &arguments.brokers {
            Some(brokers) => (None, brokers.clone()),
            None => {
                let mut config = BrokerSettings::new(dir.0.join("broker"));
                config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let broker = Broker::start(config).await?;
                let address = broker.address().to_string();
                (Some(broker), address)
            }
        };
        let mut kafka = KafkaSettings::new(brokers);
        kafka.properties = arguments
            .property
            .iter()
            .cloned()
            .collect::<BTreeMap<_, _>>();
        let topics = Topics::new(&format!("baseline-{}", &suffix[..8]));
        let keyspace = arguments.scylla.clone();
        let keyspace = keyspace.map(|node| (format!("baseline_{}", &suffix[..8]), node));
        let mut config = StoreConfig::default();
        if let Some((keyspace, node)) = &keyspace {
            config.scylla.nodes = Some(vec![node.clone()]);
            config.scylla.keyspace.clone_from(keyspace);
            config.scylla.replication_factor = arguments.replication;
        }
        let backend = config.backend(dir.0.join("store"));
        backend.migrate().await?;
        let store = backend.open().await?.store();
        let installation = Self {
            kafka,
            topics,
            store,
            partitions: arguments.partitions,
            step_partitions: arguments.step_partitions,
            broker,
            keyspace,
            dir: Some(dir),
        };
        let made = installation.make_topics(arguments.replication).await;
        match made {
            Ok(()) => Ok(installation),
            Err(error) => {
                installation.close().await?;
                Err(error.context("cannot create the topics"))
            }
        }
    }

    async fn make_topics(&self, replication: u8) -> anyhow::Result<()> {
        let admin = Admin::new(&self.kafka, "baseline-admin")?;
        admin.wait_ready(TIMEOUT).await?;
        let specs = self.specs(replication);
        admin.create_topics(&specs).await?;
        for topic in &specs {
            let there = admin.wait_for_topic(&topic.name, TIMEOUT).await?;
            let name = &topic.name;
            anyhow::ensure!(
                there.is_some(),
                "topic {name} was created, but does not exist"
            );
        }
        Ok(())
    }

    /// The topics that a delivery without faults writes to.
    fn specs(&self, replication: u8) -> Vec<TopicSpec> {
        const MIB: u64 = 1 << 20;
        let of = |name: String, partitions, settings: &[(&str, u64)]| {
            let mut spec = TopicSpec::new(name, partitions);
            let settings = settings
                .iter()
                .map(|(key, value)| (*key, value.to_string()));
            let settings = settings.chain([("cleanup.policy", "delete".to_owned())]);
            spec.config = settings
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
            if self.broker.is_none() {
                spec.replication = u16::from(replication);
            }
            spec
        };
        let (requests, steps, results): (&[_], &[_], &[_]) = match self.broker {
            Some(_) => (
                &[("flush.messages", 1), ("segment.bytes", 64 * MIB)],
                &[("segment.bytes", 16 * MIB), ("retention.bytes", 128 * MIB)],
                &[("retention.bytes", 512 * MIB)],
            ),
            None => (&[], &[("segment.bytes", 16 * MIB)], &[]),
        };
        let topics = &self.topics;
        let mut specs = vec![
            of(topics.requests().to_owned(), self.partitions, requests),
            of(topics.step_replies().to_owned(), self.partitions, steps),
            of(
                topics.operation_status().to_owned(),
                self.partitions,
                results,
            ),
        ];
        specs.extend(Step::ALL.map(|step| {
            let name = topics.step_requests(step.name());
            of(name, self.step_partitions, steps)
        }));
        specs
    }

    /// Removes everything that was created.
    ///
    /// # Errors
    ///
    /// If something cannot be removed.
    pub async fn close(mut self) -> anyhow::Result<()> {
        match self.broker.take() {
            // Its topics are removed with its directory.
            Some(broker) => drop(broker.shutdown().await),
            None => {
                let admin = Admin::new(&self.kafka, "baseline-admin")?;
                for topic in self.specs(1) {
                    admin.delete_topic(&topic.name).await?;
                }
            }
        }
        drop(self.store);
        if let Some((keyspace, node)) = self.keyspace {
            let session = SessionBuilder::new().known_node(node).build().await?;
            let drop = format!("DROP KEYSPACE IF EXISTS {keyspace}");
            session.query_unpaged(drop, ()).await?;
        }
        let dir = self.dir.take();
        // Removed file by file, on a thread that may block.
        tokio::task::spawn_blocking(move || drop(dir)).await?;
        Ok(())
    }
}

impl DataDir {
    fn make(arguments: &Arguments, suffix: &str) -> anyhow::Result<Self> {
        let path = match &arguments.data_dir {
            Some(path) => path.clone(),
            None => std::env::temp_dir().join(format!("waybill-baseline-{suffix}")),
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // An existing directory is not this run's to remove.
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("could not remove {}: {error}", self.0.display());
        }
    }
}
