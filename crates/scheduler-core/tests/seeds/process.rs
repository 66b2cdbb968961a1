//! A process: the loop, and a driver that performs its effects one at a time on the world. It crashes
//! between any two of them, pauses, and gets its answers late or not at all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    BootTime, EngineConfig, Event, Message, Offset, OperationRequest, OwnerId, PartitionId,
    Priority, ShardId, StepDefinition, Workflow, WorkflowDefinition, Workflows,
};
use waybill_scheduler_core::{
    AcquireError, Arrived, Asker, Assignment, Effect, Generation, HeldLease, Input, LeaseTerms,
    LoopSettings, Own, Panicked, SchedulerLoop, SendNumber, SlotState, StoreFailure,
    StoreFailureKind, Task, TaskError, Undelivered,
};
use waybill_state::{Layout, Lease, LeaseKey, WriteBatch, Written};

use crate::world::{PARTITIONS, World};

pub const LEASE: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(3),
    margin: Duration::from_millis(300),
};
/// How often a candidate looks at a lease that another owner has.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of records that one poll returns.
const POLL_MAX: usize = 5;

/// Work of the process that happens at a time of its own.
enum Work {
    /// Happens in the world, whatever becomes of the process.
    Apply(Change),
    /// Arrives at the loop, if the process lives.
    Answer(Box<Input>),
    /// A candidate looks at a lease.
    Watch(Candidate),
}

/// A change of the store.
enum Change {
    Write(WriteBatch),
    Renew(Lease),
    Take { seen: Option<Lease>, lease: Lease },
}

/// A shard whose lease is being acquired.
struct Candidate {
    shard: ShardId,
    generation: Generation,
    seen: Option<Lease>,
    unchanged_since: BootTime,
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
    /// It does nothing before this: it is paused, or waits for a full producer queue.
    busy_until: Duration,
    /// Whether the next messages have waited for a full producer queue.
    has_waited: bool,
    turns_at: Duration,
}

impl Process {
    pub fn new(world: &mut World) -> Self {
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

    /// Stops for a while, with everything that it has begun going on outside.
    pub fn pause(&mut self, until: Duration) {
        self.busy_until = self.busy_until.max(until);
    }

    /// When it next does something.
    pub fn next_at(&self) -> Duration {
        if !self.effects.is_empty() {
            return self.busy_until;
        }
        let work = self.work.keys().next().map_or(self.turns_at, |(at, _)| *at);
        self.busy_until.max(work.min(self.turns_at))
    }

    /// The changes of the store that are under way: they may happen after it has crashed.
    pub fn crash(self) -> Vec<LateChange> {
        let work = self.work.into_iter();
        let changes = work.filter_map(|((at, _), work)| match work {
            Work::Apply(change) => Some(LateChange { at, change }),
            Work::Answer(_) | Work::Watch(_) => None,
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
                Work::Watch(candidate) => self.watch(candidate, world),
            };
        }
        self.poll(world);
        let now = world.now();
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
        self.scheduler_loop.take(input, world.now());
        self.take_effects();
        if is_dropped {
            assert!(self.effects.is_empty(), "{of:?}: {:?}", self.effects);
        }
        // It makes a turn once it has taken its inputs.
        self.turns_at = self.turns_at.min(world.time);
    }

    /// Reads records, as many as there is room for.
    fn poll(&mut self, world: &mut World) {
        let mut records = Vec::new();
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
            self.scheduler_loop
                .take(Input::Records(records), world.now());
            self.take_effects();
        }
    }

    fn at(&mut self, at: Duration, work: Work) {
        self.order += 1;
        self.work.insert((at, self.order), work);
    }

    /// Answers the loop after a delay.
    fn answer(&mut self, world: &mut World, input: Input) {
        let at = world.time + world.delay();
        self.at(at, Work::Answer(Box::new(input)));
    }

