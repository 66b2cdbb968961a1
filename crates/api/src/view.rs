//! The answers of the HTTP API, which ingestion writes and the operator commands read.
//!
//! An absent field is empty. Readers ignore unknown fields, so that fields can be added.

mod accepted;
mod event;
mod step;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_clock::time_text;
use waybill_engine::{
    CreateRequest, HistoryEntry, OperationError, OperationId, ProcessState, StepError,
    StepProgress, Timestamp, Workflow,
};

pub use self::accepted::{AcceptedView, BatchLine, OperationIdsView};
pub use self::event::EventView;
pub use self::step::StepView;

use crate::verb::Verb;

/// The most items of a page of a list.
pub const PAGE_ITEMS_MAX: usize = 1_000;

/// The state, in lists, of an operation whose row cannot be read.
pub const UNREADABLE: &str = "Unreadable";

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Operation)]
pub struct OperationView {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: Uuid,
    /// The workflow that the operation runs. Absent if only the request's position is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "order-fulfilment")]
    pub workflow: Option<Arc<str>>,
    /// The workflow version that the operation runs. It never changes. Absent while `Pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 1)]
    pub workflow_version: Option<u32>,
    /// The operation is parked and cannot continue: its workflow version is unknown, or has other
    /// steps now.
    #[serde(default, skip_serializing_if = "is_false")]
    pub workflow_unknown: bool,
    /// `Pending`: accepted, but not yet read by a scheduler. `Processing`: its steps are running.
    /// `Processed`: every step is completed or skipped. `Error`: failed permanently, and parked.
    /// `Compensating`: completed steps are being undone. `Compensated`: failed permanently, and no
    /// effects remain. `Cancelled`: cancelled by its caller, and no effects remain.
    /// `CompensationFailed`: could not be undone, and parked. `Rejected`: an earlier,
    /// different request has this id.
    #[schema(value_type = String, example = "Processing")]
    pub state: Cow<'static, str>,
    /// The steps, in the order of the workflow.
    pub steps: Vec<StepView>,
    /// The workflow's input, with sensitive fields as `***`. May be absent while `Pending`; absent
    /// if `payloadWithheld` is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"orderId": "order-17"}))]
    pub input: Option<Value>,
    /// Why the input, and the outputs of the steps, are absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "The token lacks the scope payload.")]
    pub payload_withheld: Option<Cow<'static, str>>,
    /// The trace of the operation, which has each of its attempts, if its request had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "4bf92f3577b34da6a3ce929d0e0e4736")]
    pub trace_id: Option<String>,
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
    #[schema(example = "Step payment is running, attempt 2, until 2030-05-08T20:00:05Z.")]
    pub what_next: Option<String>,
    /// The verbs that the current state allows: `cancel` for the caller, the others for an
    /// operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub verbs: Vec<Cow<'static, str>>,
    /// The result of a cancel: `requested` while completed steps are being undone, `applied`, or
    /// `refused` if it arrived too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "requested")]
    pub cancel: Option<Cow<'static, str>>,
    /// An operator abandoned the operation while it was parked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandoned: bool,
    /// The verbs that were requested for the operation, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryView>,
    /// The operation that this operation runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmission_of: Option<Uuid>,
    /// The newest operation that runs this operation again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmitted_as: Option<Uuid>,
    /// How many times the steps have failed or timed out, in total.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failure_count: u32,
    /// When the next action for the operation is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_due: Option<String>,
    /// The priority of its request: `normal` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub priority: Option<Cow<'static, str>>,
    /// Whether the operation was ever handed off to the deadline index because it ran for long.
    #[serde(default, skip_serializing_if = "is_false")]
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

/// A verb that was requested for an operation, and its result.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
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
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The stable code of the refusal; absent if the verb was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "final")]
    pub refused: Option<String>,
}

/// Why something failed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorView {
    /// A stable code, for programs.
    #[schema(example = "card-declined")]
    pub code: String,
    /// A message, for people.
    #[schema(example = "the bank says no")]
    pub message: String,
    /// The step of the error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A page of operations.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = OperationList)]
