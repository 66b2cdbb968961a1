//! Scenes about performing the step.

use std::time::Duration;

use waybill_engine::{Action, Attempt, Epoch, OperationId, Outcome, Outputs, PartitionId};

use crate::check::book::{Expected, SentId};
use crate::check::stage::{Stage, Standing, described, sorted, with_operation};
use crate::check::{CheckError, CheckSettings, Rule};
use crate::run::wall_clock;

/// An epoch and an attempt that no narrow number holds by chance.
const EPOCH_LARGE: Epoch = Epoch(1 << 40);
const ATTEMPT_LARGE: Attempt = Attempt(70_000);
/// How many partitions of replies are tried.
const REPLY_PARTITIONS_MAX: u32 = 8;
/// How often one attempt is delivered, and how many attempts overlap.
const AT_ONCE: usize = 4;
/// Requests whose complete-by comes soon, and how far apart.
const NEAR_DEADLINES: u32 = 60;
const NEAR_DEADLINE_EVERY: Duration = Duration::from_millis(10);

/// Asks for answers in every partition, with large numbers to repeat. What is judged of it is judged
/// of all answers.
pub(super) fn addressed(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let partitions = stage.wire.reply_partitions().min(REPLY_PARTITIONS_MAX);
    let mut requests = Vec::new();
    for partition in (0..partitions).chain(0..partitions) {
        let operation = stage.operation();
        let mut request = stage.request(operation, Action::Run);
        request.reply_partition = PartitionId(partition);
        request.epoch = EPOCH_LARGE;
        request.attempt = ATTEMPT_LARGE;
        requests.push(request);
    }
    let sent = stage.send(requests, Expected::Answer)?;
    stage.wait(&sent)?;
    note_standing(stage, &sent);
    let silent = silent(stage, &sent);
    if silent > 0 {
        let what = format!("{silent} of {} requests were not answered", sent.len());
        stage.findings.fault(Rule::Answer, what);
    }
    Ok(())
}

/// Delivers one attempt more than once.
pub(super) fn repeated(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let operation = stage.operation();
    let request = stage.request(operation, Action::Run);
    let partition = PartitionId(0);
    let sent = stage.send_to(
        &[partition; AT_ONCE],
        vec![request; AT_ONCE],
        Expected::Answer,
    )?;
    stage.wait(&sent)?;
    let silent = silent(stage, &sent);
    if silent > 0 {
        let what = format!("of {AT_ONCE} deliveries of an attempt {silent} were not answered");
        stage.findings.fault(Rule::Repeat, what);
    }
    agree(stage, Rule::Repeat, operation, &sent)
}

/// Sends attempts of one step at once.
pub(super) fn overlapping(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let operation = stage.operation();
    let requests = (0..AT_ONCE)
        .map(|_| stage.request(operation, Action::Run))
        .collect();
    let sent = stage.send(requests, Expected::Answer)?;
    stage.wait(&sent)?;
    let silent = silent(stage, &sent);
    if silent > 0 {
        let what = format!("of {AT_ONCE} attempts at once {silent} were not answered");
        stage.findings.fault(Rule::Overlap, what);
    }
    agree(stage, Rule::Overlap, operation, &sent)
}

/// Sends an older epoch behind a newer one, and the newer again.
pub(super) fn older_epoch(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let operation = stage.operation();
    let mut sent = Vec::new();
    for epoch in [Epoch(9), Epoch(3), Epoch(9)] {
        let mut request = stage.request(operation, Action::Run);
        request.epoch = epoch;
        let id = stage.send_to(&[PartitionId(0)], vec![request], Expected::Answer)?;
        stage.wait(&id)?;
        sent.extend(id);
    }
    for (id, which) in sent.iter().zip(["the first", "the older", "the newer"]) {
        if stage.outcome(*id).is_none() {
            let what = format!("{which} epoch was not answered");
            stage.findings.fault(Rule::OldEpoch, what);
        }
    }
    agree(stage, Rule::OldEpoch, operation, &sent)
}

