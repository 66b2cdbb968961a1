//! The part of the API's answers that these commands use. Unknown fields are ignored, so that the API can add some.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;
use waybill_engine::ProcessState;

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) workflow: Option<String>,
    pub(super) workflow_version: Option<u32>,
    #[serde(default)]
    pub(super) workflow_unknown: bool,
    pub(super) tenant: Option<String>,
    pub(super) caller_id: Option<String>,
    #[serde(default)]
    pub(super) steps: Vec<Step>,
    pub(super) ahead: Option<i64>,
    pub(super) error: Option<Failure>,
    pub(super) cause: Option<Failure>,
    pub(super) what_next: Option<String>,
    #[serde(default)]
    pub(super) verbs: Vec<String>,
    pub(super) cancel: Option<String>,
    #[serde(default)]
    pub(super) abandoned: bool,
    #[serde(default)]
    pub(super) history: Vec<HistoryEntry>,
    pub(super) resubmission_of: Option<String>,
    pub(super) resubmitted_as: Option<String>,
    #[serde(default)]
    pub(super) failure_count: u32,
    pub(super) next_due: Option<String>,
    pub(super) priority: Option<String>,
    #[serde(default)]
    pub(super) handed_off: bool,
    pub(super) locked_by: Option<String>,
    pub(super) epoch: Option<u64>,
    pub(super) deadline: Option<String>,
    pub(super) created_at: Option<String>,
    pub(super) updated_at: Option<String>,
}

/// A step of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) state: String,
    #[serde(default)]
    pub(super) attempt: u32,
    pub(super) action: Option<String>,
    #[serde(default)]
    pub(super) failure_count: u32,
    #[serde(default)]
    pub(super) undo_failure_count: u32,
    pub(super) complete_by: Option<String>,
    pub(super) retry_at: Option<String>,
    pub(super) changed_at: Option<String>,
    pub(super) late_success: Option<u32>,
    pub(super) error: Option<Failure>,
}

/// Why something failed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) code: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<String>,
}

impl fmt::Display for Failure {
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

/// A request of a person about an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct HistoryEntry {
    pub(super) at: String,
    pub(super) by: String,
    pub(super) verb: String,
    #[serde(default)]
    pub(super) reason: String,
    pub(super) refused: Option<String>,
}

/// A page of a list, with its items as JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) items: Vec<Box<RawValue>>,
    pub(super) next: Option<String>,
}

/// An operation in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item {
    pub(super) id: Uuid,
    pub(super) state: String,
    #[serde(default)]
    pub(super) workflow: String,
    pub(super) workflow_version: Option<u32>,
    #[serde(default)]
    pub(super) workflow_unknown: bool,
    #[serde(default)]
    pub(super) tenant: String,
    pub(super) caller_id: Option<String>,
    pub(super) step: Option<String>,
    pub(super) error: Option<Failure>,
    pub(super) fingerprint: Option<String>,
    #[serde(default)]
    pub(super) age_seconds: u64,
    pub(super) next_due: Option<String>,
    #[serde(default)]
    pub(super) abandoned: bool,
}

/// The answer to an accepted verb.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) resubmitted_as: Option<String>,
}

/// A problem (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) detail: String,
    #[serde(default)]
    pub(super) errors: Vec<FieldProblem>,
    pub(super) code: Option<String>,
}

/// A wrong field: exactly one of body field, parameter and header is named.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct FieldProblem {
    pub(super) pointer: Option<String>,
    pub(super) parameter: Option<String>,
    pub(super) header: Option<String>,
    #[serde(default)]
    pub(super) detail: String,
}

impl FieldProblem {
    /// The place of the field; empty for the whole body.
    pub(super) fn place(&self) -> &str {
        let named = [&self.pointer, &self.parameter, &self.header];
        named.into_iter().flatten().next().map_or("", |name| name)
    }
}

impl Step {
    /// Whether the step is being performed or undone, or waits for that.
    pub(super) fn is_under_way(&self) -> bool {
        self.complete_by.is_some() || self.retry_at.is_some()
    }
}

impl Operation {
    /// Its state; `None` if it is not a state of stored operations.
    pub(super) fn process_state(&self) -> Option<ProcessState> {
        let mut states = ProcessState::ALL.into_iter();
        states.find(|state| state.as_str() == self.state)
    }

    /// Whether its scheduler does nothing more unless a person requests it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.process_state().is_some_and(ProcessState::is_final)
    }
}
