//! The steps of an operation.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_clock::time_text;
use waybill_engine::{Step, StepProgress, StepState};

use super::{ErrorView, is_zero};

/// A step of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Step)]
pub struct StepView {
    /// The step's name in the workflow.
    #[schema(value_type = String, example = "stock")]
    pub name: Arc<str>,
    /// `NotStarted`, `Running`, `Completed`, `Failed`, `TimedOut`, `Skipped`, `Compensating` or
    /// `Compensated`.
    #[schema(value_type = String, example = "Completed")]
    pub state: Cow<'static, str>,
    /// The number of the current or last attempt, of any action; 0 before the first.
    #[schema(example = 1)]
    pub attempt: u32,
    /// The action of that attempt: `Run`, `Compensate` or `Probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "Run")]
    pub action: Option<Cow<'static, str>>,
    /// How many times the step has failed or timed out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failure_count: u32,
    /// How often undoing the step has failed or timed out.
    #[serde(default, skip_serializing_if = "is_zero")]
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
    /// The agent that performs it. Absent if the workflow version is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "stock")]
    pub agent: Option<Arc<str>>,
    /// What the step put out, with sensitive values as `***`. Absent without outputs, and if
    /// `payloadWithheld` is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"reservation": "r-7"}))]
    pub outputs: Option<BTreeMap<String, String>>,
}

impl StepView {
    /// Whether the step is being performed or undone, or waits for that.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.complete_by.is_some() || self.retry_at.is_some()
    }

    /// The view of a stored step.
    #[must_use]
    pub fn of(name: &Arc<str>, progress: &StepProgress) -> Self {
        let was_asked_for = progress.was_asked_for();
        let has_changed = was_asked_for || progress.state != StepState::NotStarted;
        Self {
            name: Arc::clone(name),
            state: progress.state.as_str().into(),
            attempt: progress.attempt.0,
            action: was_asked_for.then(|| progress.action.as_str().into()),
            failure_count: progress.failure_count,
            undo_failure_count: progress.undo_failure_count,
            complete_by: progress.complete_by.map(time_text),
            retry_at: progress.retry_at.map(time_text),
            changed_at: has_changed.then(|| time_text(progress.changed_at)),
            late_success: progress.late_success.map(|attempt| attempt.0),
            error: progress.error.as_ref().map(ErrorView::of_step),
            ..Self::default()
        }
    }

    /// Adds the agent of the step.
    #[must_use]
    pub fn with_agent(self, step: Option<&Step>) -> Self {
        let agent = step.map(|step| Arc::clone(&step.agent));
        Self { agent, ..self }
    }

    /// Adds what the step put out.
    #[must_use]
    pub fn with_outputs(self, outputs: Option<BTreeMap<String, String>>) -> Self {
        Self { outputs, ..self }
    }
}
