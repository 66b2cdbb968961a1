//! What an operation does next: which steps start, which are skipped, tried again or given up, and
//! when the whole has ended.
//!
//! Every function here changes an [`OperationState`] through the steps' transition function alone
//! and then lets the operation go as far as it can. What must hold when one returns: no step that
//! could start stands still, and an operation that is not final has a step that is running or
//! waits to be tried again. Deliberately absent: rows, messages and memory; see
//! [`PartitionEngine`](crate::PartitionEngine).

use std::time::Duration;

use crate::id::OperationId;
use crate::operation::{OperationError, OperationState, ProcessState, StepProgress, StepState};
use crate::partition::EngineStats;
use crate::record::{Outcome, Outputs, StepReply};
use crate::step::{IllegalTransition, Spread, StepEvent, transition};
use crate::time::Timestamp;
use crate::workflow::{StepCondition, StepSet, Workflow};

/// An operation in the hands of its workflow, at one instant.
#[derive(Debug)]
pub struct Advance<'a> {
    /// The operation.
    pub id: OperationId,
    /// Its workflow; its steps are those of `state`.
    pub workflow: &'a Workflow,
    /// Its state.
    pub state: &'a mut OperationState,
    /// Collects the steps whose running attempt has to be asked for.
    pub ask: &'a mut StepSet,
    /// Counts what happens.
    pub stats: &'a mut EngineStats,
    /// The time.
    pub now: Timestamp,
}

/// What became of what was due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DueOutcome {
    /// The state was changed.
    pub changed: bool,
    /// An attempt is overdue, but it is not known yet whether its reply lies unread.
    pub held_back: bool,
}

impl Advance<'_> {
    /// Begins a new operation.
    ///
    /// # Errors
    ///
    /// If the steps are in a state that the engine never makes.
    pub fn start(&mut self) -> Result<(), IllegalTransition> {
        self.go_on()
    }

    /// Takes an operation over from an earlier owner: what runs is asked for again, for the
    /// request may never have been sent.
    ///
    /// # Errors
    ///
    /// If the steps are in a state that the engine never makes.
    pub fn resume(&mut self) -> Result<(), IllegalTransition> {
        for index in 0..self.state.steps.len() {
            if self.state.steps[index].state == StepState::Running {
                self.step(index, StepEvent::Resume)?;
                self.ask.insert(index);
            }
        }
        self.go_on()
    }

    /// Applies a reply if it answers a running attempt of an operation that is not final. Returns
    /// whether it did; a reply to anything else changes nothing.
    ///
    /// # Errors
    ///
    /// If the steps are in a state that the engine never makes.
    pub fn reply(&mut self, reply: StepReply) -> Result<bool, IllegalTransition> {
        let index = self.workflow.step_index(&reply.step);
        let Some(index) = index.filter(|index| self.answers_running(*index, &reply)) else {
            self.count_stale(index, &reply.outcome);
            return Ok(false);
        };
        let event = match reply.outcome {
            Outcome::Success { outputs } => StepEvent::Succeeded { outputs },
            Outcome::Transient { error } | Outcome::Unknown { error } => {
                self.state.failure_count += 1;
                StepEvent::FailedTransiently { error }
            }
            Outcome::Permanent { error } => {
                self.state.failure_count += 1;
                StepEvent::FailedPermanently { error }
            }
            Outcome::NotAttempted {
                error,
                retry_after_ms,
            } => {
                self.stats.not_attempted += 1;
                StepEvent::NotAttempted {
                    error,
                    retry_after: Duration::from_millis(u64::from(retry_after_ms)),
                }
            }
        };
        self.step(index, event)?;
        self.go_on()?;
        Ok(true)
    }

    /// Gives up attempts that outlived their complete-by and `grace`, if `time_outs` may be
    /// applied, and makes the attempts whose time has come.
    ///
    /// # Errors
    ///
    /// If the steps are in a state that the engine never makes.
    pub fn due(
        &mut self,
        grace: Duration,
        time_outs: bool,
    ) -> Result<DueOutcome, IllegalTransition> {
        let mut outcome = DueOutcome::default();
        if self.state.state.is_final() {
            return Ok(outcome);
        }
        for index in 0..self.state.steps.len() {
            let Some(at) = step_due(&self.state.steps[index], grace) else {
                continue;
            };
            if at > self.now {
                continue;
            }
            if self.state.steps[index].state != StepState::Running {
                self.stats.retries += 1;
                self.step(index, StepEvent::Retry)?;
                self.ask.insert(index);
            } else if time_outs {
                self.stats.time_outs += 1;
                self.state.failure_count += 1;
                self.step(index, StepEvent::TimedOut)?;
            } else {
                outcome.held_back = true;
                continue;
            }
            outcome.changed = true;
        }
        if outcome.changed {
            self.go_on()?;
        }
        Ok(outcome)
    }

    fn answers_running(&self, index: usize, reply: &StepReply) -> bool {
        let step = &self.state.steps[index];
        !self.state.state.is_final()
            && step.state == StepState::Running
            && step.attempt == reply.attempt
    }

    fn count_stale(&mut self, index: Option<usize>, outcome: &Outcome) {
        self.stats.stale_replies += 1;
        let unfinished =
            index.is_some_and(|index| self.state.steps[index].state != StepState::Completed);
        if unfinished && matches!(outcome, Outcome::Success { .. }) {
            self.stats.late_successes += 1;
        }
    }

    /// Starts and skips what can be, and ends the operation if nothing is left to do for it.
    fn go_on(&mut self) -> Result<(), IllegalTransition> {
        if let Some(index) = self.state.steps.iter().position(failed_for_good) {
            self.end(ProcessState::Error, Some(index));
            return Ok(());
        }
        // In this order one pass is enough: a skipped step comes before all that wait for it.
        let workflow = self.workflow;
        for &index in workflow.order() {
            let step = &workflow.steps()[index];
            let progress = &self.state.steps[index];
            let untouched = progress.state == StepState::NotStarted && progress.retry_at.is_none();
            if !untouched || !step.after.iter().all(|before| self.has_ended(before)) {
                continue;
            }
            if step.when.as_ref().is_none_or(|when| self.holds(when)) {
                self.step(index, StepEvent::Start)?;
                self.ask.insert(index);
            } else {
                self.step(index, StepEvent::Skip)?;
            }
        }
        if (0..self.state.steps.len()).all(|index| self.has_ended(index)) {
            self.end(ProcessState::Processed, None);
        }
        Ok(())
    }

    fn has_ended(&self, index: usize) -> bool {
        matches!(
            self.state.steps[index].state,
            StepState::Completed | StepState::Skipped
        )
    }

    fn holds(&self, when: &StepCondition) -> bool {
        let read = &self.state.steps[when.step];
        read.state == StepState::Completed
            && read
                .outputs
                .iter()
                .any(|(name, value)| *name == when.output && *value == when.equals)
    }

    fn end(&mut self, state: ProcessState, failing: Option<usize>) {
        self.state.state = state;
        self.state.error = failing.and_then(|index| {
            Some(OperationError {
                step: Some(self.workflow.step_names()[index].to_string()),
                error: self.state.steps[index].error.clone()?,
            })
        });
    }

    fn step(&mut self, index: usize, event: StepEvent) -> Result<(), IllegalTransition> {
        transition(
            &mut self.state.steps[index],
            event,
            &self.workflow.steps()[index],
            Spread::of(self.id, index),
            self.now,
        )
    }
}

