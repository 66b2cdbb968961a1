//! Runs from a tape: the numbers that decide everything random in a run. A run that breaks a rule
//! is made smaller before it is printed, and a fuzzer may write tapes.

use crate::bugs::Bug;
use crate::history::Rule;
use crate::plan::Plan;
use crate::rng::{NEUTRAL, Rng};
use crate::run::{Outcome, run_plan};

/// Maximum number of runs in which a tape is made smaller.
const RUNS_MAX: usize = 4_000;

/// Runs a tape to its end and judges it.
pub fn run_tape(tape: &[u64], bug: Option<Bug>, keep_history: bool) -> Outcome {
    let mut rng = Rng::of_tape(tape.to_vec());
    let plan = Plan::new(&mut rng, bug);
    run_plan(plan, rng, bug, &[], keep_history)
}

/// The tape of a seed: with it the run is the same.
pub fn tape_of(seed: u64, bug: Option<Bug>) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    rng.record();
    let plan = Plan::new(&mut rng, bug);
    run_plan(plan, rng, bug, &[], false).tape
}

/// Turns a fuzzer's input into a tape: one number for two bytes. Equal pairs at different positions
/// give different numbers, because ids must differ; 0xffff gives the neutral number.
pub fn tape_of_bytes(bytes: &[u8]) -> Vec<u64> {
    let pairs = bytes.chunks_exact(2).zip(0_u64..);
    let number = |(pair, at): (&[u8], u64)| match u16::from_le_bytes([pair[0], pair[1]]) {
        u16::MAX => NEUTRAL,
        value => Rng::new((at << 16) | u64::from(value)).next(),
    };
    pairs.map(number).collect()
}

/// Makes a tape that breaks a rule smaller: a shorter one with fewer faults that breaks the same
/// rule.
pub fn shrink(tape: Vec<u64>, rule: Rule, bug: Option<Bug>) -> Vec<u64> {
    let mut runs = RUNS_MAX;
    let mut breaks = |tape: &[u64]| {
        runs = runs.checked_sub(1)?;
        let violation = run_tape(tape, bug, false).violation;
        Some(violation.is_some_and(|broken| broken.rule == rule))
    };
    let mut smallest = tape;
    // Without its end. A shorter tape may break the rule although a longer one does not, so any
    // that breaks it is accepted.
    let mut cut = smallest.len() / 2;
    while cut > 0 {
        let shorter = &smallest[..smallest.len() - cut];
        match breaks(shorter) {
            None => return smallest,
            Some(true) => smallest.truncate(smallest.len() - cut),
            Some(false) => cut /= 2,
        }
        cut = cut.min(smallest.len() / 2);
    }
    // With neutral numbers in place of others, in smaller and smaller blocks.
    let mut block = smallest.len().next_power_of_two() / 2;
    while block > 0 {
        for from in (0..smallest.len()).step_by(block) {
            let range = from..smallest.len().min(from + block);
            if smallest[range.clone()]
                .iter()
                .all(|&number| number == NEUTRAL)
            {
                continue;
            }
            let mut calmer = smallest.clone();
            calmer[range].fill(NEUTRAL);
            match breaks(&calmer) {
                None => return smallest,
                Some(true) => smallest = calmer,
                Some(false) => {}
            }
        }
        block /= 2;
    }
    smallest
}

/// Runs what a fuzzer has written.
///
/// # Panics
///
/// If the run breaks a rule, with its history.
pub fn run_bytes(bytes: &[u8]) {
    let tape = tape_of_bytes(bytes);
    if run_tape(&tape, None, false).violation.is_some() {
        panic!("{}", describe(&tape, None));
    }
}

/// Describes the run of a tape that breaks a rule.
pub fn describe(tape: &[u64], bug: Option<Bug>) -> String {
    let outcome = run_tape(tape, bug, true);
    let Some(broken) = outcome.violation else {
        return "no rule is broken".to_owned();
    };
    format!(
        "\"{}\" is broken for {:?}\n{}\n{}",
        broken.rule.describe(),
        broken.operation,
        outcome.history,
        broken.what
    )
}

/// A recorded tape replays its run, and a smaller one breaks the same rule.
///
/// # Panics
///
/// If not.
pub fn check_tapes() {
    for seed in 0..50 {
        let of_seed = crate::run::run(seed, None, false);
        let of_tape = run_tape(&tape_of(seed, None), None, false);
        assert_eq!(of_seed.seen, of_tape.seen, "seed {seed}");
        assert_eq!(of_seed.digest, of_tape.digest, "seed {seed}");
    }
    let bug = Some(Bug::LoseRecovery);
    let failing = (0..100).find_map(|seed| {
        let broken = crate::run::run(seed, bug, false).violation?;
        Some((seed, broken.rule))
    });
    let (seed, rule) = failing.expect("the bug is noticed within a hundred seeds");
    let tape = tape_of(seed, bug);
    let numbers = |tape: &[u64]| tape.iter().filter(|&&number| number != NEUTRAL).count();
    let smaller = shrink(tape.clone(), rule, bug);
    let broken = run_tape(&smaller, bug, false).violation;
    assert_eq!(broken.map(|broken| broken.rule), Some(rule));
    assert!(
        numbers(&smaller) < numbers(&tape) / 4,
        "{} of {} numbers are left",
        numbers(&smaller),
        numbers(&tape)
    );
}
