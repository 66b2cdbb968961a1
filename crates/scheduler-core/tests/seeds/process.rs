//! A process: the loop, and a driver that performs its effects one at a time on the world. It crashes
//! between any two of them, pauses, and gets its answers late or not at all.

mod acquire;
mod changes;
mod perform;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    EngineConfig, Event, Now, Offset, OperationRequest, OwnerId, PartitionId, Priority, ShardId,
    Source, StepDefinition, Workflow, WorkflowDefinition, Workflows,
};
use waybill_scheduler_core::{
    Arrived, Effect, Generation, Input, LeaseTerms, LoopSettings, LostCause, Own, SchedulerLoop,
    SlotState,
};
use waybill_state::Layout;

use self::acquire::Acquiring;
use self::changes::Change;
pub use self::changes::LateChange;
use crate::bugs::Bug;
use crate::world::{PARTITIONS, World};

pub const LEASE: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(3),
    margin: Duration::from_millis(300),
};
/// By how much the wall clocks of two processes differ at most.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(5);
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of records that one poll returns.
const POLL_MAX: usize = 5;

/// Work of the process that happens at a time of its own.
enum Work {
    /// Happens in the world, whatever becomes of the process.
    Apply(Change),
    /// Arrives at the loop, if the process lives.
    Answer(Box<Input>),
    /// Arrives at an acquisition, if the process lives.
    Acquire(Box<Acquiring>),
}

/// What a shard reads.
struct Reading {
    generation: Generation,
    partition: PartitionId,
    requests: usize,
    replies: usize,
}

pub struct Process {
    scheduler_loop: SchedulerLoop,
    owner: OwnerId,
    effects: VecDeque<Effect>,
    work: BTreeMap<(Duration, u64), Work>,
    order: u64,
    reading: BTreeMap<ShardId, Reading>,
    room: usize,
    /// How far its wall clock is ahead.
    clock_ahead: Duration,
    /// No change of the store arrives before this.
    cut_off_until: Duration,
    /// How long it was paused.
    paused_for: Duration,
    bug: Option<Bug>,
    /// It does nothing before this: it is paused, or waits for a full producer queue.
    busy_until: Duration,
    /// Whether the next messages have waited for a full producer queue.
    has_waited: bool,
    turns_at: Duration,
}

impl Process {
    pub fn new(world: &mut World, bug: Option<Bug>) -> Self {
        let clock_ahead = world.rng.duration(CLOCK_AHEAD_MAX);
        let owner = OwnerId(world.uuid());
        let settings = LoopSettings {
            own: Own::All,
            store_is_exclusive: false,
            in_flight_max: 6,
            in_flight_bytes_max: 1_000_000,
            read_ahead_max: 6,
            read_ahead_bytes_max: 1_000_000,
            tracked_requests_max: 50,
            checkpoint_every: Duration::from_millis(100),
            checkpoint_records: 4,
            lease: LEASE,
            stuck_after: STUCK_AFTER,
            skip_deleted_requests: false,
            drain: Duration::from_secs(1),
        };
        let config = EngineConfig {
            hand_off_after: Duration::from_secs(100_000),
            ..EngineConfig::default()
        };
        let steps = ["a", "b"].map(|name| StepDefinition::new(name, "agent"));
        let workflow = WorkflowDefinition::new("pair", 1, steps.into());
        let workflow = Workflow::try_from(workflow).unwrap();
        let workflows = Arc::new(Workflows::new(vec![workflow]).unwrap());
        let layout = Layout::first(PARTITIONS);
        let now = world.now();
        Self {
            scheduler_loop: SchedulerLoop::new(settings, config, workflows, owner, layout, now),
            owner,
            effects: VecDeque::new(),
            work: BTreeMap::new(),
            order: 0,
            reading: BTreeMap::new(),
            room: 0,
            clock_ahead,
            cut_off_until: Duration::ZERO,
            paused_for: Duration::ZERO,
            bug,
            busy_until: world.time,
            has_waited: false,
            turns_at: world.time,
        }
    }

    /// Whether it runs a shard.
    pub fn runs(&self, shard: ShardId) -> bool {
        let slot = self.scheduler_loop.slot(shard);
        slot.is_some_and(|slot| matches!(slot.state(), SlotState::Owned(_)))
    }

    /// Whether it refuses to run a shard.
    pub fn refuses(&self, shard: ShardId) -> bool {
        let slot = self.scheduler_loop.slot(shard);
        slot.is_some_and(|slot| matches!(slot.state(), SlotState::Refused(_)))
    }

