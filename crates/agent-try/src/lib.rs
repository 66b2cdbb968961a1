//! `waybill agent try`: one request of a declared agent, for the author of its file.
//!
//! What must hold: without `--send`, it sends nothing and reads no secret file; with it, it sends
//! one request once, and the outcome is the one that an attempt would have. It prints no
//! credential.
//!
//! Deliberately absent: Kafka, the circuit breaker and retries. `waybill agent-check` examines an
//! agent as the scheduler sees it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use waybill_agent::http::{
    AgentConfig, AgentsFile, LoadError, ShownAnswer, ShownRequest, Trial, TrialError, Variables,
};
use waybill_agent::testing::StepRequestBuilder;
use waybill_config::read_text;
use waybill_engine::{Action, OperationId, Outcome, StepError, StepRequest};
use waybill_telemetry::visible::escaped_lines;
use waybill_units::duration_from_text;

/// What to do with an agent of a file.
#[derive(Clone, Debug, Subcommand)]
pub enum AgentCommand {
    /// Show the request of an agent for a step, or send it and show what the answer means
    ///
    /// The agent is one of agents.files, or of --agents. Credentials are not shown.
    Try(Box<TryArgs>),
}

/// The request to try.
#[derive(Clone, Debug, Args)]
pub struct TryArgs {
    /// The name of the agent
    agent: String,
    /// The step
    step: String,
    /// A file with the operation's input, a JSON object [default: {}]
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// A file of agents (YAML), before those of agents.files; may be repeated
    #[arg(long, value_name = "FILE")]
    agents: Vec<PathBuf>,
    /// What to do with the step
    #[arg(long, value_enum, default_value_t = Asked::Run)]
    action: Asked,
    /// A result of an earlier step; may be repeated
    #[arg(long = "result", value_name = "STEP.NAME=VALUE", value_parser = result_parts)]
    results: Vec<(String, String)>,
    /// The operation's id, which is part of the idempotency key [default: a new one]
    #[arg(long, value_name = "ID")]
    operation: Option<OperationId>,
    /// The workflow that the request names
    #[arg(long, value_name = "NAME", default_value = "try")]
    workflow: String,
    /// The tenant that the request names
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// The time until complete-by
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration_from_text)]
    complete_by: Duration,
    /// Send the request: its effect on the service is real
    #[arg(long)]
    send: bool,
}

/// What to do with a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Asked {
    /// Perform it.
    Run,
    /// Undo it.
    Undo,
    /// Ask whether it was performed.
    Probe,
}

/// The result of the command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TryResult {
    /// The text to print.
    pub text: String,
    /// Whether the request was only shown, or its outcome is a success.
    pub is_success: bool,
}

impl AgentCommand {
    /// Runs the command. `files` are those of the configuration.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, no file has the agent, or its request cannot be made.
    pub fn run(&self, files: &[PathBuf], variables: &Variables) -> anyhow::Result<TryResult> {
        let Self::Try(arguments) = self;
        arguments.run(files, variables)
    }
}

