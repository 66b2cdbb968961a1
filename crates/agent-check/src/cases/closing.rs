//! Checks and clean-up at the end.

use waybill_engine::{Action, OperationId, Outcome};

use super::undoing::is_undone;
use crate::harness::{ExpectedEffect, Harness, described};
use crate::transcript::SentId;
use crate::{CheckError, Ledger, Rule};

/// The largest number of operations to ask the ledger about.
const LEDGER_OPERATIONS_MAX: usize = 200;

/// Probes that late requests were not performed later. Whether they were answered is judged with
/// all other answers.
pub(super) fn late_again(
    harness: &mut Harness<'_>,
    operations: &[OperationId],
) -> Result<(), CheckError> {
    if !harness.probes {
        return Ok(());
    }
    for operation in operations {
        let probed = harness.ask(*operation, Action::Probe)?;
        if !matches!(probed, Some(Outcome::NotPerformed)) {
            let what = format!(
                "a probe after a late request: {}",
                described(probed.as_ref())
            );
            harness.findings.fault(Rule::Late, what);
        }
        match probed {
            Some(Outcome::Success { .. }) => {
                harness.unwanted.insert(*operation);
            }
            // The agent answers no more probes.
            None => return Ok(()),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Compares the expected effects with the service's ledger, if there is one.
pub(super) fn effects(harness: &mut Harness<'_>, ledger: Option<&dyn Ledger>) {
    let Some(ledger) = ledger else {
        let why = "no ledger of the service was given";
        return harness.findings.excuse(Rule::Effects, why);
    };
    let mut counted = 0;
    for (operation, effect) in harness.expected_effects.iter().take(LEDGER_OPERATIONS_MAX) {
        let counts = match ledger.effects(*operation, &harness.settings.step) {
            Ok(counts) => counts,
            Err(error) => {
                let why = format!("cannot read the ledger: {error}");
                return harness.findings.excuse(Rule::Effects, why);
            }
        };
        let remaining = counts.made.saturating_sub(counts.undone);
        let expected = match effect {
            ExpectedEffect::Untouched => counts.made == 0,
            ExpectedEffect::Made => counts.made == 1 && remaining == 1,
            ExpectedEffect::Undone => counts.made <= 1 && remaining == 0,
            ExpectedEffect::Open => counts.made <= 1,
        };
        if !expected {
            let meant = match effect {
                ExpectedEffect::Untouched => "must not have been performed",
                ExpectedEffect::Made => "was performed",
                ExpectedEffect::Undone => "was undone",
                ExpectedEffect::Open => "may have been performed",
            };
            let what = format!(
                "a step that {meant} has {} effects made and {} undone",
                counts.made, counts.undone
            );
            harness.findings.fault(Rule::Effects, what);
        }
        counted += 1;
    }
    harness
        .findings
        .saw(Rule::Effects, format!("{counted} operations"));
}

/// Undoes all effects that exist or may exist.
pub(super) fn undo_all(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    if !harness.undoes {
        return Ok(());
    }
    let left = harness.left();
    let requests = left
        .iter()
        .map(|operation| harness.request(*operation, Action::Compensate))
        .collect();
    let answers = harness.answers(requests)?;
    for (operation, mut answer) in left.into_iter().zip(answers) {
        if answer.is_some() && !is_undone(&answer) {
            answer = harness.ask(operation, Action::Compensate)?;
        }
        if is_undone(&answer) {
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Undone);
            harness.unwanted.remove(&operation);
        }
    }
    Ok(())
}

/// Waits until answered requests are committed, and reads the answers until then.
pub(super) fn commits(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let partitions = harness.wire.request_partitions();
    // The last request of each partition, if it was answered, covers all earlier ones.
    let mut last: Vec<Option<SentId>> = vec![None; partitions as usize];
    for (id, sent) in harness.transcript.iter() {
        let slot = &mut last[sent.partition.0 as usize];
        if slot.is_none_or(|newest| harness.transcript.get(newest).offset < sent.offset) {
            *slot = Some(id);
        }
    }
    let answered = |id: &SentId| !harness.transcript.get(*id).replies.is_empty();
    let requests: Vec<SentId> = last.into_iter().flatten().filter(answered).collect();
    harness.wait_for_commits(&requests)?;
    harness.drain()
}
