//! Scheduler processes: each runs the loop that ships, on logs, a store and leases that are
//! simulated. They die between any two actions, pause, stop, and start again; others take over.

mod acquiring;
pub mod calls;
mod consumers;
pub mod messages;
pub mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use waybill_engine::{
    BootTime, ByPriority, Epoch, InFlight, Now, Offset, OwnerId, Priority, ShardFilter, ShardId,
    Source, Stamp, Timestamp,
};
use waybill_scheduler_core::{
    Acquisition, CallerId, Candidate, CommitNumber, Effect, Generation, Input, LoopSettings, Note, Own, SchedulerLoop, SendNumber, SlotState,
};
use waybill_state::LeaseKey;

pub use self::calls::Call;
pub use self::writes::Writer;
use self::messages::{Intent, Unsettled};
use self::writes::Write;
use crate::bugs::Bug;
use crate::clock::Clock;
use crate::history::Rule;
use crate::plan::{Plan, START};
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;

/// What every boot clock shows when a run begins.
const BOOTED: Duration = Duration::from_secs(1_000);
/// How fast a boot clock may be, per million.
const DRIFT_MAX: u64 = 10_000;
/// How far a scheduler's wall clock may be ahead.
const AHEAD_MICROS: u64 = 1_800_000;
/// How long the loop waits for an answer of the store.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// A loop that stood still for this long notices it.
const NOTICED_PAUSE: Duration = Duration::from_millis(2_200);
/// While messages are under way the loop turns this often, only to see whether they were
/// acknowledged. Here an acknowledgement wakes it.
const SETTLE_MAX: Duration = Duration::from_millis(5);
/// The longest wait for its next turn: twice that of a process which has the CPU at once.
const PATIENCE_MAX: Duration = Duration::from_millis(100);

/// One life of a scheduler's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incarnation {
    pub scheduler: usize,
    pub number: u32,
}

/// Something that happens to a scheduler, or that it has caused.
#[derive(Debug)]
pub enum Act {
    /// Its process starts.
    Start,
    /// Its loop makes a turn.
    Turn,
    /// It goes on after a pause.
    Resume,
    /// An operator stops or starts a shard.
    SetRunning(ShardId, bool),
    /// A consumer reads a log for a shard.
    Poll {
        shard: ShardId,
        generation: Generation,
        source: Source,
    },
    /// A call arrives at the store, or at the broker.
    Call(Call),
    /// The answer to a call of a candidate arrives.
    Acquisition(Generation, waybill_scheduler_core::AcquisitionAnswer),
    /// An input arrives at the loop.
    Input(Input),
    /// Part of a write becomes durable, or the rest of it.
    Land { number: CommitNumber, is_rest: bool },
    /// What a dead process had written becomes durable.
    LandLate(Vec<writes::Piece>),
    /// The process learns that a write is durable.
    Written(CommitNumber),
    /// A message arrives at its topic.
    Arrive(messages::Arriving),
    /// A reply that the loop did not take arrives at its topic.
    PassedOn(waybill_engine::StepReply),
}

impl Act {
    /// Whether it keeps the run from ending.
    pub fn is_work(&self) -> bool {
        match self {
            Self::Input(input) => matches!(
                input,
                Input::Committed { .. } | Input::Settled { .. } | Input::Loaded { .. }
            ),
            Self::Call(call) => matches!(call, Call::Load { .. }),
            Self::Land { .. }
            | Self::LandLate(_)
            | Self::Written(_)
            | Self::Arrive(_)
            | Self::PassedOn(_) => true,
            Self::Start
            | Self::Turn
            | Self::Resume
            | Self::SetRunning(..)
            | Self::Poll { .. }
            | Self::Acquisition(..) => false,
        }
    }

    /// Whether a crash before it differs from a crash before the act after it: candidates and idle
    /// loops only look around.
    pub fn is_point(&self) -> bool {
        match self {
            Self::Turn | Self::Resume | Self::Poll { .. } | Self::Acquisition(..) => false,
            Self::Call(call) => call.is_change(),
            Self::Input(input) => !matches!(input, Input::Layout(_) | Input::Leases { .. }),
            _ => true,
        }
    }
}

