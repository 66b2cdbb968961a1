//! The data of events.

use serde::Serialize;
use utoipa::ToSchema;
use waybill_engine::OperationId;

use super::ErrorView;

/// The data of an event of an operation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Event)]
pub struct EventView<'a> {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub operation: OperationId,
    /// `received`: a scheduler has created the operation. `step`: a step changed its state.
    /// `state`: the operation changed its state. `final`: the operation has ended or is parked; the
    /// stream ends with this event.
    #[serde(rename = "type")]
    #[schema(example = "step")]
    pub kind: &'static str,
    /// The new state of the step or the operation.
    #[schema(example = "Completed")]
    pub state: &'static str,
    /// The step, for events of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "payment")]
    pub step: Option<&'a str>,
    /// The step's current or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1)]
    pub attempt: Option<u32>,
    /// The action of that attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Run")]
    pub action: Option<&'static str>,
    /// The error, if something failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// The time of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2030-05-08T20:00:00.234567Z")]
    pub at: Option<String>,
}