    /// Whether a graceful stop is complete.
    pub fn is_stopped(&self) -> bool {
        self.effects.is_empty() && self.scheduler_loop.is_stopped()
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The time as it reads it.
    fn now(&self, world: &World) -> Now {
        let Now { wall, boot } = world.now();
        let stood_still = match self.has(Bug::ClockStandsStill) {
            true => self.paused_for,
            false => Duration::ZERO,
        };
        Now {
            wall: wall + self.clock_ahead,
            boot: boot - stood_still,
        }
    }

    /// Stops for a while, with everything that it has begun going on outside.
    pub fn pause(&mut self, pause: Duration, world: &World) {
        self.paused_for += pause;
        self.busy_until = self.busy_until.max(world.time) + pause;
    }

    /// Whether no call reaches the store.
    fn is_cut_off(&self, world: &World) -> bool {
        world.has_faults && world.time < self.cut_off_until
    }

    /// Loses the way to the store for a while, but not the way back.
    pub fn cut_off(&mut self, time: Duration, world: &World) {
        self.cut_off_until = world.time + time;
    }

    /// Stops gracefully.
    pub fn shut_down(&mut self, world: &mut World) {
        self.give(Input::Shutdown, world);
    }

    /// When it next does something.
    pub fn next_at(&self) -> Duration {
        if !self.effects.is_empty() {
            return self.busy_until;
        }
        let work = self.work.keys().next().map_or(self.turns_at, |(at, _)| *at);
        self.busy_until.max(work.min(self.turns_at))
    }

    /// Ends it. Returns the changes of the store that are under way: they may still happen.
    pub fn end(self) -> Vec<LateChange> {
        let work = self.work.into_iter();
        let changes = work.filter_map(|((at, _), work)| match work {
            Work::Apply(change) => Some(LateChange { at, change }),
            Work::Answer(_) | Work::Acquire(_) => None,
        });
        changes.collect()
    }

    /// Does one thing: performs an effect, takes an input, or makes a turn.
    pub fn step(&mut self, world: &mut World) {
        if let Some(effect) = self.effects.pop_front() {
            return self.perform(effect, world);
        }
        let first = self.work.first_entry();
        if let Some(first) = first.filter(|first| first.key().0 <= world.time) {
            return match first.remove() {
                Work::Apply(change) => {
                    change.happen(world);
                }
                Work::Answer(input) => self.give(*input, world),
                Work::Acquire(acquiring) => self.go_on(acquiring, world),
            };
        }
        self.poll(world);
        let now = self.now(world);
        self.scheduler_loop.turn(true, None, now);
        self.take_effects();
        let patience = self.scheduler_loop.patience(now.boot);
        self.turns_at = world.time + patience.max(Duration::from_micros(200));
    }

    fn take_effects(&mut self) {
        let mut effects = Vec::new();
        self.scheduler_loop.take_effects(&mut effects);
        self.effects.extend(effects);
    }

    /// Gives an input to the loop. One for a shard that was dropped has no effect.
    fn give(&mut self, input: Input, world: &World) {
        let of = match &input {
            Input::Renewed {
                shard, generation, ..
            }
            | Input::Leases {
                shard, generation, ..
            }
            | Input::Loaded {
                shard, generation, ..
            }
            | Input::InboxEnd {
                shard, generation, ..
            } => Some((*shard, *generation)),
            _ => None,
        };
        let is_dropped = of.is_some_and(|(shard, generation)| {
            let reading = self.reading.get(&shard);
            reading.is_none_or(|reading| reading.generation != generation) && !self.runs(shard)
        });
        let now = self.now(world);
        self.scheduler_loop.take(input, now);
        let already = self.effects.len();
        self.take_effects();
        if is_dropped {
            let new = self.effects.iter().skip(already);
            assert_eq!(new.count(), 0, "{of:?}: {:?}", self.effects);
        }
        // It makes a turn once it has taken its inputs.
        self.turns_at = self.turns_at.min(world.time);
    }

    /// Reads records, as many as there is room for.
    fn poll(&mut self, world: &mut World) {
        let mut records = Vec::new();
        let mut lost = Vec::new();
        let skips = self.has(Bug::SkipLogCheck);
        for (&shard, reading) in &mut self.reading {
            let logs = &world.logs[reading.partition.0 as usize];
            let generation = reading.generation;
            let mut push = |event| {
                records.push(Arrived {
                    generation,
                    shard,
                    event,
                });
            };
            if reading.requests < logs.first {
                match skips {
                    true => reading.requests = logs.first,
                    false => {
                        lost.push((shard, generation));
                        continue;
                    }
                }
            }
            let some = POLL_MAX.min(self.room);
            for request in logs.requests.iter().skip(reading.requests).take(some) {
                let offset = reading.requests;
                reading.requests += 1;
                self.room -= 1;
                push(Event::Request {
                    priority: Priority::Normal,
                    offset: Offset(i64::try_from(offset).unwrap()),
                    fingerprint: offset as u64,
                    bytes: 100,
                    rerouted: false,
                    request: OperationRequest::Create(request.clone()),
                });
            }
            for reply in logs.replies.iter().skip(reading.replies).take(POLL_MAX) {
                let offset = Offset(i64::try_from(reading.replies).unwrap());
                reading.replies += 1;
                push(Event::Reply {
                    offset,
                    reply: reply.clone(),
                });
            }
        }
        if !records.is_empty() {
            self.give(Input::Records(records), world);
        }
        for (shard, generation) in lost {
            let lost = Input::Lost {
                source: Source::Requests,
                generation,
                shard,
                cause: LostCause::OutOfRange,
            };
            self.give(lost, world);
        }
    }

    fn at(&mut self, at: Duration, work: Work) {
        self.order += 1;
        self.work.insert((at, self.order), work);
    }
}