/// What a process reads for a shard that it runs.
#[derive(Debug)]
pub struct Reading {
    pub generation: Generation,
    pub partition: usize,
    pub key: LeaseKey,
    pub epoch: Epoch,
    filter: ShardFilter,
    /// Whether its logs are read: not any more once it stops.
    is_read: bool,
    /// The offsets up to which it has read its logs.
    next: [usize; 4],
    will_poll: [bool; 4],
    /// The end of the inbox when it started, or after its last pause.
    inbox_end: usize,
    /// The end of the inbox that applied to the decisions in its next batch.
    replies_end: usize,
    last_stamp: Stamp,
}

/// A scheduler's process.
#[derive(Debug)]
pub struct Scheduler {
    pub incarnation: u32,
    pub clock: Clock,
    pub paused_until: Timestamp,
    owner: OwnerId,
    /// `None` until it has started.
    scheduler_loop: Option<SchedulerLoop>,
    /// How much faster than the true time its boot clock runs, per million.
    drift: u64,
    /// How long it was paused, until it notices.
    was_paused: Option<Duration>,
    /// None of its calls reaches the store before this.
    pub cut_off_until: Timestamp,
    /// Whether its next messages have waited for room in the producer's queue.
    has_waited: bool,
    /// Whether the machine was suspended in the meantime.
    was_suspended: bool,
    is_stopping: bool,
    /// When its loop makes the next turn.
    turns_at: Option<Timestamp>,
    /// What the loop wants, and was not done yet.
    effects: VecDeque<Effect>,
    pub readings: BTreeMap<ShardId, Reading>,
    room: ByPriority<usize>,
    acquiring: BTreeMap<Generation, (ShardId, Acquisition)>,
    /// Where the inbox ended when a shard was taken over.
    inbox_ends: BTreeMap<Generation, usize>,
    writes: BTreeMap<CommitNumber, Write>,
    unsettled: BTreeMap<SendNumber, Unsettled>,
    /// Attempts that the rows of a shard intend, until its messages are sent.
    intents: BTreeMap<(ShardId, Generation), Vec<Intent>>,
    /// Those that no row had intended before, for a planted bug.
    new_intents: BTreeSet<Intent>,
    /// For how long its boot clock stood still, by a planted bug.
    stood_still: Duration,
    last_caller: u64,
}

impl Scheduler {
    fn now(&mut self, now: Timestamp) -> Now {
        let boot = now.since(START).saturating_sub(self.stood_still);
        let drift = boot * u32::try_from(self.drift).unwrap() / 1_000_000;
        Now {
            wall: self.clock.read(now),
            boot: BootTime::new(BOOTED + boot + drift),
        }
    }

    /// Whether nothing of it is under way.
    fn is_idle(&self) -> bool {
        self.effects.is_empty() && self.writes.is_empty() && self.unsettled.is_empty()
    }

    /// Whether it refuses to run a shard.
    pub fn refuses(&self, shard: ShardId) -> bool {
        let slot = self.scheduler_loop.as_ref();
        let slot = slot.and_then(|of| of.slot(shard));
        slot.is_some_and(|slot| matches!(slot.state(), SlotState::Refused(_)))
    }

    /// Whether it runs a shard under this lease, and has no operation in memory.
    pub fn rests_with(&self, lease: &waybill_state::Lease) -> bool {
        let slot = self.scheduler_loop.as_ref();
        let slot = slot.and_then(|of| of.slot(ShardId(lease.key.number)));
        let Some(SlotState::Owned(owned)) = slot.map(waybill_scheduler_core::Slot::state) else {
            return false;
        };
        let is_same = (owned.lease().key, owned.lease().epoch) == (lease.key, lease.epoch);
        is_same && self.is_idle() && owned.engine().in_flight() == InFlight::default()
    }

    /// Its state, for people.
    pub fn describe(&self) -> String {
        let readings = self.readings.iter().map(|(shard, reading)| {
            let slot = self.scheduler_loop.as_ref().and_then(|of| of.slot(*shard));
            let held = match slot.map(waybill_scheduler_core::Slot::state) {
                Some(SlotState::Owned(owned)) => {
                    let engine = owned.engine();
                    let waiting = Priority::ALL.map(|priority| engine.waiting(priority));
                    format!("{:?} {waiting:?}", engine.in_flight())
                }
                other => format!("{other:?}"),
            };
            format!("{shard} {:?} {held}", reading.next)
        });
        let readings: Vec<String> = readings.collect();
        format!(
            "{readings:?}, {} writes, {} unsettled, {:?} acquiring, room {:?}",
            self.writes.len(),
            self.unsettled.len(),
            self.acquiring.len(),
            self.room
        )
    }
}

