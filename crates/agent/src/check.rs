//! The compatibility kit: plays the scheduler's part against an agent over plain Kafka, in whatever
//! language it is written, and says which rules of the topic contract (`docs/agents.md`) it keeps.
//!
//! [`check`] writes step requests to the agent's topic, reads what comes back, and gives a verdict
//! for each [`Rule`] with what was seen.
//!
//! What must hold:
//!
//! * **No installation is touched.** Agents answer to the one `step-replies` topic of their prefix,
//!   which schedulers read. So the kit plays under a prefix of its own and refuses one under which
//!   there is a topic of operation requests, as every scheduler has one. Operations are fresh ones.
//! * **A fault needs a witness.** Whatever breaks a rule is quoted from the records: a silence counts
//!   only once complete-by has passed, and a commit only where the replies were read up to the end
//!   that their topic had after the commit was seen.
//! * **What was performed is undone at the end**, where the agent can undo. What it does to its service
//!   it does really.
//! * **It ends.** Every wait is bounded by the complete-by of what is waited for.
//!
//! Deliberately absent: records in Confluent wire format, for which the kit has no registry, and
//! killing the agent, which is another process's.

mod cases;
mod commits;
mod error;
mod findings;
mod harness;
mod judge;
mod poison;
mod rule;
mod transcript;
mod wire;

use std::collections::BTreeSet;
use std::time::Duration;

use waybill_engine::{OperationId, Outputs};
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;

pub use error::CheckError;
pub use findings::{Finding, Report, Verdict};
pub use rule::{Rule, RuleUnknown};

/// What is played, against whom, and how long is waited.
#[derive(Clone, Debug)]
pub struct CheckSettings {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The topics, under a prefix of the kit's own. Those that are missing are made.
    pub topics: Topics,
    /// Copies of each partition of topics that are made. Default: 1.
    pub replication: u16,
    /// The agent, which names its topic.
    pub agent: String,
    /// The agent's consumer group; `None` takes `<prefix>-agents`, and forgives if that one has
    /// committed nothing. Default: `None`.
    pub group: Option<String>,
    /// The step that is asked for. It must succeed with the input.
    pub step: String,
    /// The workflow that the requests name. Default: `agent-check`.
    pub workflow: String,
    /// The tenant that the requests name. Default: none.
    pub tenant: String,
    /// The input of each operation, a JSON object; `{{operation}}` in it becomes the operation's id.
    /// Default: `{}`.
    pub input: String,
    /// An input with which the step takes longer than [`CheckSettings::SLOW_STEP`]. Default: none.
    pub slow_input: Option<String>,
    /// What earlier steps produced, as (`step.name`, value). Default: none.
    pub results: Outputs,
    /// How long the agent may take for its first answer. Default: 60 s.
    pub patience: Duration,
    /// From now to complete-by, for requests that are to be answered. Default: 10 s.
    pub complete_within: Duration,
    /// By how much an answer's timestamp may lie behind complete-by. Default: 100 ms.
    pub clock_tolerance: Duration,
    /// How many requests a burst has. Default: 200.
    pub burst: usize,
    /// Whether an agent that refuses every undo breaks the rules of undoing. Default: it is taken to
    /// be one that cannot undo, and they are not tried.
    pub must_undo: bool,
    /// The same of probes.
    pub must_probe: bool,
    /// Rules that are not tried. Default: none.
    pub without: BTreeSet<Rule>,
}

impl CheckSettings {
    /// How long an attempt with [`CheckSettings::slow_input`] has until complete-by.
    pub const SLOW_STEP: Duration = Duration::from_secs(1);

    /// The defaults for one step of an agent, under a prefix of topics.
    #[must_use]
    pub fn new(kafka: KafkaSettings, topics: Topics, agent: &str, step: &str) -> Self {
        Self {
            kafka,
            topics,
            replication: 1,
            agent: agent.to_owned(),
            group: None,
            step: step.to_owned(),
            workflow: "agent-check".to_owned(),
            tenant: String::new(),
            input: "{}".to_owned(),
            slow_input: None,
            results: Outputs::new(),
            patience: Duration::from_secs(60),
            complete_within: Duration::from_secs(10),
            clock_tolerance: Duration::from_millis(100),
            burst: 200,
            must_undo: false,
            must_probe: false,
            without: BTreeSet::new(),
        }
    }
}

/// The effects of one key, as the service itself counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EffectCounts {
    /// How many were made.
    pub made: u32,
    /// How many of these were undone.
    pub undone: u32,
}

/// Who can say what the agent's service did, without asking the agent.
pub trait Ledger {
    /// The effects of a step of an operation.
    ///
    /// # Errors
    ///
    /// Why it cannot be said.
    fn effects(&self, operation: OperationId, step: &str) -> Result<EffectCounts, LedgerError>;
}

/// Why a ledger did not answer.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// Plays all rules against an agent, which may start before or after. Blocks for as long as it takes:
/// seconds with an agent that keeps the rules, a few times `complete_within` with one that is silent.
/// Not for threads of an async runtime.
///
/// # Errors
///
/// If it could not be played: the prefix is an installation's, or the brokers are away. An agent that
/// breaks a rule, or is not there, is no error.
pub fn check(settings: &CheckSettings, ledger: Option<&dyn Ledger>) -> Result<Report, CheckError> {
    for input in [Some(&settings.input), settings.slow_input.as_ref()] {
        let object = input.map(|input| serde_json::from_str::<serde_json::Map<_, _>>(input));
        object.transpose().map_err(CheckError::Input)?;
    }
    let wire = wire::Wire::open(settings)?;
    let mut harness = harness::Harness::new(settings, wire);
    cases::run(&mut harness, ledger)?;
    Ok(harness.report())
}
