//! The driver of the run loop of agents: one process of the group.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_agent_core::{
    Admission, AgentLoop, Attempted, Ended, Failure, Next, Refusal, Refused, Sent, Source, Work,
};
use waybill_engine::{BootTime, Epoch, LayoutShard, Now, Offset, Outcome, Timestamp};

use super::group::SESSION;
use super::{AgentLife, Agents, Home, Outgoing, REQUEST_BYTES};
use crate::bugs::Bug;
use crate::clock::{self, Clock};
use crate::history::Rule;
use crate::plan::{Plan, START};
use crate::queue::What;
use crate::rng::Rng;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Protection;

/// What every boot clock shows when a run begins.
const BOOTED: Duration = Duration::from_secs(1_000);
/// A dead process restarts within this time.
const RESTART_MICROS: u64 = 600_000;
/// How often a process commits.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// How long a stopping process waits for its attempts.
const DRAIN: Duration = Duration::from_secs(1);
/// How many records of a partition a poll returns at most.
const POLL_MAX: usize = 3;

/// What happens to a process of agents.
#[derive(Debug)]
pub enum AgentAct {
    Start,
    /// It reads, sends again, and commits.
    Poll,
    /// A record that it has sent was acknowledged.
    Acknowledged(Sent),
    /// A record could not be sent, or was not acknowledged.
    Failed(Outgoing, Failure),
    /// Its commits arrive at the coordinator, whatever has become of it.
    Commit(Vec<(usize, Offset)>),
}

/// A process of agents.
#[derive(Debug)]
pub(super) struct AgentProcess {
    /// Which life of the process it is.
    pub(super) number: u32,
    pub(super) clock: Clock,
    pub(super) paused_until: Timestamp,
    /// `None` until it has started.
    pub(super) agent_loop: Option<AgentLoop<Outgoing>>,
    /// Whether the coordinator counts it as a member of the group.
    pub(super) is_member: bool,
    /// Where it reads each of its partitions on.
    pub(super) next: BTreeMap<usize, usize>,
    /// The workers of each agent.
    workers: Vec<Workers>,
    polls_at: Option<Timestamp>,
    commits_at: Timestamp,
    /// When it gives up waiting for its attempts, once it stops.
    drains_until: Option<Timestamp>,
    /// The newest owner of each shard whose requests it has read.
    newest: BTreeMap<LayoutShard, Epoch>,
}

/// The workers of an agent that wait for work, with the semantics of tokio's `Notify`.
#[derive(Debug)]
pub(super) struct Workers {
    waiting: usize,
    has_permit: bool,
}

impl Workers {
    pub(super) fn new(count: usize) -> Self {
        Self {
            waiting: count,
            has_permit: false,
        }
    }

    /// Whether a waiting worker wakes up. If none waits, the next one does not wait.
    pub(super) fn wake(&mut self) -> bool {
        self.has_permit = self.waiting == 0;
        self.waiting = self.waiting.saturating_sub(1);
        !self.has_permit
    }

    /// Whether a worker without work waits.
    pub(super) fn wait(&mut self) -> bool {
        let waits = !std::mem::take(&mut self.has_permit);
        self.waiting += usize::from(waits);
        waits
    }
}

impl AgentProcess {
    pub(super) fn new(plan: &Plan, rng: &mut Rng, number: u32) -> Self {
        let offset = match plan.sets_clocks {
            true => clock::skew(rng),
            false => 0,
        };
        Self {
            number,
            clock: Clock::new(offset),
            paused_until: START,
            agent_loop: None,
            is_member: false,
            next: BTreeMap::new(),
            workers: Vec::new(),
            polls_at: None,
            commits_at: START,
            drains_until: None,
            newest: BTreeMap::new(),
        }
    }

    pub(super) fn now(&mut self, now: Timestamp) -> Now {
        Now {
            wall: self.clock.read(now),
            boot: BootTime::new(BOOTED + now.since(START)),
        }
    }

    /// Whether it has started and is not paused.
    pub(super) fn is_awake(&self, now: Timestamp) -> bool {
        self.agent_loop.is_some() && self.paused_until <= now
    }

    /// Whether it runs, and every request that it has read is done.
    pub(super) fn rests(&self) -> bool {
        let mut agent_loop = self.agent_loop.iter();
        self.drains_until.is_none() && agent_loop.any(|agent_loop| agent_loop.open() == 0)
    }
}

