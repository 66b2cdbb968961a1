//! Decides what an operation does next: which steps start, are skipped, retried, given up or
//! undone, and when the operation ends.
//!
//! Every function changes an [`OperationState`] through the steps' transition function alone, and
//! then advances the operation as far as possible. What must hold when it returns: every step that
//! can start has started, and an operation that is neither final nor waiting for the supervisor's
//! decision has a step in progress or waiting for a retry. Deliberately absent: rows, messages and
//! memory; see [`PartitionEngine`](crate::PartitionEngine).

use std::time::Duration;

use crate::action::{Action, Outputs};
use crate::gate::{Gates, Traffic};
use crate::id::OperationId;
use crate::operation::{Created, OperationState, ProcessState, StepError, StepProgress, StepState};
use crate::record::{Outcome, STEP_REQUEST_REFUSED, StepReply};
use crate::stats::EngineStats;
use crate::step::{IllegalTransition, Jitter, RETRY_AFTER_MAX, StepEvent, transition};
use crate::time::Timestamp;
use crate::workflow::{StepSet, Undo, Workflow};

mod amend;
mod forward;
mod recover;
mod undo;

pub use amend::INPUT_BYTES_MAX;
pub use recover::{Verdict, recover_without_workflow};

/// Maximum size of the outputs of all steps, in bytes: they are stored in the operation's row and
/// sent in later step requests, which must fit into a record together with the input.
pub const OUTPUTS_BYTES_MAX: usize = 256 * 1024;

/// Maximum size of a stored error code or error message, in bytes.
const ERROR_BYTES_MAX: usize = 4 * 1024;

/// Approximate overhead of an output excluding its name and value, in bytes.
const PAIR_BYTES: usize = 48;

/// An operation and its workflow at one instant.
#[derive(Debug)]
pub struct Advance<'a> {
    /// The operation.
    pub id: OperationId,
    /// The part of the operation that never changes.
    pub created: &'a Created,
    /// Its workflow, with the steps of `state`.
    pub workflow: &'a Workflow,
    /// Its state.
    pub state: &'a mut OperationState,
    /// The throttling state of the agents.
    pub gates: &'a mut Gates,
    /// Collects the steps whose attempt must be requested.
    pub ask: &'a mut StepSet,
    /// Collects the steps whose state changed.
    pub touched: &'a mut StepSet,
    /// Counts what happens.
    pub stats: &'a mut EngineStats,
    /// The current time.
    pub now: Timestamp,
}

/// When an attempt in progress may be timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// How long after its complete-by an attempt counts as timed out.
    pub grace: Duration,
    /// Whether replies were read far enough to conclude that a missing reply was not sent.
    pub time_outs: bool,
}

/// The result of handling due steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DueOutcome {
    /// The state was changed.
    pub changed: bool,
    /// An attempt is overdue, but its reply may still be unread.
    pub held_back: bool,
}

