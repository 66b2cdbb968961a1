//! `waybill dlq`: lists, shows and replays poison records.
//!
//! A poison record on a dead-letter topic keeps its bytes and headers; additional headers name its
//! source and the reason. A replay sends the bytes to that source again, once its consumer can read
//! them.

mod dead_letter;
mod list;
mod outcome;
mod receipts;
mod replay;
mod show;
mod topics;

use clap::Subcommand;
use waybill_node::config::Config;

use crate::connection::until_reader_leaves;

/// What to do with dead letters.
#[derive(Clone, Debug, Subcommand)]
pub enum DlqCommand {
    /// List the dead-letter topics whose names begin with kafka.topicPrefix, with the number of
    /// records of each
    Topics(topics::TopicsArgs),
    /// List dead letters, a page at a time
    List(list::ListArgs),
    /// Show a dead letter, its bytes and headers
    Show(show::ShowArgs),
    /// Send dead letters back to their source topics, byte for byte
    Replay(replay::ReplayArgs),
}

impl DlqCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the topic, partition or dead letter does not exist, the brokers are unavailable, or a
    /// dead letter could not be replayed.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        match self {
            Self::Topics(arguments) => until_reader_leaves(arguments.run(config)),
            Self::List(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Show(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Replay(arguments) => arguments.run(config),
        }
    }
}
