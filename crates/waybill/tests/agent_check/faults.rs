//! Proves the check itself: each fault breaks its rule.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use waybill_agent_check::{CheckSettings, Report, Rule, check};
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;

use crate::broken::{BrokenAgent, Fault, STEP};
use crate::setup::Setup;

/// A fault, the rules that it must break, and the rules that it may also break.
type Case = (Fault, &'static [Rule], &'static [Rule]);

/// Concurrent checks. They mostly wait.
const AT_ONCE: usize = 6;

const CASES: &[Case] = &[
    (Fault::None, &[], &[]),
    (Fault::Silent, &[Rule::Answer], &[Rule::Commit]),
    (Fault::EchoesFirstAttempt, &[Rule::Echo], &[]),
    (Fault::EchoesNoEpoch, &[Rule::Echo], &[]),
    (Fault::EchoesNoAction, &[Rule::Echo], &[]),
    (Fault::EchoesNoNonce, &[Rule::Echo], &[]),
    (Fault::EchoesOtherNonce, &[Rule::Echo], &[]),
    (Fault::RepliesByKey, &[Rule::Address], &[]),
    (Fault::RepliesWithoutKey, &[Rule::Address], &[]),
    // A skipped request is committed and never answered.
    (Fault::AnswersOnce, &[Rule::Repeat, Rule::Commit], &[]),
    (
        Fault::EffectPerDelivery,
        &[Rule::Repeat, Rule::Overlap, Rule::OldEpoch, Rule::Effects],
        &[],
    ),
    (Fault::RefusesOverlaps, &[Rule::Repeat, Rule::Overlap], &[]),
    (
        Fault::IgnoresOlderEpochs,
        &[Rule::OldEpoch, Rule::Commit],
        &[Rule::UndoRace],
    ),
    (Fault::AnswersLate, &[Rule::Late], &[]),
    (Fault::PerformsLate, &[Rule::Late, Rule::Effects], &[]),
    (Fault::Overruns, &[Rule::Deadline], &[]),
    (Fault::ProbePerforms, &[Rule::Probe], &[]),
    (Fault::ProbeForgetsOutputs, &[Rule::Probe], &[]),
    (Fault::ProbeSeesUndone, &[Rule::Undo], &[Rule::UndoRace]),
    (
        Fault::UndoDoesNothing,
        &[Rule::Undo, Rule::Tombstone, Rule::UndoRace, Rule::Effects],
        &[],
    ),
    (Fault::UndoesOnce, &[Rule::UndoRepeated], &[]),
    (
        Fault::UndoNeedsEffect,
        &[Rule::UndoFirst],
        &[Rule::UndoRace],
    ),
    (
        Fault::ForgetsEarlyUndo,
        &[Rule::Tombstone, Rule::Effects],
        &[Rule::UndoRace],
    ),
    (
        Fault::PerformsAgain,
        &[Rule::Tombstone, Rule::UndoRace, Rule::Effects],
        &[],
    ),
    (
        Fault::DiesOfPoison,
        &[Rule::Poison, Rule::DeadLetter, Rule::UnknownSchema],
        &[],
    ),
    (
        Fault::DropsPoison,
        &[Rule::DeadLetter, Rule::UnknownSchema],
        &[],
    ),
    (
        Fault::BuriesWithoutCause,
        &[Rule::DeadLetter, Rule::UnknownSchema],
        &[],
    ),
    (
        Fault::GuessesSchemas,
        &[Rule::UnknownSchema, Rule::Effects],
        &[],
    ),
    (
        Fault::PassesOverUnknownSteps,
        &[Rule::UnknownStep, Rule::Commit],
        &[],
    ),
    (Fault::ErrorsWithoutCode, &[Rule::Errors], &[]),
    (Fault::ErrorsWithoutMessage, &[Rule::Errors], &[]),
    (Fault::ErrorsOfChance, &[Rule::Errors], &[]),
    (Fault::CarriesOtherTrace, &[Rule::Trace], &[]),
    (Fault::DropsOverload, &[Rule::Burst, Rule::Commit], &[]),
    (Fault::CommitsFirst, &[Rule::Commit], &[]),
    (Fault::NeverCommits, &[Rule::Commit], &[]),
];

#[test]
fn each_fault_breaks_its_rule_and_no_other() {
    let setup = Setup::new();
    let left = Mutex::new(CASES.iter().collect::<VecDeque<_>>());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = { left.lock().unwrap().pop_front() } {
                    if let Err(what) = play(&setup, *case) {
                        missed.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_rule_is_broken_by_some_fault() {
    let broken: BTreeSet<Rule> = CASES
        .iter()
        .flat_map(|(_, must, _)| must.iter().copied())
        .collect();
    assert_eq!(broken, BTreeSet::from(Rule::ALL));
}

/// Checks an agent with a fault, and compares the broken rules with the expected ones.
fn play(setup: &Setup, (fault, must, may): Case) -> Result<(), String> {
    let report = checked(setup, fault);
    let broken: BTreeSet<Rule> = report.broken().into_iter().collect();
    let must: BTreeSet<Rule> = must.iter().copied().collect();
    let may = must
        .union(&may.iter().copied().collect())
        .copied()
        .collect();
    if must.is_subset(&broken) && broken.is_subset(&may) {
        return Ok(());
    }
    let verdicts: Vec<String> = report
        .findings
        .iter()
        .filter(|finding| broken.contains(&finding.rule) || must.contains(&finding.rule))
        .map(|finding| format!("  {} {}: {}", finding.rule, finding.verdict, finding.seen))
        .collect();
    Err(format!(
        "{fault:?} must break {must:?}:\n{}",
        verdicts.join("\n")
    ))
}

fn checked(setup: &Setup, fault: Fault) -> Report {
    let topics = Topics::new(&format!("{fault:?}").to_lowercase());
    let agent = BrokenAgent::start(setup.broker, &topics, "greeter", fault);
    let kafka = KafkaSettings::new(setup.broker.to_string());
    let mut settings = CheckSettings::new(kafka, topics, "greeter", STEP);
    settings.group = Some(format!("{}-agents", settings.topics.prefix()));
    settings.complete_within = Duration::from_secs(3);
    settings.burst = 40;
    settings.must_undo = true;
    settings.must_probe = true;
    if fault == Fault::Silent {
        settings.patience = Duration::from_secs(3);
    }
    check(&settings, Some(&agent)).unwrap()
}
