//! The JSON views of answers.

mod accepted;
mod event;
mod list;

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_clock::time_text;
use waybill_drone_delivery::request::DeliveryRequest;
use waybill_engine::{
    CreateRequest, Created, HistoryEntry, OperationError, OperationId, OperationRow,
    OperationState, ProcessState, StepError, StepProgress, StepState, Timestamp, Workflow,
    Workflows,
};

use super::refusals;
use super::what_next::{self, WhatNext};

pub use self::accepted::{AcceptedView, BatchLine, OperationIdsView, VerbAcceptedView};
pub use self::event::EventView;
pub use self::list::{ItemView, ListView, PAGE_ITEMS_MAX, UNREADABLE};

/// An operation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Operation)]
pub struct OperationView {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// The workflow that the operation runs. Absent if only the request's position is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "drone-delivery")]
    pub workflow: Option<Arc<str>>,
    /// The workflow version that the operation runs. It never changes. Absent while `Pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 1)]
    pub workflow_version: Option<u32>,
    /// The operation is parked and cannot continue: its workflow version is unknown, or has other
    /// steps now.
    #[serde(skip_serializing_if = "is_false")]
    pub workflow_unknown: bool,
    /// `Pending`: accepted, but not yet read by a scheduler. `Processing`: its steps are running.
    /// `Processed`: every step is completed or skipped. `Error`: failed permanently, and parked.
    /// `Compensating`: completed steps are being undone. `Compensated`: failed permanently, and no
    /// effects remain. `Cancelled`: cancelled by its caller, and no effects remain.
    /// `CompensationFailed`: could not be undone, and parked. `Rejected`: an earlier,
    /// different request has this id.
    #[schema(example = "Processing")]
    pub state: &'static str,
    /// The steps, in the order of the workflow.
    pub steps: Vec<StepView>,
    /// While `Pending`: the number of requests ahead of it in its topic and partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 12)]
    pub ahead: Option<i64>,
    /// Why the operation failed permanently, could not be undone, or was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// In `CompensationFailed`: the permanent failure that started the undo; `error` is why the
    /// undo failed. Absent if a cancel by the caller started the undo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<ErrorView>,
    /// What happens next and when, or what an operator can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Step drone is running, attempt 2, until 2030-05-08T20:00:05Z.")]
    pub what_next: Option<String>,
    /// The verbs that the current state allows: `cancel` for the caller, the others for an
    /// operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<&'static str>,
    /// The result of a cancel: `requested` while completed steps are being undone, `applied`, or
    /// `refused` if it came too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "requested")]
    pub cancel: Option<&'static str>,
    /// An operator abandoned the operation while it was parked.
    #[serde(skip_serializing_if = "is_false")]
    pub abandoned: bool,
    /// The verbs that were requested for the operation, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryView>,
    /// The operation that this operation runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmission_of: Option<OperationId>,
    /// The newest operation that runs this operation again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmitted_as: Option<OperationId>,
    /// How often the steps have failed or timed out, in total.
    #[serde(skip_serializing_if = "is_zero")]
    pub failure_count: u32,
    /// When the next action for the operation is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_due: Option<String>,
    /// The priority of its request: `normal` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<&'static str>,
    /// Whether the operation was ever handed off to the deadline index because it ran for long.
    #[serde(skip_serializing_if = "is_false")]
    pub handed_off: bool,
    /// The scheduler instance that holds the operation in memory, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub locked_by: Option<Uuid>,
    /// The epoch of the partition owner that last wrote the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 3)]
    pub epoch: Option<u64>,
    /// The caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "order-17")]
    pub caller_id: Option<Arc<str>>,
    /// The tenant of the operation, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Arc<str>>,
    /// The time by which the operation should be final, if there is a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deadline: Option<String>,
    /// When the request was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00.123456Z")]
    pub created_at: Option<String>,
    /// When the operation last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00.234567Z")]
    pub updated_at: Option<String>,
}

/// A delivery: an operation and its request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryView {
    /// The operation that performs the delivery.
    #[serde(flatten)]
    pub operation: OperationView,
    /// The request. It may be absent while `Pending`, if it cannot be read from its topic in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeliveryRequest>)]
    pub request: Option<Box<RawValue>>,
}

