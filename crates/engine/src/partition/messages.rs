//! The records that an operation's state calls for, made from its row alone. A record that is sent
//! again after a crash has the same event id and sequence, so that consumers can detect the repeat.
//!
//! Records contain the row's values at the time of sending. A repeated status is identical to the
//! last byte, because the row keeps its values until the next status has a number. A repeated
//! failure record may show later step states, if other steps continued after the failure.

use std::sync::Arc;

use uuid::Uuid;

use crate::advance::results_for;
use crate::id::OperationId;
use crate::operation::{Created, ProcessState, StepError, StepState, input};
use crate::ownership::Ownership;
use crate::partition::command::{Command, Message};
use crate::partition::resident::{Pending, ResidentOperation, needs_status};
use crate::priority::{Position, Priority};
use crate::record::{
    AlertKind, AmendRequest, Amendment, CreateRequest, FailedOperation, OperationStatus,
    OperatorAlert, OwnerNotice, StatusKind, StepRequest,
};
use crate::time::Timestamp;
use crate::workflow::Workflow;

/// The sequence number of the status record for the creation of an operation.
pub(super) const RECEIVED_SEQUENCE: u32 = 1;

/// Adds all pending messages of an operation.
pub(super) fn add(
    resident: &ResidentOperation,
    pending: Pending,
    ownership: &Ownership,
    sends: &mut Vec<Command>,
) {
    if pending.received {
        sends.push(Command::Send(received(resident)));
    }
    for index in pending.statuses.iter() {
        // The step may have left this state by now.
        if needs_status(resident.state.steps[index].state) {
            sends.push(Command::Send(step_status(resident, index)));
        }
    }
    if pending.failed {
        sends.extend(failed_operation(resident).map(Command::Send));
    }
    for index in pending.waiting.iter() {
        // As above.
        if resident.keeps_failing(index) {
            sends.push(Command::Send(waiting_alert(resident, index)));
        }
    }
    if pending.announce {
        sends.extend(parked_alert(resident).map(Command::Send));
        sends.push(Command::Send(final_status(resident)));
        sends.extend(owner_notice(resident).map(Command::Send));
    }
    if let Some(workflow) = resident.workflow.as_deref() {
        let asked = pending.ask.iter();
        sends.extend(
            asked
                .filter_map(|index| step_request(resident, workflow, index, ownership))
                .map(Command::Send),
        );
    }
}

/// The request for a step's attempt in progress; `None` if there is none.
fn step_request(
    resident: &ResidentOperation,
    workflow: &Workflow,
    index: usize,
    ownership: &Ownership,
) -> Option<Message> {
    let (created, state) = (&resident.created, &resident.state);
    let progress = &state.steps[index];
    if state.state.is_final() {
        return None;
    }
    let step = &workflow.steps()[index];
    Some(Message::Step(StepRequest {
        operation: resident.id,
        workflow: Arc::clone(&created.workflow),
        step: Arc::clone(&step.name),
        agent: Arc::clone(step.agent_for(progress.action)),
        attempt: progress.attempt,
        epoch: ownership.epoch,
        action: progress.action,
        complete_by: progress.complete_by?,
        tenant: Arc::clone(&created.tenant),
        input: Arc::clone(input(created, state)),
        results: results_for(workflow, state, index),
        reply_partition: ownership.partition,
        shard: Some(ownership.shard),
        nonce: None,
        traceparent: created.traceparent.clone(),
    }))
}

/// A status record with the operation's current values.
fn status(
    resident: &ResidentOperation,
    kind: StatusKind,
    sequence: u32,
    at: Timestamp,
) -> OperationStatus {
    let (created, state) = (&resident.created, &resident.state);
    let cause = state.failure();
    OperationStatus {
        event_id: resident.id.event_id(&format!("status-{sequence}")),
        operation: resident.id,
        caller_id: created.caller_id.clone(),
        workflow: created.workflow.to_string(),
        tenant: created.tenant.to_string(),
        kind,
        state: state.state,
        sequence,
        error: cause.map(|failed| failed.error.clone()),
        failing_step: cause.and_then(|failed| failed.step.clone()),
        step: None,
        request: created.request,
        requested_at: created.requested_at,
        at,
        reply_to: created.reply_to.clone(),
    }
}

fn final_status(resident: &ResidentOperation) -> Message {
    let (sequence, at) = (resident.state.sequence, resident.state.updated_at);
    Message::Status(Box::new(status(resident, StatusKind::Final, sequence, at)))
}

