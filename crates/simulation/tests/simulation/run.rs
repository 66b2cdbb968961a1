//! One run: processes events in the order of time until none is left.

use std::time::Duration;

use waybill_engine::{
    Event, InFlight, OperationId, Priority, ShardId, ShardingScheme, Source, Timestamp,
};

use crate::agents::Agents;
use crate::bugs::Bug;
use crate::clock::SKEW_MICROS;
use crate::history::{History, Rule, Violation};
use crate::judge::Judge;
use crate::plan::{BOUND, Plan, START};
use crate::queue::{Queue, What};
use crate::rng::Rng;
use crate::scheduler::{Life, Owner};
use crate::seen::{Seen, Sight};
use crate::services::Services;
use crate::store::{PartitionLogs, Store};
use crate::supervisors::Supervisor;

/// How long after a planned crash supervisors start again.
const RESTART_MICROS: u64 = 1_000;
/// A limit that no run reaches.
const EVENTS_MAX: u64 = 400_000;

pub struct Run {
    pub rng: Rng,
    /// The true time, which no process knows exactly.
    pub now: Timestamp,
    pub queue: Queue,
    pub plan: Plan,
    pub bug: Option<Bug>,
    pub store: Store,
    pub services: Services,
    pub agents: Agents,
    /// All owners, past and present.
    pub owners: Vec<Owner>,
    /// The number of shards that candidates check, from the first.
    pub watched: u32,
    pub supervisors: Vec<Supervisor>,
    pub judge: Judge,
    pub history: History,
    pub seen: Seen,
    pub violation: Option<Violation>,
    /// Crashes still to come, besides those that chance decides.
    pub crashes: Vec<Crash>,
}

/// The death of all processes of one kind, which others replace.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The number of events before it.
    pub after: u64,
    pub of: Process,
}

/// A kind of process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    Owners,
    Supervisors,
    Agents,
}

/// How a run ended.
pub struct Outcome {
    pub seen: Seen,
    pub violation: Option<Violation>,
    /// The history, if it was recorded and a rule was broken.
    pub history: String,
    /// A digest of the course of events.
    pub digest: u64,
}

/// Runs one seed to its end and judges it.
pub fn run(seed: u64, bug: Option<Bug>, keep_history: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let plan = Plan::new(&mut rng, bug);
    run_plan(plan, rng, bug, &[], keep_history)
}

/// Runs a plan to its end and judges it. Processes also die as `crashes` says, in its order.
pub fn run_plan(
    plan: Plan,
    rng: Rng,
    bug: Option<Bug>,
    crashes: &[Crash],
    keep_history: bool,
) -> Outcome {
    let mut run = Run::new(plan, rng, bug);
    run.history.is_kept = keep_history;
    run.crashes = crashes.to_vec();
    run.live();
    if run.violation.is_none() {
        run.judge_the_end();
    }
    run.collect_stats();
    let about = run.violation.as_ref().and_then(|broken| broken.operation);
    Outcome {
        history: run.history.of(about, START),
        digest: run.rng.next() ^ run.judge.digest,
        seen: run.seen,
        violation: run.violation,
    }
}

impl Run {
    fn new(plan: Plan, mut rng: Rng, bug: Option<Bug>) -> Self {
        let now = START;
        let mut store = Store::default();
        store
            .logs
            .resize_with(plan.partitions as usize, PartitionLogs::default);
        store
            .layouts
            .push(ShardingScheme::one_each(plan.partitions));
        let mut run = Self {
            watched: plan.partitions,
            agents: Agents::new(),
            supervisors: Supervisor::all(&plan, &mut rng),
            rng,
            now,
            queue: Queue::default(),
            bug,
            store,
            services: Services::default(),
            owners: Vec::new(),
            judge: Judge::default(),
            history: History::default(),
            seen: Seen::default(),
            violation: None,
            crashes: Vec::new(),
            plan,
        };
        run.begin();
        run
    }

    fn begin(&mut self) {
        for (index, ask) in self.plan.asks.iter().enumerate() {
            self.queue.push(ask.at, What::Ask(index));
        }
        for shard in self.store.layout().1.all() {
            self.queue.push(START, What::Watch { shard });
        }
        for _ in 0..self.plan.repartitions {
            let after = self.rng.below(10_000_000);
            self.later(after, What::Repartition);
        }
        for supervisor in 0..self.supervisors.len() {
            self.later(
                1_000,
                What::StartSupervisor {
                    supervisor,
                    incarnation: 0,
                },
            );
        }
        for partition in 0..self.store.logs.len() {
            self.later(1_000, What::Rebalance { partition });
        }
        for _ in 0..self.plan.interventions {
            let after = self.rng.between(200_000, 25_000_000);
            self.later(after, What::Operate);
        }
        if let Some(at) = self.plan.repartition_at {
            self.queue.push(at, What::Repartition);
        }
        if self.plan.sets_clocks && self.rng.chance(30) {
            let after = self.rng.below(8_000_000);
            self.later(after, What::SetClock);
        }
        for _ in 0..self.plan.spoilt_rows {
            let after = self.rng.below(8_000_000);
            self.later(after, What::Spoil);
        }
    }

