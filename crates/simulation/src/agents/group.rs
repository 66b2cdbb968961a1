//! The topics of agents, and the consumer group of the processes that read them.

use std::rc::Rc;
use std::time::Duration;

use waybill_agent_core::Source;
use waybill_engine::{BootTime, Now, Offset, StepRequest, partition_for};

use super::{AgentIncarnation, Agents, PARTITIONS};
use crate::history::Rule;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;

/// After this the coordinator takes the partitions of a silent member away.
pub(super) const SESSION: Duration = Duration::from_secs(1);
/// How often a member sends heartbeats, also while it does not poll.
pub(super) const HEARTBEAT_MICROS: u64 = 300_000;
/// How long the coordinator waits for a member to give its partitions up before it looks again.
const LOOK_AGAIN_MICROS: u64 = 200_000;

/// A partition of the topic of an agent.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    pub(super) records: Vec<LoggedRequest>,
    committed: usize,
    owner: Option<AgentIncarnation>,
    /// The process that died while it was the owner, until the log has another owner.
    died_with: Option<usize>,
}

/// A record of an agent's topic.
#[derive(Debug)]
pub(super) struct LoggedRequest {
    /// `None` if it cannot be decoded.
    pub(super) request: Option<Rc<StepRequest>>,
    /// How processes have read it.
    readings: Vec<Reading>,
    /// Its reply or its dead letter was appended.
    pub(super) is_settled: bool,
}

/// How a process has read a record.
#[derive(Clone, Copy, Debug)]
struct Reading {
    by: AgentIncarnation,
    source: Source,
    /// When nobody awaits its reply any more, by the boot clock of the process. `None` if it cannot
    /// be decoded.
    expires_at: Option<BootTime>,
}

impl LoggedRequest {
    fn new(request: Option<StepRequest>) -> Self {
        Self {
            request: request.map(Rc::new),
            readings: Vec::new(),
            is_settled: false,
        }
    }

    /// Records that a process reads it as this. Returns whether it was read before.
    pub(super) fn note_reading(
        &mut self,
        life: AgentIncarnation,
        source: Source,
        now: Now,
    ) -> bool {
        let request = self.request.as_ref();
        let expires_at = request.map(|request| now.boot + request.complete_by.since(now.wall));
        self.readings.push(Reading {
            by: life,
            source,
            expires_at,
        });
        self.readings.len() > 1
    }

    /// Whether a process has read it as this, and has not read it again since.
    pub(super) fn was_last_read(&self, life: AgentIncarnation, source: Source) -> bool {
        let mut readings = self.readings.iter().rev();
        let last = readings.find(|reading| reading.by == life);
        last.is_some_and(|last| last.source == source)
    }

    /// Whether its reply or its dead letter was appended, or nobody awaits a reply any more by the
    /// clocks of a process that has read it. Its wall clock may have been set back since it showed
    /// `now`.
    fn is_done(&self, life: AgentIncarnation, now: Now) -> bool {
        let request = self.request.as_ref();
        let of_process = self.readings.iter().filter(|reading| reading.by == life);
        let mut expires_at = of_process.filter_map(|reading| reading.expires_at);
        self.is_settled
            || request.is_some_and(|request| request.complete_by <= now.wall)
            || expires_at.any(|at| at <= now.boot)
    }
}

impl RequestLog {
    pub(super) fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Its state, for people.
    pub(super) fn describe(&self) -> String {
        let (records, committed) = (self.records.len(), self.committed);
        format!(
            "{records} records, {committed} committed, of {:?}",
            self.owner
        )
    }

    pub(super) fn is_owned_by(&self, life: AgentIncarnation) -> bool {
        self.owner == Some(life)
    }
}

impl Run {
    pub(super) fn append_request(&mut self, request: StepRequest) {
        let agent = self.agents.number_of(&request.agent);
        let partition = partition_for(request.operation, PARTITIONS);
        self.append(Agents::log_of(agent, partition), Some(request));
    }

    /// An undecodable record arrives at an agent's topic.
    pub fn spoil_agent_topic(&mut self) {
        let log = self.rng.index(self.agents.logs.len());
        self.append(log, None);
    }

    fn append(&mut self, log: usize, request: Option<StepRequest>) {
        let log = &mut self.agents.logs[log];
        log.records.push(LoggedRequest::new(request));
        if let Some(life) = log.owner {
            let after = self.travel();
            self.want_poll(life, Duration::from_micros(after));
        }
    }

    /// Whether the owner of every partition has read it to its end.
    pub(super) fn every_request_was_read(&self) -> bool {
        let mut logs = self.agents.logs.iter().enumerate();
        logs.all(|(index, log)| {
            log.owner.is_some_and(|life| {
                let process = &self.agents.processes[life.process];
                process.next.get(&index) == Some(&log.records.len())
            })
        })
    }

    /// The coordinator of the group will look at its members.
    pub(super) fn want_rebalance(&mut self, micros: u64) {
        let at = self.now + Duration::from_micros(micros);
        if self.agents.rebalances_at.is_none_or(|before| at < before) {
            self.agents.rebalances_at = Some(at);
            self.queue.push(at, What::RebalanceAgents);
        }
    }

