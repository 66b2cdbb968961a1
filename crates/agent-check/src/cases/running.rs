//! Cases that perform the step.

use std::time::Duration;

use waybill_clock::wall_clock;
use waybill_engine::{Action, Attempt, Epoch, OperationId, Outcome, Outputs, PartitionId};

use crate::harness::{ExpectedEffect, Harness, described, sorted, with_operation};
use crate::transcript::{Expected, SentId};
use crate::{CheckError, CheckSettings, Rule};

/// Large numbers for epoch and attempt, which an agent with narrower integers cannot repeat.
const EPOCH_LARGE: Epoch = Epoch(1 << 40);
const ATTEMPT_LARGE: Attempt = Attempt(70_000);
/// How many reply partitions to try.
const REPLY_PARTITIONS_MAX: u32 = 8;
/// How many times to deliver one attempt, and how many attempts overlap.
const AT_ONCE: usize = 4;
/// The number of requests whose complete-by is near, and the interval between them.
const NEAR_DEADLINES: u32 = 60;
const NEAR_DEADLINE_EVERY: Duration = Duration::from_millis(10);

/// Requests answers in every partition, with large numbers to repeat. The rules about all answers
/// judge the result.
pub(super) fn addressed(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let partitions = harness.wire.reply_partitions().min(REPLY_PARTITIONS_MAX);
    let mut requests = Vec::new();
    for partition in (0..partitions).chain(0..partitions) {
        let operation = harness.operation();
        let mut request = harness.request(operation, Action::Run);
        request.reply_partition = PartitionId(partition);
        request.epoch = EPOCH_LARGE;
        request.attempt = ATTEMPT_LARGE;
        requests.push(request);
    }
    let sent = harness.send(requests, Expected::Answer)?;
    harness.wait(&sent)?;
    expect_made(harness, &sent);
    let silent = silent(harness, &sent);
    if silent > 0 {
        let what = format!("{silent} of {} requests were not answered", sent.len());
        harness.findings.fault(Rule::Answer, what);
    }
    Ok(())
}

/// Delivers one attempt more than once.
pub(super) fn repeated(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let request = harness.request(operation, Action::Run);
    let partition = PartitionId(0);
    let sent = harness.send_to(
        &[partition; AT_ONCE],
        vec![request; AT_ONCE],
        Expected::Answer,
    )?;
    harness.wait(&sent)?;
    let silent = silent(harness, &sent);
    if silent > 0 {
        let what = format!("{silent} of {AT_ONCE} deliveries of an attempt were not answered");
        harness.findings.fault(Rule::Repeat, what);
    }
    agree(harness, Rule::Repeat, operation, &sent)
}

/// Sends attempts of one step at the same time.
pub(super) fn overlapping(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let requests = (0..AT_ONCE)
        .map(|_| harness.request(operation, Action::Run))
        .collect();
    let sent = harness.send(requests, Expected::Answer)?;
    harness.wait(&sent)?;
    let silent = silent(harness, &sent);
    if silent > 0 {
        let what = format!("{silent} of {AT_ONCE} concurrent attempts were not answered");
        harness.findings.fault(Rule::Overlap, what);
    }
    agree(harness, Rule::Overlap, operation, &sent)
}

/// Sends a request of an older epoch after a newer one, and the newer one again.
pub(super) fn older_epoch(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let mut sent = Vec::new();
    for epoch in [Epoch(9), Epoch(3), Epoch(9)] {
        let mut request = harness.request(operation, Action::Run);
        request.epoch = epoch;
        let id = harness.send_to(&[PartitionId(0)], vec![request], Expected::Answer)?;
        harness.wait(&id)?;
        sent.extend(id);
    }
    for (id, which) in sent.iter().zip(["the first", "the older", "the newer"]) {
        if harness.outcome(*id).is_none() {
            let what = format!("{which} epoch got no answer");
            harness.findings.fault(Rule::OldEpoch, what);
        }
    }
    agree(harness, Rule::OldEpoch, operation, &sent)
}