/// Whether no other attempt follows the failure of this step.
fn failed_for_good(step: &StepProgress) -> bool {
    matches!(step.state, StepState::Failed | StepState::TimedOut) && step.retry_at.is_none()
}

/// When something is due for a step: its time-out, or its next attempt.
fn step_due(step: &StepProgress, grace: Duration) -> Option<Timestamp> {
    match step.state {
        StepState::Running => step.complete_by.map(|by| by + grace),
        StepState::NotStarted | StepState::Failed | StepState::TimedOut => step.retry_at,
        StepState::Completed | StepState::Skipped => None,
    }
}

/// When something is due next, of what is due after `after`.
#[must_use]
pub fn next_due(
    state: &OperationState,
    grace: Duration,
    after: Option<Timestamp>,
) -> Option<Timestamp> {
    state
        .steps
        .iter()
        .filter_map(|step| step_due(step, grace))
        .filter(|due| after.is_none_or(|after| *due > after))
        .min()
}

/// What the completed steps before a step produced, as (`step.name`, value).
#[must_use]
pub fn results_before(workflow: &Workflow, state: &OperationState, index: usize) -> Outputs {
    let completed = || {
        let ancestors = workflow.steps()[index].ancestors.iter();
        ancestors.filter(|before| state.steps[*before].state == StepState::Completed)
    };
    let count = completed().map(|before| state.steps[before].outputs.len());
    let mut results = Vec::with_capacity(count.sum());
    for before in completed() {
        let step = &*workflow.step_names()[before];
        for (name, value) in &state.steps[before].outputs {
            results.push(([step, ".", name].concat(), value.clone()));
        }
    }
    results
}
