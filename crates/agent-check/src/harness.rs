//! The harness of the cases: sends requests, waits for answers, and records the expected effects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use uuid::Uuid;
use waybill_agent::testing::StepRequestBuilder;
use waybill_clock::wall_clock;
use waybill_engine::{
    Action, Attempt, Epoch, OperationId, Outcome, Outputs, PartitionId, StepRequest,
};
use waybill_messages::Record as _;
use waybill_telemetry::chain;

use crate::commits::{Commits, nothing_committed};
use crate::findings::{Findings, Report};
use crate::rule::Rule;
use crate::transcript::{Expected, SentId, Transcript};
use crate::wire::{Incoming, Outgoing, Wire};
use crate::{CheckError, CheckSettings, judge};

/// How long one poll waits.
const POLL_WAIT: Duration = Duration::from_millis(20);
/// How often to compare the group's offsets with the answers while waiting for answers.
const LOOK_AT_COMMITS_EVERY: Duration = Duration::from_millis(50);
/// How long after complete-by to wait for an answer, so that late ones are detected.
const GRACE: Duration = Duration::from_millis(500);
/// How often to request a step whose outcome is undecided.
const TRIES_MAX: usize = 8;
/// The longest pause between these requests.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the agent may take to commit finished work.
const COMMIT_PATIENCE: Duration = Duration::from_secs(15);

/// The effect that the service should have, according to the answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExpectedEffect {
    /// No effect at any time: the step was not to be performed.
    Untouched,
    /// One effect.
    Made,
    /// No effect: the step was undone.
    Undone,
    /// Undetermined.
    Open,
}

/// The state that all cases use.
pub(super) struct Harness<'a> {
    pub(super) settings: &'a CheckSettings,
    pub(super) wire: Wire,
    pub(super) transcript: Transcript,
    pub(super) findings: Findings,
    /// Whether the agent can undo.
    pub(super) undoes: bool,
    /// Whether the agent's answers to probes are reliable.
    pub(super) probes: bool,
    /// The effect that each operation's step should have.
    pub(super) expected_effects: BTreeMap<OperationId, ExpectedEffect>,
    /// Operations whose step was performed against expectation.
    pub(super) unwanted: BTreeSet<OperationId>,
    attempts: HashMap<(OperationId, String), u32>,
    round: u32,
    commits: Commits,
    looked_at: Instant,
}

impl<'a> Harness<'a> {
    pub(super) fn new(settings: &'a CheckSettings, wire: Wire) -> Self {
        Self {
            settings,
            wire,
            transcript: Transcript::default(),
            findings: Findings::new(settings.without.clone()),
            undoes: false,
            probes: false,
            expected_effects: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            attempts: HashMap::new(),
            round: 0,
            commits: Commits::default(),
            looked_at: Instant::now(),
        }
    }

    /// A fresh operation.
    pub(super) fn operation(&mut self) -> OperationId {
        let operation = OperationId(Uuid::now_v7());
        self.expected_effects
            .insert(operation, ExpectedEffect::Open);
        operation
    }

    /// The next attempt at the step of an operation, with the reply partitions in rotation.
    pub(super) fn request(&mut self, operation: OperationId, action: Action) -> StepRequest {
        let step = self.settings.step.clone();
        self.request_of(operation, &step, action)
    }

    /// The same for a step of any name.
    pub(super) fn request_of(
        &mut self,
        operation: OperationId,
        step: &str,
        action: Action,
    ) -> StepRequest {
        let attempts = self
            .attempts
            .entry((operation, step.to_owned()))
            .or_default();
        *attempts += 1;
        let attempt = Attempt(*attempts);
        self.round += 1;
        let input = with_operation(&self.settings.input, operation);
        let mut request = StepRequestBuilder::new(&self.settings.agent, step)
            .operation(operation)
            .workflow(&self.settings.workflow)
            .tenant(&self.settings.tenant)
            .attempt(attempt)
            .epoch(Epoch(1))
            .action(action)
            .input(&input)
            .complete_within(self.settings.complete_within)
            .reply_partition(PartitionId(self.round % self.wire.reply_partitions()))
            .build();
        request.results.clone_from(&self.settings.results);
        request.traceparent = Some(judge::trace_of(operation).into());
        request
    }