/// A step of an operation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Step)]
pub struct StepView {
    /// The step's name in the workflow.
    #[schema(value_type = String, example = "account")]
    pub name: Arc<str>,
    /// `NotStarted`, `Running`, `Completed`, `Failed`, `TimedOut`, `Skipped`, `Compensating` or
    /// `Compensated`.
    #[schema(example = "Completed")]
    pub state: &'static str,
    /// The number of the current or last attempt, of any action; 0 before the first.
    #[schema(example = 1)]
    pub attempt: u32,
    /// The action of that attempt: `Run`, `Compensate` or `Probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Run")]
    pub action: Option<&'static str>,
    /// How often the step has failed or timed out.
    #[serde(skip_serializing_if = "is_zero")]
    pub failure_count: u32,
    /// How often undoing the step has failed or timed out.
    #[serde(skip_serializing_if = "is_zero")]
    pub undo_failure_count: u32,
    /// The time by which the running attempt must finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub complete_by: Option<String>,
    /// When the step is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retry_at: Option<String>,
    /// When the step's state last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub changed_at: Option<String>,
    /// The last superseded attempt that turned out to have succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_success: Option<u32>,
    /// The step's last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

/// A verb that was requested for an operation, and its result.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HistoryEntry)]
pub struct HistoryView {
    /// When the verb was applied or refused.
    #[schema(format = DateTime, example = "2030-05-08T20:00:00.234567Z")]
    pub at: String,
    /// Who requested it: `caller`, a supervisor, or an operator's name.
    #[schema(example = "caller")]
    pub by: String,
    /// The verb.
    #[schema(example = "cancel")]
    pub verb: String,
    /// The reason given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The stable code of the refusal; absent if the verb was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "final")]
    pub refused: Option<String>,
}

/// Why something failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorView {
    /// A stable code, for programs.
    #[schema(example = "drone-unavailable")]
    pub code: String,
    /// A message, for people.
    #[schema(example = "no drone is free")]
    pub message: String,
    /// The step of the error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

impl OperationView {
    /// The view of a stored operation.
    pub fn of_row(row: &OperationRow, workflows: &Workflows) -> Self {
        let (created, state) = (&row.created, &row.state);
        let WhatNext { sentence, verbs } = what_next::of(row, workflows);
        let history = state.history.iter();
        Self {
            workflow: Some(Arc::clone(&created.workflow)).filter(|name| !name.is_empty()),
            workflow_version: workflow_version(created),
            workflow_unknown: refusals::is_stranded(row, workflows),
            state: state.state.as_str(),
            steps: created
                .step_names
                .iter()
                .zip(&state.steps)
                .map(|(name, progress)| StepView::of(name, progress))
                .collect(),
            error: failure(state).map(ErrorView::of_operation),
            cause: cause(state).map(ErrorView::of_operation),
            what_next: Some(sentence),
            verbs,
            cancel: cancel(state),
            abandoned: state.abandoned,
            history: history.map(HistoryView::of).collect(),
            resubmission_of: created.resubmission_of,
            resubmitted_as: refusals::resubmission(state).map(|(_, id)| id),
            failure_count: state.failure_count,
            next_due: state.next_due.map(time_text),
            priority: Some(created.request.priority.name()),
            handed_off: state.handed_off,
            locked_by: state.locked_by.map(|owner| owner.0),
            epoch: Some(state.epoch.0),
            caller_id: created.caller_id.as_deref().map(Arc::from),
            tenant: Some(Arc::clone(&created.tenant)).filter(|tenant| !tenant.is_empty()),
            deadline: row.deadline().map(time_text),
            created_at: Some(time_text(created.requested_at)),
            updated_at: Some(time_text(state.updated_at)),
            ..Self::pending(row.id, None)
        }
    }

    /// The view of an operation that no scheduler has read yet.
    pub fn pending(id: OperationId, ahead: Option<i64>) -> Self {
        Self {
            id,
            workflow: None,
            workflow_version: None,
            workflow_unknown: false,
            state: ProcessState::Pending.as_str(),
            steps: Vec::new(),
            ahead,
            error: None,
            cause: None,
            what_next: Some("Waiting for the scheduler to read the request.".to_owned()),
            verbs: vec![what_next::CANCEL],
            cancel: None,
            abandoned: false,
            history: Vec::new(),
            resubmission_of: None,
            resubmitted_as: None,
            failure_count: 0,
            next_due: None,
            priority: None,
            handed_off: false,
            locked_by: None,
            epoch: None,
            caller_id: None,
            tenant: None,
            deadline: None,
            created_at: None,
            updated_at: None,
        }
    }