impl Advance<'_> {
    /// Starts a new operation.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn start(&mut self) -> Result<(), IllegalTransition> {
        self.proceed()
    }

    /// Takes an operation over from an earlier owner. Attempts in progress are requested again,
    /// because the earlier request might not have been sent.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn resume(&mut self) -> Result<(), IllegalTransition> {
        for index in 0..self.state.steps.len() {
            if self.state.steps[index].is_under_way() {
                self.step(index, StepEvent::Resume)?;
                self.ask.insert(index);
            }
        }
        self.proceed()
    }

    /// Applies a reply. Returns whether it changed the state. A reply to an attempt that is not in
    /// progress changes nothing, except that a late success is kept, and undone if everything else
    /// is. `is_repeat`: the record was read before, and the state already reflects it.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn reply(&mut self, reply: StepReply, is_repeat: bool) -> Result<bool, IllegalTransition> {
        let Some(index) = self.workflow.step_index(&reply.step) else {
            self.stats.stale_replies += 1;
            return Ok(false);
        };
        if !self.answers_attempt_under_way(index, &reply) {
            if self.is_awaited(index, &reply) {
                return self.awaited(index, reply);
            }
            self.stats.stale_replies += 1;
            return self.late(index, &reply, is_repeat);
        }
        let now = self.now;
        let agent = self.workflow.steps()[index].agent_for(reply.action);
        match &reply.outcome {
            Outcome::Success { .. } | Outcome::Permanent { .. } | Outcome::NotPerformed => {
                self.gates.succeeded(agent);
            }
            Outcome::NotAttempted { error, .. } if error.code == STEP_REQUEST_REFUSED => {}
            Outcome::NotAttempted { retry_after_ms, .. } => {
                self.gates.refused(agent, retry_after(*retry_after_ms), now);
            }
            Outcome::Transient { .. } | Outcome::Unknown { .. } => {}
        }
        let event = match reply.outcome {
            Outcome::Success { outputs } if self.is_too_long(index, &outputs) => {
                // The step was performed, and will be undone.
                self.state.failure_count += 1;
                StepEvent::FailedPermanently {
                    error: StepError {
                        code: "outputs-too-long".to_owned(),
                        message: format!(
                            "the outputs of all steps together exceed {OUTPUTS_BYTES_MAX} bytes"
                        ),
                    },
                }
            }
            Outcome::Success { outputs } => StepEvent::Succeeded { outputs },
            Outcome::NotPerformed if reply.action == Action::Run => {
                // The reply does not fit the request. Count it as a failure.
                self.state.failure_count += 1;
                StepEvent::FailedTransiently {
                    error: StepError {
                        code: "answer-invalid".to_owned(),
                        message:
                            "the agent answered a request to perform the step as if it were a probe"
                                .to_owned(),
                    },
                    unknown: true,
                }
            }
            Outcome::NotPerformed => StepEvent::NotPerformed,
            Outcome::Transient { error } => {
                self.state.failure_count += 1;
                StepEvent::FailedTransiently {
                    error: clipped(error),
                    unknown: false,
                }
            }
            Outcome::Unknown { error } => {
                self.stats.unknown_outcomes += 1;
                self.state.failure_count += 1;
                StepEvent::FailedTransiently {
                    error: clipped(error),
                    unknown: true,
                }
            }
            Outcome::Permanent { error } => {
                self.state.failure_count += 1;
                StepEvent::FailedPermanently {
                    error: clipped(error),
                }
            }
            Outcome::NotAttempted {
                error,
                retry_after_ms,
            } => {
                self.stats.not_attempted += 1;
                StepEvent::NotAttempted {
                    error: clipped(error),
                    retry_after: retry_after(retry_after_ms),
                }
            }
        };
        self.step(index, event)?;
        self.give_up_if_late(index);
        self.proceed()?;
        Ok(true)
    }

    /// Whether a step's outputs would make the operation too large for its row, and for the
    /// requests of later steps.
    fn is_too_long(&self, index: usize, outputs: &Outputs) -> bool {
        let is_undo = self.state.steps[index].action == Action::Compensate;
        let others = self
            .state
            .steps
            .iter()
            .map(|step| pair_bytes(&step.outputs));
        !is_undo && others.sum::<usize>() + pair_bytes(outputs) > OUTPUTS_BYTES_MAX
    }

    /// Ends forward progress now if a failed or unattempted step would wait past the deadline.
    fn give_up_if_late(&mut self, index: usize) {
        let is_forward =
            self.state.state == ProcessState::Processing && !self.state.awaits_decision();
        if let Some(at) = self.state.steps[index].retry_at.filter(|_| is_forward) {
            self.fail_if_late(index, at);
        }
    }

    /// Times out overdue attempts, if `patience` allows it, and starts attempts that are due.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn due(&mut self, patience: Patience) -> Result<DueOutcome, IllegalTransition> {
        let mut outcome = DueOutcome::default();
        if self.state.state.is_final() {
            return Ok(outcome);
        }
        for index in 0..self.state.steps.len() {
            let Some(at) = step_due(self.state, index, patience.grace) else {
                continue;
            };
            if at > self.now {
                continue;
            }
            if self.state.steps[index].is_under_way() && !patience.time_outs {
                outcome.held_back = true;
                continue;
            }
            self.step_is_due(index, None)?;
            outcome.changed = true;
        }
        if outcome.changed {
            self.proceed()?;
        }
        Ok(outcome)
    }

    /// Times out the attempt in progress, or starts the next one.
    fn step_is_due(
        &mut self,
        index: usize,
        budget: Option<Duration>,
    ) -> Result<(), IllegalTransition> {
        if self.state.steps[index].is_under_way() {
            self.stats.time_outs += 1;
            self.state.failure_count += 1;
            self.step(index, StepEvent::TimedOut)?;
            self.give_up_if_late(index);
            return Ok(());
        }
        let is_forward = self.state.state == ProcessState::Processing;
        if is_forward && self.fail_if_late(index, self.now + self.pause_of(index)) {
            return Ok(());
        }
        if self.put_off_if_throttled(index)? {
            return Ok(());
        }
        self.stats.retries += 1;
        self.step(index, StepEvent::Retry { budget })?;
        self.ask.insert(index);
        Ok(())
    }

    /// Delays the attempt that would start now if its agent is throttled; otherwise counts it as
    /// requested.
    fn put_off_if_throttled(&mut self, index: usize) -> Result<bool, IllegalTransition> {
        let step = &self.workflow.steps()[index];
        let progress = &self.state.steps[index];
        let action = step.next_action(progress);
        let failures = match progress.state {
            StepState::Compensating => progress.undo_failure_count,
            _ => progress.failure_count,
        };
        let traffic = match failures {
            0 => Traffic::First,
            _ => Traffic::Retry,
        };
        let agent = step.agent_for(action);
        match self.gates.admit(agent, traffic, self.now) {
            Ok(()) => Ok(false),
            Err(wait) => {
                self.stats.put_off += 1;
                self.step(index, StepEvent::PutOff { wait })?;
                Ok(true)
            }
        }
    }

    fn answers_attempt_under_way(&self, index: usize, reply: &StepReply) -> bool {
        let step = &self.state.steps[index];
        // An operation parked in `Error` may resume, so steps in progress still count.
        (!self.state.state.is_final() || self.state.state == ProcessState::Error)
            && step.is_under_way()
            && step.attempt == reply.attempt
            && step.action == reply.action
    }

    /// Whether this is the reply that an undo waits for: to the attempt in progress when it began.
    fn is_awaited(&self, index: usize, reply: &StepReply) -> bool {
        let step = &self.state.steps[index];
        step.awaited_until.is_some() && (step.attempt, step.action) == (reply.attempt, reply.action)
    }

    /// Applies the reply that an undo waited for. The undo begins if the reply is conclusive.
    fn awaited(&mut self, index: usize, reply: StepReply) -> Result<bool, IllegalTransition> {
        let outputs = match reply.outcome {
            Outcome::Unknown { .. } => return Ok(false),
            Outcome::Success { outputs } => {
                self.stats.late_successes += 1;
                // The undo cannot use outputs that do not fit into the row.
                let is_too_long = self.is_too_long(index, &outputs);
                Some(outputs).filter(|_| !is_too_long)
            }
            Outcome::Transient { .. }
            | Outcome::Permanent { .. }
            | Outcome::NotPerformed
            | Outcome::NotAttempted { .. } => None,
        };
        self.step(index, StepEvent::OutcomeKnown { outputs })?;
        self.proceed()?;
        Ok(true)
    }

    /// A reply to an attempt that is not in progress matters only if it proves an effect that is
    /// not accounted for. Before the step's undo began, that is a success of an attempt not yet
    /// known to have succeeded. Afterwards it is any success: an attempt may have been made more
    /// than once, and the undo may have preceded the effect of this copy.
    fn late(
        &mut self,
        index: usize,
        reply: &StepReply,
        is_repeat: bool,
    ) -> Result<bool, IllegalTransition> {
        let step = &self.state.steps[index];
        let is_success = matches!(reply.outcome, Outcome::Success { .. });
        let undo_began = matches!(step.state, StepState::Compensating | StepState::Compensated);
        let is_known = if undo_began {
            is_repeat
        } else {
            [step.succeeded, step.late_success].contains(&Some(reply.attempt))
        };
        // A step without effects has nothing to undo.
        let is_over = step.state == StepState::Compensated
            && self.workflow.steps()[index].undo == Undo::Nothing;
        if !is_success
            || is_known
            || is_over
            || reply.action == Action::Compensate
            || reply.attempt > step.attempt
            || matches!(step.state, StepState::Completed | StepState::Skipped)
        {
            return Ok(false);
        }
        self.stats.late_successes += 1;
        let attempt = reply.attempt;
        self.step(index, StepEvent::LateSuccess { attempt })?;
        match self.state.state {
            ProcessState::Compensated
            | ProcessState::Cancelled
            | ProcessState::CompensationFailed => {
                self.state.state = ProcessState::Compensating;
            }
            ProcessState::Pending
            | ProcessState::Processing
            | ProcessState::Processed
            | ProcessState::Error
            | ProcessState::Compensating => {}
        }
        self.proceed()?;
        Ok(true)
    }

    /// Advances the operation as far as possible.
    fn proceed(&mut self) -> Result<(), IllegalTransition> {
        match self.state.state {
            ProcessState::Processing => self.go_forward(),
            ProcessState::Compensating => self.go_back(),
            ProcessState::Pending
            | ProcessState::Processed
            | ProcessState::Error
            | ProcessState::Compensated
            | ProcessState::Cancelled
            | ProcessState::CompensationFailed => Ok(()),
        }
    }

    fn step(&mut self, index: usize, event: StepEvent) -> Result<(), IllegalTransition> {
        let before = self.state.steps[index].state;
        transition(
            &mut self.state.steps[index],
            event,
            &self.workflow.steps()[index],
            Jitter::of(self.id, index),
            self.now,
        )?;
        if self.state.steps[index].state != before {
            self.touched.insert(index);
        }
        Ok(())
    }
}