/// Holds answers to attempts under one key, and one to a last attempt, against each other.
fn agree(
    stage: &mut Stage<'_>,
    rule: Rule,
    operation: OperationId,
    sent: &[SentId],
) -> Result<(), CheckError> {
    let mut answers: Vec<Outcome> = sent.iter().filter_map(|id| stage.outcome(*id)).collect();
    let last = stage.ask(operation, Action::Run)?;
    match &last {
        Some(Outcome::Success { .. }) => {
            stage.standing.insert(operation, Standing::Made);
        }
        other => {
            let what = format!("a further attempt: {}", described(other.as_ref()));
            stage.findings.fault(rule, what);
        }
    }
    answers.extend(last);
    let mut first: Option<Outputs> = None;
    for answer in &answers {
        match answer {
            Outcome::Success { outputs } => {
                let outputs = sorted(outputs.clone());
                match &first {
                    Some(first) if *first != outputs => {
                        let what = format!("not the same as before: {}", described(Some(answer)));
                        stage.findings.fault(rule, what);
                    }
                    Some(_) => {}
                    None => first = Some(outputs),
                }
            }
            // Nothing is decided: the service was asked by another attempt at the time.
            Outcome::Transient { .. } | Outcome::Unknown { .. } | Outcome::NotAttempted { .. } => {}
            Outcome::Permanent { .. } | Outcome::NotPerformed => {
                let what = format!("what another attempt performs: {}", described(Some(answer)));
                stage.findings.fault(rule, what);
            }
        }
    }
    let count = answers.len();
    stage.findings.saw(rule, format!("{count} answers agree"));
    Ok(())
}

/// Sends requests with little time, and one that needs more than it has.
pub(super) fn near_deadlines(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let mut requests = Vec::new();
    for number in 0..NEAR_DEADLINES {
        let operation = stage.operation();
        let mut request = stage.request(operation, Action::Run);
        request.complete_by = wall_clock() + NEAR_DEADLINE_EVERY * number;
        requests.push(request);
    }
    if let Some(input) = &stage.settings.slow_input {
        let operation = stage.operation();
        let mut request = stage.request(operation, Action::Run);
        request.input = with_operation(input, operation).into_bytes().into();
        request.complete_by = wall_clock() + CheckSettings::SLOW_STEP;
        requests.push(request);
    }
    let sent = stage.send(requests, Expected::AnswerOrSilence)?;
    stage.wait(&sent)?;
    let given_up = silent(stage, &sent);
    let answered = sent.len() - given_up;
    let what = format!("{answered} answered in time, {given_up} given up");
    stage.findings.saw(Rule::Deadline, what);
    Ok(())
}

/// Sends many requests at once, without a trace context.
pub(super) fn burst(stage: &mut Stage<'_>) -> Result<(), CheckError> {
    let mut requests = Vec::with_capacity(stage.settings.burst);
    for _ in 0..stage.settings.burst {
        let operation = stage.operation();
        let mut request = stage.request(operation, Action::Run);
        request.traceparent = None;
        requests.push(request);
    }
    let complete_by = wall_clock() + stage.settings.complete_within;
    for request in &mut requests {
        request.complete_by = complete_by;
    }
    let sent = stage.send(requests, Expected::Answer)?;
    stage.wait(&sent)?;
    note_standing(stage, &sent);
    let (mut performed, mut handed_back, mut open) = (0, 0, 0);
    for id in &sent {
        match stage.outcome(*id) {
            Some(Outcome::Success { .. }) => performed += 1,
            Some(Outcome::NotAttempted { .. }) => handed_back += 1,
            Some(Outcome::Transient { .. } | Outcome::Unknown { .. }) => open += 1,
            other @ (None | Some(Outcome::Permanent { .. } | Outcome::NotPerformed)) => {
                stage.findings.fault(Rule::Burst, described(other.as_ref()));
            }
        }
    }
    let what = format!("{performed} performed, {handed_back} not attempted, {open} open");
    stage.findings.saw(Rule::Burst, what);
    Ok(())
}

/// Notes what stands after requests to perform that were answered.
fn note_standing(stage: &mut Stage<'_>, sent: &[SentId]) {
    for id in sent {
        let answered = stage.book.get(*id);
        if let Some(Outcome::Success { .. }) = answered.outcome() {
            let operation = answered.request.operation;
            stage.standing.insert(operation, Standing::Made);
        }
    }
}

/// How many of these requests were not answered.
fn silent(stage: &Stage<'_>, sent: &[SentId]) -> usize {
    let silent = |id: &&SentId| stage.book.get(**id).replies.is_empty();
    sent.iter().filter(silent).count()
}