    /// The coordinator gives each partition to a member of the group.
    pub fn rebalance_agents(&mut self) {
        if self.agents.rebalances_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.agents.rebalances_at = None;
        let processes = self.agents.processes.iter().enumerate();
        let members = processes.filter(|(_, process)| process.is_member);
        let members: Vec<usize> = members.map(|(index, _)| index).collect();
        for log in 0..self.agents.logs.len() {
            let (agent, partition) = Agents::partition_of(log);
            let spread = agent + partition.0 as usize;
            let wanted = match members.len() {
                0 => None,
                count => Some(members[spread % count]),
            };
            let wanted = wanted.map(|process| self.agents.life(process));
            let owner = self.agents.logs[log].owner;
            if owner == wanted {
                continue;
            }
            if let Some(life) = owner.filter(|life| self.agents.lives(*life)) {
                let process = &self.agents.processes[life.process];
                if process.is_member && !process.polls(self.now) {
                    // It may leave the group, or its session may end.
                    self.want_rebalance(LOOK_AGAIN_MICROS);
                    continue;
                }
                if process.is_member {
                    self.seen.count(Sight::RequestsHandedOver);
                    self.give_up_log(life, log);
                }
            }
            let of_log = &mut self.agents.logs[log];
            if let Some(dead) = of_log.owner.take() {
                let is_dead = self.agents.processes[dead.process].number != dead.number;
                of_log.died_with = is_dead.then_some(dead.process);
            }
            let Some(wanted) = wanted else {
                continue;
            };
            match self.agents.processes[wanted.process].polls(self.now) {
                true => self.assign_log(wanted, log),
                false => self.want_rebalance(LOOK_AGAIN_MICROS),
            }
        }
    }

    /// The coordinator has not heard from a member for long.
    pub fn session_ends(&mut self, life: AgentIncarnation) {
        let process = &mut self.agents.processes[life.process];
        let is_over = self.now >= process.silent_since + SESSION;
        if process.number == life.number && is_over && !process.is_awake(self.now) {
            process.is_member = false;
            self.note_all(|| format!("the session of agent process {} ends", life.process));
            self.want_rebalance(0);
        }
    }

    fn assign_log(&mut self, life: AgentIncarnation, log: usize) {
        let (agent, partition) = Agents::partition_of(log);
        let of_log = &mut self.agents.logs[log];
        of_log.owner = Some(life);
        let died_with = of_log.died_with.take();
        if died_with.is_some_and(|dead| dead != life.process) {
            self.seen.count(Sight::RequestsTakenOver);
        }
        let process = &mut self.agents.processes[life.process];
        if let Some(agent_loop) = &mut process.agent_loop {
            agent_loop.assign(agent, partition);
            process.next.insert(log, of_log.committed);
        }
        let after = self.travel();
        self.want_poll(life, Duration::from_micros(after));
    }

    /// A member loses a partition, which has no owner then.
    pub(super) fn lose_log(&mut self, life: AgentIncarnation, log: usize) {
        self.revoke_log(life, log);
        let of_log = &mut self.agents.logs[log];
        of_log.owner = of_log.owner.filter(|owner| *owner != life);
    }

    /// A member gives a partition up, and commits how far it has come, unless it was lost.
    pub(super) fn give_up_log(&mut self, life: AgentIncarnation, log: usize) {
        let is_lost = !self.agents.logs[log].is_owned_by(life);
        let offset = self.revoke_log(life, log);
        if is_lost {
            return;
        }
        if let Some(offset) = offset {
            self.check_commit(life, log, offset);
            // Nothing commits again what a revocation could not commit.
            match self.fault(10) {
                true => self.seen.count(Sight::LastCommitsLost),
                false => self.take_commit(log, offset),
            }
        }
        self.agents.logs[log].owner = None;
    }

    /// A member has lost a partition.
    pub(super) fn revoke_log(&mut self, life: AgentIncarnation, log: usize) -> Option<Offset> {
        let (agent, partition) = Agents::partition_of(log);
        let process = &mut self.agents.processes[life.process];
        process.next.remove(&log);
        let agent_loop = process.agent_loop.as_mut()?;
        agent_loop.revoke(agent, partition)
    }

    /// Commits arrive at the coordinator.
    pub(super) fn commits_arrive(&mut self, life: AgentIncarnation, commits: Vec<(usize, Offset)>) {
        for (log, to) in commits {
            match self.agents.logs[log].is_owned_by(life) {
                true => self.take_commit(log, to),
                false => self.seen.count(Sight::AgentCommitsRefused),
            }
        }
    }

    /// The coordinator stores what arrives last, even if it was sent before another commit.
    fn take_commit(&mut self, log: usize, to: Offset) {
        let to = usize::try_from(to.0).unwrap();
        let before = std::mem::replace(&mut self.agents.logs[log].committed, to);
        if to < before {
            self.seen.count(Sight::CommittedOffsetsWentBack);
        }
    }

    /// No commit that is sent passes a request that is not done by then.
    pub(super) fn check_commit(&mut self, life: AgentIncarnation, log: usize, to: Offset) {
        let process = &mut self.agents.processes[life.process];
        let now = Now {
            boot: process.now(self.now).boot,
            wall: process.clock.latest(),
        };
        let of_log = &self.agents.logs[log];
        let to = usize::try_from(to.0).unwrap();
        let open = (of_log.committed..to).find(|&at| {
            let record = of_log.records.get(at);
            record.is_none_or(|record| !record.is_done(life, now))
        });
        if let Some(at) = open {
            let record = of_log.records.get(at);
            let request = record.and_then(|record| record.request.clone());
            let operation = request.as_ref().map(|request| request.operation);
            self.fail(Rule::RequestPassedOver, operation, || {
                format!(
                    "process {} commits offset {to} of log {log}, {request:?} is not done",
                    life.process
                )
            });
        }
    }
}
