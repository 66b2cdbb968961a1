//! The cases, in order. Each uses its own operations and records the effects that it expects.
//!
//! A case repeats an attempt with an undecided outcome, as a scheduler does: a service outage of a
//! moment breaks no rule.

mod closing;
mod hostile;
mod running;
mod undoing;

use waybill_clock::wall_clock;
use waybill_engine::{Action, Outcome};

use crate::harness::{ExpectedEffect, Harness, described};
use crate::{CheckError, Ledger, Rule};

/// Runs all cases. Stops early if the agent does not answer, does not perform the step, or does not
/// survive a poison record.
pub(super) fn run(
    harness: &mut Harness<'_>,
    ledger: Option<&dyn Ledger>,
) -> Result<(), CheckError> {
    if !opening(harness)? {
        return Ok(());
    }
    running::addressed(harness)?;
    running::repeated(harness)?;
    running::overlapping(harness)?;
    running::older_epoch(harness)?;
    undoing::probing(harness)?;
    undoing::undoing(harness)?;
    let late = hostile::late(harness)?;
    hostile::unknown_step(harness)?;
    if !hostile::poison(harness)? {
        return Ok(());
    }
    running::near_deadlines(harness)?;
    running::burst(harness)?;
    closing::late_again(harness, &late)?;
    closing::effects(harness, ledger);
    closing::undo_all(harness)?;
    closing::commits(harness)
}

/// Waits for the agent. Returns whether it performs the step, which all other cases require.
fn opening(harness: &mut Harness<'_>) -> Result<bool, CheckError> {
    let operation = harness.operation();
    let mut request = harness.request(operation, Action::Run);
    request.complete_by = wall_clock() + harness.settings.patience;
    let mut answer = harness.answers(vec![request])?.remove(0);
    if let Some(outcome) = &answer
        && !matches!(outcome, Outcome::Success { .. } | Outcome::Permanent { .. })
    {
        answer = harness.ask(operation, Action::Run)?;
    }
    let description = described(answer.as_ref());
    match answer {
        Some(Outcome::Success { .. }) => {
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Made);
            harness.findings.saw(Rule::Answer, description);
            return Ok(true);
        }
        Some(_) => {
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Untouched);
            let what = format!("the step does not succeed with this input: {description}");
            harness.findings.fault(Rule::Answer, what);
        }
        None => {
            let mut what = format!(
                "no reply on {} to the requests on {} within {:?}",
                harness.wire.replies_topic(),
                harness.wire.requests_topic(),
                harness.settings.patience
            );
            if harness.transcript.strange > 0 {
                what.push_str(&format!(
                    "; {} records there match no request",
                    harness.transcript.strange
                ));
            }
            harness.findings.fault(Rule::Answer, what);
        }
    }
    Ok(false)
}
