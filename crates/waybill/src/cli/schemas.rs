//! `waybill schemas`: prepares the schema registry, and looks at it.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::Subcommand;
use waybill_messages::Topics;
use waybill_registry::subjects;

use super::connection::until_reader_leaves;
use crate::config::{Config, load_workflows};
use crate::registry;

/// What to do with the schemas in the registry.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum SchemasCommand {
    /// Register the schemas that are missing, unless the registry finds one of them incompatible with
    /// earlier versions; safe to repeat
    Register,
    /// Say which are registered, and whether the others could be; changes nothing
    Check,
}

impl SchemasCommand {
    /// Does it, and prints a line for each subject.
    ///
    /// # Errors
    ///
    /// If no registry is configured, it does not answer or refuses, or a schema does not go with
    /// earlier versions.
    pub fn run(self, config: &Config) -> anyhow::Result<()> {
        let registry = config.schema_registry.client()?;
        let registry = registry.context("schemaRegistry.url is needed: there is no registry")?;
        let workflows = load_workflows(&config.workflows)?;
        let topics = Topics::new(&config.kafka.topic_prefix);
        let subjects = subjects(&topics, &workflows.agents());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let lines = runtime.block_on(async {
            match self {
                Self::Register => registry::register(&registry, &subjects).await,
                Self::Check => registry::check(&registry, &subjects).await,
            }
        })?;
        let printed = writeln!(io::stdout(), "{}", lines.join("\n"));
        until_reader_leaves(printed.map_err(Into::into))
    }
}

/// The subjects whose schemas the configured registry lacks; `None` where none is configured.
///
/// # Errors
///
/// If the registry does not answer, or a schema does not go with earlier versions.
pub(super) async fn missing(config: &Config) -> anyhow::Result<Option<Vec<String>>> {
    let Some(registry) = config.schema_registry.client()? else {
        return Ok(None);
    };
    let workflows = load_workflows(&config.workflows)?;
    let topics = Topics::new(&config.kafka.topic_prefix);
    let subjects = subjects(&topics, &workflows.agents());
    Ok(Some(registry::missing(&registry, &subjects).await?))
}
