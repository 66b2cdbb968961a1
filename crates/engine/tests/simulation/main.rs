//! The engine between logs, store, agents and a shell that are all made of memory, virtual time and
//! a seed: thousands of runs with duplicates, delays, lost answers, failing services and crashes
//! between any two commands. Every write, message and checkpoint is judged when it happens, and
//! the whole when it has come to rest.
//!
//! A failing seed prints its number. `WAYBILL_SEED=<n>` runs that seed alone.

use std::panic::catch_unwind;

use crate::run::{CrashPoint, Seen, run};

mod agents;
mod rng;
mod run;
mod workload;
mod world;

const SEEDS: u64 = 4_000;

#[test]
fn whatever_fails_and_whenever_it_crashes_nothing_is_lost_and_no_checkpoint_runs_ahead() {
    #[expect(
        clippy::disallowed_methods,
        reason = "which seed to replay is a question to whoever runs the test"
    )]
    let replay = std::env::var("WAYBILL_SEED").ok();
    if let Some(seed) = replay {
        run(seed.parse().expect("WAYBILL_SEED is a number"));
        return;
    }
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        match catch_unwind(|| run(seed)) {
            Ok(one) => seen.merge(&one),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied());
                panic!("seed {seed} failed: {}", text.unwrap_or("without words"));
            }
        }
    }
    assert_everything_was_seen(&seen);
}

/// A simulation that meets no trouble proves nothing.
fn assert_everything_was_seen(seen: &Seen) {
    let stats = &seen.stats;
    for (what, count) in [
        ("created", stats.created),
        ("duplicates", stats.duplicates),
        ("rejected", stats.rejected),
        ("processed", stats.processed),
        ("failed", stats.failed),
        ("retries", stats.retries),
        ("time-outs", stats.time_outs),
        ("not attempted", stats.not_attempted),
        ("stale replies", stats.stale_replies),
        ("late successes", stats.late_successes),
        ("handed off", stats.handed_off),
        ("resumed", stats.resumed),
        ("unreadable", stats.unreadable),
        ("misplaced", stats.misplaced),
        ("dead-lettered", stats.dead_lettered),
        ("stamps ran out", seen.stamps_ran_out),
        ("window was full", seen.window_was_full),
        ("hints of the deadline index", seen.hints),
        ("late writes of a dead owner", seen.late_writes),
        ("skipped steps", seen.skipped_steps),
    ] {
        assert!(count > SEEDS / 100, "hardly any {what}: {count}");
    }
    for point in [
        CrashPoint::BeforeTaking,
        CrashPoint::BeforePersisting,
        CrashPoint::AmidPersisting,
        CrashPoint::BeforeSending,
        CrashPoint::AmidSending,
        CrashPoint::BeforeSettling,
        CrashPoint::BeforeCheckpoint,
    ] {
        let count = seen.crashes.get(&point).copied().unwrap_or_default();
        assert!(count > SEEDS / 100, "hardly any crash {point:?}: {count}");
    }
    assert_eq!(stats.internal_errors, 0);
}

#[test]
fn the_same_events_give_the_same_commands() {
    for seed in 0..50 {
        let (first, second) = (run(seed), run(seed));
        assert!(!first.batches.is_empty());
        assert_eq!(first.batches, second.batches, "seed {seed}");
    }
}
