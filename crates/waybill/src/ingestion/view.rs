//! What answers look like.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use waybill_drone_delivery::request::DeliveryRequest;
use waybill_engine::{
    CreateRequest, OperationId, OperationRow, OperationState, ProcessState, StepProgress,
    StepState, Timestamp, Workflow,
};

/// An operation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Operation)]
pub struct OperationView {
    /// Its id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// The workflow that it runs. Absent where only the request's position is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "drone-delivery")]
    pub workflow: Option<Arc<str>>,
    /// `Pending`: accepted, no scheduler has read it yet. `Processing`: its steps are being
    /// performed. `Processed`: every step is completed or skipped. `Error`: it failed for good and
    /// waits for a person. `Rejected`: another request with the same id came first.
    #[schema(example = "Processing")]
    pub state: &'static str,
    /// Its steps, in the workflow's order.
    pub steps: Vec<StepView>,
    /// While it is `Pending`: how many requests at most are ahead of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 12)]
    pub ahead: Option<i64>,
    /// Why it failed for good, or was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// The caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "order-17")]
    pub caller_id: Option<Arc<str>>,
    /// The tenant on whose behalf it runs, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Arc<str>>,
    /// By when it should be final, if a deadline was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deadline: Option<String>,
    /// When the request was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00.123456Z")]
    pub created_at: Option<String>,
    /// When it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00.234567Z")]
    pub updated_at: Option<String>,
}

/// A delivery: an operation beside its request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryView {
    /// The operation that delivers it.
    #[serde(flatten)]
    pub operation: OperationView,
    /// The request. While it is `Pending` it may be absent: it is read from the log then, if that
    /// can be done soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeliveryRequest>)]
    pub request: Option<Box<RawValue>>,
}

/// A step of an operation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Step)]
pub struct StepView {
    /// Its name in the workflow.
    #[schema(value_type = String, example = "account")]
    pub name: Arc<str>,
    /// `NotStarted`, `Running`, `Completed`, `Failed`, `TimedOut` or `Skipped`.
    #[schema(example = "Completed")]
    pub state: &'static str,
    /// The number of the current or last attempt; 0 before the first.
    #[schema(example = 1)]
    pub attempt: u32,
    /// Its last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

/// Why something failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorView {
    /// Stable, for programs.
    #[schema(example = "drone-unavailable")]
    pub code: String,
    /// For people.
    #[schema(example = "no drone is free")]
    pub message: String,
    /// The step that it belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The answer to an accepted request.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Accepted)]
pub struct AcceptedView<'a> {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// Always `Pending`.
    #[schema(example = "Pending")]
    pub state: &'static str,
    /// The workflow that it runs.
    #[schema(example = "drone-delivery")]
    pub workflow: &'a str,
    /// For an operation: the caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-17")]
    pub caller_id: Option<&'a str>,
    /// For a delivery: the request, with its `deliveryId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeliveryRequest>)]
    pub request: Option<&'a RawValue>,
}

/// A line of a batch's answer: `id` and `location`, or `problem`.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchLine<'a> {
    /// The status that the request alone would have been answered with.
    #[schema(example = 202)]
    pub status: u16,
    /// The operation's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub id: Option<OperationId>,
    /// Where to ask for its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub location: Option<&'a str>,
    /// What is wrong with the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::problem::Problem>)]
    pub problem: Option<&'a super::problem::Problem>,
}

impl OperationView {
    /// An operation as the store has it.
    pub fn of_row(row: &OperationRow) -> Self {
        let OperationState {
            state,
            steps,
            error,
            ..
        } = &row.state;
        let created = &row.created;
        let step = |(name, progress): (&Arc<str>, &StepProgress)| StepView {
            name: Arc::clone(name),
            state: progress.state.as_str(),
            attempt: progress.attempt.0,
            error: progress.error.as_ref().map(|error| ErrorView {
                code: error.code.clone(),
                message: error.message.clone(),
                step: None,
            }),
        };
        Self {
            id: row.id,
            workflow: Some(Arc::clone(&created.workflow)),
            state: state.as_str(),
            steps: created.step_names.iter().zip(steps).map(step).collect(),
            ahead: None,
            error: error.as_ref().map(|error| ErrorView {
                code: error.error.code.clone(),
                message: error.error.message.clone(),
                step: error.step.clone(),
            }),
            caller_id: created.caller_id.as_deref().map(Arc::from),
            tenant: Some(Arc::clone(&created.tenant)).filter(|tenant| !tenant.is_empty()),
            deadline: created.deadline.map(time_text),
            created_at: Some(time_text(created.requested_at)),
            updated_at: Some(time_text(row.state.updated_at)),
        }
    }

    /// An operation that no scheduler has read yet.
    pub fn pending(id: OperationId, ahead: Option<i64>) -> Self {
        Self {
            id,
            workflow: None,
            state: ProcessState::Pending.as_str(),
            steps: Vec::new(),
            ahead,
            error: None,
            caller_id: None,
            tenant: None,
            deadline: None,
            created_at: None,
            updated_at: None,
        }
    }

    /// A request that lost its id to another one.
    pub fn rejected(id: OperationId) -> Self {
        Self {
            state: "Rejected",
            error: Some(ErrorView {
                code: "id-conflict".to_owned(),
                message: "another request with this id came first".to_owned(),
                step: None,
            }),
            ..Self::pending(id, None)
        }
    }

    /// Adds the workflow of an operation whose row is not there.
    pub fn with_workflow(self, name: Arc<str>, workflow: Option<&Workflow>) -> Self {
        let steps = workflow.map_or(&[][..], Workflow::step_names).iter();
        let step = |name: &Arc<str>| StepView {
            name: Arc::clone(name),
            state: StepState::NotStarted.as_str(),
            attempt: 0,
            error: None,
        };
        Self {
            workflow: Some(name),
            steps: steps.map(step).collect(),
            ..self
        }
    }

    /// Adds what the request of a pending operation says beside its workflow.
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

    /// Adds when the request of a pending operation was taken.
    pub fn with_time(self, requested_at: Timestamp) -> Self {
        let time = time_text(requested_at);
        Self {
            created_at: Some(time.clone()),
            updated_at: Some(time),
            ..self
        }
    }
}

/// An instant as answers show it: RFC 3339 in UTC.
fn time_text(time: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(time.as_micros()) {
        Ok(time) => time.to_string(),
        Err(_) => jiff::Timestamp::MAX.to_string(),
    }
}
