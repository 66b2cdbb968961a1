//! Lists of operations.

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use waybill_clock::time_text;
use waybill_engine::{OperationId, OperationRow, StepProgress, Timestamp, Workflows};
use waybill_store::AttentionEntry;

use super::{ErrorView, failure, is_false, workflow_version};
use crate::refusals;

/// The most items of a page.
pub const PAGE_ITEMS_MAX: usize = 1_000;

/// The state of an operation whose row cannot be read.
pub const UNREADABLE: &str = "Unreadable";

/// A page of operations.
#[derive(Debug, Serialize, ToSchema)]
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
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OperationItem)]
pub struct ItemView {
    /// The operation's id.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// The operation's state, or `Unreadable` if its row cannot be read.
    #[schema(example = "CompensationFailed")]
    pub state: &'static str,
    /// The workflow that the operation runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(example = "drone-delivery")]
    pub workflow: String,
    /// The workflow version that the operation runs. It never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1)]
    pub workflow_version: Option<u32>,
    /// The operation is parked and cannot continue: its workflow version is unknown, or has other
    /// steps now.
    #[serde(skip_serializing_if = "is_false")]
    pub workflow_unknown: bool,
    /// The tenant of the operation, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The caller's own id, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller_id: Option<String>,
    /// The step that failed, or the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "drone")]
    pub step: Option<String>,
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
    #[serde(skip_serializing_if = "is_false")]
    pub abandoned: bool,
}

impl ItemView {
    /// The view of a stored operation.
    pub fn of_row(
        row: &OperationRow,
        workflows: &Workflows,
        entry: AttentionEntry,
        now: Timestamp,
    ) -> Self {
        let (created, state) = (&row.created, &row.state);
        let failure = failure(state);
        let lagging = lagging_step(row);
        let step = match failure {
            Some(failure) => failure.step.clone(),
            None => lagging.map(|(name, _)| name.to_owned()),
        };
        let error = failure.map(|failure| ErrorView::of_step(&failure.error));
        let error = error.or_else(|| Some(ErrorView::of_step(lagging?.1.error.as_ref()?)));
        let fingerprint = error
            .as_ref()
            .map(|error| fingerprint(&created.workflow, step.as_deref(), &error.code));
        Self {
            id: row.id,
            state: state.state.as_str(),
            workflow: created.workflow.to_string(),
            workflow_version: workflow_version(created),
            workflow_unknown: refusals::is_stranded(row, workflows),
            tenant: created.tenant.to_string(),
            caller_id: created.caller_id.clone(),
            step,
            error,
            fingerprint,
            next_due: state.next_due.map(time_text),
            abandoned: state.abandoned,
            ..Self::unreadable(entry, now)
        }
    }

    /// The view of an operation whose row cannot be read.
    pub fn unreadable(entry: AttentionEntry, now: Timestamp) -> Self {
        Self {
            id: entry.operation,
            state: UNREADABLE,
            workflow: String::new(),
            workflow_version: None,
            workflow_unknown: false,
            tenant: String::new(),
            caller_id: None,
            step: None,
            error: None,
            fingerprint: None,
            since: time_text(entry.at),
            age_seconds: now.since(entry.at).as_secs(),
            next_due: None,
            abandoned: false,
        }
    }
}

/// The first step that is running or waits for its next attempt.
fn lagging_step(row: &OperationRow) -> Option<(&str, &StepProgress)> {
    let mut named = row.created.step_names.iter().zip(&row.state.steps);
    let (name, step) = named.find(|(_, step)| step.is_under_way() || step.retry_at.is_some())?;
    Some((name, step))
}

/// Groups failures of the same kind; stable over restarts and versions.
fn fingerprint(workflow: &str, step: Option<&str>, code: &str) -> String {
    let mut sha = Sha256::new();
    for part in [workflow, step.unwrap_or_default(), code] {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    let hash = sha.finalize();
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_stable_and_depends_on_workflow_step_and_code() {
        let one = fingerprint("drone-delivery", Some("drone"), "refused");
        assert_eq!(one, "ef437f7b5f58");
        assert_eq!(one.len(), 12);
        for other in [
            fingerprint("drone-deliver", Some("ydrone"), "refused"),
            fingerprint("drone-delivery", None, "refused"),
            fingerprint("drone-delivery", Some("drone"), "refuse"),
        ] {
            assert_ne!(one, other);
        }
    }
}
