//! Predicts the scheduler's answer to a request, without sending the request.
//!
//! Ingestion and the operator API can refuse immediately what the scheduler would refuse, and can
//! show which requests are possible. What must hold: the answer comes from the scheduler's own
//! functions, applied to a copy. It is never the decision: the operation may have changed since its
//! row was read.

use std::sync::Arc;

use crate::advance::{Advance, Patience, Verdict, recover_without_workflow};
use crate::gate::Gates;
use crate::operation::{OperationRow, OperationState, ProcessState};
use crate::record::{Amendment, RecoveryVerb};
use crate::stats::EngineStats;
use crate::time::Timestamp;
use crate::workflow::{StepSet, Workflow, Workflows};

/// A request about an operation.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A request of an operator.
    Recovery(&'a RecoveryVerb),
    /// A request of the caller.
    Amendment(&'a Amendment),
}

/// The workflow of an operation, in its version; `None` if it is unknown, or has other steps than
/// those that the operation started with. Such an operation cannot continue.
#[must_use]
pub fn workflow_of<'a>(row: &OperationRow, workflows: &'a Workflows) -> Option<&'a Arc<Workflow>> {
    let created = &row.created;
    let workflow = workflows.get(&created.workflow, created.workflow_version)?;
    let has_its_steps = workflow.step_names() == created.step_names
        && workflow.steps().len() == row.state.steps.len();
    has_its_steps.then_some(workflow)
}

/// The stable code with which the scheduler would refuse the request; `None` if it would not.
#[must_use]
pub fn refusal(
    row: &OperationRow,
    workflows: &Workflows,
    asked: Asked<'_>,
    now: Timestamp,
) -> Option<&'static str> {
    let created = &row.created;
    let Some(workflow) = workflow_of(row, workflows) else {
        return refusal_without_workflow(&row.state, asked);
    };
    let mut state = row.state.clone();
    let mut advance = Advance {
        id: row.id,
        created,
        workflow,
        state: &mut state,
        gates: &mut Gates::default(),
        ask: &mut StepSet::default(),
        touched: &mut StepSet::default(),
        stats: &mut EngineStats::default(),
        now,
    };
    let patience = Patience {
        grace: std::time::Duration::ZERO,
        time_outs: true,
    };
    let verdict = match asked {
        Asked::Recovery(verb) => advance.recover(verb, patience),
        Asked::Amendment(amendment) => advance.amend(amendment),
    };
    match verdict {
        Ok(Verdict::Refused(code)) => Some(code),
        // Only the scheduler can judge a row in an impossible state.
        Ok(Verdict::Applied | Verdict::Void | Verdict::HeldBack) | Err(_) => None,
    }
}

fn refusal_without_workflow(state: &OperationState, asked: Asked<'_>) -> Option<&'static str> {
    match asked {
        Asked::Recovery(verb) => match recover_without_workflow(&mut state.clone(), verb) {
            Verdict::Refused(code) => Some(code),
            Verdict::Applied | Verdict::Void | Verdict::HeldBack => None,
        },
        Asked::Amendment(amendment) => match (state.state, amendment) {
            (ProcessState::Cancelled, Amendment::Cancel { .. }) => None,
            (ProcessState::Cancelled, Amendment::Reschedule { .. }) => Some("final"),
            _ => Some("workflow-unknown"),
        },
    }
}
