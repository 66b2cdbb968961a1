//! The driver of the run loop of agents: one process of the group.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_agent_core::{Admission, AgentLoop, Failure, Sent, Work};
use waybill_engine::{BootTime, Epoch, LayoutShard, Now, Offset, Timestamp};

use super::workers::Workers;
use super::{AgentIncarnation, Agents, Outgoing, bytes_of};
use crate::bugs::Bug;
use crate::clock::{self, BootClock, Clock};
use crate::history::Rule;
use crate::plan::{Plan, START};
use crate::queue::What;
use crate::rng::Rng;
use crate::run::Run;
use crate::seen::Sight;

/// How often a process commits.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
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

impl AgentAct {
    /// Whether it keeps the run from ending.
    pub fn is_work(&self) -> bool {
        match self {
            Self::Acknowledged(_) | Self::Failed(..) | Self::Commit(_) => true,
            Self::Start | Self::Poll => false,
        }
    }
}

/// What a stopping process waits for before it leaves the group. It polls no more in the meantime.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drain {
    /// That all requests that it has read are done.
    Requests { until: Timestamp },
    /// That no record is in flight.
    Records { until: Timestamp },
}

/// A process of agents.
#[derive(Debug)]
pub(super) struct AgentProcess {
    /// Which life of the process it is.
    pub(super) number: u32,
    pub(super) clock: Clock,
    pub(super) boot_clock: BootClock,
    pub(super) paused_until: Timestamp,
    /// The last heartbeat before it died or was paused.
    pub(super) silent_since: Timestamp,
    /// `None` until it has started.
    pub(super) agent_loop: Option<AgentLoop<Outgoing>>,
    /// Whether the coordinator counts it as a member of the group.
    pub(super) is_member: bool,
    /// Where it reads each of its partitions on.
    pub(super) next: BTreeMap<usize, usize>,
    /// The workers of each agent.
    pub(super) workers: Vec<Workers>,
    polls_at: Option<Timestamp>,
    commits_at: Timestamp,
    /// What it waits for, once it stops.
    pub(super) drain: Option<Drain>,
    /// How many records it has sent that are neither acknowledged nor failed.
    pub(super) in_flight: usize,
    /// The newest owner of each shard whose requests it has read.
    pub(super) newest: BTreeMap<LayoutShard, Epoch>,
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
            boot_clock: BootClock::new(rng),
            paused_until: START,
            silent_since: START,
            agent_loop: None,
            is_member: false,
            next: BTreeMap::new(),
            workers: Vec::new(),
            polls_at: None,
            commits_at: START,
            drain: None,
            in_flight: 0,
            newest: BTreeMap::new(),
        }
    }

    pub(super) fn now(&mut self, now: Timestamp) -> Now {
        Now {
            wall: self.clock.read(now),
            boot: self.boot_clock.read(now.since(START)),
        }
    }

    /// Whether it has started and is not paused.
    pub(super) fn is_awake(&self, now: Timestamp) -> bool {
        self.agent_loop.is_some() && self.paused_until <= now
    }

    /// Whether it takes and gives up partitions, as the coordinator wants.
    pub(super) fn polls(&self, now: Timestamp) -> bool {
        self.is_awake(now) && self.drain.is_none()
    }

    /// Its state, for people.
    pub(super) fn describe(&self, now: Timestamp) -> String {
        let agent_loop = self.agent_loop.as_ref();
        let open = agent_loop.map(AgentLoop::open);
        let has_resends = agent_loop.is_some_and(AgentLoop::has_resends);
        format!(
            "incarnation {}, awake {}, member {}, {:?}, {open:?} open, {} in flight, resends \
             {has_resends}, reads {:?}",
            self.number,
            self.is_awake(now),
            self.is_member,
            self.drain,
            self.in_flight,
            self.next
        )
    }

    /// Whether it runs, every request that it has read is done, and it has nothing to send.
    pub(super) fn rests(&self) -> bool {
        let is_idle = |of: &AgentLoop<Outgoing>| of.open() == 0 && !of.has_resends();
        self.drain.is_none() && self.agent_loop.as_ref().is_some_and(is_idle)
    }
}

impl Agents {
    /// The present life of a process.
    pub(super) fn life(&self, process: usize) -> AgentIncarnation {
        let number = self.processes[process].number;
        AgentIncarnation { process, number }
    }

