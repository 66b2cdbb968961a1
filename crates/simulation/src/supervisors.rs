//! Supervisors: each runs the state machines of the supervisor that ships, over the index shards
//! and the partitions of failed-operations. They die and pause, their calls fail or are applied
//! although they failed, and others take over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{Now, OwnerId, PartitionId, Timestamp};
use waybill_state::DueBucket;
use waybill_supervisor_core::failed;
use waybill_supervisor_core::index_shard::{Effect, Event, Notice};
use waybill_supervisor_core::{
    Audit, FailedOperations, FailedSettings, IndexShard, IndexShardSettings, Pace,
};

use crate::clock::{BootClock, Clock, SKEW_MICROS};
use crate::plan::{Plan, START};
use crate::queue::What;
use crate::rng::Rng;
use crate::run::Run;
use crate::seen::Sight;
use crate::supervisor_calls::{Answer, Call, Taken};

/// How long a supervisor owns an index shard after each renewal.
const LEASE: Duration = Duration::from_millis(1_500);
/// The allowance for drift and delay on both sides of a lease.
const MARGIN: Duration = Duration::from_millis(100);
/// How far a supervisor's wall clock may be ahead: it only comes too early.
const AHEAD_MICROS: u64 = 5_000_000;
/// How long after its due time an entry may become visible: as long as a scheduler's write may be
/// late, and two clocks apart; or much less, so that sweeps pass entries before they are written.
const GRACE_MILLIS: [u64; 3] = [6_000, 600, 0];

/// A supervisor's process.
#[derive(Debug)]
pub struct Supervisor {
    pub clock: Clock,
    pub incarnation: u32,
    pub name: Arc<str>,
    paused_until: Timestamp,
    boot_clock: BootClock,
    pub pace: Pace,
    /// One for each partition.
    index_shards: Vec<Calling<IndexShard>>,
    /// The audit of each index shard, if this process sweeps it.
    pub audits: Vec<Calling<Option<Audit>>>,
    /// Audits that read or wait for that: one at a time, the first.
    pub reads: VecDeque<Caller>,
    failed: Calling<FailedOperations>,
    /// Whether that polls, and so may get records.
    pub is_polling: bool,
    /// The records of failed-operations that it has read and not committed.
    pub intake: Vec<Taken>,
}

/// A state machine, and the call that it waits for.
#[derive(Debug)]
pub struct Calling<M> {
    pub machine: M,
    pub call: u64,
    /// How many acknowledgements its call still needs.
    awaited: usize,
    /// Where it moves the cursor to.
    moves_to: Option<DueBucket>,
    /// Where the cursor is, as it knows.
    moved_to: Option<DueBucket>,
}

/// Which state machine waits, and for which of its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub supervisor: usize,
    pub incarnation: u32,
    pub machine: Machine,
    pub call: u64,
}

/// A state machine of a supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    IndexShard(usize),
    Audit(usize),
    Failed,
}

impl<M> Calling<M> {
    fn new(machine: M) -> Self {
        Self {
            machine,
            call: 0,
            awaited: 0,
            moves_to: None,
            moved_to: None,
        }
    }
}

impl Supervisor {
    pub fn all(plan: &Plan, rng: &mut Rng) -> Vec<Self> {
        let one = |number| Self::new(plan, rng, number, 0);
        (0..plan.supervisors).map(one).collect()
    }

    fn new(plan: &Plan, rng: &mut Rng, number: usize, incarnation: u32) -> Self {
        let offsets = 2 * SKEW_MICROS.unsigned_abs();
        let mut offset = i64::try_from(rng.below(offsets)).unwrap() - SKEW_MICROS;
        if rng.chance(25) {
            offset += i64::try_from(rng.below(AHEAD_MICROS)).unwrap();
        }
        let name: Arc<str> = format!("supervisor-{number}").into();
        let pace = Pace::new([2_000, 40, 4][rng.index(3)]);
        let settings = IndexShardSettings {
            index_shard: PartitionId(0),
            owner: OwnerId(rng.uuid()),
            name: Arc::clone(&name),
            workflows: Arc::clone(&plan.workflows),
            timeout_grace: plan.config.timeout_grace,
            lease: LEASE,
            lease_margin: MARGIN,
            is_store_exclusive: false,
            grace: Duration::from_millis(GRACE_MILLIS[rng.index(3)]),
            interval: Duration::from_micros(rng.between(250_000, 700_000)),
            // Runs are too short for a skip.
            audit_interval: Duration::from_secs(86_400),
            chunk: pace.chunk(),
        };
        let index_shard = |partition| {
            Calling::new(IndexShard::new(IndexShardSettings {
                index_shard: PartitionId(partition),
                ..settings.clone()
            }))
        };
        let failed = FailedOperations::new(FailedSettings {
            name: Arc::clone(&name),
            workflows: Arc::clone(&plan.workflows),
            timeout_grace: plan.config.timeout_grace,
            chunk: pace.chunk(),
        });
        Self {
            clock: Clock::new(offset),
            incarnation,
            paused_until: START,
            boot_clock: BootClock::new(rng),
            index_shards: (0..plan.partitions).map(index_shard).collect(),
            audits: (0..plan.partitions).map(|_| Calling::new(None)).collect(),
            reads: VecDeque::new(),
            name,
            failed: Calling::new(failed),
            is_polling: false,
            intake: Vec::new(),
            pace,
        }
    }

