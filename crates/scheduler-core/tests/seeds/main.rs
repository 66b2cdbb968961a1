//! Runs the loop of two processes against a small model of the store and the logs, once for each seed,
//! and judges every run from outside.
//!
//! Processes crash between any two effects, pause past their leases, and stop gracefully; calls of a
//! candidate fail; writes time out and happen late, or never, all of a process for a while; answers
//! are late or missing; messages are lost; the producer's queue is full; clocks differ; a log loses
//! requests that are not done. Once the faults end, every shard must run again and every operation
//! must end, except where the log has lost requests: there the shard must be refused.
//!
//! `WAYBILL_TEST_SEEDS` sets the number of seeds, and `WAYBILL_TEST_FIRST_SEED` the first.

mod bugs;
mod judge;
mod planted;
mod process;
mod rng;
mod run;
mod seen;
mod world;

use self::run::run;
use self::seen::Seen;

/// How many seeds a run of the test takes.
const SEEDS: u64 = 100;

#[test]
fn every_seed_keeps_what_must_hold() {
    let first = setting("WAYBILL_TEST_FIRST_SEED").unwrap_or(0);
    let seeds = setting("WAYBILL_TEST_SEEDS").unwrap_or(SEEDS);
    let mut seen = Seen::default();
    for seed in first..first + seeds {
        let outcome = run(seed, None);
        assert_eq!(outcome.broken, None, "seed {seed}");
        seen.add(&outcome.seen);
    }
    if seeds >= SEEDS {
        seen.assert_all_happened();
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        assert_eq!(run(seed, None), run(seed, None));
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
