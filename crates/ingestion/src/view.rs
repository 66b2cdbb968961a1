//! The JSON views of answers, made of rows. Their types are in `waybill_api`, but for that of a
//! delivery.

mod list;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use waybill_api::payloads::Payloads;
use waybill_api::verb::Verb;
use waybill_api::view::{ErrorView, HistoryView, OperationView, StepView};
use waybill_clock::time_text;
use waybill_engine::{
    Created, OperationError, OperationRow, OperationState, ProcessState, Workflow, Workflows,
    workflow_of,
};

use super::refusals;
use super::what_next::{self, WhatNext};

pub use self::list::{item_of_row, unreadable_item};

/// An operation and its request in a form of its own. The form has its schema.
#[derive(Debug, Serialize)]
pub struct RequestView {
    /// The operation that performs the request.
    #[serde(flatten)]
    pub operation: OperationView,
    /// The request. It may be absent while `Pending`, if it cannot be read from its topic in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<RawValue>>,
}

/// The view of a stored operation, for a caller with or without the scope for payloads.
pub fn of_row(row: &OperationRow, workflows: &Workflows, has_payload: bool) -> OperationView {
    let (created, state) = (&row.created, &row.state);
    let workflow = workflow_of(row, workflows).map(AsRef::as_ref);
    let payloads = Payloads::of(workflow, has_payload);
    let steps = workflow.map_or(&[][..], Workflow::steps);
    let WhatNext { sentence, verbs } = what_next::of(row, workflows);
    let history = state.history.iter();
    OperationView {
        workflow: Some(Arc::clone(&created.workflow)).filter(|name| !name.is_empty()),
        workflow_version: workflow_version(created),
        workflow_unknown: refusals::is_stranded(row, workflows),
        state: state.state.as_str().into(),
        steps: created
            .step_names
            .iter()
            .zip(&state.steps)
            .enumerate()
            .map(|(index, (name, progress))| {
                StepView::of(name, progress)
                    .with_agent(steps.get(index))
                    .with_outputs(payloads.outputs(index, &progress.outputs))
            })
            .collect(),
        input: payloads.input(row.input()).filter(|_| !state.tombstone),
        payload_withheld: payloads.withheld().filter(|_| !state.tombstone),
        trace_id: created.traceparent.as_deref().and_then(trace_id),
        error: state.failure().map(ErrorView::of_operation),
        cause: cause(state).map(ErrorView::of_operation),
        what_next: Some(sentence),
        verbs: verbs.into_iter().map(|verb| verb.as_str().into()).collect(),
        cancel: cancel(state).map(Cow::from),
        abandoned: state.abandoned,
        history: history.map(HistoryView::of).collect(),
        resubmission_of: created.resubmission_of.map(|id| id.0),
        resubmitted_as: refusals::resubmission(state).map(|(_, id)| id.0),
        failure_count: state.failure_count,
        next_due: state.next_due.map(time_text),
        priority: Some(created.request.priority.name().into()),
        handed_off: state.handed_off,
        locked_by: state.locked_by.map(|owner| owner.0),
        epoch: Some(state.epoch.0),
        caller_id: created.caller_id.as_deref().map(Arc::from),
        tenant: Some(Arc::clone(&created.tenant)).filter(|tenant| !tenant.is_empty()),
        deadline: row.deadline().map(time_text),
        created_at: Some(time_text(created.requested_at)),
        updated_at: Some(time_text(state.updated_at)),
        ..OperationView::pending(row.id, None)
    }
}

/// The trace in a trace context: `version-trace-parent-flags`.
fn trace_id(traceparent: &str) -> Option<String> {
    traceparent.split('-').nth(1).map(str::to_owned)
}

/// The request of a stored operation in a form of its own, for a caller with or without the scope
/// for payloads; `None` if it is withheld, or was cancelled before it arrived.
pub fn request_of(
    row: &OperationRow,
    workflows: &Workflows,
    has_payload: bool,
) -> Option<Box<RawValue>> {
    let workflow = workflow_of(row, workflows).map(AsRef::as_ref);
    let payloads = Payloads::of(workflow, has_payload);
    payloads
        .raw_input(row.input())
        .filter(|_| !row.state.tombstone)
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
        .any(|entry| entry.verb == Verb::Cancel.in_path() && entry.refused.is_some())
        .then_some("refused")
}
