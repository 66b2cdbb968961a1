//! The scenes, in order. Each plays with operations of its own and notes what it saw.
//!
//! A scene repeats an attempt whose outcome is open, as a scheduler does: a service that is down for a
//! moment breaks no rule.

mod closing;
mod hostile;
mod running;
mod undoing;

use super::stage::{Stage, Standing, described};
use super::{CheckError, Ledger, Rule};
use waybill_engine::{Action, Outcome};

/// Plays everything. Ends early, with what was not tried left so, where the agent does not answer, does
/// not perform the step, or does not survive what it cannot read.
pub(super) fn play(stage: &mut Stage<'_>, ledger: Option<&dyn Ledger>) -> Result<(), CheckError> {
    if !opening(stage)? {
        return Ok(());
    }
    running::addressed(stage)?;
    running::repeated(stage)?;
    running::overlapping(stage)?;
    running::older_epoch(stage)?;
    undoing::probing(stage)?;
    undoing::undoing(stage)?;
    let late = hostile::late(stage)?;
    hostile::unknown_step(stage)?;
    if !hostile::poison(stage)? {
        return Ok(());
    }
    running::near_deadlines(stage)?;
    running::burst(stage)?;
    closing::late_again(stage, &late)?;
    closing::effects(stage, ledger);
    closing::undo_all(stage)?;
    closing::commits(stage)
}

/// Waits for the agent. Returns whether it performs the step, on which all else rests.
fn opening(stage: &mut Stage<'_>) -> Result<bool, CheckError> {
    let operation = stage.operation();
    let mut request = stage.request(operation, Action::Run);
    request.complete_by = crate::run::wall_clock() + stage.settings.patience;
    let mut answer = stage.answers(vec![request])?.remove(0);
    if let Some(outcome) = &answer
        && !matches!(outcome, Outcome::Success { .. } | Outcome::Permanent { .. })
    {
        answer = stage.ask(operation, Action::Run)?;
    }
    let description = described(answer.as_ref());
    match answer {
        Some(Outcome::Success { .. }) => {
            stage.standing.insert(operation, Standing::Made);
            stage.findings.saw(Rule::Answer, description);
            return Ok(true);
        }
        Some(_) => {
            stage.standing.insert(operation, Standing::Untouched);
            let what = format!("the step does not succeed with this input: {description}");
            stage.findings.fault(Rule::Answer, what);
        }
        None => {
            let mut what = format!(
                "no answer on {} to what lies on {} within {:?}",
                stage.wire.replies_topic(),
                stage.wire.requests_topic(),
                stage.settings.patience
            );
            if stage.book.strange > 0 {
                what.push_str(&format!(
                    "; {} records there answer nothing that was asked",
                    stage.book.strange
                ));
            }
            stage.findings.fault(Rule::Answer, what);
        }
    }
    Ok(false)
}