impl Agents {
    /// The present life of a process.
    pub(super) fn life(&self, process: usize) -> AgentLife {
        let number = self.processes[process].number;
        AgentLife { process, number }
    }

    fn process(&mut self, life: AgentLife) -> &mut AgentProcess {
        &mut self.processes[life.process]
    }
}

impl Run {
    /// Starts all processes.
    pub fn start_agents(&mut self) {
        for process in 0..self.agents.processes.len() {
            let after = self.rng.below(2_000);
            let life = self.agents.life(process);
            self.agent_acts_later(life, after, AgentAct::Start);
        }
    }

    pub(super) fn agent_acts_later(&mut self, life: AgentLife, micros: u64, act: AgentAct) {
        let act = Box::new(act);
        self.later(micros, What::Agent { life, act });
    }

    /// Something happens to a process.
    pub fn agent_acts(&mut self, life: AgentLife, act: AgentAct) {
        let act = match act {
            AgentAct::Commit(commits) => return self.commits_arrive(life, commits),
            act => act,
        };
        if self.agents.lives(life) {
            self.agent_faults(life.process);
        }
        if !self.agents.lives(life) {
            return;
        }
        let until = self.agents.process(life).paused_until;
        if until > self.now {
            let act = Box::new(act);
            return self.queue.push(until, What::Agent { life, act });
        }
        match act {
            AgentAct::Start => self.start_agent(life),
            AgentAct::Poll => self.poll_requests(life),
            AgentAct::Acknowledged(sent) => {
                let process = self.agents.process(life);
                if let Some(agent_loop) = &mut process.agent_loop {
                    agent_loop.acknowledged(sent);
                }
                self.want_commit(life);
            }
            AgentAct::Failed(outgoing, failure) => self.record_failed(life, outgoing, failure),
            AgentAct::Commit(_) => unreachable!("handled before"),
        }
    }

    fn start_agent(&mut self, life: AgentLife) {
        let limits = self.plan.agent_limits;
        let agents = self.agents.names.len();
        let process = self.agents.process(life);
        let agent_loop = AgentLoop::new((0..agents).map(|_| limits));
        let workers = (0..agents).map(|agent| Workers::new(agent_loop.workers(agent)));
        process.workers = workers.collect();
        process.agent_loop = Some(agent_loop);
        process.is_member = true;
        let after = self.travel();
        self.want_rebalance(after);
    }

    /// The process polls no later than after this time.
    pub(super) fn want_poll(&mut self, life: AgentLife, after: Duration) {
        if !self.agents.lives(life) {
            return;
        }
        let at = self.now + after;
        let process = self.agents.process(life);
        if process.polls_at.is_none_or(|before| at < before) {
            process.polls_at = Some(at);
            let act = Box::new(AgentAct::Poll);
            self.queue.push(at, What::Agent { life, act });
        }
    }

    pub(super) fn want_commit(&mut self, life: AgentLife) {
        let at = self.agents.process(life).commits_at;
        self.want_poll(life, at.since(self.now));
    }

    fn poll_requests(&mut self, life: AgentLife) {
        let process = self.agents.process(life);
        if process.polls_at.is_none_or(|at| at > self.now) {
            return;
        }
        process.polls_at = None;
        if process.agent_loop.is_none() {
            return;
        }
        self.notice_lost(life);
        self.send_again(life);
        if self.agents.process(life).drains_until.is_none() {
            self.read_requests(life);
        }
        if !self.agents.lives(life) {
            return;
        }
        match self.now >= self.agents.process(life).commits_at {
            true => self.commit(life),
            false => self.want_commit(life),
        }
        if self.agents.process(life).drains_until.is_some() {
            self.drain(life);
        }
    }

    /// A process that others have replaced in the meantime joins the group again.
    fn notice_lost(&mut self, life: AgentLife) {
        let process = self.agents.process(life);
        let is_stopping = process.drains_until.is_some();
        let was_out = !std::mem::replace(&mut process.is_member, true);
        let logs: Vec<usize> = process.next.keys().copied().collect();
        for log in logs {
            if !self.agents.logs[log].is_owned_by(life) {
                self.seen.count(Sight::RequestsLost);
                self.revoke_log(life, log);
            }
        }
        if was_out && !is_stopping {
            let after = self.travel();
            self.want_rebalance(after);
        }
    }