    /// Makes a change of the store. At times its outcome is unknown: it happens late, or never. Returns
    /// when it happens, if the loop is to learn that.
    fn change(&mut self, world: &mut World, change: Change, after: Duration) -> Option<bool> {
        let is_known = !world.fault(8);
        if is_known {
            return Some(change.happen(world));
        }
        if !world.fault(30) {
            let at = world.time + after + world.delay() * 20;
            self.at(at, Work::Apply(change));
        }
        None
    }

    fn perform(&mut self, effect: Effect, world: &mut World) {
        match effect {
            Effect::Acquire {
                shard, generation, ..
            } => {
                let candidate = Candidate {
                    shard,
                    generation,
                    seen: world.leases.get(&key(shard)).cloned(),
                    unchanged_since: world.now().boot,
                };
                self.watch(candidate, world);
            }
            Effect::HandBack { held, free } => {
                world.take_lease(Some(&held), &free);
            }
            Effect::Renew {
                shard,
                generation,
                lease,
            } => {
                let written = self.change(world, Change::Renew(*lease), Duration::ZERO);
                let result = written.ok_or_else(unknown);
                self.answer(
                    world,
                    Input::Renewed {
                        shard,
                        generation,
                        result,
                    },
                );
            }
            Effect::Release {
                shard,
                generation,
                held,
                free,
            } => {
                let seen = Some(*held);
                let lease = *free;
                let written = self.change(world, Change::Take { seen, lease }, Duration::ZERO);
                let result = written.ok_or_else(unknown);
                self.answer(
                    world,
                    Input::Renewed {
                        shard,
                        generation,
                        result,
                    },
                );
            }
            Effect::ReadLeases {
                shard,
                generation,
                keys,
            } => {
                let lease = |key: &LeaseKey| world.leases.get(key).cloned();
                let result = Ok(keys.iter().map(lease).collect());
                self.answer(
                    world,
                    Input::Leases {
                        shard,
                        generation,
                        result,
                    },
                );
            }
            Effect::ReadLayout => self.answer(world, Input::Layout(Ok(None))),
            Effect::Load {
                shard,
                generation,
                operations,
            } => {
                let panics = world.fault(2);
                let result = match panics {
                    true => Err(TaskError::Panicked(Panicked {
                        task: Task::Load,
                        message: "planted".to_owned(),
                    })),
                    false => Ok(world.read(&operations)),
                };
                let loaded = Input::Loaded {
                    shard,
                    generation,
                    result,
                };
                // At times it is not answered at all.
                if !world.fault(2) {
                    self.answer(world, loaded);
                }
            }
            Effect::Write {
                number,
                batch,
                again_after,
            } => {
                let after = again_after.unwrap_or_default();
                let written = self.change(world, Change::Write(batch), after);
                let result = written.map(|_| Written::default()).ok_or_else(unknown);
                if !world.fault(2) {
                    self.answer(world, Input::Committed { number, result });
                }
            }
            Effect::Send {
                number,
                from,
                messages,
                valid_until,
            } => self.send(world, number, from, messages, valid_until),
            Effect::Assign(assignment) => self.assign(&assignment),
            Effect::Unassign(shard) => {
                self.reading.remove(&shard);
            }
            Effect::ReadInboxEnd {
                shard,
                generation,
                partition,
            } => {
                let end = Ok(world.ends(partition).next.replies);
                self.answer(
                    world,
                    Input::InboxEnd {
                        shard,
                        generation,
                        end,
                    },
                );
            }
            Effect::OfferRoom { requests, .. } => self.room = requests.normal.records,
            Effect::Fail(error) => panic!("{error}"),
            Effect::PassOn { .. }
            | Effect::Forget(_)
            | Effect::SetFilter { .. }
            | Effect::ReadTo { .. }
            | Effect::CopyCheckpoint { .. }
            | Effect::Relay
            | Effect::Answer { .. }
            | Effect::Note(_) => {}
        }
    }

