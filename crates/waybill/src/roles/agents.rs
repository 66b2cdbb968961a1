//! The agents' role.

mod function;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use waybill_agent::http::{
    AgentsFile, LoadError, NamedHandler, NeededInputs, OfflineAgent, Variables,
};
use waybill_agent::{Agents, AgentsSettings, BuiltInCalls, Membership};
use waybill_config::{misspelling_of, read_text};
use waybill_drone_delivery::services::Caller;
use waybill_engine::{Action, Workflow, Workflows};
use waybill_kafka::{ASSIGNMENT_STRATEGY, KafkaSettings};
use waybill_messages::Topics;
use waybill_node::admin::Admin;
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};

use super::instance;

/// The subdirectory of the data directory with the names of instances.
const INSTANCES_DIR: &str = "agents";

/// The name of the built-in agents, used instead of a file name.
const BUILT_IN: &str = "the built-in drone-delivery agents";

/// How agents reach the simulated services.
pub(super) struct Reached {
    /// Their `host:port`.
    pub address: String,
    /// Calls the services as functions, if they run in this process.
    pub caller: Option<Caller>,
}

impl Reached {
    /// The services of another process.
    pub(super) fn elsewhere(config: &Config) -> Self {
        Self {
            address: config.services.elsewhere(),
            caller: None,
        }
    }
}

