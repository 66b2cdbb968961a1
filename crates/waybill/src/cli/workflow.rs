//! `waybill workflow`: whether a workflow can work, said before anything is started with it.

use std::path::PathBuf;

use clap::Subcommand;

use crate::config::{Config, WorkflowsConfig, load_workflows};
use crate::roles::{agents_elsewhere, load_agents_file};

/// How to look at workflows.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkflowCommand {
    /// Check a workflow as it is checked when it is loaded, and start nothing
    Check {
        /// The workflow (YAML)
        file: PathBuf,
        /// Agents (YAML) that the workflow must fit; may be repeated
        #[arg(long, value_name = "FILE")]
        agents: Vec<PathBuf>,
    },
}

impl WorkflowCommand {
    /// Looks, and returns a line that tells what was seen.
    ///
    /// # Errors
    ///
    /// If the workflow or the agents cannot work, alone or together.
    pub fn run(&self, config: &Config) -> anyhow::Result<String> {
        let Self::Check { file, agents } = self;
        let workflows = load_workflows(&WorkflowsConfig {
            built_in: false,
            files: vec![file.clone()],
        })?;
        let mut handlers = Vec::new();
        for path in agents {
            let services = config.services.elsewhere();
            handlers.extend(load_agents_file(path, &services, &workflows)?);
        }
        let mut line = String::from("ok");
        for workflow in workflows.iter() {
            let (name, version) = (workflow.name(), workflow.version());
            let steps = workflow.steps().len();
            line.push_str(&format!(": {name}, version {version}, {steps} steps"));
        }
        if !agents.is_empty() {
            line.push_str(&named_elsewhere(&agents_elsewhere(&workflows, &handlers)));
        }
        Ok(line)
    }
}

/// What a check says of agents that it knows nothing of. They may run from other files, or be written in any language:
/// that is no fault.
pub fn named_elsewhere(agents: &[String]) -> String {
    match agents {
        [] => String::new(),
        agents => format!(
            "; agents that are in none of the files: {}",
            agents.join(", ")
        ),
    }
}