impl Run {
    /// A scheduler's process before its start.
    pub fn new_scheduler(plan: &Plan, rng: &mut crate::rng::Rng, incarnation: u32) -> Scheduler {
        let mut offset = crate::clock::skew(rng);
        // A clock that is far ahead only makes it wait longer. If protection is by settling, all
        // clocks must be nearly right.
        if !plan.is_settling() && rng.chance(25) {
            offset += i64::try_from(rng.below(AHEAD_MICROS)).unwrap();
        }
        Scheduler {
            incarnation,
            clock: Clock::new(offset),
            paused_until: START,
            owner: OwnerId(rng.uuid()),
            scheduler_loop: None,
            drift: rng.below(DRIFT_MAX),
            was_paused: None,
            was_suspended: false,
            cut_off_until: START,
            has_waited: false,
            is_stopping: false,
            turns_at: None,
            effects: VecDeque::new(),
            readings: BTreeMap::new(),
            room: ByPriority::default(),
            acquiring: BTreeMap::new(),
            inbox_ends: BTreeMap::new(),
            writes: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            intents: BTreeMap::new(),
            new_intents: BTreeSet::new(),
            stood_still: Duration::ZERO,
            last_caller: 0,
        }
    }

    /// The present life of a scheduler.
    pub fn incarnation(&self, scheduler: usize) -> Incarnation {
        Incarnation {
            scheduler,
            number: self.schedulers[scheduler].incarnation,
        }
    }

    pub fn lives(&self, of: Incarnation) -> bool {
        self.schedulers[of.scheduler].incarnation == of.number
    }

    /// Schedules an act of the present life of a scheduler.
    pub fn act_later(&mut self, scheduler: usize, micros: u64, act: Act) {
        let of = self.incarnation(scheduler);
        self.later(micros, What::Scheduler(of, Box::new(act)));
    }

    fn act_at(&mut self, of: Incarnation, at: Timestamp, act: Act) {
        self.queue.push(at, What::Scheduler(of, Box::new(act)));
    }

    /// Something happens to a scheduler, or that it has caused.
    pub fn scheduler_acts(&mut self, of: Incarnation, act: Act) {
        let index = of.scheduler;
        match act {
            // These happen whatever has become of the process.
            Act::Call(call) => return self.scheduler_calls(of, call),
            Act::LandLate(pieces) => return self.land_late(pieces),
            Act::Arrive(message) => return self.arrive(of, message),
            Act::PassedOn(reply) => return self.publish_reply(&reply),
            act if !self.lives(of) => drop(act),
            Act::Land { number, is_rest } => return self.land(index, number, is_rest),
            act => {
                let until = self.schedulers[index].paused_until;
                if until > self.now {
                    return self.act_at(of, until, act);
                }
                if !self.is_up(index) {
                    if self.lives(of) {
                        let until = self.schedulers[index].paused_until;
                        self.act_at(of, until, act);
                    }
                    return;
                }
                self.perform_all(index);
                if self.lives(of) && self.schedulers[index].paused_until <= self.now {
                    self.process_acts(index, act);
                } else if self.lives(of) {
                    let until = self.schedulers[index].paused_until;
                    self.act_at(of, until, act);
                }
            }
        }
    }

    fn process_acts(&mut self, index: usize, act: Act) {
        match act {
            Act::Start => self.start_scheduler(index),
            Act::Turn => self.turn(index),
            Act::Resume => {}
            Act::SetRunning(shard, running) => {
                let scheduler = &mut self.schedulers[index];
                scheduler.last_caller += 1;
                let caller = CallerId(scheduler.last_caller);
                let input = Input::SetRunning {
                    shard,
                    running,
                    caller,
                };
                self.give(index, input);
            }
            Act::Poll {
                shard,
                generation,
                source,
            } => self.poll(index, shard, generation, source),
            Act::Acquisition(generation, answer) => self.acquire(index, generation, answer),
            Act::Input(input) => self.give(index, input),
            Act::Written(number) => self.written(index, number),
            Act::Land { .. }
            | Act::Call(_)
            | Act::LandLate(_)
            | Act::Arrive(_)
            | Act::PassedOn(_) => unreachable!("handled before"),
        }
    }

