//! Decides, from rows and records alone, what a supervisor requests from the scheduler.
//!
//! A supervisor knows workflows, but no business rules. It never changes an operation: its request
//! names the attempt that it saw, and the scheduler judges it against the current row. So two
//! supervisors may send the same request, and one may send it twice.

use std::time::Duration;

use uuid::Uuid;

use crate::action::Action;
use crate::definition::OnFailure;
use crate::id::OperationId;
use crate::operation::{OperationRow, OperationState, ProcessState, StepProgress, StepState};
use crate::partition::failure_id;
use crate::record::{AttemptSeen, FailedOperation, Recovery, RecoveryVerb};
use crate::time::Timestamp;
use crate::workflow::{Step, Undo, Workflow, Workflows};

/// What a supervisor knows in addition to a row or a record.
#[derive(Clone, Copy, Debug)]
pub struct Supervision<'a> {
    /// The supervisor's name.
    pub name: &'a str,
    /// All workflows.
    pub workflows: &'a Workflows,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
}

impl Supervision<'_> {
    /// The recovery for an index entry that came up. There always is one: the scheduler must learn
    /// that the entry is used up.
    #[must_use]
    pub fn entry_came_up(
        &self,
        row: &OperationRow,
        due: Timestamp,
        now: Timestamp,
    ) -> Vec<Recovery> {
        let created = &row.created;
        let workflow = self
            .workflows
            .get(&created.workflow, created.workflow_version);
        let verbs = match workflow {
            Some(workflow) if row.state.steps.len() == workflow.steps().len() => {
                self.verbs(workflow, &row.state, now)
            }
            Some(_) | None => Vec::new(),
        };
        let failure = failure_id(row.id, row.state.failed_count);
        let mut asked: Vec<_> = verbs
            .into_iter()
            .map(|(verb, reason)| self.recovery(row.id, failure, verb, reason, now))
            .collect();
        if asked.is_empty() {
            let reason = "an index entry is due";
            asked.push(self.recovery(row.id, failure, RecoveryVerb::Wake, reason, now));
        }
        if let Some(first) = asked.first_mut() {
            first.due = Some(due);
        }
        asked
    }

    /// The recovery for an operation that failed for good; `None` if it needs no decision.
    #[must_use]
    pub fn failed(&self, failed: &FailedOperation, now: Timestamp) -> Option<Recovery> {
        let step = failed
            .failing_step
            .as_deref()
            .filter(|_| failed.awaits_decision)?;
        let seen = AttemptSeen {
            step: step.to_owned(),
            action: failed.failing_action,
            attempt: failed.failing_attempt,
        };
        let workflow = self
            .workflows
            .get(&failed.workflow, failed.workflow_version);
        let is_completed = |step: &Step| {
            let mut states = failed.step_states.iter();
            states.any(|(name, state)| **name == *step.name && *state == StepState::Completed)
        };
        let (verb, reason) = decide(workflow.map(|found| &**found), seen, is_completed);
        Some(self.recovery(failed.operation, failed.event_id, verb, reason, now))
    }

    fn verbs(
        &self,
        workflow: &Workflow,
        state: &OperationState,
        now: Timestamp,
    ) -> Vec<(RecoveryVerb, &'static str)> {
        if state.state.is_final() {
            return Vec::new();
        }
        if state.awaits_decision() {
            return decision(workflow, state).into_iter().collect();
        }
        let steps = workflow.steps().iter().zip(&state.steps);
        steps
            .filter(|(_, progress)| {
                let is_undone = state.state == ProcessState::Compensating;
                !is_undone || progress.state == StepState::Compensating
            })
            .filter_map(|(step, progress)| self.retry(step, progress, now))
            .collect()
    }

    /// The retry of a step whose complete-by has passed, or whose retry is due.
    fn retry(
        &self,
        step: &Step,
        progress: &StepProgress,
        now: Timestamp,
    ) -> Option<(RecoveryVerb, &'static str)> {
        let (due, reason) = match (progress.complete_by, progress.retry_at) {
            (Some(complete_by), _) => (complete_by + self.timeout_grace, "complete-by has passed"),
            (None, Some(retry_at)) => (retry_at, "the time for its retry has come"),
            (None, None) => return None,
        };
        let budget = step.tries_for(step.next_action(progress)).timeout;
        let seen = seen(step, progress);
        (due <= now).then_some((RecoveryVerb::Retry { seen, budget }, reason))
    }

    fn recovery(
        &self,
        operation: OperationId,
        failure: Uuid,
        verb: RecoveryVerb,
        reason: &str,
        now: Timestamp,
    ) -> Recovery {
        Recovery {
            id: recovery_id(operation, failure, &verb),
            operation,
            asked_by: self.name.to_owned(),
            reason: reason.to_owned(),
            asked_at: now,
            due: None,
            verb,
        }
    }
}

/// The same for equal recoveries of the same attempt. Decisions about a failure (park, compensate)
/// also include the failure: a step may fail for good twice without a new attempt in between.
fn recovery_id(operation: OperationId, failure: Uuid, verb: &RecoveryVerb) -> Uuid {
    let about = verb.seen().map_or_else(String::new, |seen| {
        let attempt = format!("/{}/{}/{}", seen.step, seen.action.as_str(), seen.attempt);
        match verb {
            RecoveryVerb::Retry { .. } => attempt,
            _ => format!("{attempt}/{failure}"),
        }
    });
    operation.event_id(&format!("{}{about}", verb.as_str()))
}

fn decision(workflow: &Workflow, state: &OperationState) -> Option<(RecoveryVerb, &'static str)> {
    let failed = state.error.as_ref()?.step.as_deref()?;
    let index = workflow.step_index(failed)?;
    let seen = seen(&workflow.steps()[index], &state.steps[index]);
    let is_completed = |step: &Step| {
        let index = workflow.step_index(&step.name);
        index.is_some_and(|index| state.steps[index].state == StepState::Completed)
    };
    Some(decide(Some(workflow), seen, is_completed))
}

/// Decides how an operation ends that failed for good at the attempt that was seen.
fn decide(
    workflow: Option<&Workflow>,
    seen: AttemptSeen,
    is_completed: impl Fn(&Step) -> bool,
) -> (RecoveryVerb, &'static str) {
    let Some((workflow, index)) =
        workflow.and_then(|found| Some((found, found.step_index(&seen.step)?)))
    else {
        return (
            RecoveryVerb::Park { seen },
            "the operation's workflow is unknown",
        );
    };
    let mut steps = workflow.steps().iter();
    if steps.any(|step| (step.is_pivot || step.undo == Undo::Impossible) && is_completed(step)) {
        return (RecoveryVerb::Park { seen }, "it can only go forward");
    }
    match workflow.steps()[index].on_failure {
        OnFailure::Park => (
            RecoveryVerb::Park { seen },
            "its workflow sets onFailure: park",
        ),
        OnFailure::Compensate | OnFailure::Retry => (
            RecoveryVerb::Compensate { seen: Some(seen) },
            "forward progress has ended",
        ),
    }
}

fn seen(step: &Step, progress: &StepProgress) -> AttemptSeen {
    AttemptSeen {
        step: step.name.to_string(),
        action: match progress.attempt.0 {
            0 => Action::default(),
            _ => progress.action,
        },
        attempt: progress.attempt,
    }
}
