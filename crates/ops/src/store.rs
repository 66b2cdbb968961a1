//! `waybill store`: migrates the state store on a cluster, or checks it.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::Subcommand;
use waybill_config::ConfigError;
use waybill_node::config::Config;
use waybill_terminal::OutputArgs;

use crate::connection::until_reader_leaves;
use crate::runtime::runtime;

/// What to do with the state store.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum StoreCommand {
    /// Create the keyspace and the tables that are missing; safe to repeat
    Migrate,
    /// Report the servers, and whether their store is usable; changes nothing
    Check(OutputArgs),
}

impl StoreCommand {
    /// Runs the command and prints its findings.
    ///
    /// # Errors
    ///
    /// If no cluster is configured, it is unreachable, or its store cannot be used.
    pub fn run(self, config: &Config) -> anyhow::Result<()> {
        if config.store.is_exclusive() {
            let problem = "is required: the embedded store needs no preparation";
            return Err(ConfigError::invalid("--scylla", problem).into());
        }
        let backend = config.store_backend();
        let runtime = runtime()?;
        match self {
            Self::Migrate => {
                runtime.block_on(backend.migrate())?;
                print_line(&format!("ok: {} is usable", backend.place()))
            }
            Self::Check(output) => {
                let Some(report) = runtime.block_on(backend.check())? else {
                    return Ok(());
                };
                print_line(&output.text(&report)?)?;
                match report.problems.into_iter().find(|it| it.is_fatal) {
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
