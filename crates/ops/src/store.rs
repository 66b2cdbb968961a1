//! `waybill store`: migrates the state store on a cluster, or checks it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::Subcommand;
use serde::Serialize;
use waybill_config::ConfigError;
use waybill_node::config::Config;
use waybill_store::{CqlClock, CqlProblem, CqlReport, CqlStore};

use crate::connection::until_reader_leaves;
use crate::runtime::runtime;
use crate::shown::Written;

/// What to do with the state store.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum StoreCommand {
    /// Create the keyspace and the tables that are missing; safe to repeat
    Migrate,
    /// Report the servers, and whether their store is usable; changes nothing
    Check(Written),
}

impl StoreCommand {
    /// Runs the command and prints its findings.
    ///
    /// # Errors
    ///
    /// If no cluster is configured, it is unreachable, or its store cannot be used.
    pub fn run(self, config: &Config) -> anyhow::Result<()> {
        let cql = config.store.scylla.cql().ok_or_else(|| {
            ConfigError::invalid(
                "--scylla",
                "is required: the embedded store needs no preparation",
            )
        })?;
        let runtime = runtime()?;
        match self {
            Self::Migrate => {
                runtime.block_on(CqlStore::migrate(&cql))?;
                print_line(&format!("ok: keyspace {} is usable", cql.keyspace))
            }
            Self::Check(written) => {
                let report = runtime.block_on(CqlStore::check(&cql))?;
                let problems = report.problems();
                let view = StoreView::new(&cql.keyspace, report, &problems);
                print_line(&written.text(&view)?)?;
                match problems.into_iter().find(CqlProblem::is_fatal) {
                    Some(fatal) => Err(fatal).context("the store is unusable"),
                    None => Ok(()),
                }
            }
        }
    }
}

fn print_line(text: &str) -> anyhow::Result<()> {
    until_reader_leaves(writeln!(io::stdout(), "{text}").map_err(Into::into))
}

/// The output for a store.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreView<'a> {
    server: String,
    datacenter: String,
    /// `null` if the server does not report it.
    commitlog_sync: Option<String>,
    keyspace: &'a str,
    /// The options; `null` if the keyspace does not exist.
    replication: Option<BTreeMap<String, String>>,
    /// `null` if there is no schema.
    schema_version: Option<u32>,
    schema_version_needed: u32,
    clocks: Vec<ClockView>,
    problems: Vec<ProblemView>,
}

/// The clock of a node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClockView {
    node: String,
    /// Relative to this machine's clock.
    ahead_ms: i64,
}

/// A fault.
#[derive(Serialize)]
struct ProblemView {
    /// Whether the store cannot be used at all, rather than not be relied on.
    fatal: bool,
    problem: String,
}

impl<'a> StoreView<'a> {
    fn new(keyspace: &'a str, report: CqlReport, problems: &[CqlProblem]) -> Self {
        let CqlReport {
            server,
            datacenter,
            commitlog_sync,
            keyspace: found,
            schema_version,
            schema_version_known,
            clocks,
        } = report;
        let clock = |CqlClock { node, ahead_ms }| ClockView { node, ahead_ms };
        let problem = |problem: &CqlProblem| ProblemView {
            fatal: problem.is_fatal(),
            problem: problem.to_string(),
        };
        Self {
            server: server.to_string(),
            datacenter,
            commitlog_sync,
            keyspace,
            replication: found.map(|found| found.replication),
            schema_version,
            schema_version_needed: schema_version_known,
            clocks: clocks.into_iter().map(clock).collect(),
            problems: problems.iter().map(problem).collect(),
        }
    }
}

/// Several lines of text.
impl fmt::Display for StoreView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "server: {}", self.server)?;
        writeln!(f, "datacentre: {}", self.datacenter)?;
        let sync = self.commitlog_sync.as_deref().unwrap_or("unknown");
        writeln!(f, "commit log: synced {sync}")?;
        let keyspace = self.keyspace;
        match &self.replication {
            Some(options) => {
                let options = options.iter().map(|(key, value)| format!("{key} {value}"));
                let options = options.collect::<Vec<_>>().join(", ");
                writeln!(f, "keyspace: {keyspace} ({options})")?;
            }
            None => writeln!(f, "keyspace: {keyspace} (does not exist)")?,
        }
        let needed = self.schema_version_needed;
        match self.schema_version {
            Some(version) => write!(f, "schema: {version}; this program needs {needed}")?,
            None => write!(f, "schema: none; this program needs {needed}")?,
        }
        for ClockView { node, ahead_ms } in &self.clocks {
            write!(f, "\nclock: {node} is {ahead_ms} ms ahead of this machine")?;
        }
        for ProblemView { fatal, problem } in &self.problems {
            let weight = match fatal {
                true => "cannot be used",
                false => "warning",
            };
            write!(f, "\n{weight}: {problem}")?;
        }
        Ok(())
    }
}
