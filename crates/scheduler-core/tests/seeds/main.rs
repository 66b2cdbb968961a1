//! Runs the loop of two processes against a small model of the store and the logs, once for each seed,
//! and judges every run from outside.
//!
//! Processes crash between any two effects and pause past their leases; writes time out and happen
//! late, or never; answers are late or missing; messages are lost; the producer's queue is full. Once
//! the faults end, every shard must run again and every operation must end.
//!
//! `SEEDS=FIRST..LAST` chooses the seeds; `LAST` itself is not among them.

mod judge;
mod process;
mod rng;
mod world;

use std::time::Duration;

use waybill_engine::{PartitionId, ShardId};

use self::process::{LateChange, Process};
use self::world::{PARTITIONS, World};

/// How long faults last.
const FAULTS_FOR: Duration = Duration::from_secs(40);
/// How long everything takes at most once they have ended.
const RECOVERS_IN: Duration = Duration::from_secs(60);
const REQUESTS: u64 = 40;
/// By how much time advances between two actions of the processes.
const STEP_MIN: Duration = Duration::from_micros(1);
const STEP_MAX: Duration = Duration::from_millis(1);

#[test]
fn every_seed_keeps_what_must_hold() {
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

fn seeds() -> std::ops::Range<u64> {
    #[expect(clippy::disallowed_methods, reason = "the developer chooses the seeds")]
    let Ok(given) = std::env::var("SEEDS") else {
        return 0..30;
    };
    let (first, last) = given.split_once("..").expect("SEEDS=FIRST..LAST");
    first.parse().unwrap()..last.parse().unwrap()
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let mut processes: Vec<Option<Process>> = (0..2).map(|_| None).collect();
    // When each of them starts again.
    let mut starts_at = vec![Duration::ZERO; processes.len()];
    let mut left_behind: Vec<LateChange> = Vec::new();
    let mut requested = 0;
    loop {
        world.has_faults = world.time < FAULTS_FOR;
        world.deliver();
        while requested < REQUESTS
            && world.time >= FAULTS_FOR / 40 * u32::try_from(requested).unwrap()
        {
            world.request();
            requested += 1;
        }
        let time = world.time;
        let happens: Vec<LateChange> = left_behind
            .extract_if(.., |change| change.at <= time)
            .collect();
        for change in happens {
            change.happen(&mut world);
        }
        for (process, starts_at) in processes.iter_mut().zip(&mut starts_at) {
            let Some(running) = process else {
                if *starts_at <= world.time {
                    *process = Some(Process::new(&mut world));
                }
                continue;
            };
            if running.next_at() <= world.time {
                running.step(&mut world);
                if world.rarely() {
                    *starts_at = world.time + Duration::from_millis(world.rng.below(5_000));
                    left_behind.extend(process.take().into_iter().flat_map(Process::crash));
                } else if world.rarely() {
                    let pause = Duration::from_millis(world.rng.below(8_000));
                    running.pause(world.time + pause);
                }
            }
        }
        if !world.has_faults && is_done(&world, &processes) {
            break;
        }
        assert!(
            world.time < FAULTS_FOR + RECOVERS_IN,
            "it does not end: {:?}",
            unfinished(&world)
        );
        let running = processes.iter().flatten().map(Process::next_at);
        let next = running.min().unwrap_or(world.time);
        world.time = next.clamp(world.time + STEP_MIN, world.time + STEP_MAX);
    }
}

/// Whether every shard runs in one process, and every operation has ended and is announced.
fn is_done(world: &World, processes: &[Option<Process>]) -> bool {
    let runs_once = |shard| {
        let running = processes.iter().flatten();
        running.filter(|process| process.runs(shard)).count() == 1
    };
    (0..PARTITIONS).map(ShardId).all(runs_once) && unfinished(world).is_empty()
}

/// The operations that have not ended, and the partitions whose checkpoint is not at the end.
fn unfinished(world: &World) -> Vec<String> {
    let mut unfinished = Vec::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        for request in &world.logs[partition.0 as usize].requests {
            if !world.judge.is_announced(request.operation) {
                unfinished.push(format!("operation {}", request.operation));
            }
        }
        let mut leases = world.leases.values();
        let lease = leases.find(|lease| lease.partition == partition);
        let done = lease.map(|lease| lease.checkpoint.at.requests);
        if done != Some(world.ends(partition).next.requests) {
            unfinished.push(format!("checkpoint of partition {partition}: {done:?}"));
        }
    }
    unfinished
}
