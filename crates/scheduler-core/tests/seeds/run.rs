//! One run: two processes in the world of a seed, with faults for a while and then without.

use std::time::Duration;

use waybill_engine::{PartitionId, ShardId};

use crate::bugs::Bug;
use crate::judge::{Broken, Rule};
use crate::process::{LateChange, Process};
use crate::seen::{Seen, Sight};
use crate::world::{PARTITIONS, World};

/// How long faults last.
const FAULTS_FOR: Duration = Duration::from_secs(40);
/// How long everything takes at most once they have ended.
const RECOVERS_IN: Duration = Duration::from_secs(60);
const REQUESTS: u32 = 40;
/// By how much time advances between two actions of the processes.
const STEP_MIN: Duration = Duration::from_micros(1);
const STEP_MAX: Duration = Duration::from_millis(1);

/// The result of a run.
#[derive(PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The first rule that did not hold.
    pub broken: Option<Broken>,
    pub seen: Seen,
    /// When it ended.
    pub time: Duration,
}

/// Runs a seed until all is done, or a rule is broken.
pub fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut run = Run {
        world: World::new(seed),
        processes: (0..2).map(|_| Place::default()).collect(),
        left_behind: Vec::new(),
        requested: 0,
        bug,
    };
    // In some runs, a log loses requests that nobody has done.
    let mut shortens_at = (seed % 4 == 3).then(|| run.world.rng.duration(FAULTS_FOR));
    while run.world.judge.broken().is_none() && !run.is_done() {
        let time = run.world.time;
        if shortens_at.is_some_and(|at| at <= time)
            && let Some(partition) = run.waiting()
        {
            shortens_at = None;
            run.world.empty_the_log(partition);
        }
        if time >= FAULTS_FOR + RECOVERS_IN {
            let progress = run.world.progress();
            run.world.judge.require(false, Rule::AllEnd, || progress);
        }
        run.step();
    }
    let mut world = run.world;
    for partition in (0..PARTITIONS).map(PartitionId) {
        if world.has_lost_requests(partition) {
            world.seen.saw(Sight::Refused);
        }
    }
    Outcome {
        broken: world.judge.broken().cloned(),
        seen: world.seen,
        time: world.time,
    }
}

/// Where a process runs, or starts again at some time.
#[derive(Default)]
struct Place {
    process: Option<Process>,
    starts_at: Duration,
}

struct Run {
    world: World,
    processes: Vec<Place>,
    /// Changes of the store that processes have begun before they ended.
    left_behind: Vec<LateChange>,
    requested: u32,
    bug: Option<Bug>,
}

impl Run {
    /// Everything that happens at one time.
    fn step(&mut self) {
        let world = &mut self.world;
        world.has_faults = world.time < FAULTS_FOR;
        world.deliver();
        while self.requested < REQUESTS && world.time >= FAULTS_FOR / REQUESTS * self.requested {
            world.request();
            self.requested += 1;
        }
        let time = world.time;
        let happens = self.left_behind.extract_if(.., |change| change.at <= time);
        for change in happens.collect::<Vec<_>>() {
            world.seen.saw(Sight::LateChange);
            change.happen(world);
        }
        for place in &mut self.processes {
            self.left_behind.extend(place.step(world, self.bug));
        }
        let running = self.processes.iter().flat_map(|place| &place.process);
        let next = running.map(Process::next_at).min().unwrap_or(world.time);
        world.time = next.clamp(world.time + STEP_MIN, world.time + STEP_MAX);
    }

    /// A partition with requests that are not done, while no process runs its shard.
    fn waiting(&self) -> Option<PartitionId> {
        let running = || self.processes.iter().flat_map(|place| &place.process);
        (0..PARTITIONS).map(PartitionId).find(|partition| {
            let shard = ShardId(partition.0);
            self.world.lags(*partition) && !running().any(|process| process.runs(shard))
        })
    }

    /// Whether faults have ended, every shard runs in one process, and every operation has ended and
    /// is announced. A shard whose log has lost requests that are not done is refused instead.
    fn is_done(&self) -> bool {
        let world = &self.world;
        let running = || self.processes.iter().flat_map(|place| &place.process);
        let is_done = |shard: ShardId| {
            let partition = PartitionId(shard.0);
            match world.has_lost_requests(partition) {
                true => {
                    running().count() == self.processes.len()
                        && running().all(|process| process.refuses(shard))
                }
                false => {
                    running().filter(|process| process.runs(shard)).count() == 1
                        && world.has_finished(partition)
                }
            }
        };
        !world.has_faults && self.requested == REQUESTS && (0..PARTITIONS).map(ShardId).all(is_done)
    }
}

impl Place {
    /// Lets the process do one thing, and end or pause after it. Returns what it leaves behind.
    fn step(&mut self, world: &mut World, bug: Option<Bug>) -> Vec<LateChange> {
        let Some(running) = &mut self.process else {
            if self.starts_at <= world.time {
                self.process = Some(Process::new(world, bug));
            }
            return Vec::new();
        };
        if running.next_at() > world.time {
            return Vec::new();
        }
        running.step(world);
        let is_stopped = running.is_stopped();
        if is_stopped || world.rarely() {
            world.seen.saw(match is_stopped {
                true => Sight::GracefulStop,
                false => Sight::Crash,
            });
            self.starts_at = world.time + world.rng.duration(Duration::from_secs(5));
            let ended = self.process.take();
            return ended.into_iter().flat_map(Process::end).collect();
        }
        if world.rarely() {
            world.seen.saw(Sight::Pause);
            let pause = world.rng.duration(Duration::from_secs(8));
            running.pause(pause, world);
        } else if world.rarely() {
            world.seen.saw(Sight::CutOff);
            let time = world.rng.duration(Duration::from_secs(8));
            running.cut_off(time, world);
        } else if world.rarely() {
            running.shut_down(world);
        }
        Vec::new()
    }
}
