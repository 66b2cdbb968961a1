//! Cases with late requests, unknown steps and undecodable records.

use std::time::{Duration, Instant};

use waybill_clock::wall_clock;
use waybill_engine::{Action, Offset, OperationId, Outcome, PartitionId};
use waybill_kafka::RawRecord;
use waybill_messages::headers::{
    ERRORS_EXCEPTION_MESSAGE, ERRORS_OFFSET, ERRORS_PARTITION, ERRORS_TOPIC,
};

use super::undoing::is_undone;
use crate::harness::{ExpectedEffect, Harness, described};
use crate::poison::Poison;
use crate::transcript::Expected;
use crate::wire::Outgoing;
use crate::{CheckError, Rule};

/// How late the late requests are when they are sent.
const LATE_BY: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(5),
    Duration::from_secs(3600),
];
/// A step that no agent has.
const STEP_UNKNOWN: &str = "agent-check-no-such-step";

/// Sends late requests, and waits for requests sent after them. Whether the late ones were
/// answered or performed is judged at the end.
pub(super) fn late(harness: &mut Harness<'_>) -> Result<Vec<OperationId>, CheckError> {
    let partitions = harness.wire.request_partitions();
    let mut operations = Vec::new();
    let mut behind = Vec::new();
    for partition in 0..partitions {
        let partition = PartitionId(partition);
        for late_by in LATE_BY {
            let operation = harness.operation();
            harness
                .expected_effects
                .insert(operation, ExpectedEffect::Untouched);
            let mut request = harness.request(operation, Action::Run);
            request.complete_by = wall_clock() - late_by;
            harness.send_to(&[partition], vec![request], Expected::Silence)?;
            operations.push(operation);
        }
        let operation = harness.operation();
        let request = harness.request(operation, Action::Run);
        behind.extend(harness.send_to(&[partition], vec![request], Expected::Answer)?);
    }
    harness.wait(&behind)?;
    for id in behind {
        let outcome = harness.outcome(id);
        match outcome {
            Some(Outcome::Success { .. }) => {
                let operation = harness.transcript.get(id).request.operation;
                harness
                    .expected_effects
                    .insert(operation, ExpectedEffect::Made);
            }
            Some(_) => {}
            None => {
                let what = "the request after a late one was not answered";
                harness.findings.fault(Rule::Late, what);
            }
        }
    }
    let count = operations.len();
    harness
        .findings
        .saw(Rule::Late, format!("{count} late requests, no replies"));
    Ok(operations)
}

/// Requests a step that the agent cannot know. An agent may perform any requested step; then it
/// must also undo it.
pub(super) fn unknown_step(harness: &mut Harness<'_>) -> Result<(), CheckError> {
    let operation = harness.operation();
    let request = harness.request_of(operation, STEP_UNKNOWN, Action::Run);
    let answer = harness.answers(vec![request])?.remove(0);
    let description = described(answer.as_ref());
    harness
        .expected_effects
        .insert(operation, ExpectedEffect::Undone);
    match answer {
        None => harness.findings.fault(Rule::UnknownStep, description),
        Some(Outcome::NotPerformed) => harness.findings.fault(Rule::UnknownStep, description),
        Some(Outcome::Success { .. }) => {
            harness.findings.saw(
                Rule::UnknownStep,
                format!("the agent also performs unknown steps: {description}"),
            );
            let undo = harness.request_of(operation, STEP_UNKNOWN, Action::Compensate);
            let undone = harness.answers(vec![undo])?.remove(0);
            if !is_undone(&undone) {
                harness
                    .expected_effects
                    .insert(operation, ExpectedEffect::Open);
            }
        }
        Some(
            Outcome::Permanent { .. }
            | Outcome::Transient { .. }
            | Outcome::Unknown { .. }
            | Outcome::NotAttempted { .. },
        ) => harness.findings.saw(Rule::UnknownStep, description),
    }
    if harness.perform(Rule::UnknownStep)?.is_some() {
        harness
            .findings
            .saw(Rule::UnknownStep, "the agent continues with other steps");
    }
    Ok(())
}

