//! A simulator for the engine and the loops of schedulers, supervisors and agents, the code that
//! ships. The logs, store, handlers, services, callers and operators are simulated in memory, with
//! virtual time and a seed. All kinds of faults are injected: processes die between any two
//! actions, or pause and resume too late; clocks are wrong; messages arrive late, twice and out of
//! order; services succeed, fail, hang and refuse. A judge checks the invariants on every write,
//! message and checkpoint, and the whole run at its end. See `docs/simulator.md`.
//!
//! A failing seed prints its number, and the history of the affected operation in a smaller run
//! that breaks the same rule. `WAYBILL_TEST_SEED=<n>` runs that seed alone,
//! `WAYBILL_TEST_SEEDS=<n>` as many, from `WAYBILL_TEST_FIRST_SEED=<n>` on.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::NEUTRAL;
use crate::run::run;
use crate::seen::{Seen, Sight};

mod agents;
mod audits;
mod bugs;
mod clock;
mod crash_points;
mod exhaustive;
mod history;
mod intake;
mod judge;
mod people;
mod plan;
mod planted;
mod queue;
mod replicas;
mod rng;
mod run;
mod schedulers;
mod seen;
mod services;
mod store;
mod supervisor_calls;
mod supervisors;
mod tape;
mod workload;

pub use crate::crash_points::{check_crash_points, check_crashes_reveal_bugs};
pub use crate::exhaustive::{check_exhaustively, check_searches_reveal_bugs};
pub use crate::intake::check_intake;
pub use crate::planted::check_planted_bugs;
pub use crate::tape::{check_tapes, run_bytes};

/// Without optimization a run takes thirty times as long.
const SEEDS: u64 = if cfg!(debug_assertions) {
    1_000
} else {
    20_000
};
/// How many threads run seeds.
const THREADS: u64 = 2;

/// Runs seeds among random faults; all must keep every rule, and together they must have seen
/// everything.
///
/// # Panics
///
/// If a run breaks a rule, with the history of the affected operation, or if something that must
/// occur now and then was hardly seen.
pub fn check_random_faults() {
    if let Some(seed) = setting("WAYBILL_TEST_SEED") {
        return report(seed);
    }
    let seeds = setting("WAYBILL_TEST_SEEDS").unwrap_or(SEEDS);
    let first = setting("WAYBILL_TEST_FIRST_SEED").unwrap_or(0);
    let (seen, failed) = run_all(first, seeds);
    if let Some(seed) = failed {
        report(seed);
        unreachable!("seed {seed} failed, and did not when it was replayed");
    }
    // Chance decides what a few seeds see.
    if seeds >= SEEDS {
        assert_everything_was_seen(&seen, seeds);
    }
}

/// Runs seeds on all threads; returns their statistics, and the lowest seed that failed.
fn run_all(first: u64, seeds: u64) -> (Seen, Option<u64>) {
    let next = AtomicU64::new(first);
    // The lowest seed that failed, or the end: no thread goes further.
    let end = AtomicU64::new(first + seeds);
    let worker = || {
        let mut seen = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return seen;
            }
            let outcome = run(seed, None, false);
            if outcome.violation.is_some() {
                end.fetch_min(seed, Ordering::Relaxed);
                return seen;
            }
            seen.merge(&outcome.seen);
        }
    };
    let mut all = Seen::default();
    for seen in on_all_threads(worker) {
        all.merge(&seen);
    }
    let end = end.into_inner();
    (all, (end < first + seeds).then_some(end))
}

/// Runs `work` on every thread at the same time, and returns the results.
fn on_all_threads<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    #[expect(
        clippy::disallowed_methods,
        reason = "runs are independent of each other, and there are many"
    )]
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(&work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Replays a seed. If it fails, prints a smaller run that breaks the same rule.
fn report(seed: u64) {
    let Some(broken) = run(seed, None, false).violation else {
        return;
    };
    let tape = tape::tape_of(seed, None);
    let drawn = tape.len();
    let smaller = tape::shrink(tape, broken.rule, None);
    let needed = smaller.iter().filter(|&&number| number != NEUTRAL).count();
    panic!(
        "seed {seed}: {}\nThis run needs {needed} of the {drawn} numbers that the seed gives.",
        tape::describe(&smaller, None)
    );
}

/// A simulation without faults proves nothing.
fn assert_everything_was_seen(seen: &Seen, seeds: u64) {
    let least = seeds / 400;
    let mut rare = Vec::new();
    for sight in Sight::ALL {
        if seen.of(sight) <= least {
            rare.push(format!("{sight:?}: {}", seen.of(sight)));
        }
    }
    for (name, count) in seen.engine_counts() {
        // Only an owner whose lease was taken over sees unknown replies.
        if name == "unknown replies" {
            continue;
        }
        let never = name == "internal errors";
        if never != (count == 0) || (!never && count <= least) {
            rare.push(format!("{name}: {count}"));
        }
    }
    assert!(rare.is_empty(), "hardly seen in {seeds} seeds: {rare:#?}");
}

/// The same seed gives the same run.
///
/// # Panics
///
/// If it does not.
pub fn check_replays() {
    for seed in 0..100 {
        let (first, second) = (run(seed, None, false), run(seed, None, true));
        assert!(first.seen.events > 0);
        assert_eq!(first.seen, second.seen, "seed {seed}");
        assert_eq!(first.digest, second.digest, "seed {seed}");
    }
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "the developer chooses the seeds")]
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}