    /// Sends requests in one batch, each to the next partition of the agent's topic.
    pub(super) fn send(
        &mut self,
        requests: Vec<StepRequest>,
        expected: Expected,
    ) -> Result<Vec<SentId>, CheckError> {
        let partitions = self.wire.request_partitions();
        let at: Vec<PartitionId> = requests
            .iter()
            .map(|_| {
                self.round += 1;
                PartitionId(self.round % partitions)
            })
            .collect();
        self.send_to(&at, requests, expected)
    }

    /// Sends requests in one batch, each to its partition.
    pub(super) fn send_to(
        &mut self,
        at: &[PartitionId],
        requests: Vec<StepRequest>,
        expected: Expected,
    ) -> Result<Vec<SentId>, CheckError> {
        let mut records = Vec::with_capacity(requests.len());
        for (request, partition) in requests.iter().zip(at) {
            let mut value = Vec::new();
            request.encode(&mut value)?;
            records.push(Outgoing {
                partition: *partition,
                key: request.operation.key().to_vec(),
                value,
                traceparent: request.traceparent.as_deref().map(str::to_owned),
            });
        }
        let offsets = self.wire.send(&records)?;
        let places = at.iter().copied().zip(offsets);
        Ok(requests
            .into_iter()
            .zip(places)
            .map(|(request, place)| self.transcript.enter(request, expected, place))
            .collect())
    }

    /// Waits until each of these requests is answered, or no answer can arrive any more.
    pub(super) fn wait(&mut self, requests: &[SentId]) -> Result<(), CheckError> {
        let grace = GRACE + self.settings.clock_tolerance;
        loop {
            let now = wall_clock();
            let is_open = |id: &SentId| {
                let sent = self.transcript.get(*id);
                sent.replies.is_empty() && now < sent.request.complete_by + grace
            };
            if !requests.iter().any(is_open) {
                let silent = |id: &SentId| self.transcript.get(*id).replies.is_empty();
                // An answer that the kit was too slow to read is not missing.
                return match requests.iter().any(silent) {
                    true => self.drain(),
                    false => Ok(()),
                };
            }
            let came = self.wire.poll(POLL_WAIT)?;
            self.take(came);
            if self.looked_at.elapsed() >= LOOK_AT_COMMITS_EVERY {
                self.check_commits()?;
            }
        }
    }

    /// Sends requests, waits for their answers, and returns the first of each.
    pub(super) fn answers(
        &mut self,
        requests: Vec<StepRequest>,
    ) -> Result<Vec<Option<Outcome>>, CheckError> {
        let sent = self.send(requests, Expected::Answer)?;
        self.wait(&sent)?;
        Ok(sent.iter().map(|id| self.outcome(*id)).collect())
    }

    pub(super) fn outcome(&self, id: SentId) -> Option<Outcome> {
        self.transcript.get(id).outcome().cloned()
    }

    /// Requests an action as a scheduler does: in more attempts while the outcome is undecided. An
    /// attempt without an answer ends it.
    pub(super) fn ask(
        &mut self,
        operation: OperationId,
        action: Action,
    ) -> Result<Option<Outcome>, CheckError> {
        let mut answer = None;
        for _ in 0..TRIES_MAX {
            let request = self.request(operation, action);
            answer = self.answers(vec![request])?.remove(0);
            let pause = match &answer {
                Some(Outcome::NotAttempted { retry_after_ms, .. }) => {
                    Duration::from_millis(u64::from(*retry_after_ms))
                }
                Some(Outcome::Transient { .. } | Outcome::Unknown { .. }) => GRACE,
                None
                | Some(
                    Outcome::Success { .. } | Outcome::Permanent { .. } | Outcome::NotPerformed,
                ) => break,
            };
            std::thread::sleep(pause.min(PAUSE_MAX));
        }
        Ok(answer)
    }

    /// Performs the step of a fresh operation. Returns its outputs, or records a fault of `rule`.
    pub(super) fn perform(
        &mut self,
        rule: Rule,
    ) -> Result<Option<(OperationId, Outputs)>, CheckError> {
        let operation = self.operation();
        match self.ask(operation, Action::Run)? {
            Some(Outcome::Success { outputs }) => {
                self.expected_effects
                    .insert(operation, ExpectedEffect::Made);
                Ok(Some((operation, sorted(outputs))))
            }
            other => {
                let what = described(other.as_ref());
                self.findings.fault(
                    rule,
                    format!("the step that this rule needs did not succeed: {what}"),
                );
                Ok(None)
            }
        }
    }

    /// Reads all answers that exist by now.
    pub(super) fn drain(&mut self) -> Result<(), CheckError> {
        let came = self.wire.drain()?;
        self.take(came);
        Ok(())
    }

