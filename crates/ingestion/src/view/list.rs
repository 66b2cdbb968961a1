//! Lists of operations.

use sha2::{Digest as _, Sha256};
use waybill_api::view::{ErrorView, ItemView, UNREADABLE};
use waybill_clock::time_text;
use waybill_engine::{Action, OperationRow, StepProgress, Timestamp, Workflows};
use waybill_store::AttentionEntry;

use super::workflow_version;
use crate::refusals;

/// The view of a stored operation.
pub fn item_of_row(
    row: &OperationRow,
    workflows: &Workflows,
    entry: AttentionEntry,
    now: Timestamp,
) -> ItemView {
    let (created, state) = (&row.created, &row.state);
    let failure = state.failure();
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
    let named = created.step_names.iter().map(|name| &**name);
    let further_failed_steps = further_failed(named.zip(&state.steps), step.as_deref());
    ItemView {
        id: row.id.0,
        state: state.state.as_str().into(),
        workflow: created.workflow.to_string(),
        workflow_version: workflow_version(created),
        workflow_unknown: refusals::is_stranded(row, workflows),
        tenant: created.tenant.to_string(),
        caller_id: created.caller_id.clone(),
        step,
        further_failed_steps,
        error,
        fingerprint,
        next_due: state.next_due.map(time_text),
        abandoned: state.abandoned,
        ..unreadable_item(entry, now)
    }
}

/// The view of an operation whose row cannot be read.
pub fn unreadable_item(entry: AttentionEntry, now: Timestamp) -> ItemView {
    ItemView {
        id: entry.operation.0,
        state: UNREADABLE.into(),
        since: time_text(entry.at),
        age_seconds: now.since(entry.at).as_secs(),
        ..ItemView::default()
    }
}

/// The first step that is running or waits for its next attempt.
fn lagging_step(row: &OperationRow) -> Option<(&str, &StepProgress)> {
    let mut named = row.created.step_names.iter().zip(&row.state.steps);
    let (name, step) = named.find(|(_, step)| step.is_under_way() || step.retry_at.is_some())?;
    Some((name, step))
}

/// The steps whose undo has failed, apart from `step`.
fn further_failed<'a>(
    steps: impl Iterator<Item = (&'a str, &'a StepProgress)>,
    step: Option<&str>,
) -> Vec<String> {
    let further = steps.filter(|(name, progress)| {
        let is_failed = progress.action == Action::Compensate && progress.failed_for_good();
        is_failed && step != Some(*name)
    });
    further.map(|(name, _)| name.to_owned()).collect()
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
    use waybill_engine::StepState;

    use super::*;

    #[test]
    fn every_step_whose_undo_has_failed_is_named_once() {
        let progress = |state, action| StepProgress {
            state,
            action,
            ..StepProgress::default()
        };
        let refused = progress(StepState::Failed, Action::Compensate);
        let steps = [
            ("seat", progress(StepState::Compensated, Action::Compensate)),
            ("room", refused.clone()),
            ("car", refused),
            ("bill", progress(StepState::Failed, Action::Run)),
        ];
        let named = || steps.iter().map(|(name, progress)| (*name, progress));
        assert_eq!(further_failed(named(), Some("room")), ["car"]);
        assert_eq!(further_failed(named(), Some("bill")), ["room", "car"]);
    }

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
