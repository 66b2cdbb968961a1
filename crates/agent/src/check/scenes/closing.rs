//! What is looked at, and tidied up, at the end.

use waybill_engine::{Action, OperationId, Outcome};

use super::undoing::is_undone;
use crate::check::book::SentId;
use crate::check::stage::{Stage, Standing, described};
use crate::check::{CheckError, Ledger, Rule};

/// The ledger is asked about at most so many operations.
const LEDGER_OPERATIONS_MAX: usize = 200;

/// Probes that late requests were not performed after all. Whether they were answered is judged with
/// all answers.
pub(super) fn late_again(
    stage: &mut Stage<'_>,
    operations: &[OperationId],
) -> Result<(), CheckError> {
    if !stage.probes {
        return Ok(());
    }
    for operation in operations {
        let probed = stage.ask(*operation, Action::Probe)?;
        if !matches!(probed, Some(Outcome::NotPerformed)) {
            let what = format!("a probe after it: {}", described(probed.as_ref()));
            stage.findings.fault(Rule::Late, what);
        }
        match probed {
            Some(Outcome::Success { .. }) => {
                stage.unwanted.insert(*operation);
            }
            // It answers no probes any more.
            None => return Ok(()),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Asks the service itself, where it can be asked.
pub(super) fn effects(stage: &mut Stage<'_>, ledger: Option<&dyn Ledger>) {
    let Some(ledger) = ledger else {
        let why = "no ledger of the service's was given";
        return stage.findings.excuse(Rule::Effects, why);
    };
    let mut counted = 0;
    for (operation, standing) in stage.standing.iter().take(LEDGER_OPERATIONS_MAX) {
        let counts = match ledger.effects(*operation, &stage.settings.step) {
            Ok(counts) => counts,
            Err(error) => {
                let why = format!("the ledger does not answer: {error}");
                return stage.findings.excuse(Rule::Effects, why);
            }
        };
        let stands = counts.made.saturating_sub(counts.undone);
        let expected = match standing {
            Standing::Untouched => counts.made == 0,
            Standing::Made => counts.made == 1 && stands == 1,
            Standing::Undone => counts.made <= 1 && stands == 0,
            Standing::Open => counts.made <= 1,
        };
        if !expected {
            let meant = match standing {
                Standing::Untouched => "was not to be performed",
                Standing::Made => "was performed",
                Standing::Undone => "was undone",
                Standing::Open => "may have been performed",
            };
            let what = format!(
                "a step that {meant} has {} effects made and {} undone",
                counts.made, counts.undone
            );
            stage.findings.fault(Rule::Effects, what);
        }
        counted += 1;
    }
    stage
        .findings
        .saw(Rule::Effects, format!("{counted} operations"));
}

/// Undoes what stands, or may.
pub(super) fn undo_all(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    if !stage.undoes {
        return Ok(());
    }
    let left = stage.left();
    let requests = left
        .iter()
        .map(|operation| stage.request(*operation, Action::Compensate))
        .collect();
    let answers = stage.answers(requests)?;
    for (operation, mut answer) in left.into_iter().zip(answers) {
        if answer.is_some() && !is_undone(&answer) {
            answer = stage.ask(operation, Action::Compensate)?;
        }
        if is_undone(&answer) {
            stage.standing.insert(operation, Standing::Undone);
            stage.unwanted.remove(&operation);
        }
    }
    Ok(())
}

/// Waits until what was answered is committed, and reads what was answered until then.
pub(super) fn commits(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let partitions = stage.wire.request_partitions();
    // The last request of each partition, if it was answered, stands for all.
    let mut last: Vec<Option<SentId>> = vec![None; partitions as usize];
    for (id, sent) in stage.book.iter() {
        let slot = &mut last[sent.partition.0 as usize];
        if slot.is_none_or(|newest| stage.book.get(newest).offset < sent.offset) {
            *slot = Some(id);
        }
    }
    let answered = |id: &SentId| !stage.book.get(*id).replies.is_empty();
    let requests: Vec<SentId> = last.into_iter().flatten().filter(answered).collect();
    stage.wait_for_commits(&requests)?;
    stage.drain()
}