    /// Polls once, for callers that wait for something other than answers.
    pub(super) fn pause(&mut self) -> Result<(), CheckError> {
        let came = self.wire.poll(POLL_WAIT)?;
        self.take(came);
        Ok(())
    }

    fn take(&mut self, came: Vec<Incoming>) {
        for record in came {
            match record {
                Incoming::Reply(record) => self.transcript.read_reply(&record),
                Incoming::DeadLetter(record) => self.transcript.dead_letters.push(record),
            }
        }
    }

    /// Compares the group's offsets with the answers so far.
    fn check_commits(&mut self) -> Result<(), CheckError> {
        self.looked_at = Instant::now();
        let now = wall_clock();
        match self.wire.committed() {
            Ok(committed) => {
                self.commits.refused = None;
                // A reply acknowledged before the commit is below the current ends.
                self.drain()?;
                let faults = self
                    .commits
                    .hold(committed, &self.transcript, self.settings, now);
                for fault in faults {
                    self.findings.fault(Rule::Commit, fault);
                }
            }
            Err(error) => self.commits.refused = Some(chain(&error)),
        }
        Ok(())
    }

    /// Waits until all answered requests are committed.
    pub(super) fn wait_for_commits(&mut self, requests: &[SentId]) -> Result<(), CheckError> {
        let deadline = Instant::now() + COMMIT_PATIENCE;
        loop {
            self.check_commits()?;
            let Some(missing) = self.commits.missing(&self.transcript, requests) else {
                let looked = self.commits.looked;
                self.findings.saw(
                    Rule::Commit,
                    format!("{looked} commits, each after the replies"),
                );
                return Ok(());
            };
            if Instant::now() >= deadline {
                if let Some(refused) = self.commits.refused.take() {
                    let why = format!("cannot read the offsets of the group: {refused}");
                    self.findings.excuse(Rule::Commit, why);
                } else if self.commits.has_begun() {
                    self.findings.fault(Rule::Commit, missing);
                } else if self.settings.group.is_some() {
                    let nothing = nothing_committed(self.settings);
                    self.findings.fault(Rule::Commit, nothing);
                } else {
                    let nothing = nothing_committed(self.settings);
                    self.findings
                        .excuse(Rule::Commit, format!("{nothing}; name the agent's group"));
                }
                return Ok(());
            }
            self.pause()?;
        }
    }

    /// The operations that may have an effect.
    pub(super) fn left(&self) -> Vec<OperationId> {
        let is_left = |operation: &OperationId, effect: ExpectedEffect| match effect {
            ExpectedEffect::Made | ExpectedEffect::Open => true,
            ExpectedEffect::Untouched | ExpectedEffect::Undone => self.unwanted.contains(operation),
        };
        let operations = self.expected_effects.iter();
        operations
            .filter(|(operation, effect)| is_left(operation, **effect))
            .map(|(operation, _)| *operation)
            .collect()
    }

    /// Judges the rules about all answers, and completes the findings.
    pub(super) fn report(mut self) -> Report {
        judge::judge(&self.transcript, self.settings, &mut self.findings);
        Report {
            operations: self.expected_effects.len(),
            left: self.left().len(),
            findings: self.findings.into_findings(),
        }
    }
}

/// The input of an operation.
pub(super) fn with_operation(input: &str, operation: OperationId) -> String {
    input.replace("{{operation}}", &operation.to_string())
}

/// Outputs sorted by name: maps have no order.
pub(super) fn sorted(mut outputs: Outputs) -> Outputs {
    outputs.sort();
    outputs
}

/// An answer as text for people.
pub(super) fn described(outcome: Option<&Outcome>) -> String {
    match outcome {
        None => "no answer".to_owned(),
        Some(Outcome::Success { outputs }) => {
            let outputs: Vec<String> = sorted(outputs.clone())
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            format!("Success ({})", outputs.join(", "))
        }
        Some(Outcome::NotPerformed) => "NotPerformed".to_owned(),
        Some(Outcome::Transient { error }) => {
            format!("Transient ({}: {})", error.code, error.message)
        }
        Some(Outcome::Permanent { error }) => {
            format!("Permanent ({}: {})", error.code, error.message)
        }
        Some(Outcome::Unknown { error }) => format!("Unknown ({}: {})", error.code, error.message),
        Some(Outcome::NotAttempted {
            error,
            retry_after_ms,
        }) => format!(
            "NotAttempted for {retry_after_ms} ms ({}: {})",
            error.code, error.message
        ),
    }
}
