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
use crate::roles::topics::{BrokerKind, Needed, broker_kind, needed};

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
struct Site {
    runtime: tokio::runtime::Runtime,
    admin: Admin,
    broker: BrokerKind,
    needed: Vec<Needed>,
}

impl Site {
    /// Reaches the configured brokers, or the embedded one where it listens by configuration.
    fn open(config: &Config) -> anyhow::Result<Self> {
        let workflows = load_workflows(&config.workflows)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let admin = Admin::new(&connection::settings(config), CLIENT_ID)?;
        runtime.block_on(admin.wait_ready(BROKER_PATIENCE))?;
        let broker = runtime.block_on(broker_kind(&admin, config))?;
        Ok(Self {
            runtime,
            admin,
            broker,
            needed: needed(config, &workflows, broker),
        })
    }
}