/// Starts agents that read their requests from topics.
pub(super) async fn start(
    config: &Config,
    kafka: KafkaSettings,
    topics: Topics,
    handlers: Vec<NamedHandler>,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let settings = &config.agents;
    let mut agents_settings = AgentsSettings::new(kafka, topics);
    agents_settings.group = config.agents_group();
    let place = match &settings.instance_id {
        Some(_) => None,
        None => instance::place(config, INSTANCES_DIR),
    };
    agents_settings.instance_id = settings
        .instance_id
        .clone()
        .or_else(|| place.as_ref().map(|place| place.id().to_owned()));
    agents_settings.session_timeout = settings.session_timeout;
    agents_settings.in_flight_max = settings.in_flight_max;
    let refused = format!(
        "the consumer group {} refuses this process: another member does not use the partition.assignment.strategy \
         {ASSIGNMENT_STRATEGY}",
        agents_settings.group
    );
    let share = admin.readiness.expect("partitions for the agents");
    let mut agents = Agents::start(agents_settings, handlers)?;
    let mut membership = agents.membership();
    let show_ready = async move {
        loop {
            let now = *membership.borrow_and_update();
            share.note((now == Membership::Refused).then_some(&refused));
            share.set(now == Membership::Member);
            if membership.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    running.spawn(Stage::Agents, "agents", |stop| async move {
        // Keeps the name reserved for this process while the agents use it.
        let _place = place;
        tokio::select! {
            () = stop.cancelled() => {}
            ended = agents.ended() => return Ok(ended?),
            () = show_ready => {}
        }
        Ok(agents.shutdown().await?)
    });
    Ok(())
}

/// Every agent of the configuration, by name, checked against the workflows.
pub(super) fn load(
    config: &Config,
    services: &Reached,
    workflows: &Workflows,
) -> anyhow::Result<Vec<NamedHandler>> {
    let mut handlers = Vec::new();
    let variables = variables(config, &services.address);
    if config.agents.built_in {
        match config.agents.built_in_calls {
            BuiltInCalls::Http => {
                let file =
                    AgentsFile::from_yaml(waybill_drone_delivery::AGENTS_YAML).context(BUILT_IN)?;
                let loaded = load_from(&file, &variables, workflows);
                handlers.extend(loaded.context(BUILT_IN)?);
            }
            BuiltInCalls::Function => {
                let caller = services.caller.as_ref().context(
                    "agents.builtInCalls is function, and the services do not run in this process",
                )?;
                handlers.extend(function::agents(caller));
            }
        }
    }
    for path in &config.agents.files {
        let file = AgentsFile::read(path).map_err(|error| error.of_key("agents.files"))?;
        handlers.extend(load_from_file(path, &file, &variables, workflows)?);
    }
    Ok(handlers)
}

/// The agents of the workflows that are not among `names`. Another process must run them.
pub(crate) fn elsewhere<T: AsRef<str>>(workflows: &Workflows, names: &[T]) -> Vec<String> {
    let agents = workflows.agents().into_iter();
    let is_here = |agent: &str| names.iter().any(|name| name.as_ref() == agent);
    agents
        .filter(|agent| !is_here(agent))
        .map(|agent| agent.to_string())
        .collect()
}

/// Refuses a workflow with an agent's name that is nearly that of a known agent. A name that
/// differs in its numbers alone is another agent's.
///
/// # Errors
///
/// The step, its agent, and the known agent.
pub(crate) fn refuse_misspelt<T: AsRef<str>>(
    workflow: &Workflow,
    known: &[T],
) -> anyhow::Result<()> {
    let known = || known.iter().map(AsRef::as_ref);
    let without_numbers = |name: &str| name.replace(|char: char| char.is_ascii_digit(), "");
    for step in workflow.steps() {
        for action in [Action::Run, Action::Compensate] {
            let agent = &**step.agent_for(action);
            if known().any(|name| name == agent) {
                continue;
            }
            let near = misspelling_of(agent, known());
            let near = near.filter(|near| without_numbers(near) != without_numbers(agent));
            if let Some(near) = near {
                anyhow::bail!(
                    "step {}: unknown agent {agent:?}; did you mean {near:?}?",
                    step.name
                );
            }
        }
    }
    Ok(())
}

/// Every agent of the configuration, checked alone and against the workflows, before the services'
/// address is known.
///
/// # Errors
///
/// If a file cannot be read, or its agents are invalid or do not fit a workflow.
pub(super) fn load_to_check(
    config: &Config,
    workflows: &Workflows,
) -> anyhow::Result<Vec<NamedHandler>> {
    let mut config = config.clone();
    config.agents.built_in_calls = BuiltInCalls::Http;
    load(&config, &Reached::elsewhere(&config), workflows)
}

/// Refuses to start without any agent.
pub(super) fn refuse_none(handlers: &[NamedHandler]) -> anyhow::Result<()> {
    anyhow::ensure!(
        !handlers.is_empty(),
        "no agent to run: set agents.builtIn to true, or name a file in agents.files; if agents run elsewhere, \
         start `up` with --no-agents"
    );
    Ok(())
}

/// The content of an agents file.
pub(crate) struct Loaded {
    /// The names of the agents.
    pub(crate) names: Vec<String>,
    /// The fields of the input that their requests for the workflows' steps require.
    pub(crate) needed_inputs: NeededInputs,
    /// The agents without connections, by name.
    pub(crate) offline: BTreeMap<String, OfflineAgent>,
}

/// Loads the agents of a file, and checks them against the workflows.
///
/// # Errors
///
/// If the file cannot be read, or its agents are invalid or do not fit a workflow.
pub(crate) fn load_file(
    path: &Path,
    config: &Config,
    workflows: &Workflows,
) -> anyhow::Result<Loaded> {
    let file = AgentsFile::read(path)?;
    check(&file, config, workflows).map_err(|error| of_file(path, error))?;
    let mut needed_inputs = NeededInputs::new();
    for workflow in workflows.iter() {
        for (field, steps) in file.needed_inputs(workflow)? {
            needed_inputs.entry(field).or_default().extend(steps);
        }
    }
    Ok(Loaded {
        names: names_of(&file),
        needed_inputs,
        offline: file.offline(&variables_of(config))?,
    })
}

/// Checks the agents without the files that they name: their secrets are on other machines.
fn check(file: &AgentsFile, config: &Config, workflows: &Workflows) -> anyhow::Result<()> {
    file.check_settings(&variables_of(config))?;
    Ok(file.check(workflows)?)
}

/// The names of the built-in agents.
///
/// # Errors
///
/// If their file cannot be read.
pub(crate) fn built_in() -> anyhow::Result<Vec<String>> {
    let file = AgentsFile::from_yaml(waybill_drone_delivery::AGENTS_YAML).context(BUILT_IN)?;
    Ok(names_of(&file))
}

fn names_of(file: &AgentsFile) -> Vec<String> {
    file.agents.iter().map(|agent| agent.name.clone()).collect()
}

fn load_from_file(
    path: &Path,
    file: &AgentsFile,
    variables: &Variables,
    workflows: &Workflows,
) -> anyhow::Result<Vec<NamedHandler>> {
    load_from(file, variables, workflows).map_err(|error| of_file(path, error))
}

/// The error with its place in the file.
fn of_file(path: &Path, error: anyhow::Error) -> anyhow::Error {
    let text = read_text(path).unwrap_or_default();
    let refused = error.downcast_ref::<LoadError>();
    let line = refused.and_then(|refused| refused.line(&text));
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    error.context(format!("{}{line}", path.display()))
}

fn load_from(
    file: &AgentsFile,
    variables: &Variables,
    workflows: &Workflows,
) -> anyhow::Result<Vec<NamedHandler>> {
    file.check(workflows)?;
    Ok(file.load(variables)?)
}

/// The variables of agents whose services run elsewhere.
pub(crate) fn variables_of(config: &Config) -> Variables {
    variables(config, &config.services.elsewhere())
}

/// The variables of agents: the address of the simulated services, and those of the configuration.
fn variables(config: &Config, services: &str) -> Variables {
    let program = [("services".to_owned(), format!("http://{services}"))];
    Variables::new(program.into(), config.variables.clone())
}
