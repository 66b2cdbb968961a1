//! The compatibility kit: plays the scheduler against an agent in any language over plain Kafka,
//! and reports which rules of the topic contract (`docs/agents.md`) the agent keeps.
//!
//! [`check`] writes step requests to the agent's topic, reads the replies, and gives a verdict with
//! observations for each [`Rule`].
//!
//! What must hold:
//!
//! * **No installation is touched.** Agents answer to the one `step-replies` topic of their prefix,
//!   which schedulers read. So the kit uses its own prefix, and refuses one with a topic of
//!   operation requests, as every scheduler has one. It uses fresh operations only.
//! * **A fault needs evidence.** A fault quotes the records that break the rule. A missing answer
//!   counts only after complete-by. A commit counts only if the replies were read up to the end
//!   that their topic had after the commit was seen.
//! * **Effects are undone at the end**, if the agent can undo. The effects on its service are real.
//! * **It ends.** Complete-by bounds every wait.
//!
//! Deliberately absent: records in Confluent wire format, for which the kit has no registry, and
//! killing the agent, which is another process.

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

/// The agent and step to check, and how long to wait.
#[derive(Clone, Debug)]
pub struct CheckSettings {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The topics, under a prefix of the kit's own. Missing ones are created.
    pub topics: Topics,
    /// Replicas of each partition of topics that are created. Default: 1.
    pub replication: u16,
    /// The agent, which names its topic.
    pub agent: String,
    /// The agent's consumer group. `None` uses `<prefix>-agents`, and does not require that it has
    /// committed offsets. Default: `None`.
    pub group: Option<String>,
    /// The step to request. It must succeed with the input.
    pub step: String,
    /// The workflow that the requests name. Default: `agent-check`.
    pub workflow: String,
    /// The tenant that the requests name. Default: none.
    pub tenant: String,
    /// The input of each operation, a JSON object; `{{operation}}` in it becomes the operation's
    /// id. Default: `{}`.
    pub input: String,
    /// An input for which the step takes longer than [`CheckSettings::SLOW_STEP`]. Default: none.
    pub slow_input: Option<String>,
    /// Outputs of earlier steps, as (`step.name`, value). Default: none.
    pub results: Outputs,
    /// How long the agent may take to answer first. Default: 60 s.
    pub patience: Duration,
    /// Time until complete-by, for requests that expect an answer. Default: 10 s.
    pub complete_within: Duration,
    /// How far an answer's timestamp may be after complete-by. Default: 100 ms.
    pub clock_tolerance: Duration,
    /// How many requests a burst has. Default: 200.
    pub burst: usize,
    /// Whether an agent that refuses every undo breaks the rules of undoing. Default: it counts as
    /// one that cannot undo, and these rules are not tried.
    pub must_undo: bool,
    /// The same for probes.
    pub must_probe: bool,
    /// Rules to skip. Default: none.
    pub without: BTreeSet<Rule>,
}

impl CheckSettings {
    /// Time until complete-by of an attempt with [`CheckSettings::slow_input`].
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

/// The effects under one key, as the service itself counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EffectCounts {
    /// The number of effects.
    pub made: u32,
    /// How many of these were undone.
    pub undone: u32,
}

/// Reports the effects at the agent's service, without asking the agent.
pub trait Ledger {
    /// The effects of a step of an operation.
    ///
    /// # Errors
    ///
    /// Why they cannot be determined.
    fn effects(&self, operation: OperationId, step: &str) -> Result<EffectCounts, LedgerError>;
}

/// Why a ledger did not answer.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// Checks all rules against an agent, which may start before or after. Blocks for the duration:
/// seconds if the agent keeps the rules, a few times `complete_within` if it does not answer. Not
/// for threads of an async runtime.
///
/// # Errors
///
/// If the check could not run: the prefix belongs to an installation, or the brokers are
/// unreachable. An agent that breaks a rule, or does not run, is not an error.
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