    fn start_scheduler(&mut self, index: usize) {
        let settings = LoopSettings {
            own: Own::All,
            store_is_exclusive: false,
            in_flight_max: self.plan.in_flight_max,
            in_flight_bytes_max: 1 << 20,
            read_ahead_max: self.plan.waiting_max,
            read_ahead_bytes_max: 1 << 20,
            tracked_requests_max: self.plan.tracked_max,
            checkpoint_every: self.plan.checkpoint_every,
            checkpoint_records: 4,
            lease: self.plan.lease,
            stuck_after: STUCK_AFTER,
            skip_deleted_requests: false,
            drain: Duration::from_millis(300),
        };
        let layout = self.store.layout.clone();
        let scheduler = &mut self.schedulers[index];
        let now = scheduler.now(self.now);
        scheduler.scheduler_loop = Some(SchedulerLoop::new(
            settings,
            (*self.plan.config).clone(),
            std::sync::Arc::clone(&self.plan.workflows),
            scheduler.owner,
            layout,
            now,
        ));
        self.turn(index);
    }

    /// Gives an input to the loop, and performs its effects.
    pub fn give(&mut self, index: usize, input: Input) {
        self.give_later(index, input, Duration::ZERO);
    }

    /// The same, as if it were later by a while.
    fn give_later(&mut self, index: usize, input: Input, later: Duration) {
        if let Input::Settled { number, result } = &input {
            self.settled(index, *number, result.is_ok());
        }
        let scheduler = &mut self.schedulers[index];
        let now = scheduler.now(self.now);
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        let now = Now {
            wall: now.wall + later,
            ..now
        };
        scheduler_loop.take(input, now);
        self.take_effects(index);
        let after = self.rng.below(50);
        self.want_turn(index, Duration::from_micros(after));
        self.perform_all(index);
    }

    fn turn(&mut self, index: usize) {
        let scheduler = &mut self.schedulers[index];
        if scheduler.turns_at.is_some_and(|at| at > self.now) {
            return;
        }
        let paused = scheduler.was_paused.take();
        let suspended = paused.filter(|_| std::mem::take(&mut scheduler.was_suspended));
        let now = scheduler.now(self.now);
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        scheduler_loop.turn(true, suspended, now);
        let patience = scheduler_loop.patience(now.boot);
        let patience = match patience < SETTLE_MAX {
            true => patience + Duration::from_micros(10),
            false => PATIENCE_MAX,
        };
        scheduler.turns_at = None;
        self.take_effects(index);
        self.want_turn(index, patience);
        self.perform_all(index);
    }

    fn want_turn(&mut self, index: usize, after: Duration) {
        let at = self.now + after;
        let scheduler = &mut self.schedulers[index];
        if scheduler.turns_at.is_none_or(|turns_at| at < turns_at) {
            scheduler.turns_at = Some(at);
            let of = self.incarnation(index);
            self.act_at(of, at, Act::Turn);
        }
    }

    /// Takes the loop's effects, and what its engines have counted.
    fn take_effects(&mut self, index: usize) {
        let scheduler = &mut self.schedulers[index];
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        let mut effects = Vec::new();
        scheduler_loop.take_effects(&mut effects);
        scheduler.effects.extend(effects);
        let mut failed = false;
        let mut unknown = false;
        for (shard, reading) in &scheduler.readings {
            let Some(stats) = scheduler_loop.take_stats(*shard) else {
                continue;
            };
            failed |= stats.internal_errors > 0;
            let lease = self.store.leases.get(&reading.key);
            // A superseded owner may look up a row before its successor writes it.
            let is_current = lease.is_some_and(|lease| lease.epoch == reading.epoch);
            unknown |= is_current && stats.unknown_replies > 0;
            self.seen.add(&stats);
        }
        if failed {
            self.fail(Rule::Contract, None, || {
                "the engine failed on an operation".to_owned()
            });
        }
        if unknown {
            self.fail(Rule::Contract, None, || {
                "an agent got a request for an operation without a row".to_owned()
            });
        }
    }

    /// Performs the effects of the loop in order, until the process dies or pauses.
    fn perform_all(&mut self, index: usize) {
        let of = self.incarnation(index);
        while !self.schedulers[index].effects.is_empty() {
            if !self.is_up(index) {
                if self.lives(of) {
                    let until = self.schedulers[index].paused_until;
                    self.act_at(of, until, Act::Resume);
                }
                return;
            }
            if self.waits_for_producer(index) {
                continue;
            }
            if let Some(effect) = self.schedulers[index].effects.pop_front() {
                self.perform_effect(index, effect);
            }
        }
        let scheduler = &self.schedulers[index];
        let is_stopped = scheduler.is_stopping
            && scheduler
                .scheduler_loop
                .as_ref()
                .is_some_and(SchedulerLoop::is_stopped);
        if is_stopped {
            self.seen.count(Sight::GracefulStops);
            self.note_all(|| format!("scheduler {index} has stopped"));
            let after = self.rng.below(1_000_000);
            self.restart_scheduler(index, after);
        }
    }