pub struct ListView {
    /// The operations, in the requested order.
    pub items: Vec<ItemView>,
    /// The start of the next page: pass it as `cursor`. Absent on the last page. A page may have
    /// few items, or none, even if more follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An operation in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OperationItem)]
pub struct ItemView {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: Uuid,
    /// The operation's state, or `Unreadable` if its row cannot be read.
    #[schema(value_type = String, example = "CompensationFailed")]
    pub state: Cow<'static, str>,
    /// The workflow that the operation runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(example = "order-fulfilment")]
    pub workflow: String,
    /// The workflow version that the operation runs. It never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1)]
    pub workflow_version: Option<u32>,
    /// The operation is parked and cannot continue: its workflow version is unknown, or has other
    /// steps now.
    #[serde(default, skip_serializing_if = "is_false")]
    pub workflow_unknown: bool,
    /// The tenant of the operation, if any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller_id: Option<String>,
    /// The step that failed, or the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "payment")]
    pub step: Option<String>,
    /// Further steps whose undo has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_failed_steps: Vec<String>,
    /// The error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// The same for all operations of a workflow that failed at the same step with the same code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "3f9a0c52d1e8")]
    pub fingerprint: Option<String>,
    /// When the operation began to need attention.
    #[schema(format = DateTime, example = "2030-05-08T20:00:00.234567Z")]
    pub since: String,
    /// How long it has needed attention, in seconds.
    #[schema(example = 93)]
    pub age_seconds: u64,
    /// While the operation is live: the latest time at which its scheduler checks it next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub next_due: Option<String>,
    /// An operator abandoned the operation while it was parked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandoned: bool,
}

/// A verb that was accepted, and is on its way to the operation's scheduler.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = VerbAccepted)]
pub struct VerbAcceptedView {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: Uuid,
    /// The verb.
    #[schema(value_type = String, example = "cancel")]
    pub verb: Cow<'static, str>,
    /// The id of this request: the same for repeats with the same `Idempotency-Key`.
    #[schema(format = "uuid", example = "5f0e9c1a-7d4e-5b52-9a3c-2f1f6f2d9b10")]
    pub request_id: Uuid,
    /// The new operation that runs this one again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmitted_as: Option<Uuid>,
}

impl OperationView {
    /// The view of an operation that no scheduler has read yet.
    #[must_use]
    pub fn pending(id: OperationId, ahead: Option<i64>) -> Self {
        Self {
            id: id.0,
            state: ProcessState::Pending.as_str().into(),
            ahead,
            what_next: Some("Waiting for the scheduler to read the request.".to_owned()),
            verbs: vec![Verb::Cancel.as_str().into()],
            ..Self::default()
        }
    }

    /// The view of a request whose id another request took.
    #[must_use]
    pub fn rejected(id: OperationId) -> Self {
        Self {
            state: "Rejected".into(),
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
    pub fn with_caller_id(self, caller_id: Option<Arc<str>>) -> Self {
        Self { caller_id, ..self }
    }

    /// Adds when the request of a pending operation was accepted.
    #[must_use]
    pub fn with_time(self, requested_at: Timestamp) -> Self {
        let time = time_text(requested_at);
        Self {
            created_at: Some(time.clone()),
            updated_at: Some(time),
            ..self
        }
    }

    /// Its state; `None` if it is not a state of stored operations.
    #[must_use]
    pub fn process_state(&self) -> Option<ProcessState> {
        let mut states = ProcessState::ALL.into_iter();
        states.find(|state| state.as_str() == self.state)
    }

    /// Whether its scheduler does nothing more unless a person requests it.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.process_state().is_some_and(ProcessState::is_final)
    }
}

impl HistoryView {
    /// The view of a stored entry.
    #[must_use]
    pub fn of(entry: &HistoryEntry) -> Self {
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
    #[must_use]
    pub fn of_step(error: &StepError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            step: None,
        }
    }

    /// The error of an operation.
    #[must_use]
    pub fn of_operation(error: &OperationError) -> Self {
        Self {
            step: error.step.clone(),
            ..Self::of_step(&error.error)
        }
    }
}

impl fmt::Display for ErrorView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            message,
            step,
        } = self;
        match step {
            Some(step) => write!(f, "{code} at step {step}: {message}"),
            None => write!(f, "{code}: {message}"),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
