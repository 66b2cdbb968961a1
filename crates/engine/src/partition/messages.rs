//! The records that an operation's state calls for, made from nothing but its row: sent again
//! after a crash they are the same, event id, sequence and times included.

use std::sync::Arc;

use crate::advance::results_before;
use crate::id::{Offset, OperationId, PartitionId};
use crate::operation::{Created, OperationState, ProcessState, StepError, StepState};
use crate::partition::command::Message;
use crate::partition::config::Ownership;
use crate::record::{
    Action, CreateRequest, FailedOperation, OperationStatus, Position, StatusKind, StepRequest,
};
use crate::time::Timestamp;
use crate::workflow::Workflow;

/// The number of the only status record of an operation: that of its final state.
pub(super) const FINAL_SEQUENCE: u32 = 1;

/// Asks for the running attempt of a step; `None` if none is running.
pub(super) fn step_request(
    id: OperationId,
    created: &Created,
    workflow: &Workflow,
    state: &OperationState,
    index: usize,
    ownership: &Ownership,
) -> Option<Message> {
    let progress = &state.steps[index];
    if progress.state != StepState::Running || state.state.is_final() {
        return None;
    }
    let step = &workflow.steps()[index];
    Some(Message::Step(StepRequest {
        operation: id,
        workflow: Arc::clone(&created.workflow),
        step: Arc::clone(&step.name),
        agent: Arc::clone(&step.agent),
        attempt: progress.attempt,
        epoch: ownership.epoch,
        action: Action::Run,
        complete_by: progress.complete_by?,
        tenant: Arc::clone(&created.tenant),
        input: Arc::clone(&created.input),
        results: results_before(workflow, state, index),
        reply_partition: ownership.partition,
        traceparent: created.traceparent.clone(),
    }))
}

/// The status record of an operation's final state.
pub(super) fn final_status(id: OperationId, created: &Created, state: &OperationState) -> Message {
    Message::Status(Box::new(OperationStatus {
        event_id: id.event_id("status-1"),
        operation: id,
        caller_id: created.caller_id.clone(),
        workflow: created.workflow.to_string(),
        tenant: created.tenant.to_string(),
        kind: StatusKind::Final,
        state: state.state,
        sequence: FINAL_SEQUENCE,
        error: state.error.as_ref().map(|failed| failed.error.clone()),
        failing_step: state.error.as_ref().and_then(|failed| failed.step.clone()),
        request: created.request,
        requested_at: created.requested_at,
        at: state.updated_at,
        reply_to: created.reply_to.clone(),
    }))
}

/// The status record that tells a caller that its request was refused for another's sake. It is
/// not one of the operation's own, hence without a place in their sequence.
pub(super) fn rejected_status(
    request: CreateRequest,
    partition: PartitionId,
    offset: Offset,
    now: Timestamp,
) -> Message {
    let id = request.operation;
    Message::Status(Box::new(OperationStatus {
        event_id: id.event_id(&format!("rejected-{partition}-{offset}")),
        operation: id,
        caller_id: request.caller_id,
        workflow: request.workflow,
        tenant: request.tenant,
        kind: StatusKind::Rejected,
        state: ProcessState::Error,
        sequence: 0,
        error: Some(StepError {
            code: "id-conflict".to_owned(),
            message: "an operation with this id and another request came first".to_owned(),
        }),
        failing_step: None,
        request: Position { partition, offset },
        requested_at: request.requested_at,
        at: now,
        reply_to: request.reply_to,
    }))
}

/// The record of an operation that failed for good; `None` if it did not.
pub(super) fn failed_operation(
    id: OperationId,
    created: &Created,
    workflow: Option<&Workflow>,
    state: &OperationState,
) -> Option<Message> {
    let failed = state.error.as_ref()?;
    let agent = failed.step.as_deref().and_then(|name| {
        let workflow = workflow?;
        Some(
            workflow.steps()[workflow.step_index(name)?]
                .agent
                .to_string(),
        )
    });
    let steps = || created.step_names.iter().zip(&state.steps);
    Some(Message::Failed(Box::new(FailedOperation {
        event_id: id.event_id("failed"),
        operation: id,
        caller_id: created.caller_id.clone(),
        workflow: created.workflow.to_string(),
        workflow_version: created.workflow_version,
        tenant: created.tenant.to_string(),
        failing_step: failed.step.clone(),
        failing_agent: agent,
        error: failed.error.clone(),
        completed_steps: steps()
            .filter(|(_, step)| step.state == StepState::Completed)
            .map(|(name, _)| name.to_string())
            .collect(),
        failure_counts: steps()
            .filter(|(_, step)| step.failure_count > 0)
            .map(|(name, step)| (name.to_string(), step.failure_count))
            .collect(),
        step_states: steps()
            .map(|(name, step)| (name.to_string(), step.state))
            .collect(),
        input: created.input.to_vec(),
        requested_at: created.requested_at,
        failed_at: state.updated_at,
    })))
}
