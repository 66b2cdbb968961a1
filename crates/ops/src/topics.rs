//! `waybill topics`: creates, verifies and describes the topics of an installation, and changes
//! their number of partitions.
//!
//! The settings that each topic needs are declared once, in `waybill_topology::topics`. The roles
//! use the same table at start.

mod create;
mod describe;
mod grow;
mod verify;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use futures_util::{StreamExt as _, stream};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{Admin, ConsumerOptions, PartitionConsumer, TopicsRead};
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_node::workflows::load_workflows;
use waybill_topology::shards::show::LayoutView;
use waybill_topology::topics::{
    BrokerKind, Finding, Needed, audit, broker_kind, describe, explained, is_forbidden, needed,
};

use crate::broker_ready::wait_ready;
use crate::connection::{CLIENT_ID, until_reader_leaves};
use crate::dead_letter_topics::DeadLetterTopics;
use crate::runtime::runtime;

/// The maximum time for an answer of the brokers.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// The number of topics whose offsets are read concurrently.
const TOPICS_AT_ONCE: usize = 8;

/// What to do with topics.
#[derive(Clone, Debug, Subcommand)]
pub enum TopicsCommand {
    /// Create missing topics; safe to repeat, and changes no existing topic
    Create(create::CreateArgs),
    /// Report topics that differ from the requirements, and how to fix them; changes nothing
    Verify(verify::VerifyArgs),
    /// Show the partitions, copies, offsets and settings of topics
    Describe(describe::DescribeArgs),
    /// Increase the number of partitions of the operation topics without a stop; safe to repeat
    Grow(grow::GrowArgs),
    /// Use fewer partitions of the operation topics; records written to the others are rerouted
    Shrink(grow::GrowArgs),
}

impl TopicsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the brokers are unavailable or refuse, or a topic differs from its requirements.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let runtime = runtime()?;
        until_reader_leaves(runtime.block_on(async {
            match self {
                Self::Create(arguments) => arguments.run(config).await,
                Self::Verify(arguments) => arguments.run(config).await,
                Self::Describe(arguments) => arguments.run(config).await,
                Self::Grow(arguments) => arguments.run(config, grow::Direction::More).await,
                Self::Shrink(arguments) => arguments.run(config, grow::Direction::Fewer).await,
            }
        }))
    }
}

/// The brokers, and the topics that they must have.
pub(crate) struct Site {
    admin: Admin,
    broker: BrokerKind,
    needed: Vec<Needed>,
    topic_prefix: String,
}

impl Site {
    /// Connects to the configured brokers, or to the embedded one at its configured address.
    async fn open(config: &Config) -> anyhow::Result<Self> {
        Self::open_within(config, BROKER_PATIENCE).await
    }

    /// The same, with a maximum time for answers.
    pub(crate) async fn open_within(config: &Config, patience: Duration) -> anyhow::Result<Self> {
        let workflows = load_workflows(&config.workflows)?;
        let admin = Admin::new(&config.kafka_settings_of_commands(), CLIENT_ID)?;
        wait_ready(&admin, config, patience).await?;
        let broker = broker_kind(&admin, &config.topology()).await?;
        Ok(Self {
            admin,
            broker,
            needed: needed(&config.topology(), &workflows, broker),
            topic_prefix: config.kafka.topic_prefix.clone(),
        })
    }

    /// The number of required topics.
    pub(crate) fn topics(&self) -> usize {
        self.needed.len()
    }

    /// Whether a finding is about the number of partitions of operation topics.
    fn is_about_a_number(&self, finding: &Finding) -> bool {
        finding.number_of_operations(&self.needed).is_some()
    }

    /// The topics that differ from the configuration.
    pub(crate) async fn findings(&self, config: &Config) -> anyhow::Result<Vec<Finding>> {
        let found = describe(&self.admin, &self.needed)
            .await
            .map_err(|error| explained(error, &config.topology()))?;
        Ok(audit(&config.topology(), self.broker, &self.needed, &found))
    }

    /// Drops findings about numbers of partitions that match the state store.
    pub(crate) fn drop_stored_numbers(&self, findings: &mut Vec<Finding>, stored: &LayoutView) {
        findings.retain(|finding| {
            let number = finding.number_of_operations(&self.needed);
            !number.is_some_and(|has| stored.valid_topic_partitions.contains(&has))
        });
    }

    /// The first offset of each of these partitions, and the offset of its next record.
    pub(crate) async fn offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
    ) -> anyhow::Result<Vec<(Offset, Offset)>> {
        Ok(self.admin.offsets(topic, partitions).await?)
    }

    /// The number of records on each dead-letter topic by its offsets, and the topics that the user
    /// has no permission to describe.
    pub(crate) async fn dead_letters(
        &self,
    ) -> anyhow::Result<(BTreeMap<String, u64>, Vec<String>)> {
        let needed = self.needed.iter().map(|topic| topic.spec.name.clone());
        let known = needed.filter(|name| Topics::source_of_dead_letter(name).is_some());
        let found =
            DeadLetterTopics::find(&self.admin, &self.topic_prefix, known.collect()).await?;
        let mut forbidden = found.forbidden;
        let counts = found.topics.into_iter().map(async |(topic, partitions)| {
            let partitions: Vec<PartitionId> = (0..partitions).map(PartitionId).collect();
            let offsets = self.offsets(&topic, &partitions).await;
            (topic, offsets)
        });
        let mut counts = stream::iter(counts).buffered(TOPICS_AT_ONCE);
        let mut records = BTreeMap::new();
        while let Some((topic, offsets)) = counts.next().await {
            match offsets {
                Ok(offsets) => {
                    let held = offsets.iter().map(|(start, end)| end.0.abs_diff(start.0));
                    records.insert(topic, held.sum());
                }
                Err(error) if is_forbidden(&error) => forbidden.push(topic),
                Err(error) => return Err(error.context(topic)),
            }
        }
        Ok((records, forbidden))
    }

    /// The topics that members of consumer groups read.
    pub(crate) async fn topics_read(&self) -> anyhow::Result<TopicsRead> {
        Ok(self.admin.topics_read().await?)
    }

    /// The number of records of a topic that a group has not committed; `None` if the topic does
    /// not exist.
    pub(crate) async fn waiting(
        &self,
        config: &Config,
        topic: &str,
        group: &str,
    ) -> anyhow::Result<Option<u64>> {
        let Some(partitions) = self.admin.topic_partitions(topic).await? else {
            return Ok(None);
        };
        let partitions: Vec<PartitionId> = (0..partitions).map(PartitionId).collect();
        let offsets = self.offsets(topic, &partitions).await?;
        let mut options = ConsumerOptions::new(CLIENT_ID);
        options.group_for_lag = Some(group.to_owned());
        let group = PartitionConsumer::new(&config.kafka_settings_of_commands(), &options)?;
        let asked = topic.to_owned();
        let committed = tokio::task::spawn_blocking(move || {
            let asked: Vec<_> = partitions.iter().map(|it| (asked.as_str(), *it)).collect();
            group.committed(&asked, BROKER_PATIENCE)
        });
        let committed = committed.await??;
        let waiting = offsets.into_iter().zip(committed);
        let waiting = waiting.map(|((start, end), committed)| {
            let from = committed.map_or(start.0, |committed| committed.0.max(start.0));
            u64::try_from(end.0 - from).unwrap_or(0)
        });
        Ok(Some(waiting.sum()))
    }
}
