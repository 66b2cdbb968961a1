//! Every crash point of a short run, and pairs of them.
//!
//! `WAYBILL_TEST_CRASH_PAIRS=1` runs all pairs, `WAYBILL_TEST_CRASH_PAIRS=<n>` every n-th.

use std::sync::atomic::{AtomicUsize, Ordering};

use waybill_simulated_disk::Loss;

use super::judge::{Verdict, Violation};
use super::machine::Machine;
use super::setting;
use crate::TopicConfig;

/// What a crash may leave, without chance. Everything else is between these.
const LOSSES: [Loss; 3] = [Loss::Process, Loss::Nothing, Loss::Everything];
const THREADS: usize = 2;
/// By default one of this many pairs runs.
const PAIRS_EVERY: u64 = 8;

/// The acts of a run without faults. Every second append begins a segment.
const ACTS: [fn(&mut Machine) -> Verdict; 20] = [
    append, sync, append, append, sync, store_ends, append, sync, store_ends, trim, append, close,
    append, append, sync, store_ends, append, sync, trim, store_ends,
];

fn append(machine: &mut Machine) -> Verdict {
    machine.produce(0, 8)
}

fn sync(machine: &mut Machine) -> Verdict {
    (0..3).try_for_each(|_| machine.sync())
}

fn store_ends(machine: &mut Machine) -> Verdict {
    machine.perform_chores()?;
    machine.store_ends()
}

fn trim(machine: &mut Machine) -> Verdict {
    machine.trim()
}

fn close(machine: &mut Machine) -> Verdict {
    machine.close()
}

/// Runs it with these crashes: after how many changes, and what is lost. The second number counts
/// from the first crash. Returns how many changes there were since the last crash.
fn run(crashes: &[(u64, Loss)]) -> Result<u64, Violation> {
    let config = TopicConfig {
        flush_messages: Some(1),
        segment_bytes: 300,
        retention: None,
        retention_bytes: Some(500),
        ..TopicConfig::default()
    };
    let mut machine = Machine::new(1, None, config);
    machine.planned.extend(crashes);
    machine.plan_crash();
    let lived = ACTS.iter().try_for_each(|act| {
        machine.go_on()?;
        act(&mut machine)
    });
    let ended = lived.and_then(|()| machine.go_on());
    let changes = machine.changes_since_restart();
    ended.and_then(|()| machine.finish())?;
    machine.end_process();
    assert!(machine.planned.is_empty(), "{crashes:?} happen");
    Ok(changes)
}

fn check(crashes: &[(u64, Loss)]) -> u64 {
    run(crashes).unwrap_or_else(|broken| panic!("{crashes:?}: {broken:?}"))
}

#[test]
fn every_crash_point_is_survived_and_pairs_of_them() {
    let every = setting("WAYBILL_TEST_CRASH_PAIRS")
        .unwrap_or(PAIRS_EVERY)
        .max(1) as usize;
    let once: Vec<_> = (0..check(&[]))
        .flat_map(|at| LOSSES.map(|loss| (at, loss)))
        .collect();
    let (next, pairs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&first) = once.get(number) else {
                        return;
                    };
                    let changes = check(&[first]);
                    let seconds = (0..changes).flat_map(|at| LOSSES.map(|loss| (at, loss)));
                    // Each first crash begins elsewhere, so that all second ones occur.
                    for second in seconds.skip(number % every).step_by(every) {
                        check(&[first, second]);
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    println!(
        "{} crash points, {} pairs of them",
        once.len(),
        pairs.into_inner()
    );
}