    fn perform_effect(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Acquire {
                shard,
                generation,
                layout,
            } => {
                let scheduler = &mut self.schedulers[index];
                let candidate = Candidate {
                    owner: scheduler.owner,
                    terms: self.plan.lease,
                    store_is_exclusive: self.bug == Some(Bug::TakeWithoutWaiting),
                    may_lack_state: false,
                };
                let acquisition = Acquisition::new(candidate, layout, shard);
                scheduler.acquiring.insert(generation, (shard, acquisition));
                let started = waybill_scheduler_core::AcquisitionAnswer::Started;
                self.acquire(index, generation, started);
            }
            Effect::Assign(assignment) => self.assign(index, *assignment),
            Effect::SetFilter { shard, filter } => {
                if let Some(reading) = self.schedulers[index].readings.get_mut(&shard) {
                    reading.filter = filter;
                }
            }
            Effect::Unassign(shard) => {
                if let Some(reading) = self.schedulers[index].readings.get_mut(&shard) {
                    reading.is_read = false;
                }
            }
            Effect::OfferRoom { requests, .. } => {
                self.schedulers[index].room =
                    ByPriority::of(|priority: Priority| requests[priority].records);
                for source in Priority::ALL.map(Priority::source) {
                    self.wake_all_shards(index, source);
                }
            }
            Effect::Write {
                number,
                batch,
                again_after,
            } => self.write_rows(index, number, batch, again_after),
            Effect::Send {
                number,
                from,
                messages,
                valid_until,
            } => self.send_all(index, number, from, messages, valid_until),
            Effect::PassOn { reply, .. } => {
                let after = self.travel();
                self.act_later(index, after, Act::PassedOn(reply));
            }
            Effect::Forget(shard) => self.forget_tasks(index, shard),
            Effect::CopyCheckpoint {
                partition,
                checkpoint,
            } => self.store.logs[partition.0 as usize].copied = Some(checkpoint),
            Effect::Note(note) => match note {
                Note::Withheld => self.seen.count(Sight::FencedCommits),
                Note::LeaseLost => self.seen.count(Sight::LeasesExpired),
                Note::Stuck(_) => self.seen.count(Sight::GivenUp),
                Note::CommitBegan(_)
                | Note::CommitDurable(_)
                | Note::CommitFailed
                | Note::RowUnreadable(_)
                | Note::RowReplaced(_) => {}
            },
            Effect::ReadTo { .. } | Effect::Relay | Effect::Answer { .. } => {}
            Effect::Fail(error) => self.fail(Rule::Contract, None, || error.to_string()),
            effect => match Call::of(effect) {
                Ok(call) => self.send_scheduler_call(index, call),
                Err(effect) => unreachable!("{effect:?}"),
            },
        }
    }

    /// Whether a scheduler acts; it may also die, pause or be stopped at this moment.
    fn is_up(&mut self, index: usize) -> bool {
        if self.schedulers[index].paused_until > self.now {
            return false;
        }
        let plan = &self.plan;
        let left = plan.scheduler_crashes
            + plan.scheduler_pauses
            + plan.scheduler_stops
            + plan.cut_offs;
        if self.is_calm() || left == 0 || self.schedulers[index].scheduler_loop.is_none() {
            return true;
        }
        match self.rng.below(400) {
            0 if self.plan.scheduler_crashes > 0 => {
                self.plan.scheduler_crashes -= 1;
                let after = self.rng.below(2_000_000);
                self.crash_scheduler(index, after);
                false
            }
            1 if self.plan.scheduler_pauses > 0 => {
                self.plan.scheduler_pauses -= 1;
                self.pause_scheduler(index);
                false
            }
            2 if self.plan.scheduler_stops > 0 => {
                self.plan.scheduler_stops -= 1;
                self.stop_scheduler(index);
                true
            }
            3 if self.plan.cut_offs > 0 => {
                self.plan.cut_offs -= 1;
                self.seen.count(Sight::CutOffs);
                let time = Duration::from_micros(self.rng.between(100_000, 5_000_000));
                self.schedulers[index].cut_off_until = self.now + time;
                self.note_all(|| format!("scheduler {index} cannot reach the store for {time:?}"));
                true
            }
            _ => true,
        }
    }

    /// Whether the next messages wait for room in the producer's queue, and the process with them.
    fn waits_for_producer(&mut self, index: usize) -> bool {
        let is_calm = self.is_calm();
        let scheduler = &mut self.schedulers[index];
        let sends = matches!(scheduler.effects.front(), Some(Effect::Send { .. }));
        if !sends || is_calm || std::mem::take(&mut scheduler.has_waited) {
            return false;
        }
        if self.rng.below(200) > 0 {
            return false;
        }
        self.seen.count(Sight::FullQueues);
        let wait = Duration::from_micros(self.rng.below(1_000_000));
        let scheduler = &mut self.schedulers[index];
        scheduler.has_waited = true;
        scheduler.paused_until = self.now + wait;
        true
    }

    /// A scheduler may die, pause or be stopped at this moment.
    fn may_stop_scheduler(&mut self, index: usize) {
        self.is_up(index);
    }

    fn pause_scheduler(&mut self, index: usize) {
        self.seen.count(Sight::Pauses);
        let pause = Duration::from_micros(self.rng.between(1_000, 5_000_000));
        let is_suspended = self.rng.chance(20);
        let scheduler = &mut self.schedulers[index];
        scheduler.paused_until = self.now + pause;
        scheduler.was_paused = Some(pause);
        scheduler.was_suspended = is_suspended;
        if self.bug == Some(Bug::IgnoreLease) {
            scheduler.stood_still += pause;
        }
        let of = self.incarnation(index);
        let until = self.now + pause;
        if pause > NOTICED_PAUSE {
            // The inbox must be read to the end that it has then before any time-out.
            self.queue.push(until, What::Woken(of));
        }
        let how = if is_suspended { "suspended" } else { "paused" };
        self.note_all(|| format!("scheduler {index} is {how} for {pause:?}"));
    }

    /// A scheduler wakes up after a long pause.
    pub fn woken(&mut self, of: Incarnation) {
        if !self.lives(of) {
            return;
        }
        for reading in self.schedulers[of.scheduler].readings.values_mut() {
            reading.inbox_end = self.store.logs[reading.partition].replies.len();
        }
    }

    /// A scheduler stops gracefully, or one of its shards.
    fn stop_scheduler(&mut self, index: usize) {
        let shards: Vec<ShardId> = self.schedulers[index].readings.keys().copied().collect();
        if shards.is_empty() || self.rng.chance(60) {
            self.note_all(|| format!("scheduler {index} is stopped"));
            self.schedulers[index].is_stopping = true;
            return self.act_later(index, 0, Act::Input(Input::Shutdown));
        }
        let shard = shards[self.rng.index(shards.len())];
        self.note_all(|| format!("shard {shard} of scheduler {index} is stopped"));
        self.act_later(index, 0, Act::SetRunning(shard, false));
        let after = self.rng.between(100_000, 3_000_000);
        self.act_later(index, after, Act::SetRunning(shard, true));
    }

    /// A scheduler dies, and starts again after a while.
    pub fn crash_scheduler(&mut self, index: usize, restart_micros: u64) {
        let sight = self.crash_point(index);
        self.seen.count(sight);
        self.note_all(|| format!("scheduler {index} dies: {sight:?}"));
        let writes = std::mem::take(&mut self.schedulers[index].writes);
        for write in writes.into_values() {
            self.write_dies(index, write);
        }
        self.restart_scheduler(index, restart_micros);
    }

    fn restart_scheduler(&mut self, index: usize, micros: u64) {
        let incarnation = self.schedulers[index].incarnation + 1;
        self.schedulers[index] = Self::new_scheduler(&self.plan, &mut self.rng, incarnation);
        self.act_later(index, micros, Act::Start);
    }

    fn crash_point(&self, index: usize) -> Sight {
        let scheduler = &self.schedulers[index];
        let mut unsettled = scheduler.unsettled.values();
        let newest = scheduler.writes.values().next_back();
        match newest.map(Write::progress) {
            Some(writes::Progress::Durable) => Sight::CrashBeforeSending,
            Some(writes::Progress::Partly) => Sight::CrashAmidPersisting,
            Some(writes::Progress::None) => Sight::CrashBeforePersisting,
            None if unsettled.any(|batch| batch.messages > 0) => Sight::CrashAmidSending,
            None if !scheduler.unsettled.is_empty() => Sight::CrashBeforeSettling,
            None => Sight::CrashIdle,
        }
    }
}

pub fn offset(position: usize) -> Offset {
    Offset(i64::try_from(position).unwrap())
}
