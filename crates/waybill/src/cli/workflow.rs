//! `waybill workflow check`, `waybill workflow test` and `waybill config check`: find errors in a
//! workflow, or in everything that a configuration names, before anything is started with it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Subcommand;
use serde::Serialize;
use waybill_agent::http::NeededInputs;
use waybill_node::Role;
use waybill_node::config::Config;
use waybill_node::workflows::load_workflow;
use waybill_ops::named_elsewhere;
use waybill_telemetry::visible::counted;
use waybill_terminal::OutputArgs;
use waybill_workflow_test::CasesArgs;

use crate::roles::{
    agents_elsewhere, built_in_agents, check_for, check_to_run, load_agents_file,
    refuse_misspelt_agents,
};

/// What to do with workflows.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkflowCommand {
    /// Check a workflow as a start would, without starting anything
    Check {
        /// The workflow (YAML)
        file: PathBuf,
        /// A file of agents (YAML) that the workflow must fit; may be repeated
        #[arg(long, value_name = "FILE")]
        agents: Vec<PathBuf>,
        /// The output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run cases of a workflow with mocked answers in virtual time, without starting anything
    ///
    /// Exits with 1 if a case fails, and with 2 if a file is invalid.
    Test {
        /// The workflow (YAML)
        file: PathBuf,
        /// A file of agents (YAML) whose requests are rendered; may be repeated
        #[arg(long, value_name = "FILE")]
        agents: Vec<PathBuf>,
        /// The cases.
        #[command(flatten)]
        cases: CasesArgs,
        /// The output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// The result of a command.
#[derive(Debug)]
pub struct Findings {
    /// What to print.
    pub text: String,
    /// Whether everything is as it should be.
    pub passed: bool,
}

impl WorkflowCommand {
    /// Checks or tests the workflow.
    ///
    /// # Errors
    ///
    /// If the workflow, the agents or the cases are invalid, alone or together.
    pub fn run(&self, config: &Config) -> anyhow::Result<Findings> {
        match self {
            Self::Check {
                file,
                agents,
                output,
            } => Ok(Findings {
                text: Self::check(file, agents, *output, config)?,
                passed: true,
            }),
            Self::Test {
                file,
                agents,
                cases,
                output,
            } => {
                let workflows = load_workflow(file)?;
                let mut offline = BTreeMap::new();
                for path in agents {
                    for (name, agent) in load_agents_file(path, config, &workflows)?.offline {
                        if offline.insert(name.clone(), agent).is_some() {
                            bail!(
                                "{}: agent {name} is in an earlier file, too",
                                path.display()
                            );
                        }
                    }
                }
                let report = cases.run(workflows, offline)?;
                Ok(Findings {
                    text: output.text(&report)?,
                    passed: report.passed(),
                })
            }
        }
    }

    /// A line with the findings of a check, and the input fields that the agents require.
    fn check(
        file: &Path,
        agents: &[PathBuf],
        output: OutputArgs,
        config: &Config,
    ) -> anyhow::Result<String> {
        let workflows = load_workflow(file)?;
        let mut known = Vec::new();
        let mut needed = NeededInputs::new();
        for path in agents {
            let loaded = load_agents_file(path, config, &workflows)?;
            known.extend(loaded.names);
            for (field, steps) in loaded.needed_inputs {
                needed.entry(field).or_default().extend(steps);
            }
        }
        let elsewhere = agents_elsewhere(&workflows, &known);
        if config.agents.built_in {
            known.extend(built_in_agents()?);
        }
        for workflow in workflows.iter() {
            let refused = refuse_misspelt_agents(workflow, &known);
            refused.map_err(|error| error.context(file.display().to_string()))?;
        }
        let workflow = workflows.iter().next().map(|workflow| Found {
            name: workflow.name().to_string(),
            version: workflow.version(),
            steps: workflow.steps().len(),
        });
        let (elsewhere, not_checked) = match agents.is_empty() {
            true => {
                let unknown = |agent: &String| !known.contains(agent);
                (None, elsewhere.into_iter().filter(unknown).collect())
            }
            false => (Some(elsewhere), Vec::new()),
        };
        Ok(output.text(&Verdict {
            role: None,
            workflow,
            input: needed,
            agents_elsewhere: elsewhere,
            agents_not_checked: not_checked,
            disk: None,
        })?)
    }
}

/// The result of `waybill config check` for a valid configuration, for one role or for every role
/// in one process.
///
/// # Errors
///
/// If a workflow or an agent that the role reads is invalid, or the role would have no agent to
/// run.
pub fn check_configuration(
    role: Option<Role>,
    output: OutputArgs,
    config: &Config,
) -> anyhow::Result<String> {
    let checked = match role {
        Some(role) => check_for(role, config)?,
        None => check_to_run(config)?,
    };
    Ok(output.text(&Verdict {
        role: role.map(Role::name),
        workflow: None,
        input: NeededInputs::new(),
        agents_elsewhere: checked.agents_elsewhere(),
        agents_not_checked: Vec::new(),
        disk: checked.disk_bounds_exceed(config),
    })?)
}

/// The output of a successful check.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    /// The role for which a configuration was checked. Absent for every role in one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The workflow, if one was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<Found>,
    /// Fields of the input that agents' requests require, each with the steps that use it.
    #[serde(skip_serializing_if = "NeededInputs::is_empty")]
    input: NeededInputs,
    /// Agents without a definition in a file. They may run elsewhere, so this is no error. Absent
    /// if no agents were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    agents_elsewhere: Option<Vec<String>>,
    /// Agents that were not checked, because no agents files were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    agents_not_checked: Vec<String>,
    /// A warning that the topics of the embedded broker may exceed this machine's disk. Absent if
    /// they fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
}

/// A valid workflow.
#[derive(Serialize)]
struct Found {
    name: String,
    version: u32,
    steps: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ok")?;
        if let Some(role) = self.role {
            write!(f, " for {role}")?;
        }
        if let Some(Found {
            name,
            version,
            steps,
        }) = &self.workflow
        {
            let steps = counted(*steps, "step");
            write!(f, ": {name}, version {version}, {steps}")?;
        }
        f.write_str(&named_elsewhere(
            self.agents_elsewhere.as_deref().unwrap_or_default(),
        ))?;
        if !self.agents_not_checked.is_empty() {
            let agents = self.agents_not_checked.join(", ");
            write!(
                f,
                "; agents not checked: {agents} (name their files with --agents)"
            )?;
        }
        if !self.input.is_empty() {
            f.write_str("\nrequired input fields:")?;
        }
        for (field, steps) in &self.input {
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            write!(f, "\n  {field} (used by {})", steps.join(", "))?;
        }
        match &self.disk {
            Some(disk) => write!(f, "\nwarning: {disk}"),
            None => Ok(()),
        }
    }
}
