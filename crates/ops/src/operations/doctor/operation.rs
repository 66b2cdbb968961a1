//! What an operation waits for, which scheduler owns it, and what happens next.

use waybill_api::view::{ErrorView, OperationView, StepView};
use waybill_engine::{Action, OperationId, ShardingScheme};
use waybill_telemetry::visible::counted;
use waybill_topology::shards::show::LayoutView;

use super::Finding;
use crate::operations::api::{Api, ApiError};
use crate::operations::explain::why;

/// The findings about the operation with this ID, or with this ID of its caller.
pub(super) async fn of_id(
    api: &Result<Api, String>,
    id: &str,
    tenant: Option<&str>,
    layout: &anyhow::Result<LayoutView>,
) -> Vec<Finding> {
    match api {
        Ok(api) => {
            let found = api.find(id, tenant).await;
            of_operation(found.map(|found| found.operation), layout.as_ref().ok())
        }
        Err(problem) => vec![Finding::bad("api", problem)],
    }
}

pub(super) fn of_operation(
    found: Result<OperationView, ApiError>,
    layout: Option<&LayoutView>,
) -> Vec<Finding> {
    let operation = match found {
        Ok(operation) => operation,
        Err(error) => return vec![Finding::bad("operation", error.to_string())],
    };
    let state = &*operation.state;
    let waits_for_a_person =
        matches!(state, "Error" | "CompensationFailed") && !operation.abandoned;
    let message = format!("{}: {state}", operation.id);
    let mut findings = vec![match waits_for_a_person {
        true => Finding::note("operation", message),
        false => Finding::ok("operation", message),
    }];
    findings.extend(left(&operation));
    if matches!(state, "Pending" | "Processing" | "Compensating") {
        findings.push(Finding::ok("waits for", why(&operation)));
        findings.extend(layout.and_then(|layout| holder(&operation, layout)));
    }
    if let Some(ahead) = operation.ahead {
        let message = format!("{} before its own in the topic", counted(ahead, "request"));
        findings.push(Finding::ok("queue", message));
    }
    findings.extend(attempts_that_failed(&operation));
    for (what, failure) in [
        ("error", &operation.error),
        ("failed before", &operation.cause),
    ] {
        let text = failure.as_ref().map(ErrorView::to_string);
        findings.extend(text.map(|message| Finding::note(what, message)));
    }
    let next = operation.what_next;
    let next = next.unwrap_or_else(|| "its scheduler reads its request".to_owned());
    findings.push(match operation.workflow_unknown {
        true => Finding::bad("next", next),
        false => Finding::ok("next", next),
    });
    findings.extend(operation.next_due.map(|due| Finding::ok("next due", due)));
    findings
}

/// Why the last attempt of each retried step failed, and each undo that has failed for good.
fn attempts_that_failed(operation: &OperationView) -> impl Iterator<Item = Finding> {
    let is_parked = operation.state == "CompensationFailed";
    let of_interest = operation
        .steps
        .iter()
        .filter(move |step| step.is_under_way() || (is_parked && is_to_be_undone(step)));
    of_interest.filter_map(|step| {
        let error = ErrorView {
            step: Some(step.name.to_string()),
            ..step.error.clone()?
        };
        let is_shown = operation.error.as_ref() == Some(&error);
        (!is_shown).then(|| Finding::note("error", error.to_string()))
    })
}

/// The remaining steps to do or to undo.
fn left(operation: &OperationView) -> Option<Finding> {
    let (what, is_left): (_, fn(&StepView) -> bool) = match &*operation.state {
        "Compensated" | "Cancelled" => return None,
        "Compensating" | "CompensationFailed" => ("to be undone", is_to_be_undone),
        _ => ("missing", |step| {
            !matches!(&*step.state, "Completed" | "Skipped" | "Compensated")
        }),
    };
    let steps = operation.steps.iter().filter(|step| is_left(step));
    let names: Vec<&str> = steps.map(|step| &*step.name).collect();
    (!names.is_empty()).then(|| Finding::ok(what, names.join(", ")))
}

/// Whether compensation will undo a step or has failed to undo it.
fn is_to_be_undone(step: &StepView) -> bool {
    let could_not_be = || step.action.as_deref() == Some(Action::Compensate.as_str());
    match &*step.state {
        "Compensating" => true,
        "Failed" | "TimedOut" => could_not_be(),
        _ => false,
    }
}

/// Which scheduler owns an unfinished operation.
fn holder(operation: &OperationView, layout: &LayoutView) -> Option<Finding> {
    const WHAT: &str = "has it";
    let id = OperationId(operation.id);
    let scheme = ShardingScheme {
        partitions: layout.partitions,
        shards_per_partition: layout.per_partition,
    };
    let shard = scheme.shard_of(id);
    let view = layout.shards.iter().find(|view| view.shard == shard.0)?;
    let place = format!("shard {shard} of partition {}", view.partition);
    Some(match (&view.owner, operation.handed_off) {
        (None, _) => {
            let waits = view.waits_for.join("; ");
            let message = format!("{place}, which has no owner: it waits for {waits}");
            Finding::bad(WHAT, message)
        }
        (Some(owner), _) if view.silent => {
            let message = format!("{place}; the lease of its owner {owner} has expired");
            Finding::bad(WHAT, message)
        }
        (Some(_), true) => {
            let message =
                format!("the deadline index: a supervisor resumes it on {place} when it is due");
            Finding::ok(WHAT, message)
        }
        (Some(owner), false) => Finding::ok(WHAT, format!("{place}, owned by {owner}")),
    })
}