/// The notice about the operation's end for its contacts; `None` if it has none. Its event id
/// contains the sequence number of the final status record.
fn owner_notice(resident: &ResidentOperation) -> Option<Message> {
    let (created, state) = (&resident.created, &resident.state);
    if created.notify.is_empty() {
        return None;
    }
    Some(Message::Owner(Box::new(OwnerNotice {
        event_id: resident.id.event_id(&format!("owner-{}", state.sequence)),
        operation: resident.id,
        caller_id: created.caller_id.clone(),
        workflow: created.workflow.to_string(),
        tenant: created.tenant.to_string(),
        state: state.state,
        contacts: created.notify.clone(),
        at: state.updated_at,
    })))
}

fn received(resident: &ResidentOperation) -> Message {
    let at = resident.created.created_at;
    Message::Status(Box::new(OperationStatus {
        state: ProcessState::Processing,
        error: None,
        failing_step: None,
        ..status(resident, StatusKind::Received, RECEIVED_SEQUENCE, at)
    }))
}

fn step_status(resident: &ResidentOperation, index: usize) -> Message {
    let step = &resident.state.steps[index];
    let name = resident.created.step_names[index].to_string();
    Message::Status(Box::new(OperationStatus {
        error: step.error.clone(),
        failing_step: step.error.as_ref().map(|_| name.clone()),
        step: Some((name, step.state)),
        ..status(resident, StatusKind::Step, step.sequence, step.changed_at)
    }))
}

/// The answer to a cancel or a reschedule. It is not one of the operation's own records, so it has
/// no sequence number.
pub(super) fn answer(
    request: &AmendRequest,
    created: &Created,
    state: ProcessState,
    position: Position,
    refused: Option<&str>,
    now: Timestamp,
) -> Message {
    amendment_status(
        request,
        created.workflow.to_string(),
        created.reply_to.clone(),
        state,
        position,
        refused,
        now,
    )
}

/// The answer to a reschedule of an operation that does not exist.
pub(super) fn answer_unknown(
    request: &AmendRequest,
    position: Position,
    now: Timestamp,
) -> Message {
    let refused = Some("unknown-operation");
    let state = ProcessState::Pending;
    amendment_status(request, String::new(), None, state, position, refused, now)
}

fn amendment_status(
    request: &AmendRequest,
    workflow: String,
    reply_to: Option<String>,
    state: ProcessState,
    position: Position,
    refused: Option<&str>,
    now: Timestamp,
) -> Message {
    let kind = match (&request.amendment, refused) {
        (Amendment::Cancel { .. }, _) => StatusKind::CancelRefused,
        (Amendment::Reschedule { .. }, None) => StatusKind::Rescheduled,
        (Amendment::Reschedule { .. }, Some(_)) => StatusKind::RescheduleRefused,
    };
    Message::Status(Box::new(OperationStatus {
        event_id: request
            .operation
            .event_id(&format!("answer-{}", request.id)),
        operation: request.operation,
        caller_id: request.caller_id.clone(),
        workflow,
        tenant: request.tenant.clone(),
        kind,
        state,
        sequence: 0,
        error: refused.map(|code| StepError {
            code: code.to_owned(),
            message: refusal(code).to_owned(),
        }),
        failing_step: None,
        step: None,
        request: position,
        requested_at: request.requested_at,
        at: now,
        reply_to,
    }))
}

fn refusal(code: &str) -> &'static str {
    match code {
        "final" => "the operation is already final",
        "past-pivot" => "a completed step cannot be undone; the operation can only go forward",
        "step-sent" => "a step that uses a changed field was already requested",
        "failed" => "the operation has failed",
        "compensation-failed" => {
            "the operation could not be undone: use retry-compensation, undone or abandon"
        }
        "unknown-operation" => "the operation does not exist",
        "workflow-unknown" => "the operation's workflow is unknown",
        _ => "the operation's state does not allow this",
    }
}

/// The status record for a caller whose request conflicts with an earlier one. It is not one of the
/// operation's own records, so it has no sequence number.
pub(super) fn rejected_status(
    request: CreateRequest,
    position: Position,
    now: Timestamp,
) -> Message {
    let id = request.operation;
    let prefix = match position.priority {
        Priority::Normal => "",
        Priority::High => "high-priority-",
    };
    let (partition, offset) = (position.partition, position.offset);
    Message::Status(Box::new(OperationStatus {
        event_id: id.event_id(&format!("rejected-{prefix}{partition}-{offset}")),
        operation: id,
        caller_id: request.caller_id,
        workflow: request.workflow,
        tenant: request.tenant,
        kind: StatusKind::Rejected,
        state: ProcessState::Error,
        sequence: 0,
        error: Some(StepError {
            code: "id-conflict".to_owned(),
            message: "an earlier, different request has this id".to_owned(),
        }),
        failing_step: None,
        step: None,
        request: position,
        requested_at: request.requested_at,
        at: now,
        reply_to: request.reply_to,
    }))
}