    pub(super) fn process(&mut self, life: AgentIncarnation) -> &mut AgentProcess {
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

    pub(super) fn agent_acts_later(&mut self, life: AgentIncarnation, micros: u64, act: AgentAct) {
        let act = Box::new(act);
        self.later(micros, What::Agent { life, act });
    }

    /// Something happens to a process.
    pub fn agent_acts(&mut self, life: AgentIncarnation, act: AgentAct) {
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
                process.in_flight -= 1;
                if let Some(agent_loop) = &mut process.agent_loop {
                    agent_loop.acknowledged(sent);
                }
                self.request_is_done(life);
            }
            AgentAct::Failed(outgoing, failure) => {
                self.agents.process(life).in_flight -= 1;
                self.record_failed(life, outgoing, failure);
            }
            AgentAct::Commit(_) => unreachable!("handled before"),
        }
    }

    fn start_agent(&mut self, life: AgentIncarnation) {
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
    pub(super) fn want_poll(&mut self, life: AgentIncarnation, after: Duration) {
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

    /// The process may commit further, or may leave the group if it stops.
    pub(super) fn request_is_done(&mut self, life: AgentIncarnation) {
        match self.agents.process(life).drain {
            None => self.want_commit(life),
            Some(_) => self.want_poll(life, Duration::ZERO),
        }
    }

    fn want_commit(&mut self, life: AgentIncarnation) {
        let at = self.agents.process(life).commits_at;
        self.want_poll(life, at.since(self.now));
    }

    fn poll_requests(&mut self, life: AgentIncarnation) {
        let process = self.agents.process(life);
        if process.polls_at.is_none_or(|at| at > self.now) {
            return;
        }
        process.polls_at = None;
        if process.agent_loop.is_none() {
            return;
        }
        if let Some(drain) = process.drain {
            return self.drain(life, drain);
        }
        self.notice_lost(life);
        self.send_again(life);
        self.read_requests(life);
        if !self.agents.lives(life) {
            return;
        }
        match self.now >= self.agents.process(life).commits_at {
            true => self.commit(life),
            false => self.want_commit(life),
        }
    }

    /// A process that others have replaced in the meantime joins the group again.
    fn notice_lost(&mut self, life: AgentIncarnation) {
        let process = self.agents.process(life);
        let was_out = !std::mem::replace(&mut process.is_member, true);
        let logs: Vec<usize> = process.next.keys().copied().collect();
        for log in logs {
            if !self.agents.logs[log].is_owned_by(life) {
                self.seen.count(Sight::RequestsLost);
                self.revoke_log(life, log);
            }
        }
        if was_out {
            let after = self.travel();
            self.want_rebalance(after);
        }
    }

    pub(super) fn send_again(&mut self, life: AgentIncarnation) {
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

    fn read_requests(&mut self, life: AgentIncarnation) {
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

    fn read_request(
        &mut self,
        life: AgentIncarnation,
        log: usize,
        at: usize,
        touched: &mut Vec<usize>,
    ) {
        let now = self.agent_now(life);
        let (agent, partition) = Agents::partition_of(log);
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
        let was_read = record.note_reading(life, begun.record, now);
        let Some(request) = record.request.clone() else {
            return self.bury(life, begun.record);
        };
        let bytes = bytes_of(&request);
        let work = Work::new((*request).clone(), begun.record, bytes, None, now);
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
            Admission::Refused(refused) => {
                let agent_loop = self.agents.process(life).agent_loop.as_ref();
                let depth = agent_loop.map_or((0, 0), |agent_loop| agent_loop.depth(agent));
                self.count_lack_of_bytes(&refused, depth);
                self.refuse_request(life, *refused);
            }
        }
        self.check_capacity_of(life, agent);
    }

    /// The time of a process, unless a planted bug hides it.
    pub(super) fn agent_now(&mut self, life: AgentIncarnation) -> Now {
        let now = self.agents.process(life).now(self.now);
        if self.bug != Some(Bug::WorkPastCompleteBy) {
            return now;
        }
        Now {
            wall: START,
            boot: BootTime::new(clock::BOOTED),
        }
    }

    fn commit(&mut self, life: AgentIncarnation) {
        let now = self.now;
        let process = self.agents.process(life);
        process.commits_at = now + COMMIT_EVERY;
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        let commits = agent_loop.commits().into_iter();
        let commits = commits.map(|(agent, partition, to)| (Agents::log_of(agent, partition), to));
        let commits: Vec<(usize, Offset)> = commits.collect();
        for &(log, to) in &commits {
            self.check_commit(life, log, to);
        }
        let is_lost = self.fault(3);
        if !commits.is_empty() && !is_lost {
            let after = self.travel();
            self.agent_acts_later(life, after, AgentAct::Commit(commits));
        }
    }
}