    fn live(&mut self) {
        while let Some((at, what)) = self.queue.pop() {
            self.now = self.now.max(at);
            self.crash_as_planned();
            self.seen.events += 1;
            let is_rest = matches!(what, What::Renewed { .. }) && self.is_over();
            self.happen(what);
            if self.violation.is_some() || is_rest {
                return;
            }
            if self.now > self.plan.calm_at + BOUND || self.seen.events > EVENTS_MAX {
                return self.report_unfinished();
            }
        }
    }

    fn crash_as_planned(&mut self) {
        while let Some(crash) = self.crashes.first().copied()
            && crash.after <= self.seen.events
        {
            self.crashes.remove(0);
            match crash.of {
                Process::Owners => {
                    for index in 0..self.owners.len() {
                        if self.owners[index].life == Life::Runs {
                            self.crash(index);
                        }
                    }
                }
                Process::Supervisors => {
                    for index in 0..self.supervisors.len() {
                        self.kill_supervisor(index, RESTART_MICROS);
                    }
                }
                Process::Agents => self.kill_agents(),
            }
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Ask(index) => self.ask(index),
            What::Operate => self.operate(),
            What::SetClock => self.set_clock(),
            What::Spoil => self.spoil(),
            What::Recovery {
                partition,
                recovery,
                receipt,
            } => self.recovery_arrives(partition, *recovery, receipt),
            What::Reply {
                task,
                incarnation,
                reply,
                is_copy,
            } => self.reply_arrives(task, incarnation, *reply, is_copy),
            What::Repartition => self.repartition(),
            What::Watch { shard } => self.watch(shard),
            What::LandLate { owner, writes } => self.land_late(owner, writes),
            What::Land { owner, is_rest } => self.land(owner, is_rest),
            What::RenewalLands { owner, sent, lease } => self.renewal_lands(owner, sent, *lease),
            What::Read { owner, operation } => self.read(owner, operation),
            What::Arrive {
                owner,
                batch,
                message,
                is_buffered,
                is_copy,
            } => self.arrive(owner, batch, message, is_buffered, is_copy),
            What::Deliver { task, incarnation } => self.deliver(task, incarnation),
            What::Serve {
                task,
                incarnation,
                deed,
                answer_at,
            } => self.served(task, incarnation, deed, answer_at),
            What::Answer {
                task,
                incarnation,
                outcome,
            } => self.answered(task, incarnation, *outcome),
            What::GiveUp { task, incarnation } => self.give_up_call(task, incarnation),
            What::StartSupervisor {
                supervisor,
                incarnation,
            } => self.start_supervisor(supervisor, incarnation),
            What::SupervisorCall { caller, call } => self.call_arrives(caller, call),
            What::SupervisorAnswer { caller, answer } => self.answer_arrives(caller, *answer),
            What::Acknowledged(caller) => self.acknowledged(caller),
            What::Rebalance { partition } => self.rebalance(partition),
            What::Start { owner }
            | What::Poll { owner, .. }
            | What::Loaded { owner, .. }
            | What::Commit { owner }
            | What::Committed { owner }
            | What::Settle { owner, .. }
            | What::Tick { owner }
            | What::Renew { owner }
            | What::Renewed { owner, .. } => {
                if self.is_up(owner) {
                    self.owner_acts(owner, what);
                } else {
                    self.when_up(owner, what);
                }
            }
        }
    }

    /// Events of an owner, during which it may die.
    fn owner_acts(&mut self, owner: usize, what: What) {
        match what {
            What::Start { .. } => self.start(owner),
            What::Poll { source, .. } => self.poll(owner, source),
            What::Loaded { operation, row, .. } => {
                let event = match row {
                    Ok(row) => Event::Loaded { operation, row },
                    Err(spoilt) => Event::Unloadable {
                        operation,
                        cause: format!("{spoilt:?}"),
                    },
                };
                self.apply(owner, event);
            }
            What::Commit { .. } => self.commit(owner),
            What::Committed { .. } => self.committed(owner),
            What::Settle { batch, .. } => self.settle(owner, batch),
            What::Tick { .. } => self.tick(owner),
            What::Renew { .. } => self.renew(owner),
            What::Renewed {
                sent,
                lease,
                is_written,
                ..
            } => self.renewed(owner, sent, *lease, is_written),
            other => unreachable!("no act of an owner: {other:?}"),
        }
    }

    pub fn is_calm(&self) -> bool {
        self.now >= self.plan.calm_at
    }

    pub fn later(&mut self, micros: u64, what: What) {
        self.queue
            .push(self.now + Duration::from_micros(micros), what);
    }

    /// The duration of a network transfer: usually short.
    pub fn travel(&mut self) -> u64 {
        if self.is_calm() {
            return 300;
        }
        match self.rng.below(100) {
            0..=84 => self.rng.below(3_000),
            85..=96 => self.rng.below(200_000),
            _ => self.rng.below(4_000_000),
        }
    }

