//! One run: processes events in the order of time until none is left.

use std::time::Duration;

use waybill_engine::{OperationId, PartitionId, ShardingScheme, Source, Timestamp, TopicOffsets};
use waybill_scheduler_core::Input;
use waybill_state::LeaseKey;

use crate::agents::Agents;
use crate::bugs::Bug;
use crate::clock;
use crate::history::{History, Rule, Violation};
use crate::judge::Judge;
use crate::plan::{BOUND, Plan, START};
use crate::queue::{Queue, What};
use crate::rng::Rng;
use crate::schedulers::{Act, Scheduler};
use crate::seen::{Seen, Sight};
use crate::services::Services;
use crate::store::{Store, position};
use crate::supervisors::Supervisor;

mod end;
mod search;

pub use self::search::{Budget, Search, SearchEnd, Visited, WARM_UP};

/// How long after a planned crash schedulers and supervisors start again.
const RESTART_MICROS: u64 = 1_000;
/// A limit that no run reaches.
const EVENTS_MAX: u64 = 400_000;

pub struct Run {
    pub rng: Rng,
    /// Decides what audits do.
    pub audit_rng: Rng,
    /// Decides what the replicas of the store have.
    pub replica_rng: Rng,
    /// The true time, which no process knows exactly.
    pub now: Timestamp,
    pub queue: Queue,
    pub plan: Plan,
    pub bug: Option<Bug>,
    pub store: Store,
    pub services: Services,
    pub agents: Agents,
    pub schedulers: Vec<Scheduler>,
    pub supervisors: Vec<Supervisor>,
    pub judge: Judge,
    pub history: History,
    pub seen: Seen,
    pub violation: Option<Violation>,
    /// Whether the broker loses the next recovery that would wake an operation.
    pub loses_recovery: bool,
    /// Crashes still to come, besides those that chance decides.
    pub crashes: Vec<Crash>,
    /// The faults of a run that is part of a search.
    pub search: Search,
}

/// The death of all processes of one kind, which others replace.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The number of points before it.
    pub after: u64,
    pub of: Process,
}

/// A kind of process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    Schedulers,
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
    /// What was drawn, if that was recorded.
    pub tape: Vec<u64>,
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
    let about = run.violation.as_ref().and_then(|broken| broken.operation);
    Outcome {
        history: run.history.of(about, START),
        tape: run.rng.tape(),
        digest: run.rng.digest() ^ run.judge.digest,
        seen: run.seen,
        violation: run.violation,
    }
}

impl Run {
    pub fn new(plan: Plan, mut rng: Rng, bug: Option<Bug>) -> Self {
        let now = START;
        let audit_rng = rng.fork();
        let mut replica_rng = audit_rng.clone();
        replica_rng.next();
        let store = Store::new(plan.partitions);
        let one = |_| Self::new_scheduler(&plan, &mut rng, 0);
        let schedulers = (0..plan.schedulers).map(one).collect();
        let mut run = Self {
            agents: Agents::new(&plan, &mut rng),
            schedulers,
            supervisors: Supervisor::all(&plan, &mut rng),
            rng,
            audit_rng,
            replica_rng,
            now,
            queue: Queue::default(),
            bug,
            store,
            services: Services::default(),
            judge: Judge::default(),
            history: History::default(),
            seen: Seen::default(),
            violation: None,
            loses_recovery: false,
            crashes: Vec::new(),
            search: Search::default(),
            plan,
        };
        run.begin();
        run
    }

    fn begin(&mut self) {
        for (index, ask) in self.plan.asks.iter().enumerate() {
            self.queue.push(ask.at, What::Ask(index));
        }
        for scheduler in 0..self.schedulers.len() {
            let after = self.rng.below(2_000);
            self.act_later(scheduler, after, Act::Start);
        }
        for _ in 0..self.plan.repartitions {
            let after = self.rng.below(10_000_000);
            self.later(after, What::Repartition);
        }
        self.start_agents();
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
        if let Some(at) = self.plan.loses_requests_at {
            self.queue.push(at, What::LoseRequests);
        }
        if let Some(at) = self.plan.spoils_agent_topic_at {
            self.queue.push(at, What::SpoilAgentTopic);
        }
        if let Some(at) = self.plan.loses_wake_at {
            self.queue.push(at, What::LoseWake);
        }
        if self.plan.sets_clocks {
            for partition in 0..self.store.logs.len() {
                self.later(1_000_000, What::Retention { partition });
            }
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
            self.seen.points += u64::from(what.is_point());
            let is_rest = self.may_be_over_after(&what) && self.is_over();
            self.happen(what);
            if self.violation.is_some() || is_rest {
                return;
            }
            if self.now > self.plan.calm_at + BOUND || self.seen.events > EVENTS_MAX {
                return self.report_unfinished();
            }
        }
    }

