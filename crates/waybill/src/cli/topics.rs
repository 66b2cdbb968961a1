//! `waybill topics`: the topics that Waybill needs, made, held against what must be, and shown.
//!
//! What each of them needs is said once, in `roles/topics.rs`, which the roles use when they start.

mod create;
mod describe;
mod grow;
mod verify;

use std::time::Duration;

use clap::Subcommand;
use waybill_kafka::Admin;

use super::connection::{self, CLIENT_ID, until_reader_leaves};
use crate::config::{Config, load_workflows};
use crate::readers::show::LayoutView;
use crate::roles::topics::{
    BrokerKind, Finding, Needed, broker_kind, explained, judge, look, needed,
};

/// How long the brokers may take to answer.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// What to do with topics.
#[derive(Clone, Debug, Subcommand)]
pub enum TopicsCommand {
    /// Make those that are missing; safe to repeat, and changes none that is there
    Create(create::CreateArgs),
    /// Say which are not as they must be, and what mends them; changes nothing
    Verify(verify::VerifyArgs),
    /// Show their partitions, copies, offsets and settings
    Describe(describe::DescribeArgs),
    /// Make more partitions of the operation topics, while everything goes on; safe to repeat
    Grow(grow::GrowArgs),
    /// Go back to fewer partitions; those that are left over stay on the topics, and what is written there is
    /// sent home
    Shrink(grow::GrowArgs),
}

impl TopicsCommand {
    /// Does it.
    ///
    /// # Errors
    ///
    /// If the brokers are away or refuse it, or a topic is not as it must be.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        match self {
            Self::Create(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Verify(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Describe(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Grow(arguments) => until_reader_leaves(arguments.run(config, grow::Way::More)),
            Self::Shrink(arguments) => until_reader_leaves(arguments.run(config, grow::Way::Fewer)),
        }
    }
}

/// The brokers, and what has to be on them.
pub(super) struct Site {
    runtime: tokio::runtime::Runtime,
    admin: Admin,
    broker: BrokerKind,
    needed: Vec<Needed>,
}

impl Site {
    /// Reaches the configured brokers, or the embedded one where it listens by configuration.
    fn open(config: &Config) -> anyhow::Result<Self> {
        Self::open_within(config, BROKER_PATIENCE)
    }

    /// The same; the brokers may take so long to answer.
    pub(super) fn open_within(config: &Config, patience: Duration) -> anyhow::Result<Self> {
        let workflows = load_workflows(&config.workflows)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let admin = Admin::new(&connection::settings(config), CLIENT_ID)?;
        runtime.block_on(admin.wait_ready(patience))?;
        let broker = runtime.block_on(broker_kind(&admin, config))?;
        Ok(Self {
            runtime,
            admin,
            broker,
            needed: needed(config, &workflows, broker),
        })
    }

    /// How many topics there must be.
    pub(super) fn topics(&self) -> usize {
        self.needed.len()
    }

    /// Whether a finding is about how many partitions operations are spread over.
    fn is_about_a_number(&self, finding: &Finding) -> bool {
        finding.number_of_operations(&self.needed).is_some()
    }

    /// Which of them are not as they must be, apart from numbers of partitions that are as the state store
    /// says, if `stands` tells that.
    pub(super) fn findings(
        &self,
        config: &Config,
        stands: Option<&LayoutView>,
    ) -> anyhow::Result<Vec<Finding>> {
        let found = self
            .runtime
            .block_on(look(&self.admin, &self.needed))
            .map_err(|error| explained(error, config))?;
        let mut findings = judge(config, self.broker, &self.needed, &found);
        if let Some(stands) = stands {
            findings.retain(|finding| {
                let number = finding.number_of_operations(&self.needed);
                !number.is_some_and(|has| stands.topics_may_have.contains(&has))
            });
        }
        Ok(findings)
    }
}
