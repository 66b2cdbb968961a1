//! `waybill dlq`: the poison records on the dead-letter topics, seen and sent again by a person.
//!
//! A dead letter is a record that nobody could read, with its own bytes and headers, and behind
//! them the headers that say where it lay and why it was put aside. To replay it is to send its
//! bytes to where it lay, once whoever could not read it can.

mod letter;
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
    /// List the topics that they lie on, and how many records each has: the dead-letter topics whose
    /// names begin with kafka.topicPrefix
    Topics(topics::TopicsArgs),
    /// List them, a page at a time
    List(list::ListArgs),
    /// Show one, its bytes and headers
    Show(show::ShowArgs),
    /// Send them to where they lay before, byte for byte
    Replay(replay::ReplayArgs),
}

impl DlqCommand {
    /// Does it.
    ///
    /// # Errors
    ///
    /// If there is no such topic, partition or letter, the brokers are away, or a letter could not
    /// be replayed.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        match self {
            Self::Topics(arguments) => until_reader_leaves(arguments.run(config)),
            Self::List(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Show(arguments) => until_reader_leaves(arguments.run(config)),
            Self::Replay(arguments) => arguments.run(config),
        }
    }
}