    pub fn note(&mut self, operation: OperationId, line: impl FnOnce() -> String) {
        self.history.note(self.now, Some(operation), line);
    }

    pub fn note_all(&mut self, line: impl FnOnce() -> String) {
        self.history.note(self.now, None, line);
    }

    /// Reports a broken rule. The first one ends the run.
    pub fn fail(
        &mut self,
        rule: Rule,
        operation: impl Into<Option<OperationId>>,
        what: impl FnOnce() -> String,
    ) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                rule,
                operation: operation.into(),
                what: what(),
            });
        }
    }

    fn set_clock(&mut self) {
        let offset = self.skew();
        self.seen.count(Sight::ClocksSet);
        match self.rng.below(3) {
            0 => {
                if let Some(owner) = self.owners.last_mut() {
                    owner.clock.set(offset);
                }
            }
            1 => {
                let index = self.rng.index(self.supervisors.len());
                self.supervisors[index].clock.set(offset);
            }
            _ => self.agents.set_clock(offset),
        }
        self.note_all(|| format!("a clock is set, now {offset} µs off"));
    }

    /// Makes a row unreadable; an operator restores it some time later.
    fn spoil(&mut self) {
        let rows: Vec<_> = self.store.rows().map(|row| row.id).collect();
        if rows.is_empty() {
            return;
        }
        let operation = rows[self.rng.index(rows.len())];
        let until = self.now + Duration::from_micros(self.rng.between(100_000, 8_000_000));
        self.store.spoilt.insert(operation, until);
        self.seen.count(Sight::SpoiltRows);
        self.note(operation, || {
            format!("its row cannot be read until {until:?}")
        });
    }

    pub fn skew(&mut self) -> i64 {
        let span = 2 * SKEW_MICROS.unsigned_abs() + 1;
        i64::try_from(self.rng.below(span)).unwrap() - SKEW_MICROS
    }

    /// Whether the run has ended.
    fn is_over(&self) -> bool {
        self.is_calm()
            && self.queue.is_idle()
            && self.agents.is_idle()
            && self.store.rows().all(|row| {
                let waits = self.judge.was_unreadable(row.id) && self.is_to_be_looked_at(row.id);
                self.judge.is_announced(row) && !waits
            })
            && self
                .store
                .layout()
                .1
                .all()
                .all(|shard| self.is_at_rest(shard))
    }

    /// Whether an entry of the deadline index will wake an operation.
    fn is_to_be_looked_at(&self, operation: OperationId) -> bool {
        let mut logs = self.store.logs.iter();
        logs.any(|logs| logs.will_wake(operation))
    }

    fn is_at_rest(&self, shard: ShardId) -> bool {
        let (generation, scheme) = self.store.layout();
        let logs = &self.store.logs[scheme.partition_of(shard).0 as usize];
        let Some(lease) = self.store.leases.get(&(generation, shard)) else {
            return false;
        };
        let owner = &self.owners[lease.owner];
        let idle = owner.engine.as_ref().is_some_and(|engine| {
            engine.in_flight() == InFlight::default() && !owner.has_work_under_way()
        });
        let last_reply = logs.replies.iter().rposition(Option::is_some);
        let is_done = |source| lease.checkpoint.on(source) == logs.len(source);
        idle && is_done(Source::Requests)
            && is_done(Source::HighPriority)
            && lease.checkpoint.on(Source::Replies) >= last_reply.map_or(0, |last| last + 1)
            && is_done(Source::Recoveries)
            && logs.failed_next == logs.failed.len()
    }

    fn report_unfinished(&mut self) {
        let left = self.store.rows().find(|row| !self.judge.is_announced(row));
        let operation = left.map(|row| row.id);
        let state = left.map(|row| row.state.clone());
        let logs = self.store.logs.iter();
        let logs: Vec<_> = logs
            .map(|logs| {
                let ends = Source::ALL.map(|source| logs.len(source));
                (ends, logs.failed_next, logs.failed.len())
            })
            .collect();
        let held: Vec<_> = self
            .owners
            .iter()
            .filter_map(|owner| {
                let engine = owner.engine.as_ref()?;
                let waiting = Priority::ALL.map(|priority| engine.waiting(priority));
                Some((engine.in_flight(), waiting, owner.state()))
            })
            .collect();
        let leases = self.store.leases.clone();
        self.fail(Rule::Lost, operation, || {
            let leases = &leases;
            format!(
                "the operation did not end: {state:?}\nlogs {logs:?}\n{leases:?}\nowners {held:?}"
            )
        });
    }

    fn collect_stats(&mut self) {
        for owner in &mut self.owners {
            if let Some(engine) = &mut owner.engine {
                self.seen.add(&engine.take_stats());
            }
        }
    }

    /// The index of a source among all of them.
    pub fn index_of(source: Source) -> usize {
        match source {
            Source::Requests => 0,
            Source::Replies => 1,
            Source::Recoveries => 2,
            Source::HighPriority => 3,
        }
    }
}
