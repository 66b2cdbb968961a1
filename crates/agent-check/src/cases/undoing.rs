//! Cases about undoing and probing.

use waybill_engine::{Action, Epoch, OperationId, Outcome};

use crate::harness::{ExpectedEffect, Harness, described, sorted};
use crate::judge::error_of;
use crate::transcript::Expected;
use crate::{CheckError, Rule};

/// The rules that require undoing.
const RULES_OF_UNDOING: [Rule; 5] = [
    Rule::Undo,
    Rule::UndoRepeated,
    Rule::UndoFirst,
    Rule::Tombstone,
    Rule::UndoRace,
];
/// How many times an undo and its step are sent together.
const RACES: usize = 4;

/// Probes before and after a step is performed.
pub(super) fn probing(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let before = [
        harness.ask(operation, Action::Probe)?,
        harness.ask(operation, Action::Probe)?,
    ];
    let Some(Outcome::Success { outputs }) = harness.ask(operation, Action::Run)? else {
        let what = "the step could not be performed after a probe";
        harness.findings.fault(Rule::Probe, what);
        return Ok(());
    };
    harness
        .expected_effects
        .insert(operation, ExpectedEffect::Made);
    let outputs = sorted(outputs);
    let after = [
        harness.ask(operation, Action::Probe)?,
        harness.ask(operation, Action::Probe)?,
    ];
    let refused = |answer: &Option<Outcome>| matches!(answer, Some(Outcome::Permanent { .. }));
    if before.iter().chain(&after).all(refused) && !harness.settings.must_probe {
        let what = described(before[0].as_ref());
        harness.findings.excuse(
            Rule::Probe,
            format!("the agent does not support probes: {what}"),
        );
        return Ok(());
    }
    for answer in &before {
        if !matches!(answer, Some(Outcome::NotPerformed)) {
            let what = format!("a probe before the step: {}", described(answer.as_ref()));
            harness.findings.fault(Rule::Probe, what);
        }
    }
    for answer in after {
        match answer {
            Some(Outcome::Success { outputs: probed }) if sorted(probed.clone()) == outputs => {}
            other => {
                let what = format!("a probe after the step: {}", described(other.as_ref()));
                harness.findings.fault(Rule::Probe, what);
            }
        }
    }
    harness.probes = !harness.findings.is_broken(Rule::Probe);
    harness
        .findings
        .saw(Rule::Probe, "probes before and after the step, twice each");
    Ok(())
}

/// Undoes: after the step, again, before the step, and concurrently with it.
pub(super) fn undoing(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let Some((operation, _)) = harness.perform(Rule::Undo)? else {
        return Ok(());
    };
    let undone = harness.ask(operation, Action::Compensate)?;
    if let Some(Outcome::Permanent { error }) = &undone
        && !harness.settings.must_undo
    {
        let why = format!("the agent cannot undo ({}: {})", error.code, error.message);
        for rule in RULES_OF_UNDOING {
            harness.findings.excuse(rule, why.as_str());
        }
        return Ok(());
    }
    harness.undoes = true;
    if !is_undone(&undone) {
        let what = described(undone.as_ref());
        harness.findings.fault(Rule::Undo, what);
    }
    expect_no_effect(harness, Rule::Undo, operation)?;
    harness.findings.saw(Rule::Undo, described(undone.as_ref()));

    for _ in 0..2 {
        let again = harness.ask(operation, Action::Compensate)?;
        if !is_undone(&again) {
            let what = described(again.as_ref());
            harness.findings.fault(Rule::UndoRepeated, what);
        }
    }
    harness
        .findings
        .saw(Rule::UndoRepeated, "undone twice more");
    refuses(harness, Rule::Tombstone, operation, "after it was undone")?;
    undo_first(harness)?;
    races(harness)
}

/// Undoes a step that was never performed.
fn undo_first(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let undone = harness.ask(operation, Action::Compensate)?;
    if !is_undone(&undone) {
        let what = described(undone.as_ref());
        harness.findings.fault(Rule::UndoFirst, what);
        return Ok(());
    }
    expect_no_effect(harness, Rule::UndoFirst, operation)?;
    harness
        .findings
        .saw(Rule::UndoFirst, described(undone.as_ref()));
    refuses(
        harness,
        Rule::Tombstone,
        operation,
        "after an undo that came first",
    )
}

/// Sends a step and its undo concurrently. No effect may remain, whichever comes first.
fn races(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let mut requests = Vec::new();
    for _ in 0..RACES {
        let operation = harness.operation();
        requests.push(harness.request(operation, Action::Run));
        let mut undo = harness.request(operation, Action::Compensate);
        // The undo has a later epoch.
        undo.epoch = Epoch(2);
        requests.push(undo);
    }
    let sent = harness.send(requests, Expected::Answer)?;
    harness.wait(&sent)?;
    for pair in sent.chunks_exact(2) {
        let operation = harness.transcript.get(pair[0]).request.operation;
        let mut undone = harness.outcome(pair[1]);
        if !is_undone(&undone) {
            undone = harness.ask(operation, Action::Compensate)?;
        }
        if is_undone(&undone) {
            expect_no_effect(harness, Rule::UndoRace, operation)?;
            refuses(harness, Rule::UndoRace, operation, "after both")?;
        } else {
            let what = described(undone.as_ref());
            harness.findings.fault(Rule::UndoRace, what);
        }
    }
    harness.findings.saw(
        Rule::UndoRace,
        format!("{RACES} races of a step and its undo"),
    );
    Ok(())
}

/// Probes that an undone step has no effect, if the agent's probes are reliable.
fn expect_no_effect(
    harness: &mut Harness<'_>,
    rule: Rule,
    operation: OperationId,
) -> Result<(), CheckError> {
    harness
        .expected_effects
        .insert(operation, ExpectedEffect::Undone);
    if !harness.probes {
        return Ok(());
    }
    let probed = harness.ask(operation, Action::Probe)?;
    if !matches!(probed, Some(Outcome::NotPerformed)) {
        let what = format!("a probe after the undo: {}", described(probed.as_ref()));
        harness.findings.fault(rule, what);
    }
    Ok(())
}

/// Requests an undone step twice: the agent must refuse it for good, with the same code.
fn refuses(
    harness: &mut Harness<'_>,
    rule: Rule,
    operation: OperationId,
    when: &str,
) -> Result<(), CheckError> {
    let mut codes = Vec::new();
    for _ in 0..2 {
        let answer = harness.ask(operation, Action::Run)?;
        match &answer {
            Some(outcome @ Outcome::Permanent { .. }) => {
                codes.extend(error_of(outcome).map(|error| error.code.clone()));
            }
            other => {
                if let Some(Outcome::Success { .. }) = other {
                    harness.unwanted.insert(operation);
                }
                let what = format!("the step {when}: {}", described(other.as_ref()));
                harness.findings.fault(rule, what);
            }
        }
    }
    if let [first, second] = codes.as_slice() {
        if first != second {
            let what =
                format!("two refusals of one step have different codes: {first:?} and {second:?}");
            harness.findings.fault(Rule::Errors, what);
        }
        if rule == Rule::Tombstone {
            let what = format!("{when}: Permanent ({first})");
            harness.findings.saw(rule, what);
        }
    }
    Ok(())
}

pub(super) fn is_undone(answer: &Option<Outcome>) -> bool {
    matches!(
        answer,
        Some(Outcome::Success { .. } | Outcome::NotPerformed)
    )
}
