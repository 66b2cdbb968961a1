//! Supervisors among faults: the state machines of this crate, driven over a store and a topic in
//! memory, in virtual time. A seed decides which calls fail, are slow or are applied although they
//! failed, and when processes die, are paused and are stopped. The judge sees only the world.
//!
//! `WAYBILL_TEST_SEEDS` sets the number of seeds, and `WAYBILL_TEST_FIRST_SEED` the first.

mod calls;
mod failed;
mod judge;
mod process;
mod rng;
#[path = "../../src/rows.rs"]
mod rows;
mod run;
mod seen;
mod store;
mod workload;

use run::Run;
use seen::Seen;

/// How many seeds a run of the tests takes.
const SEEDS: u64 = 1_000;

#[test]
fn every_due_entry_is_woken_by_an_owner_and_passed_only_then() {
    let first = setting("WAYBILL_TEST_FIRST_SEED").unwrap_or(0);
    let seeds = setting("WAYBILL_TEST_SEEDS").unwrap_or(SEEDS);
    let mut seen = Seen::default();
    for seed in first..first + seeds {
        seen.add(&Run::new(seed).finish());
    }
    if seeds >= SEEDS {
        seen.assert_all_happened();
    }
}

#[test]
fn the_group_passes_no_failed_operation_without_a_published_decision() {
    for seed in 0..10 * SEEDS {
        failed::run(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(Run::new(seed).finish(), Run::new(seed).finish());
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
