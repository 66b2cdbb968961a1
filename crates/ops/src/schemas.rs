//! `waybill schemas`: registers schemas in the schema registry, or checks them.

pub(crate) mod subjects;

use std::io::{self, Write as _};

use clap::Subcommand;
use waybill_config::ConfigError;
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_node::workflows::load_workflows;
use waybill_registry::Subject;

use self::subjects::SubjectView;
use crate::connection::until_reader_leaves;
use crate::runtime::runtime;
use waybill_terminal::OutputArgs;

/// What to do with the schemas in the registry.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum SchemasCommand {
    /// Register missing schemas, unless the registry finds one of them incompatible with earlier
    /// versions; safe to repeat
    Register(OutputArgs),
    /// Report which schemas are registered, and whether the others could be; changes nothing
    Check(OutputArgs),
}

impl SchemasCommand {
    /// Runs the command and prints a line for each subject.
    ///
    /// # Errors
    ///
    /// If no registry is configured, it is unavailable or refuses, or a schema is incompatible with
    /// earlier versions.
    pub fn run(self, config: &Config) -> anyhow::Result<()> {
        let registry = config.schema_registry.client()?;
        let lacking = || {
            ConfigError::invalid(
                "schemaRegistry.url",
                "is required: no registry is configured",
            )
        };
        let registry = registry.ok_or_else(lacking)?;
        let subjects = subjects_of(config)?;
        let runtime = runtime()?;
        let (views, output) = runtime.block_on(async {
            match self {
                Self::Register(output) => {
                    let views = subjects::register(&registry, &subjects).await;
                    (views, output)
                }
                Self::Check(output) => (subjects::check(&registry, &subjects).await, output),
            }
        });
        until_reader_leaves(print(output, &views?))
    }
}

fn print(output: OutputArgs, views: &[SubjectView]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for view in views {
        writeln!(out, "{}", output.text(view)?)?;
    }
    Ok(())
}

/// The subjects of everything that the configured installation writes.
///
/// # Errors
///
/// If the workflows cannot be read.
pub(crate) fn subjects_of(config: &Config) -> anyhow::Result<Vec<Subject>> {
    let workflows = load_workflows(&config.workflows)?;
    let topics = Topics::new(&config.kafka.topic_prefix);
    Ok(waybill_registry::subjects(&topics, &workflows.agents()))
}