    fn assign(&mut self, assignment: &Assignment) {
        let from = |offset: Offset| usize::try_from(offset.0).unwrap();
        let reading = Reading {
            generation: assignment.generation,
            partition: assignment.partition,
            requests: from(assignment.start.at.requests),
            replies: from(assignment.start.at.replies),
        };
        self.reading.insert(assignment.shard, reading);
    }

    /// Sends messages, after a wait if the producer's queue is full, unless the lease has ended by
    /// then.
    fn send(
        &mut self,
        world: &mut World,
        number: SendNumber,
        from: Asker,
        messages: Vec<Message>,
        valid_until: BootTime,
    ) {
        if !std::mem::take(&mut self.has_waited) && world.fault(3) {
            self.has_waited = true;
            self.busy_until = world.time + Duration::from_micros(world.rng.below(1_000_000));
            return self.effects.push_front(Effect::Send {
                number,
                from,
                messages,
                valid_until,
            });
        }
        let result = if world.now().boot >= valid_until {
            Err(Undelivered::LeaseEnded)
        } else {
            let is_lost = world.fault(2);
            let all = messages.len();
            let sent = match is_lost {
                true => world.rng.index(all + 1),
                false => all,
            };
            for message in &messages[..sent] {
                world.send(from, message);
            }
            match sent < all {
                true => Err(Undelivered::Failed("it timed out".to_owned())),
                false => Ok(()),
            }
        };
        self.answer(world, Input::Settled { number, result });
    }

    /// Takes a lease once nobody holds it, or its owner has been silent for long enough.
    fn watch(&mut self, mut candidate: Candidate, world: &mut World) {
        let Candidate {
            shard, generation, ..
        } = candidate;
        let now = world.now();
        let current = world.leases.get(&key(shard)).cloned();
        if current != candidate.seen {
            candidate.seen = current.clone();
            candidate.unchanged_since = now.boot;
        }
        let is_silent = |lease: &Lease| {
            now.boot.since(candidate.unchanged_since) >= lease.duration + LEASE.margin
        };
        let may_take = current
            .as_ref()
            .is_none_or(|lease| lease.owner.is_none() || is_silent(lease));
        if !may_take {
            let at = world.time + WATCH_INTERVAL;
            return self.at(at, Work::Watch(candidate));
        }
        let partition = PartitionId(shard.0);
        let before = current.clone().unwrap_or_else(|| {
            Lease::new(key(shard), partition).beginning_at(world.ends(partition).first)
        });
        let held = HeldLease::taking(before, self.owner, LEASE, now);
        let change = Change::Take {
            seen: current,
            lease: held.row.clone(),
        };
        let result = match self.change(world, change, Duration::ZERO) {
            Some(true) => Ok((held, world.ends(partition))),
            Some(false) => Err(AcquireError::Failed("another owner took it".to_owned())),
            None => Err(AcquireError::Failed("its outcome is unknown".to_owned())),
        };
        self.answer(
            world,
            Input::Acquired {
                shard,
                generation,
                result,
            },
        );
    }
}

/// A change of the store that happens after its process has crashed.
pub struct LateChange {
    pub at: Duration,
    change: Change,
}

impl LateChange {
    pub fn happen(self, world: &mut World) {
        self.change.happen(world);
    }
}

impl Change {
    /// Returns whether the store wrote it.
    fn happen(self, world: &mut World) -> bool {
        match self {
            Self::Write(batch) => {
                world.write(&batch);
                true
            }
            Self::Renew(lease) => world.renew_lease(&lease),
            Self::Take { seen, lease } => world.take_lease(seen.as_ref(), &lease),
        }
    }
}

fn key(shard: ShardId) -> LeaseKey {
    LeaseKey::scheduler(Layout::first(PARTITIONS).generation(), shard)
}

fn unknown() -> TaskError {
    TaskError::Store(StoreFailure {
        kind: StoreFailureKind::Unknown,
        message: "it timed out".to_owned(),
    })
}