    /// Whether it is worth a look whether the run has ended: renewals happen all the time, unless
    /// no shard runs.
    fn may_be_over_after(&self, what: &What) -> bool {
        let What::Scheduler(_, act) = what else {
            return false;
        };
        match **act {
            Act::Input(Input::Renewed { .. }) => true,
            Act::Turn => self.plan.loses_requests_at.is_some(),
            _ => false,
        }
    }

    fn crash_as_planned(&mut self) {
        while let Some(crash) = self.crashes.first().copied()
            && crash.after <= self.seen.points
        {
            self.crashes.remove(0);
            match crash.of {
                Process::Schedulers => {
                    for index in 0..self.schedulers.len() {
                        self.crash_scheduler(index, RESTART_MICROS);
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
            What::Reply(reply) => self.publish_reply(&reply),
            What::AgentRecord(arrival) => self.agent_record_arrives(arrival),
            What::Repartition => self.repartition(),
            What::Scheduler(of, act) => self.scheduler_acts(of, *act),
            What::Woken(of) => self.woken(of),
            What::Retention { partition } => self.retain(partition),
            What::LoseRequests => self.lose_requests(),
            What::LoseWake => self.lose_wake(),
            What::Agent { life, act } => self.agent_acts(life, *act),
            What::AgentSession(life) => self.session_ends(life),
            What::RebalanceAgents => self.rebalance_agents(),
            What::SpoilAgentTopic => self.spoil_agent_topic(),
            What::Serve {
                attempt,
                deed,
                answer_at,
            } => self.served(attempt, deed, answer_at),
            What::Answer { attempt, outcome } => self.answered(attempt, *outcome),
            What::GiveUp { attempt } => self.give_up_call(attempt),
            What::StartSupervisor {
                supervisor,
                incarnation,
            } => self.start_supervisor(supervisor, incarnation),
            What::SupervisorCall { caller, call } => self.call_arrives(caller, call),
            What::SupervisorAnswer { caller, answer } => self.answer_arrives(caller, *answer),
            What::Acknowledged(caller) => self.acknowledged(caller),
            What::Rebalance { partition } => self.rebalance(partition),
        }
    }

    /// Changes the number of shards per partition.
    fn repartition(&mut self) {
        let scheme = self.store.layout.scheme();
        let others = [1, 2, 4].into_iter();
        let others = others.filter(|&number| number != scheme.shards_per_partition);
        let others: Vec<u32> = others.collect();
        let next = ShardingScheme {
            shards_per_partition: others[self.rng.index(others.len())],
            ..scheme
        };
        self.note_all(|| format!("the sharding changes: {next}"));
        if let Ok(layout) = self.store.layout.successor(next) {
            self.store.layout = layout;
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
        if self.rng.is_script() {
            return 0;
        }
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
        let offset = clock::skew(&mut self.rng);
        self.seen.count(Sight::ClocksSet);
        match self.rng.below(3) {
            0 => {
                let index = self.rng.index(self.schedulers.len());
                self.schedulers[index].clock.set(offset);
            }
            1 => {
                let index = self.rng.index(self.supervisors.len());
                self.supervisors[index].clock.set(offset);
            }
            _ => self.agents.set_clock(&mut self.rng, offset),
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

    /// Retention deletes the records of a partition that all shards have done.
    fn retain(&mut self, partition: usize) {
        let after = self.rng.between(500_000, 3_000_000);
        self.later(after, What::Retention { partition });
        let layout = &self.store.layout;
        let of = PartitionId(u32::try_from(partition).unwrap());
        let mut done = None::<TopicOffsets>;
        for shard in layout.scheme().of_partition(of) {
            let key = LeaseKey::scheduler(layout.generation(), shard);
            let Some(lease) = self.store.leases.get(&key) else {
                return;
            };
            let own = lease.checkpoint.at;
            let lowest = done.get_or_insert(own);
            for source in Source::ALL {
                *lowest.on_mut(source) = lowest.on(source).min(own.on(source));
            }
        }
        let done = done.unwrap_or_default();
        let logs = &mut self.store.logs[partition];
        for source in Source::ALL {
            let first = &mut logs.first[Self::index_of(source)];
            if position(&done, source) > *first {
                *first = position(&done, source);
                self.seen.count(Sight::Retention);
            }
        }
    }

    /// Retention deletes all requests of a partition, whether they are done or not.
    fn lose_requests(&mut self) {
        let partition = self.rng.index(self.store.logs.len());
        let logs = &mut self.store.logs[partition];
        for source in [Source::Requests, Source::HighPriority] {
            logs.first[Self::index_of(source)] = logs.len(source);
        }
        self.seen.count(Sight::RequestsDeleted);
        self.note_all(|| format!("all requests of partition {partition} are deleted"));
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
