//! Checks that a workflow can keep its promise: a failed operation is undone, or parked.
//!
//! What must hold of a valid workflow: once a step that cannot be undone is completed, no later
//! event requires its undo.

use std::time::Duration;

use crate::definition::{CancelPolicy, OnFailure};
use crate::workflow::{RetryIntervals, Step, Tries, Undo, Workflow, WorkflowError};

/// Checks everything that concerns more than one step, or the workflow as a whole.
pub(super) fn check(workflow: &Workflow) -> Result<(), WorkflowError> {
    pivots(workflow)?;
    irreversible_steps(workflow)?;
    cancel(workflow)?;
    schedules(workflow)
}

fn pivots(workflow: &Workflow) -> Result<(), WorkflowError> {
    let pivots = workflow.steps.iter().enumerate();
    for (index, pivot) in pivots.filter(|(_, step)| step.is_pivot) {
        for (other, step) in workflow.steps.iter().enumerate() {
            let is_behind = step.ancestors.contains(index);
            if other != index && !is_behind && !pivot.ancestors.contains(other) {
                return Err(WorkflowError::BesidePivot {
                    workflow: workflow.name.to_string(),
                    pivot: pivot.name.to_string(),
                    step: step.name.to_string(),
                });
            }
            if is_behind && step.on_failure == OnFailure::Compensate {
                return Err(WorkflowError::CompensateBehindPivot {
                    workflow: workflow.name.to_string(),
                    step: step.name.to_string(),
                    pivot: pivot.name.to_string(),
                });
            }
        }
    }
    Ok(())
}

fn irreversible_steps(workflow: &Workflow) -> Result<(), WorkflowError> {
    let has_pivot_before = |step: &Step| {
        let mut before = step.ancestors.iter();
        before.any(|before| workflow.steps[before].is_pivot)
    };
    for (index, step) in workflow.steps.iter().enumerate() {
        if step.undo != Undo::Impossible || step.is_pivot || has_pivot_before(step) {
            continue;
        }
        let mut later = workflow.steps.iter().enumerate();
        let may_fail = later.find(|(other, later)| {
            *other != index
                && !step.ancestors.contains(*other)
                && later.on_failure != OnFailure::Park
        });
        if let Some((_, may_fail)) = may_fail {
            return Err(WorkflowError::IrreversibleTooEarly {
                workflow: workflow.name.to_string(),
                step: step.name.to_string(),
                may_fail: may_fail.name.to_string(),
            });
        }
    }
    Ok(())
}

fn cancel(workflow: &Workflow) -> Result<(), WorkflowError> {
    if workflow.cancel != CancelPolicy::Always {
        return Ok(());
    }
    let mut steps = workflow.steps.iter();
    match steps.find(|step| step.undo == Undo::Impossible || step.is_pivot) {
        None => Ok(()),
        Some(step) => Err(WorkflowError::CancelAlways {
            workflow: workflow.name.to_string(),
            step: step.name.to_string(),
        }),
    }
}

fn schedules(workflow: &Workflow) -> Result<(), WorkflowError> {
    let Some(deadline) = workflow.deadline else {
        return Ok(());
    };
    for step in &workflow.steps {
        let schedule = longest(&step.run);
        if schedule > deadline {
            return Err(WorkflowError::ScheduleBeyondDeadline {
                workflow: workflow.name.to_string(),
                step: step.name.to_string(),
                schedule,
                deadline,
            });
        }
    }
    Ok(())
}

/// The maximum duration of all attempts and the waits between them.
fn longest(tries: &Tries) -> Duration {
    let RetryIntervals {
        initial,
        multiplier,
        max,
    } = tries.intervals;
    let mut wait = initial;
    let mut total = tries.timeout;
    for _ in 1..tries.max_attempts {
        total = total.saturating_add(wait).saturating_add(tries.timeout);
        let grown = wait.as_secs_f64() * multiplier;
        wait = Duration::from_secs_f64(grown.min(max.as_secs_f64()));
    }
    total
}
