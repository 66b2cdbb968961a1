//! `waybill dlq topics`: the dead-letter topics, with the number of records in each.

use std::fmt;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use waybill_node::config::Config;
use waybill_terminal::Output;

use crate::broker_login::BrokerLogin;
use crate::connection::{Connection, chosen};

/// The arguments of `waybill dlq topics`.
#[derive(Clone, Debug, Args)]
pub struct TopicsArgs {
    /// The format of the list
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    login: BrokerLogin,
}

impl TopicsArgs {
    pub(super) fn run(&self, config: &Config) -> anyhow::Result<()> {
        let connection = Connection::open(&self.login.on(config)?)?;
        let mut out = io::stdout().lock();
        let found = connection.dead_letter_topics()?;
        if self.output == Output::Table && !found.topics.is_empty() {
            writeln!(out, "{}", Row::HEADING)?;
        }
        for (topic, &partitions) in &found.topics {
            let row = Row::of(&connection, topic, partitions)?;
            writeln!(out, "{}", self.output.text(&row)?)?;
        }
        if found.topics.is_empty() && found.forbidden.is_empty() {
            eprintln!("no dead-letter topics");
        }
        found.require_all()
    }
}

/// The output for a topic.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    topic: &'a str,
    partitions: u32,
    /// By the partitions' offsets, so it includes the receipts of replays.
    records: i64,
}

impl<'a> Row<'a> {
    const HEADING: &'static str = "PARTITIONS     RECORDS  TOPIC";

    fn of(connection: &Connection, topic: &'a str, partitions: u32) -> anyhow::Result<Self> {
        let mut records = 0;
        for partition in chosen(topic, partitions, None)? {
            let held = connection.offsets(topic, partition)?;
            records += held.end - held.start;
        }
        Ok(Self {
            topic,
            partitions,
            records,
        })
    }
}

/// A line of the table.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partitions,
            records,
        } = self;
        write!(f, "{partitions:>10}  {records:>10}  {topic}")
    }
}