    fn send_again(&mut self, life: AgentLife) {
        let process = self.agents.process(life);
        let now = process.now(self.now);
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        let due = agent_loop.due_resends(now);
        let has_more = agent_loop.has_resends();
        for outgoing in due {
            self.seen.count(Sight::AgentRecordsSentAgain);
            self.send_record(life, outgoing);
        }
        if has_more {
            self.want_poll(life, Duration::from_millis(200));
        }
    }

    fn read_requests(&mut self, life: AgentLife) {
        let logs: Vec<usize> = self.agents.process(life).next.keys().copied().collect();
        let mut touched = Vec::new();
        for log in logs {
            for _ in 0..POLL_MAX {
                let process = self.agents.process(life);
                let may_read = process.agent_loop.as_ref().is_some_and(AgentLoop::may_read);
                let Some(&at) = process.next.get(&log).filter(|_| may_read) else {
                    break;
                };
                if at == self.agents.logs[log].records.len() {
                    break;
                }
                self.read_request(life, log, at, &mut touched);
            }
            let next = self.agents.process(life).next.get(&log).copied();
            if next.is_some_and(|next| next < self.agents.logs[log].records.len()) {
                self.want_poll(life, Duration::from_micros(500));
            }
        }
        for agent in touched {
            self.wake_worker(life, agent);
        }
    }

    fn read_request(&mut self, life: AgentLife, log: usize, at: usize, touched: &mut Vec<usize>) {
        let now = self.agent_now(life);
        let (agent, partition) = Agents::topic_of(log);
        let process = &mut self.agents.processes[life.process];
        process.next.insert(log, at + 1);
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        let begun = agent_loop.begin(agent, partition, crate::schedulers::offset(at));
        let Some(begun) = begun else {
            return self.fail(Rule::Contract, None, || {
                format!("a process does not begin offset {at} of its log {log}")
            });
        };
        let record = &mut self.agents.logs[log].records[at];
        let was_read = std::mem::replace(&mut record.was_read, true);
        let Some(request) = record.request.clone() else {
            return self.bury(life, begun.record);
        };
        let work = Work::new((*request).clone(), begun.record, REQUEST_BYTES, None, now);
        let is_over_at = self.now + work.deadline.left(now.boot);
        let earliest = record
            .is_over_at
            .map_or(is_over_at, |at| at.min(is_over_at));
        record.is_over_at = Some(earliest);
        if let Some(shard) = request.shard {
            let newest = process.newest.entry(shard).or_insert(request.epoch);
            *newest = (*newest).max(request.epoch);
        }
        let admission = agent_loop.read(work, now);
        if was_read {
            self.seen.count(Sight::RequestsReadAgain);
            let step = self.step_of(&request);
            self.services.effect(request.operation, step).has_copies = true;
        }
        match admission {
            Admission::Queued => {
                if !touched.contains(&agent) {
                    touched.push(agent);
                }
            }
            Admission::Late => {
                self.seen.count(Sight::ExpiredAtAgent);
                self.note(request.operation, || {
                    format!("agent: {} is past complete-by", super::name_of(&request))
                });
            }
            Admission::Refused(refused) => self.refuse_request(life, *refused),
        }
        self.check_room(life, agent);
    }

    /// The time of a process, unless a planted bug hides it.
    fn agent_now(&mut self, life: AgentLife) -> Now {
        let now = self.agents.process(life).now(self.now);
        if self.bug != Some(Bug::WorkPastCompleteBy) {
            return now;
        }
        Now {
            wall: START,
            boot: BootTime::new(BOOTED),
        }
    }

    fn check_room(&mut self, life: AgentLife, agent: usize) {
        let limits = self.plan.agent_limits;
        let process = &self.agents.processes[life.process];
        let Some(agent_loop) = &process.agent_loop else {
            return;
        };
        let (queued, running) = agent_loop.depth(agent);
        if queued + running > limits.in_flight_max || running > limits.workers {
            self.fail(Rule::Bounds, None, || {
                format!("{queued} requests wait for agent {agent}, {running} run: {limits:?}")
            });
        }
    }

