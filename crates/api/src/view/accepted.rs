//! The answers to requests and verbs that were accepted.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use waybill_engine::{OperationId, OperationRow};
use waybill_http::problem::ProblemDetails;

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
    /// The workflow that the operation runs.
    #[schema(example = "order-fulfilment")]
    pub workflow: &'a str,
    /// For an operation: the caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-17")]
    pub caller_id: Option<&'a str>,
    /// For a request in a form of its own: the request, with its id. Only servers with such a form
    /// describe the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub request: Option<&'a RawValue>,
}

/// The ids of an operation, for callers without the scope `read`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OperationIds)]
pub struct OperationIdsView<'a> {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// The caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-17")]
    pub caller_id: Option<&'a str>,
}

impl<'a> OperationIdsView<'a> {
    /// The view of a stored operation.
    #[must_use]
    pub fn of_row(row: &'a OperationRow) -> Self {
        Self {
            id: row.id,
            caller_id: row.created.caller_id.as_deref(),
        }
    }
}

/// A line of a batch's answer: `id` and `location`, or `problem`.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchLine<'a> {
    /// The status that a single request would have received.
    #[schema(example = 202)]
    pub status: u16,
    /// The operation's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub id: Option<OperationId>,
    /// The URL of the operation's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub location: Option<&'a str>,
    /// Why the line was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ProblemDetails<'a>>,
    /// The number of the line in the batch, from 1; blank lines count. If the batch ended early:
    /// the number of the first line that was not read.
    #[schema(example = 1)]
    pub line: u64,
}