/// Sends records that no agent can read, and requests after them in the same partition. Returns
/// whether the last of these was answered.
pub(super) fn poison(harness: &mut Harness<'_>) -> Result<bool, CheckError> {
    let partition = PartitionId(0);
    let mut sent = Vec::new();
    for poison in Poison::ALL {
        let operation = harness.operation();
        harness
            .expected_effects
            .insert(operation, ExpectedEffect::Untouched);
        let request = harness.request(operation, Action::Run);
        let record = Outgoing {
            partition,
            key: request.operation.key().to_vec(),
            value: poison.value(&request)?,
            traceparent: None,
        };
        let offset = harness.wire.send(std::slice::from_ref(&record))?[0];
        let followed_by = harness.operation();
        let follower = harness.request(followed_by, Action::Run);
        let follower = harness.send_to(&[partition], vec![follower], Expected::Answer)?;
        // A reply to the poison record itself is found by its operation.
        let read_as = harness
            .transcript
            .enter(request, Expected::DeadLetter, (partition, offset));
        sent.push((poison, record, offset, read_as, follower[0]));
    }
    let followers: Vec<_> = sent.iter().map(|(.., follower)| *follower).collect();
    harness.wait(&followers)?;
    for (poison, _, _, read_as, follower) in &sent {
        let operation = harness.transcript.get(*follower).request.operation;
        match harness.outcome(*follower) {
            Some(Outcome::Success { .. }) => {
                harness
                    .expected_effects
                    .insert(operation, ExpectedEffect::Made);
                let what = format!("the request after {}", poison.name());
                harness.findings.saw(Rule::Poison, what);
            }
            other => {
                let what = format!(
                    "the request after {}: {}",
                    poison.name(),
                    described(other.as_ref())
                );
                harness.findings.fault(Rule::Poison, what);
            }
        }
        if let Some(outcome) = harness.outcome(*read_as) {
            let operation = harness.transcript.get(*read_as).request.operation;
            harness.unwanted.insert(operation);
            let rule = match poison {
                Poison::NewerSchema => Rule::UnknownSchema,
                Poison::Noise | Poison::Torn | Poison::UnknownAction => Rule::Poison,
            };
            let what = format!(
                "{} was answered: {}",
                poison.name(),
                described(Some(&outcome))
            );
            harness.findings.fault(rule, what);
        }
    }
    let dead_letters = sent
        .iter()
        .map(|(poison, record, offset, ..)| (*poison, record, *offset));
    check_dead_letters(harness, &dead_letters.collect::<Vec<_>>())?;
    let last = followers.last();
    Ok(last.is_some_and(|id| harness.outcome(*id).is_some()))
}

/// Waits for the dead letters, and compares them with the records that were sent.
fn check_dead_letters(
    harness: &mut Harness<'_>,
    sent: &[(Poison, &Outgoing, Offset)],
) -> Result<(), CheckError> {
    let deadline = Instant::now() + harness.settings.complete_within;
    let found = |harness: &Harness<'_>, record: &Outgoing| {
        let mut dead_letters = harness.transcript.dead_letters.iter();
        dead_letters
            .find(|dead_letter| dead_letter.key.as_deref() == Some(record.key.as_slice()))
            .cloned()
    };
    while sent
        .iter()
        .any(|(_, record, _)| found(harness, record).is_none())
        && Instant::now() < deadline
    {
        harness.pause()?;
    }
    for (poison, record, offset) in sent {
        let fault = match found(harness, record) {
            None => Some(format!("is not on {}", harness.wire.dead_letters_topic())),
            Some(dead_letter) => {
                let source = (harness.wire.requests_topic(), *offset);
                fault_of(&dead_letter, record, source)
            }
        };
        let rule = match poison {
            Poison::NewerSchema => Rule::UnknownSchema,
            Poison::Noise | Poison::Torn | Poison::UnknownAction => Rule::DeadLetter,
        };
        match fault {
            Some(fault) => harness
                .findings
                .fault(rule, format!("{} {fault}", poison.name())),
            None => harness.findings.saw(rule, poison.name()),
        }
    }
    Ok(())
}

/// The fault of a dead letter, if any.
fn fault_of(
    dead_letter: &RawRecord,
    record: &Outgoing,
    (topic, offset): (&str, Offset),
) -> Option<String> {
    if dead_letter.value.as_deref() != Some(record.value.as_slice()) {
        return Some("has other bytes on the dead-letter topic".to_owned());
    }
    if dead_letter.partition != record.partition {
        return Some(format!(
            "is in partition {} of the dead-letter topic",
            dead_letter.partition
        ));
    }
    let header = |name: &str| {
        let found = dead_letter.headers.iter().find(|(other, _)| other == name);
        let (_, value) = found?;
        String::from_utf8(value.clone()?).ok()
    };
    let expected = [
        (ERRORS_TOPIC, topic.to_owned()),
        (ERRORS_PARTITION, record.partition.to_string()),
        (ERRORS_OFFSET, offset.to_string()),
    ];
    for (name, value) in expected {
        let actual = header(name);
        if actual.as_deref() != Some(value.as_str()) {
            return Some(format!("has {actual:?} instead of {value:?} as {name}"));
        }
    }
    let message = header(ERRORS_EXCEPTION_MESSAGE);
    if message.is_none_or(|message| message.is_empty()) {
        return Some(format!("has no reason as {ERRORS_EXCEPTION_MESSAGE}"));
    }
    None
}
