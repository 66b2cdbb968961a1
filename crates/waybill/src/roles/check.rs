//! Checks a configuration with its workflows and agents before anything starts.
//!
//! What must hold: a check reads each file once, as it may be a pipe.

use waybill_agent::AgentTransport;
use waybill_agent::http::NamedHandler;
use waybill_engine::Workflows;
use waybill_node::Role;
use waybill_node::config::{Config, check_topics};
use waybill_node::workflows::load_workflows;

use super::{agents, disk_bounds_exceed};

/// The workflows and agents of a valid configuration.
pub(crate) struct Checked {
    /// `None` if the role reads no workflows.
    workflows: Option<Workflows>,
    /// `None` if the role reads no agents.
    handlers: Option<Vec<NamedHandler>>,
}

impl Checked {
    /// Agents of the workflows without a definition in a file that are not built in. They may run
    /// elsewhere. `None` if the role reads no agents.
    pub(crate) fn agents_elsewhere(&self) -> Option<Vec<String>> {
        let (Some(workflows), Some(handlers)) = (&self.workflows, &self.handlers) else {
            return None;
        };
        Some(match handlers.is_empty() {
            // All agents run elsewhere.
            true => Vec::new(),
            false => {
                let names: Vec<&str> = handlers.iter().map(|(name, _)| &**name).collect();
                agents::elsewhere(workflows, &names)
            }
        })
    }

    /// A warning if the topics of the embedded broker may exceed the disk.
    pub(crate) fn disk_bounds_exceed(&self, config: &Config) -> Option<String> {
        disk_bounds_exceed(config, self.workflows.as_ref()?)
    }

    fn refuse_no_agent(&self) -> anyhow::Result<()> {
        match &self.handlers {
            Some(handlers) => agents::refuse_none(handlers),
            None => Ok(()),
        }
    }
}

/// Checks the files that a configuration names. Returns the agents of its workflows that have no
/// definition in a file and are not built in.
///
/// # Errors
///
/// If a file cannot be read or is invalid.
pub(crate) fn agents_elsewhere_of(config: &Config) -> anyhow::Result<Vec<String>> {
    Ok(check(config)?.agents_elsewhere().unwrap_or_default())
}

/// Checks the workflows and the agents of a configuration, alone and together.
///
/// # Errors
///
/// If a file cannot be read or is invalid.
fn check(config: &Config) -> anyhow::Result<Checked> {
    let workflows = load_workflows(&config.workflows)?;
    check_topics(config, &workflows)?;
    let handlers = agents::load_to_check(config, &workflows)?;
    let names: Vec<&str> = handlers.iter().map(|(name, _)| &**name).collect();
    for workflow in workflows.iter() {
        agents::refuse_misspelt(workflow, &names).map_err(|error| {
            let (name, version) = (workflow.name(), workflow.version());
            error.context(format!("workflow {name}, version {version}"))
        })?;
    }
    Ok(Checked {
        workflows: Some(workflows),
        handlers: Some(handlers),
    })
}

/// The same for every role in one process, which also needs an agent to run. With external brokers,
/// other processes may run the agents.
///
/// # Errors
///
/// If a file cannot be read or is invalid, or there is no agent to run.
pub(crate) fn check_to_run(config: &Config) -> anyhow::Result<Checked> {
    let checked = check(config)?;
    if config.kafka.brokers.is_none() || config.agents.transport == AgentTransport::Direct {
        let refused = checked.refuse_no_agent();
        refused.map_err(|error| {
            anyhow::anyhow!(
                "{error}; to check the configuration for a role other than `up`, use --role"
            )
        })?;
    }
    Ok(checked)
}

/// Checks the workflows and agents that a role reads, in the same way as the role does.
///
/// # Errors
///
/// If a file cannot be read or is invalid, or there is no agent to run.
pub(crate) fn check_for(role: Role, config: &Config) -> anyhow::Result<Checked> {
    let reads_agents = match role {
        Role::Broker | Role::Services => {
            return Ok(Checked {
                workflows: None,
                handlers: None,
            });
        }
        Role::Agents => true,
        Role::Up { agents, .. } => agents,
        Role::Scheduler => config.agents.transport == AgentTransport::Direct,
        Role::Ingestion | Role::Supervisor => false,
    };
    if reads_agents {
        let checked = check(config)?;
        checked.refuse_no_agent()?;
        return Ok(checked);
    }
    let workflows = load_workflows(&config.workflows)?;
    check_topics(config, &workflows)?;
    Ok(Checked {
        workflows: Some(workflows),
        handlers: None,
    })
}

/// Checks a role before it starts, so that an invalid file exits with 2.
///
/// # Errors
///
/// If a file that the role needs cannot be read or is invalid.
pub(crate) fn check_files_of(role: Role, config: &Config) -> anyhow::Result<()> {
    check_for(role, config).map(drop)
}
