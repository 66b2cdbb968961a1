//! The log on a [simulated disk](waybill_simulated_disk): crashes at any operation, lost and torn
//! writes, failed syncs, bit rot and full disks, from a seed, and every crash point of a short run.
//! A judge that knows only what was sent and promised checks what is there. See
//! `docs/simulator.md`.
//!
//! `WAYBILL_TEST_SEED=<n>` runs that seed alone, `WAYBILL_TEST_SEEDS=<n>` as many, from
//! `WAYBILL_TEST_FIRST_SEED=<n>` on.

mod boots;
mod bugs;
mod found;
mod judge;
mod machine;
mod points;
mod run;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use self::bugs::Bug;
use self::run::run;

/// How many seeds run by default.
const SEEDS: u64 = 3_000;
/// Maximum number of seeds until a bug is detected.
const SEEDS_MAX: u64 = 3_000;
/// How many threads run seeds.
const THREADS: u64 = 2;
/// The document with the table of bugs.
const DOCS: &str = include_str!("../../../../docs/simulator.md");
/// What must happen in one of this many runs, at least. Each happens at least twice as often, so
/// that a change of the log or the simulation does not fail here by chance.
const SEEN: [(&str, u64); 18] = [
    ("synced", 1),
    ("sync failed", 30),
    ("read", 1),
    ("trimmed", 1),
    ("repeated", 1),
    ("closed", 4),
    ("crash", 2),
    ("crash at a start", 5),
    ("reboot known", 2),
    ("damage cut after a reboot", 1_000),
    ("failed start", 10),
    ("offline", 10),
    ("disk full", 5),
    ("reopened", 1_000),
    ("bit rot", 20),
    ("damage served as an error", 30),
    ("repaired", 100),
    ("unsynced tail lost", 2),
];

#[test]
fn a_log_keeps_what_it_acknowledged_whatever_the_disk_does() {
    if let Some(seed) = setting("WAYBILL_TEST_SEED") {
        return report(seed);
    }
    let seeds = setting("WAYBILL_TEST_SEEDS").unwrap_or(SEEDS);
    let first = setting("WAYBILL_TEST_FIRST_SEED").unwrap_or(0);
    let next = AtomicU64::new(first);
    let worker = || {
        let mut seen = BTreeMap::<&str, u64>::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return (seen, None);
            }
            let outcome = run(seed, None, false);
            if outcome.violation.is_some() {
                return (seen, Some(seed));
            }
            for (event, count) in outcome.seen {
                *seen.entry(event).or_default() += count;
            }
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    if let Some(seed) = results.iter().filter_map(|(_, failed)| *failed).min() {
        report(seed);
        unreachable!("seed {seed} failed, and did not when it was replayed");
    }
    let mut seen = BTreeMap::<&str, u64>::new();
    for (event, count) in results.into_iter().flat_map(|(seen, _)| seen) {
        *seen.entry(event).or_default() += count;
    }
    println!("{seeds} seeds: {seen:?}");
    let is_rare =
        |(event, runs): &&(&str, u64)| seen.get(event).copied().unwrap_or(0) * runs < seeds;
    let rare: Vec<_> = SEEN.iter().filter(is_rare).collect();
    assert!(
        rare.is_empty() || seeds < 1_000,
        "hardly seen: {rare:?} in {seen:?}"
    );
}

/// Replays a seed, and prints its history if it fails.
fn report(seed: u64) {
    let outcome = run(seed, None, true);
    if let Some(broken) = outcome.violation {
        let (rule, history) = (broken.rule.describe(), outcome.history.join("\n"));
        panic!(
            "seed {seed}: \"{rule}\" is broken\n{history}\n{}",
            broken.what
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..50 {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        assert_eq!(first.seen, second.seen, "seed {seed}");
        assert_eq!(first.history, second.history, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_caught_as_documented() {
    let mut wrong = Vec::new();
    for bug in Bug::ALL {
        let caught = (0..SEEDS_MAX).find_map(|seed| {
            let broken = run(seed, Some(bug), false).violation?;
            Some((broken.rule, seed + 1))
        });
        let Some((rule, seeds)) = caught else {
            wrong.push(format!("{bug:?} is not caught in {SEEDS_MAX} seeds"));
            continue;
        };
        let row = format!("| {} | {} | {seeds} |", bug.describe(), rule.describe());
        println!("{row}");
        let documented = DOCS.lines().find(|line| line.contains(bug.describe()));
        let is_true = documented.is_some_and(|line| {
            let mut cells = line.split('|').map(str::trim).skip(2);
            let rules = cells.next().unwrap_or_default();
            let most = cells.next().unwrap_or_default().parse::<u64>();
            rules.contains(rule.describe()) && most.is_ok_and(|most| seeds <= most)
        });
        if !is_true {
            wrong.push(format!("the docs should say: {row}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a number")))
}