/// How long to leave an agent alone after it did not try.
fn retry_after(asked_ms: u32) -> Duration {
    Duration::from_millis(u64::from(asked_ms)).min(RETRY_AFTER_MAX)
}

/// Truncates an error for storage, because an agent controls its size.
fn clipped(error: StepError) -> StepError {
    let clip = |mut text: String| {
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        text
    };
    StepError {
        code: clip(error.code),
        message: clip(error.message),
    }
}

/// Approximate size of outputs in memory, in bytes.
pub(crate) fn pair_bytes(pairs: &[(String, String)]) -> usize {
    let sizes = pairs
        .iter()
        .map(|(name, value)| name.len() + value.len() + PAIR_BYTES);
    sizes.sum()
}

/// When a step is next due: its time-out, or its next attempt. While the supervisor has yet to
/// decide, no step is retried; while the operation is undone, only undos are.
fn step_due(state: &OperationState, index: usize, grace: Duration) -> Option<Timestamp> {
    let step: &StepProgress = &state.steps[index];
    let is_concerned = match state.state {
        ProcessState::Compensating => step.state == StepState::Compensating,
        ProcessState::Pending
        | ProcessState::Processing
        | ProcessState::Processed
        | ProcessState::Error
        | ProcessState::Compensated
        | ProcessState::Cancelled
        | ProcessState::CompensationFailed => true,
    };
    match step.complete_by {
        _ if !is_concerned => None,
        Some(complete_by) => Some(complete_by + grace),
        None if state.awaits_decision() => None,
        None => step.retry_at,
    }
}

/// The earliest time after `after` at which a step is due.
#[must_use]
pub fn next_due(
    state: &OperationState,
    grace: Duration,
    after: Option<Timestamp>,
) -> Option<Timestamp> {
    (0..state.steps.len())
        .filter_map(|index| step_due(state, index, grace))
        .filter(|due| after.is_none_or(|after| *due > after))
        .min()
}

/// The outputs that an attempt at a step receives, as (`step.name`, value): those of earlier steps,
/// and for an undo also the step's own.
#[must_use]
pub fn results_for(workflow: &Workflow, state: &OperationState, index: usize) -> Outputs {
    let is_undo = state.steps[index].action == Action::Compensate;
    let has_outputs = |step: usize| !state.steps[step].outputs.is_empty();
    let known = || {
        let ancestors = workflow.steps()[index].ancestors.iter();
        let own = is_undo.then_some(index);
        ancestors.chain(own).filter(|step| has_outputs(*step))
    };
    let count = known().map(|step| state.steps[step].outputs.len());
    let mut results = Vec::with_capacity(count.sum());
    for known in known() {
        let step = &*workflow.step_names()[known];
        for (name, value) in &state.steps[known].outputs {
            results.push(([step, ".", name].concat(), value.clone()));
        }
    }
    results
}
