//! `waybill broker repair`: shows damaged parts of the embedded broker's logs, and removes them on
//! request.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use waybill_broker::{LogRepair, RepairError, repair_logs};
use waybill_node::config::Config;
use waybill_node::data_dir;
use waybill_telemetry::visible::counted;
use waybill_terminal::OutputArgs;

use crate::connection::{names_of, until_reader_leaves};

/// What to do with the embedded broker's files, instead of running it.
#[derive(Clone, Debug, Subcommand)]
pub enum BrokerCommand {
    /// Verify the logs in --data-dir, which no running process may use, and report damaged records;
    /// drop them with --apply
    Repair(RepairArgs),
}

/// The arguments of `waybill broker repair`.
#[derive(Clone, Debug, Args)]
pub struct RepairArgs {
    /// Verify only this topic, given by its full or short name
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,
    /// Verify only this partition
    #[arg(long, value_name = "N", requires = "topic")]
    partition: Option<i32>,
    /// Drop damaged records, and keep their bytes in files in DIR/broker/damaged
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl RepairArgs {
    fn repair(&self, dir: &Path, topic_prefix: &str) -> Result<Vec<LogRepair>, RepairError> {
        let repair = |topic: Option<&str>| repair_logs(dir, topic, self.partition, self.apply);
        let Some(topic) = &self.topic else {
            return repair(None);
        };
        let mut repaired = repair(Some(topic));
        for name in names_of(topic_prefix, topic).iter().skip(1) {
            if matches!(repaired, Err(RepairError::Unknown { .. })) {
                let by_full_name = repair(Some(name));
                if !matches!(by_full_name, Err(RepairError::Unknown { .. })) {
                    repaired = by_full_name;
                }
            }
        }
        repaired
    }
}

impl BrokerCommand {
    /// Runs the command and prints its findings.
    ///
    /// # Errors
    ///
    /// If damaged data was found and not dropped, the directory is in use, or the disk fails.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let Self::Repair(arguments) = self;
        let dir = data_dir::of_broker(&config.data_dir);
        anyhow::ensure!(
            dir.is_dir(),
            "{} holds no data of an embedded broker (--data-dir)",
            config.data_dir.display()
        );
        let found = arguments
            .repair(&dir, &config.kafka.topic_prefix)
            .context("cannot repair the logs")?;
        let mut out = io::stdout().lock();
        for repair in &found {
            let view = RepairView::new(repair, arguments.apply);
            let text = arguments.output.text(&view)?;
            until_reader_leaves(writeln!(out, "{text}").map_err(Into::into))?;
        }
        anyhow::ensure!(
            found.is_empty() || arguments.apply,
            "logs are damaged in {}; nothing was changed (--apply drops the records above)",
            counted(found.len() as u64, "place")
        );
        if found.is_empty() {
            eprintln!("no log is damaged");
        }
        Ok(())
    }
}

/// The output for a repair.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RepairView<'a> {
    topic: &'a str,
    partition: i32,
    file: &'a PathBuf,
    position: u64,
    bytes: u64,
    first_offset: i64,
    records: u64,
    /// The file that keeps the dropped bytes; `null` if there are none.
    aside: Option<&'a PathBuf>,
    applied: bool,
}

impl<'a> RepairView<'a> {
    fn new(repair: &'a LogRepair, applied: bool) -> Self {
        Self {
            topic: &repair.topic,
            partition: repair.partition,
            file: &repair.path,
            position: repair.position,
            bytes: repair.bytes,
            first_offset: repair.first_offset,
            records: repair.records,
            aside: repair.aside.as_ref(),
            applied,
        }
    }
}

impl fmt::Display for RepairView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            file,
            position,
            bytes,
            first_offset,
            records,
            aside,
            applied,
        } = self;
        let verb = if *applied { "dropped" } else { "would drop" };
        write!(
            f,
            "{verb} {} of {topic} partition {partition}, from offset {first_offset}: {} at byte {position} of {}",
            counted(*records, "record"),
            counted(*bytes, "damaged byte"),
            file.display()
        )?;
        match aside {
            Some(aside) if *applied => write!(f, ", kept in {}", aside.display()),
            Some(aside) => write!(f, ", to be kept in {}", aside.display()),
            None => Ok(()),
        }
    }
}