    /// The present call of the consumer of failed-operations.
    pub fn failed_caller(&self, index: usize) -> Caller {
        Caller {
            supervisor: index,
            incarnation: self.incarnation,
            machine: Machine::Failed,
            call: self.failed.call,
        }
    }

    pub fn now(&mut self, now: Timestamp) -> Now {
        Now {
            wall: self.clock.read(now),
            boot: self.boot_clock.read(now.since(START)),
        }
    }
}

impl Run {
    /// A supervisor's process starts.
    pub fn start_supervisor(&mut self, index: usize, incarnation: u32) {
        if self.supervisors[index].incarnation != incarnation {
            return;
        }
        for index_shard in 0..self.store.logs.len() {
            self.feed_index_shard(index, index_shard, Event::Started);
        }
        self.feed_failed(index, failed::Event::Started);
    }

    /// A supervisor dies, and starts again after a while.
    pub fn kill_supervisor(&mut self, index: usize, restart_micros: u64) {
        let incarnation = self.supervisors[index].incarnation + 1;
        self.supervisors[index] = Supervisor::new(&self.plan, &mut self.rng, index, incarnation);
        self.seen.count(Sight::SupervisorCrashes);
        self.note_all(|| format!("supervisor {index} dies"));
        self.later(
            restart_micros,
            What::StartSupervisor {
                supervisor: index,
                incarnation,
            },
        );
    }

    /// A supervisor may die or be paused before it handles an answer.
    fn may_stop(&mut self, index: usize) {
        if self.plan.supervisor_crashes == 0 || self.is_calm() || self.rng.below(150) > 0 {
            return;
        }
        self.plan.supervisor_crashes -= 1;
        let micros = self.rng.between(1_000, 4_000_000);
        if self.rng.chance(60) {
            return self.kill_supervisor(index, micros);
        }
        self.supervisors[index].paused_until = self.now + Duration::from_micros(micros);
        self.seen.count(Sight::SupervisorPauses);
        self.note_all(|| format!("supervisor {index} is paused for {micros} µs"));
    }

    /// The answer to a call arrives, unless its process has died.
    pub fn answer_arrives(&mut self, caller: Caller, answer: Answer) {
        let index = caller.supervisor;
        if !self.waits_for_answer(&caller) {
            return;
        }
        let is_audit = matches!(caller.machine, Machine::Audit(_));
        if self.supervisors[index].paused_until <= self.now && !is_audit {
            self.may_stop(index);
        }
        if !self.waits_for_answer(&caller) {
            return;
        }
        let paused_until = self.supervisors[index].paused_until;
        if paused_until > self.now {
            let what = What::SupervisorAnswer {
                caller,
                answer: Box::new(answer),
            };
            return self.queue.push(paused_until, what);
        }
        match (caller.machine, answer) {
            (Machine::IndexShard(index_shard), Answer::IndexShard(event)) => {
                self.feed_index_shard(index, index_shard, event);
            }
            (Machine::Audit(index_shard), Answer::Audit(event)) => {
                self.feed_audit(index, index_shard, event);
            }
            (Machine::Failed, Answer::Failed(event)) => self.feed_failed(index, event),
            (machine, answer) => unreachable!("{answer:?} for {machine:?}"),
        }
    }

    /// Whether a caller lives, and has had no answer to this call.
    pub fn waits_for_answer(&self, caller: &Caller) -> bool {
        let supervisor = &self.supervisors[caller.supervisor];
        let call = match caller.machine {
            Machine::IndexShard(index_shard) => supervisor.index_shards[index_shard].call,
            Machine::Audit(index_shard) => supervisor.audits[index_shard].call,
            Machine::Failed => supervisor.failed.call,
        };
        (supervisor.incarnation, call) == (caller.incarnation, caller.call)
    }

    /// How many acknowledgements a caller's call still needs.
    pub fn awaited(&mut self, caller: &Caller) -> &mut usize {
        let supervisor = &mut self.supervisors[caller.supervisor];
        match caller.machine {
            Machine::IndexShard(index_shard) => &mut supervisor.index_shards[index_shard].awaited,
            Machine::Audit(index_shard) => &mut supervisor.audits[index_shard].awaited,
            Machine::Failed => &mut supervisor.failed.awaited,
        }
    }