    /// The view of a request whose id another request took.
    pub fn rejected(id: OperationId) -> Self {
        Self {
            state: "Rejected",
            error: Some(ErrorView {
                code: "id-conflict".to_owned(),
                message: "an earlier, different request has this id".to_owned(),
                step: None,
            }),
            what_next: None,
            verbs: Vec::new(),
            ..Self::pending(id, None)
        }
    }

    /// Adds the workflow of an operation that has no row.
    pub fn with_workflow(self, name: Arc<str>, workflow: Option<&Workflow>) -> Self {
        let steps = workflow.map_or(&[][..], Workflow::step_names).iter();
        Self {
            workflow: Some(name),
            steps: steps
                .map(|name| StepView::of(name, &StepProgress::default()))
                .collect(),
            ..self
        }
    }

    /// Adds the other facts of a pending operation's request.
    pub fn with_request(self, request: &CreateRequest) -> Self {
        Self {
            tenant: Some(request.tenant.as_str().into()).filter(|_| !request.tenant.is_empty()),
            deadline: request.deadline.map(time_text),
            ..self
                .with_caller_id(request.caller_id.as_deref().map(Arc::from))
                .with_time(request.requested_at)
        }
    }

    /// Adds the caller's own id.
    pub fn with_caller_id(self, caller_id: Option<Arc<str>>) -> Self {
        Self { caller_id, ..self }
    }

    /// Adds when the request of a pending operation was accepted.
    pub fn with_time(self, requested_at: Timestamp) -> Self {
        let time = time_text(requested_at);
        Self {
            created_at: Some(time.clone()),
            updated_at: Some(time),
            ..self
        }
    }
}

impl StepView {
    fn of(name: &Arc<str>, progress: &StepProgress) -> Self {
        let was_asked_for = progress.was_asked_for();
        let has_changed = was_asked_for || progress.state != StepState::NotStarted;
        Self {
            name: Arc::clone(name),
            state: progress.state.as_str(),
            attempt: progress.attempt.0,
            action: was_asked_for.then(|| progress.action.as_str()),
            failure_count: progress.failure_count,
            undo_failure_count: progress.undo_failure_count,
            complete_by: progress.complete_by.map(time_text),
            retry_at: progress.retry_at.map(time_text),
            changed_at: has_changed.then(|| time_text(progress.changed_at)),
            late_success: progress.late_success.map(|attempt| attempt.0),
            error: progress.error.as_ref().map(ErrorView::of_step),
        }
    }
}

impl HistoryView {
    fn of(entry: &HistoryEntry) -> Self {
        Self {
            at: time_text(entry.at),
            by: entry.by.clone(),
            verb: entry.verb.clone(),
            reason: entry.reason.clone(),
            refused: entry.refused.clone(),
        }
    }
}

impl ErrorView {
    /// The error of a step.
    pub fn of_step(error: &StepError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            step: None,
        }
    }

    /// The error of an operation.
    pub fn of_operation(error: &OperationError) -> Self {
        Self {
            step: error.step.clone(),
            ..Self::of_step(&error.error)
        }
    }
}

/// Why an operation is in its state: why it could not be undone, else why it failed.
pub fn failure(state: &OperationState) -> Option<&OperationError> {
    match state.state {
        ProcessState::CompensationFailed => state.undo_error.as_ref(),
        ProcessState::Pending
        | ProcessState::Processing
        | ProcessState::Processed
        | ProcessState::Error
        | ProcessState::Compensating
        | ProcessState::Compensated
        | ProcessState::Cancelled => state.error.as_ref(),
    }
}

/// Why an operation failed before its undo failed.
fn cause(state: &OperationState) -> Option<&OperationError> {
    let is_parked_undoing = state.state == ProcessState::CompensationFailed;
    state.error.as_ref().filter(|_| is_parked_undoing)
}

/// The workflow version that an operation runs; `None` if it never had one.
fn workflow_version(created: &Created) -> Option<u32> {
    Some(created.workflow_version).filter(|_| !created.step_names.is_empty())
}

/// The result of a cancel. An applied cancel counts, whatever the result of others.
fn cancel(state: &OperationState) -> Option<&'static str> {
    if state.cancelled {
        return Some(match state.state {
            ProcessState::Cancelled => "applied",
            _ => "requested",
        });
    }
    let mut history = state.history.iter();
    history
        .any(|entry| entry.verb == what_next::CANCEL && entry.refused.is_some())
        .then_some("refused")
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