    fn refuse_request(&mut self, life: AgentLife, refused: Refused<Source>) {
        self.seen.count(match refused.refusal {
            Refusal::NoRoom { .. } => Sight::RequestsRefused,
            Refusal::Superseded => Sight::SupersededRequests,
            Refusal::Stopping => Sight::RequestsHandedBack,
        });
        let outcome = refused.outcome();
        let work = refused.work;
        self.answer(life, work.source, &work.request, outcome);
    }

    fn wake_worker(&mut self, life: AgentLife, agent: usize) {
        if self.agents.lives(life) && self.agents.process(life).workers[agent].wake() {
            self.worker_works(life, agent);
        }
    }

    /// A worker takes work until it starts an attempt, or waits.
    fn worker_works(&mut self, life: AgentLife, agent: usize) {
        loop {
            if !self.agents.lives(life) {
                return;
            }
            let now = self.agent_now(life);
            let Some(agent_loop) = &mut self.agents.process(life).agent_loop else {
                return;
            };
            let next = agent_loop.next(agent, now);
            let wakes_another = agent_loop.wakes_another(agent);
            if wakes_another {
                self.wake_worker(life, agent);
            }
            self.check_room(life, agent);
            match next {
                Next::Start(work) => {
                    self.check_start(life, &work);
                    let source = work.source;
                    let home = Home::Topic { life, source };
                    return self.begin_attempt(agent, home, work, now);
                }
                Next::Late(work) => {
                    self.seen.count(Sight::ExpiredAtAgent);
                    let attempted = Attempted {
                        source: work.source,
                        bytes: work.bytes,
                        deadline: work.deadline,
                        took: None,
                        outcome: None,
                    };
                    self.attempted(life, attempted, now);
                }
                Next::Refused(refused) => self.refuse_request(life, refused),
                Next::Empty => {
                    if self.agents.process(life).workers[agent].wait() {
                        return;
                    }
                }
                Next::Closed => return,
            }
        }
    }

    /// No attempt starts past complete-by, for an owner that is known to be superseded, or in a
    /// partition that the process has given up.
    fn check_start(&mut self, life: AgentLife, work: &Work<Source>) {
        let now = self.now;
        let process = self.agents.process(life);
        let request = &work.request;
        let wall = process.clock.read(now);
        let log = Agents::log_of(work.source.topic, work.source.partition);
        let is_held = process.next.contains_key(&log);
        let newest = request.shard.and_then(|shard| process.newest.get(&shard));
        let newest = newest.copied();
        if newest.is_some_and(|newest| request.epoch < newest) {
            let epoch = request.epoch;
            self.fail(Rule::OneOwner, request.operation, || {
                format!("an agent starts a request of epoch {epoch} after {newest:?}")
            });
        }
        if !is_held {
            self.fail(Rule::Contract, request.operation, || {
                format!("an agent starts a request of log {log}, which its process has given up")
            });
        }
        if request.complete_by <= wall {
            self.fail(Rule::LateStart, request.operation, || {
                format!(
                    "it starts at {wall:?}, to be completed by {:?}",
                    request.complete_by
                )
            });
        }
    }

    fn attempted(&mut self, life: AgentLife, attempted: Attempted, now: Now) -> Option<Outcome> {
        let process = self.agents.process(life);
        let agent_loop = process.agent_loop.as_mut()?;
        let ended = agent_loop.ended(attempted, now);
        match ended {
            Ended::Answer(outcome) => Some(outcome),
            Ended::GivenUp => {
                self.want_commit(life);
                None
            }
        }
    }

    pub(super) fn end_attempt_of_topic(
        &mut self,
        task: usize,
        life: AgentLife,
        source: Source,
        outcome: Option<Outcome>,
    ) {
        let now = self.agent_now(life);
        let state = &self.agents.tasks[task];
        let attempted = Attempted {
            source,
            bytes: REQUEST_BYTES,
            deadline: state.deadline,
            took: Some(now.boot.since(state.began)),
            outcome: outcome.clone(),
        };
        let (agent, request) = (state.agent, std::rc::Rc::clone(&state.request));
        match (self.attempted(life, attempted, now), outcome) {
            (Some(outcome), _) => self.answer(life, source, &request, outcome),
            (None, Some(late)) if self.plan.protection == Protection::Evidence => {
                self.report_late(task, late);
            }
            (None, _) => {}
        }
        self.worker_works(life, agent);
    }