    pub fn answer_after(&mut self, micros: u64, caller: Caller, answer: Answer) {
        let answer = Box::new(answer);
        self.later(micros, What::SupervisorAnswer { caller, answer });
    }

    fn feed_index_shard(&mut self, index: usize, index_shard: usize, event: Event) {
        let now = self.supervisors[index].now(self.now);
        let calling = &mut self.supervisors[index].index_shards[index_shard];
        if event == Event::CursorMoved {
            calling.moved_to = calling.moves_to;
        }
        let output = calling.machine.handle(event, now);
        let output = output.expect("it is the result of the effect");
        calling.call += 1;
        let caller = Caller {
            supervisor: index,
            incarnation: self.supervisors[index].incarnation,
            machine: Machine::IndexShard(index_shard),
            call: self.supervisors[index].index_shards[index_shard].call,
        };
        for notice in output.notices {
            match notice {
                Notice::TakingOver(_) => self.seen.count(Sight::SupervisorTakeOvers),
                Notice::Lost => self.seen.count(Sight::SupervisorLeasesLost),
                Notice::Failed | Notice::PassFailed => self.seen.count(Sight::FailedPasses),
                Notice::Began => self.begin_audit(index, index_shard),
                Notice::Ended => {
                    self.supervisors[index].index_shards[index_shard].moved_to = None;
                    self.end_audit(index, index_shard);
                }
                Notice::Skipping(_) => unreachable!("no sweep of a run is a week behind"),
                Notice::Swept | Notice::Behind(_) | Notice::Overdue(_) | Notice::Unreadable(_) => {}
            }
        }
        match output.effect {
            Effect::Wait(time) => {
                let micros = u64::try_from(time.as_micros()).unwrap() + self.rng.below(2_000);
                self.answer_after(micros, caller, Answer::IndexShard(Event::Waited));
            }
            Effect::TakeTurn(recoveries) => {
                let wait = self.supervisors[index].pace.take(recoveries, now.boot);
                if !wait.is_zero() {
                    self.seen.count(Sight::WaitsForTurns);
                }
                self.answer_after(0, caller, Answer::IndexShard(Event::Turn(wait)));
            }
            Effect::Reroute(from) => {
                self.answer_after(0, caller, Answer::IndexShard(Event::Rerouted(from)));
            }
            Effect::Publish(recoveries) => self.publish(caller, recoveries),
            Effect::MoveCursor(cursor) => {
                let calling = &mut self.supervisors[index].index_shards[index_shard];
                calling.moves_to = Some(cursor);
                // It has read what it had passed for the last time.
                if let Some(passed) = calling.moved_to {
                    self.check_passed_entries(index_shard, passed);
                }
                let effect = Box::new(Effect::MoveCursor(cursor));
                self.send_call(caller, Call::IndexShard(effect));
            }
            Effect::End => unreachable!("supervisors are not asked to stop"),
            effect => self.send_call(caller, Call::IndexShard(Box::new(effect))),
        }
    }

    fn feed_failed(&mut self, index: usize, event: failed::Event) {
        use failed::{Effect, Event, Notice};
        let now = self.supervisors[index].now(self.now);
        let calling = &mut self.supervisors[index].failed;
        let output = calling.machine.handle(event, now);
        let output = output.expect("it is the result of the effect");
        calling.call += 1;
        let caller = self.supervisors[index].failed_caller(index);
        for notice in output.notices {
            match notice {
                Notice::Decided { .. } => self.seen.count(Sight::FailedRecordsSeen),
                Notice::PublishFailed => self.seen.count(Sight::FailedPasses),
            }
        }
        self.supervisors[index].is_polling = matches!(output.effect, Effect::Poll { .. });
        match output.effect {
            Effect::Poll { .. } => self.send_call(caller, Call::Poll),
            Effect::Commit(next) => self.send_commit(caller, next),
            Effect::Wait(time) => {
                let micros = u64::try_from(time.as_micros()).unwrap() + self.rng.below(2_000);
                self.answer_after(micros, caller, Answer::Failed(Event::Waited));
            }
            Effect::TakeTurn(recoveries) => {
                let wait = self.supervisors[index].pace.take(recoveries, now.boot);
                self.answer_after(0, caller, Answer::Failed(Event::Turn(wait)));
            }
            Effect::Publish(recoveries) => self.publish(caller, recoveries),
            Effect::PublishDeadLetters | Effect::End => {
                unreachable!("every record can be decoded, and supervisors are not asked to stop")
            }
        }
    }
}