/// The record of an operation that failed for good; `None` if it did not.
fn failed_operation(resident: &ResidentOperation) -> Option<Message> {
    let (created, state) = (&resident.created, &resident.state);
    let failed = state.error.as_ref()?;
    let agent = failed.step.as_deref().and_then(|name| {
        let workflow = resident.workflow.as_deref()?;
        let index = workflow.step_index(name)?;
        Some(workflow.steps()[index].agent.to_string())
    });
    let failing = failed.step.as_deref().and_then(|name| {
        let index = created.step_names.iter().position(|step| &**step == name)?;
        Some(&state.steps[index])
    });
    let steps = || created.step_names.iter().zip(&state.steps);
    Some(Message::Failed(Box::new(FailedOperation {
        event_id: failure_id(resident.id, state.failed_count),
        operation: resident.id,
        caller_id: created.caller_id.clone(),
        workflow: created.workflow.to_string(),
        workflow_version: created.workflow_version,
        tenant: created.tenant.to_string(),
        failing_step: failed.step.clone(),
        failing_agent: agent,
        failing_attempt: failing.map(|step| step.attempt).unwrap_or_default(),
        failing_action: failing.map(|step| step.action).unwrap_or_default(),
        awaits_decision: state.awaits_decision(),
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
        input: input(created, state).to_vec(),
        requested_at: created.requested_at,
        failed_at: state.updated_at,
    })))
}

/// The alert about a parked operation; `None` if it is not parked.
fn parked_alert(resident: &ResidentOperation) -> Option<Message> {
    let state = &resident.state;
    let (kind, cause, advice) = match state.state {
        ProcessState::Error => (
            AlertKind::OperationParked,
            state.error.as_ref(),
            "Fix the cause, then resubmit it; or compensate it; or abandon it with a reason.",
        ),
        ProcessState::CompensationFailed => {
            let cause = state.undo_error.as_ref();
            if cause.is_some_and(|cause| cause.error.code == "manual-undo-needed") {
                (
                    AlertKind::ManualUndo,
                    cause,
                    "Undo the step by hand, then record it with `waybill ops undone`.",
                )
            } else {
                (
                    AlertKind::CompensationFailed,
                    cause,
                    "Fix the cause, then retry the compensation; or undo the step by hand and \
                     record it with `waybill ops undone`; or abandon it with a reason.",
                )
            }
        }
        ProcessState::Pending
        | ProcessState::Processing
        | ProcessState::Processed
        | ProcessState::Compensating
        | ProcessState::Compensated
        | ProcessState::Cancelled => return None,
    };
    Some(Message::Alert(Box::new(OperatorAlert {
        step: cause.and_then(|cause| cause.step.clone()),
        error: cause.map(|cause| cause.error.clone()),
        ..alert(
            resident,
            kind,
            &format!("parked-{}", state.sequence),
            advice,
        )
    })))
}

/// The alert about a step that keeps failing and is retried at long intervals.
fn waiting_alert(resident: &ResidentOperation, index: usize) -> Message {
    let step = &resident.state.steps[index];
    let advice = "Fix the agent's service. The engine retries the step with long waits.";
    let name = resident.created.step_names[index].to_string();
    let event = format!("waiting-{name}-{}", step.attempt);
    Message::Alert(Box::new(OperatorAlert {
        step: Some(name),
        error: step.error.clone(),
        at: step.changed_at,
        ..alert(resident, AlertKind::Waiting, &event, advice)
    }))
}

fn alert(
    resident: &ResidentOperation,
    kind: AlertKind,
    event: &str,
    advice: &str,
) -> OperatorAlert {
    OperatorAlert {
        event_id: resident.id.event_id(event),
        kind,
        operation: resident.id,
        caller_id: resident.created.caller_id.clone(),
        workflow: resident.created.workflow.to_string(),
        tenant: resident.created.tenant.to_string(),
        step: None,
        error: None,
        advice: advice.to_owned(),
        at: resident.state.updated_at,
    }
}

/// The alert about an operation whose row cannot be read, which has only the id.
pub(super) fn unloadable_alert(id: OperationId, error: StepError, now: Timestamp) -> Message {
    Message::Alert(Box::new(OperatorAlert {
        event_id: id.event_id("unloadable"),
        kind: AlertKind::RowUnreadable,
        operation: id,
        caller_id: None,
        workflow: String::new(),
        tenant: String::new(),
        step: None,
        error: Some(error),
        advice: "Restore the row from a backup. Until then, the operation makes no progress, and \
                 requests for it are dropped."
            .to_owned(),
        at: now,
    }))
}

/// The event id of one failure for good of an operation. Failures are counted from 1.
pub(crate) fn failure_id(operation: OperationId, failed_count: u32) -> Uuid {
    operation.event_id(&format!("failed-{failed_count}"))
}