impl TryArgs {
    fn run(&self, files: &[PathBuf], variables: &Variables) -> anyhow::Result<TryResult> {
        let (path, agent) = self.find(files)?;
        let request = self.request()?;
        let shown = agent.preview(&request, variables);
        let shown = shown.map_err(|error| with_place(error, path))?;
        let mut text = request_text(&shown);
        if !self.send {
            text.push_str("\nNot sent: --send sends it.");
            return Ok(TryResult {
                text,
                is_success: true,
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start")?;
        let sent = runtime.block_on(agent.send_once(request, variables, self.complete_by));
        let trial = sent.map_err(|error| with_place(error, path))?;
        text.push_str(&trial_text(&trial));
        Ok(TryResult {
            text,
            is_success: matches!(
                trial.outcome,
                Outcome::Success { .. } | Outcome::NotPerformed
            ),
        })
    }

    /// The agent, and the file that has it.
    fn find<'a>(&'a self, files: &'a [PathBuf]) -> anyhow::Result<(&'a Path, AgentConfig)> {
        let mut known = Vec::new();
        for path in self.agents.iter().chain(files) {
            let file = AgentsFile::read(path)?;
            for agent in file.agents {
                if agent.name == self.agent {
                    return Ok((path, agent));
                }
                known.push(agent.name);
            }
        }
        let known = match known.is_empty() {
            true => "name a file with --agents, or in agents.files".to_owned(),
            false => format!("known agents: {}", known.join(", ")),
        };
        anyhow::bail!("no file has an agent {:?}; {known}", self.agent)
    }

    fn request(&self) -> anyhow::Result<StepRequest> {
        let mut request = StepRequestBuilder::new(&self.agent, &self.step)
            .workflow(&self.workflow)
            .tenant(&self.tenant)
            .complete_within(self.complete_by)
            .action(match self.action {
                Asked::Run => Action::Run,
                Asked::Undo => Action::Compensate,
                Asked::Probe => Action::Probe,
            });
        if let Some(operation) = self.operation {
            request = request.operation(operation);
        }
        if let Some(path) = &self.input {
            let text = read_text(path)?;
            let is_object = serde_json::from_str::<serde_json::Value>(&text)
                .with_context(|| format!("{} is not JSON", path.display()))?
                .is_object();
            anyhow::ensure!(is_object, "{} is not a JSON object", path.display());
            request = request.input(&text);
        }
        let mut request = request.build();
        request.results.clone_from(&self.results);
        Ok(request)
    }
}

/// The error with the file and the line that it is about.
fn with_place(error: TrialError, path: &Path) -> anyhow::Error {
    let line = match &error {
        TrialError::Load(error) => line(error, path),
        TrialError::NoRequest { .. } | TrialError::Render(_) => None,
    };
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    anyhow::Error::new(error).context(format!("{}{line}", path.display()))
}

fn line(error: &LoadError, path: &Path) -> Option<u64> {
    error.line(&read_text(path).ok()?)
}

fn result_parts(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if name.contains('.') => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected step.name=value".to_owned()),
    }
}

fn request_text(request: &ShownRequest) -> String {
    let ShownRequest {
        method,
        url,
        headers,
        body,
    } = request;
    let mut text = format!("{method} {url}\n");
    push_message(&mut text, headers, body);
    text
}

fn trial_text(trial: &Trial) -> String {
    let mut text = String::from("\n");
    let took = trial.took.as_millis();
    match &trial.answer {
        Some(ShownAnswer {
            status,
            headers,
            body,
        }) => {
            let _ = writeln!(text, "{status} (after {took} ms)");
            push_message(&mut text, headers, body);
        }
        None => {
            let _ = writeln!(text, "no answer (after {took} ms)");
        }
    }
    text.push('\n');
    let failure = |kind: &str, StepError { code, message }: &StepError| {
        format!("{kind}, {code}: {}", escaped_lines(message))
    };
    text.push_str(&match &trial.outcome {
        Outcome::Success { outputs } if outputs.is_empty() => "Success".to_owned(),
        Outcome::Success { outputs } => {
            let shown = |(name, value): &(String, String)| format!("{name}={value}");
            let outputs: Vec<String> = outputs.iter().map(shown).collect();
            format!("Success, keeps {}", escaped_lines(&outputs.join(", ")))
        }
        Outcome::NotPerformed => "NotPerformed".to_owned(),
        Outcome::Transient { error } => failure("Transient", error),
        Outcome::Permanent { error } => failure("Permanent", error),
        Outcome::Unknown { error } => failure("Unknown", error),
        Outcome::NotAttempted { error, .. } => failure("NotAttempted", error),
    });
    text
}

fn push_message(text: &mut String, headers: &[(String, String)], body: &str) {
    for (name, value) in headers {
        let _ = writeln!(text, "{name}: {}", escaped_lines(value));
    }
    if !body.is_empty() {
        let _ = writeln!(text, "\n{}", escaped_lines(body));
    }
}

#[cfg(test)]
mod tests;