    fn commit(&mut self, life: AgentLife) {
        let now = self.now;
        let process = self.agents.process(life);
        process.commits_at = now + COMMIT_EVERY;
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        let commits = agent_loop.commits().into_iter();
        let commits = commits.map(|(agent, partition, to)| (Agents::log_of(agent, partition), to));
        let commits: Vec<(usize, Offset)> = commits.collect();
        let is_lost = self.fault(3);
        if !commits.is_empty() && !is_lost {
            let after = self.travel();
            self.agent_acts_later(life, after, AgentAct::Commit(commits));
        }
    }

    /// A process may die, pause or stop at this moment.
    pub(super) fn agent_faults(&mut self, index: usize) {
        let plan = &self.plan;
        let left = plan.agent_crashes + plan.agent_pauses + plan.agent_stops;
        let process = &self.agents.processes[index];
        if self.is_calm() || left == 0 || !process.is_awake(self.now) {
            return;
        }
        match self.rng.below(120) {
            0 | 1 if self.plan.agent_crashes > 0 => {
                self.plan.agent_crashes -= 1;
                self.kill_agent(index);
            }
            2 if self.plan.agent_pauses > 0 => {
                self.plan.agent_pauses -= 1;
                self.pause_agent(index);
            }
            3 | 4 if self.plan.agent_stops > 0 => {
                self.plan.agent_stops -= 1;
                self.stop_agent(index);
            }
            _ => {}
        }
    }

    /// All processes of agents die, and start again.
    pub fn kill_agents(&mut self) {
        for index in 0..self.agents.processes.len() {
            self.kill_agent(index);
        }
    }

    fn kill_agent(&mut self, index: usize) {
        self.seen.count(Sight::AgentCrashes);
        self.note_all(|| format!("agent process {index} dies"));
        self.restart_agent(index);
        let life = self.agents.life(index);
        let session = u64::try_from(SESSION.as_micros()).unwrap();
        self.later(session, What::AgentSession(life));
    }

    fn restart_agent(&mut self, index: usize) {
        let number = self.agents.processes[index].number + 1;
        let is_member = self.agents.processes[index].is_member;
        let process = AgentProcess::new(&self.plan, &mut self.rng, number);
        self.agents.processes[index] = AgentProcess {
            is_member,
            ..process
        };
        let after = self.rng.below(RESTART_MICROS);
        let life = self.agents.life(index);
        self.agent_acts_later(life, after, AgentAct::Start);
    }

    fn pause_agent(&mut self, index: usize) {
        self.seen.count(Sight::AgentPauses);
        let pause = Duration::from_micros(self.rng.between(1_000, 4_000_000));
        self.agents.processes[index].paused_until = self.now + pause;
        self.note_all(|| format!("agent process {index} is paused for {pause:?}"));
        let life = self.agents.life(index);
        if pause > SESSION {
            let session = u64::try_from(SESSION.as_micros()).unwrap();
            self.later(session, What::AgentSession(life));
        }
        // It looks at the group when it goes on.
        self.want_poll(life, pause);
    }

    fn stop_agent(&mut self, index: usize) {
        let life = self.agents.life(index);
        let process = self.agents.process(life);
        if process.drains_until.is_some() {
            return;
        }
        process.drains_until = Some(self.now + DRAIN);
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        self.seen.count(Sight::AgentStops);
        let handed_back = agent_loop.drain();
        self.note_all(|| format!("agent process {index} is stopped"));
        for agent in 0..self.agents.names.len() {
            self.wake_worker(life, agent);
        }
        for refused in handed_back {
            self.refuse_request(life, refused);
        }
        self.want_poll(life, Duration::ZERO);
    }

    /// A stopping process leaves once its requests are done, or it has waited for long enough.
    fn drain(&mut self, life: AgentLife) {
        let now = self.now;
        let process = self.agents.process(life);
        let until = process.drains_until.unwrap_or(now);
        let open = process.agent_loop.as_ref().map_or(0, AgentLoop::open);
        if open > 0 && now < until {
            return self.want_poll(life, Duration::from_millis(100));
        }
        let logs: Vec<usize> = process.next.keys().copied().collect();
        for log in logs {
            self.give_up_log(life, log);
        }
        let process = self.agents.process(life);
        process.is_member = false;
        self.note_all(|| format!("agent process {} has stopped", life.process));
        self.want_rebalance(0);
        self.restart_agent(life.process);
    }
}
