//! `waybill topics create`: creates the missing topics.

use std::fmt;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use waybill_kafka::TopicSpec;
use waybill_node::config::Config;
use waybill_store::StoreError;
use waybill_telemetry::chain;
use waybill_terminal::Output;
use waybill_topology::topics::{Outcome, explained, make, missing};

use super::Site;
use crate::access::AdminArgs;
use crate::shards::shards;

/// The arguments of `waybill topics create`.
#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    /// Create no topic: report which are missing, and whether the brokers would create them
    #[arg(long)]
    dry_run: bool,
    /// The format of the outcomes
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    admin: AdminArgs,
}

impl CreateArgs {
    pub(super) async fn run(&self, config: &Config) -> anyhow::Result<()> {
        let config = &self.admin.broker_login(config)?;
        let config = &self.with_stored_partitions(config).await?;
        let site = Site::open(config).await?;
        let outcomes = match self.dry_run {
            true => would_make(&site, config).await?,
            false => make(&site.admin, &config.topology(), &site.needed)
                .await?
                .into_iter()
                .map(Done::from)
                .collect(),
        };
        let mut out = io::stdout().lock();
        if self.output == Output::Table {
            writeln!(out, "{}", Row::HEADING)?;
        }
        for (topic, outcome) in site.needed.iter().zip(outcomes) {
            let row = Row::new(&topic.spec, outcome);
            writeln!(out, "{}", self.output.text(&row)?)?;
        }
        Ok(())
    }

    /// The configuration with the number of partitions of the state store. The configured number
    /// applies to a new store, and if the command has brokers and no store.
    ///
    /// # Errors
    ///
    /// If the store, or the process that has it, is unavailable.
    async fn with_stored_partitions(&self, config: &Config) -> anyhow::Result<Config> {
        // A person named the store, or the process that has it.
        let is_named = !config.store.is_exclusive() || self.admin.admin_url.is_some();
        let may_be_at_its_port = config.kafka.brokers.is_none() || self.admin.is_named(config);
        if !is_named && !may_be_at_its_port {
            return Ok(config.clone());
        }
        match shards(config, &self.admin, None).await {
            Ok(layout) => Ok(config.with_partitions(layout.partitions)),
            Err(error) if is_unprepared(&error) => Ok(config.clone()),
            Err(error) if is_named => {
                Err(error.context("cannot read the number of partitions from the state store"))
            }
            Err(error) => {
                eprintln!(
                    "cannot read the number of partitions from the state store: {}; using the configured one, {}",
                    chain(error.as_ref()),
                    config.partitions
                );
                Ok(config.clone())
            }
        }
    }
}

/// Whether the store was not prepared yet, so that it has no number of partitions.
fn is_unprepared(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<StoreError>();
    matches!(
        error,
        Some(StoreError::Unusable {
            is_unprepared: true,
            ..
        })
    )
}

async fn would_make(site: &Site, config: &Config) -> anyhow::Result<Vec<Done>> {
    let missing = missing(&site.admin, &config.topology(), &site.needed).await?;
    let specs: Vec<TopicSpec> = missing.iter().map(|topic| topic.spec.clone()).collect();
    site.admin
        .try_topics(&specs)
        .await
        .map_err(|error| explained(error, &config.topology()))?;
    let outcome = |topic| match missing.contains(&topic) {
        true => Done::WouldBeMade,
        false => Done::Existed,
    };
    Ok(site.needed.iter().map(outcome).collect())
}

/// The outcome for a topic, real or expected.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
enum Done {
    Made,
    Existed,
    WouldBeMade,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Made => Self::Made,
            Outcome::Existed => Self::Existed,
        }
    }
}

impl Done {
    fn text(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Existed => "existed",
            Self::WouldBeMade => "would be made",
        }
    }
}

/// The output for a topic, with the settings of its creation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    topic: &'a str,
    outcome: Done,
    partitions: u32,
    replicas: u16,
    settings: serde_json::Map<String, serde_json::Value>,
}

impl<'a> Row<'a> {
    const HEADING: &'static str = "OUTCOME        PARTITIONS  REPLICAS  TOPIC";

    fn new(spec: &'a TopicSpec, outcome: Done) -> Self {
        let settings = spec.config.iter();
        Self {
            topic: &spec.name,
            outcome,
            partitions: spec.partitions,
            replicas: spec.replication,
            settings: settings
                .map(|(key, value)| (key.clone(), value.as_str().into()))
                .collect(),
        }
    }
}

/// A line of the table.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.text();
        let Self {
            topic,
            partitions,
            replicas,
            ..
        } = self;
        write!(f, "{outcome:<13}  {partitions:>10}  {replicas:>8}  {topic}")
    }
}
