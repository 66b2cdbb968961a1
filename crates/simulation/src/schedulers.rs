//! Scheduler processes: each runs the loop that ships, on logs, a store and leases that are
//! simulated. They die between any two actions, pause, stop, and start again; others take over.

mod acquiring;
pub mod calls;
mod consumers;
mod faults;
pub mod messages;
mod process;
pub mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use waybill_engine::{
    ByPriority, Epoch, InFlight, Now, Offset, OwnerId, Priority, ShardFilter, ShardId, Source,
    Stamp, Timestamp,
};
use waybill_scheduler_core::{
    Acquisition, CallerId, CommitNumber, Effect, Generation, Input, SchedulerLoop, SendNumber,
    SlotState,
};
use waybill_state::LeaseKey;

pub use self::calls::Call;
use self::messages::{Intent, Unsettled};
use self::writes::Write;
pub use self::writes::Writer;
use crate::clock::{BootClock, Clock};
use crate::plan::{Plan, START};
use crate::queue::What;
use crate::run::Run;

/// How far a scheduler's wall clock may be ahead.
const AHEAD_MICROS: u64 = 1_800_000;

/// One life of a scheduler's process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// Agents in its process have answered requests.
    Answered,
    /// Its loop has stopped: it looks whether the agents in its process still run attempts.
    Close,
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
            | Self::PassedOn(_)
            | Self::Answered => true,
            Self::Start
            | Self::Close
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
    pub boot_clock: BootClock,
    /// How long it was paused, until it notices.
    was_paused: Option<Duration>,
    /// Its calls of the store fail before this.
    cut_off_until: Timestamp,
    /// Whether that concerns conditional writes alone.
    keeps_rows: bool,
    /// Whether its next messages have waited for room in the producer's queue.
    has_waited: bool,
    /// Whether it had no decision in memory then that is in no batch yet.
    was_clean: bool,
    /// Whether it may have decided something that is in no batch yet.
    has_news: bool,
    /// Whether it waits for a write that is not answered.
    has_stuck: bool,
    /// Whether the machine was suspended in the meantime.
    was_suspended: bool,
    is_stopping: bool,
    /// Its loop has stopped, and the process waits until then for the agents in it.
    pub closes_until: Option<Timestamp>,
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
    /// Writes that failed, until it learns that.
    unanswered: BTreeSet<CommitNumber>,
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
    pub fn now(&mut self, now: Timestamp) -> Now {
        let boot = now.since(START).saturating_sub(self.stood_still);
        Now {
            wall: self.clock.read(now),
            boot: self.boot_clock.read(boot),
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
            boot_clock: BootClock::new(rng),
            was_paused: None,
            was_clean: false,
            has_news: false,
            has_stuck: false,
            was_suspended: false,
            cut_off_until: START,
            keeps_rows: false,
            has_waited: false,
            is_stopping: false,
            closes_until: None,
            turns_at: None,
            effects: VecDeque::new(),
            readings: BTreeMap::new(),
            room: ByPriority::default(),
            acquiring: BTreeMap::new(),
            inbox_ends: BTreeMap::new(),
            writes: BTreeMap::new(),
            unanswered: BTreeSet::new(),
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

    pub fn act_at(&mut self, of: Incarnation, at: Timestamp, act: Act) {
        self.queue.push(at, What::Scheduler(of, Box::new(act)));
    }

    /// Something happens to a scheduler, or that it has caused.
    pub fn scheduler_acts(&mut self, of: Incarnation, act: Act) {
        let index = of.scheduler;
        match act {
            // These happen whatever has become of the process.
            Act::Call(call) => self.scheduler_calls(of, call),
            Act::LandLate(pieces) => self.land_late(pieces),
            Act::Arrive(message) => self.arrive(of, message),
            Act::PassedOn(reply) => self.publish_reply(&reply),
            act if !self.lives(of) => drop(act),
            Act::Land { number, is_rest } => self.land(index, number, is_rest),
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
                    self.process_acts(of, act);
                } else if self.lives(of) {
                    let until = self.schedulers[index].paused_until;
                    self.act_at(of, until, act);
                }
            }
        }
    }

    fn process_acts(&mut self, of: Incarnation, act: Act) {
        let index = of.scheduler;
        if self.schedulers[index].closes_until.is_some() {
            // Its loop takes nothing any more.
            if matches!(act, Act::Close) {
                self.close_once_drained(of);
            }
            return;
        }
        match act {
            Act::Answered => self.take_answers(of),
            Act::Close => {}
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
}

pub fn offset(position: usize) -> Offset {
    Offset(i64::try_from(position).unwrap())
}