/// Compares the answers to attempts under one key with each other and with that to a last attempt.
fn agree(
    harness: &mut Harness<'_>,
    rule: Rule,
    operation: OperationId,
    sent: &[SentId],
) -> Result<(), CheckError> {
    let mut answers: Vec<Outcome> = sent.iter().filter_map(|id| harness.outcome(*id)).collect();
    let last = harness.ask(operation, Action::Run)?;
    match &last {
        Some(Outcome::Success { .. }) => {
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Made);
        }
        other => {
            let what = format!("another attempt: {}", described(other.as_ref()));
            harness.findings.fault(rule, what);
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
                        let what = format!(
                            "the outputs differ from those before: {}",
                            described(Some(answer))
                        );
                        harness.findings.fault(rule, what);
                    }
                    Some(_) => {}
                    None => first = Some(outputs),
                }
            }
            // Undecided: another attempt was calling the service at the time.
            Outcome::Transient { .. } | Outcome::Unknown { .. } | Outcome::NotAttempted { .. } => {}
            Outcome::Permanent { .. } | Outcome::NotPerformed => {
                let what = format!(
                    "a step that another attempt performs: {}",
                    described(Some(answer))
                );
                harness.findings.fault(rule, what);
            }
        }
    }
    let count = answers.len();
    harness.findings.saw(rule, format!("{count} answers agree"));
    Ok(())
}

/// Sends requests with little time, and one that needs more than it has.
pub(super) fn near_deadlines(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let mut requests = Vec::new();
    for number in 0..NEAR_DEADLINES {
        let operation = harness.operation();
        let mut request = harness.request(operation, Action::Run);
        request.complete_by = wall_clock() + NEAR_DEADLINE_EVERY * number;
        requests.push(request);
    }
    if let Some(input) = &harness.settings.slow_input {
        let operation = harness.operation();
        let mut request = harness.request(operation, Action::Run);
        request.input = with_operation(input, operation).into_bytes().into();
        request.complete_by = wall_clock() + CheckSettings::SLOW_STEP;
        requests.push(request);
    }
    let sent = harness.send(requests, Expected::AnswerOrSilence)?;
    harness.wait(&sent)?;
    let given_up = silent(harness, &sent);
    let answered = sent.len() - given_up;
    let what = format!("{answered} answered in time, {given_up} given up");
    harness.findings.saw(Rule::Deadline, what);
    Ok(())
}

/// Sends many requests at the same time, without a trace context.
pub(super) fn burst(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let mut requests = Vec::with_capacity(harness.settings.burst);
    for _ in 0..harness.settings.burst {
        let operation = harness.operation();
        let mut request = harness.request(operation, Action::Run);
        request.traceparent = None;
        requests.push(request);
    }
    let complete_by = wall_clock() + harness.settings.complete_within;
    for request in &mut requests {
        request.complete_by = complete_by;
    }
    let sent = harness.send(requests, Expected::Answer)?;
    harness.wait(&sent)?;
    expect_made(harness, &sent);
    let (mut performed, mut handed_back, mut open) = (0, 0, 0);
    for id in &sent {
        match harness.outcome(*id) {
            Some(Outcome::Success { .. }) => performed += 1,
            Some(Outcome::NotAttempted { .. }) => handed_back += 1,
            Some(Outcome::Transient { .. } | Outcome::Unknown { .. }) => open += 1,
            other @ (None | Some(Outcome::Permanent { .. } | Outcome::NotPerformed)) => {
                harness
                    .findings
                    .fault(Rule::Burst, described(other.as_ref()));
            }
        }
    }
    let what = format!("{performed} performed, {handed_back} not attempted, {open} open");
    harness.findings.saw(Rule::Burst, what);
    Ok(())
}

/// Records the expected effects of answered requests to perform.
fn expect_made(harness: &mut Harness<'_>, sent: &[SentId]) {
    for id in sent {
        let answered = harness.transcript.get(*id);
        if let Some(Outcome::Success { .. }) = answered.outcome() {
            let operation = answered.request.operation;
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Made);
        }
    }
}

/// How many of these requests were not answered.
fn silent(harness: &Harness<'_>, sent: &[SentId]) -> usize {
    let silent = |id: &&SentId| harness.transcript.get(**id).replies.is_empty();
    sent.iter().filter(silent).count()
}
