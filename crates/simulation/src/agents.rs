//! Agents: processes in one consumer group, each with the run loop that ships, and agents that
//! schedulers call directly, with the queues that ship. They try late, twice, without success,
//! without a reply, or not at all; they die before they reply, pause, stop, and others take over.

mod calls;
mod direct;
mod faults;
mod group;
mod process;
mod replies;
mod workers;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use waybill_agent_core::{Deadline, Source};
use waybill_engine::{Action, BootTime, Outcome, PartitionId, StepRequest, Timestamp};
use waybill_scheduler_core::Requester;

use self::direct::DirectAgents;
use self::group::RequestLog;
pub use self::process::AgentAct;
use self::process::AgentProcess;
pub use self::replies::{Arrival, Outgoing};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::run::Run;
use crate::schedulers::Incarnation;

/// How many partitions the topic of each agent has.
const PARTITIONS: u32 = 2;
/// The least memory that a request counts for.
pub const REQUEST_BYTES: usize = 512;

/// All agents: their topics, their processes, and what these do.
#[derive(Debug)]
pub struct Agents {
    /// The names of all agents, by number.
    names: Vec<Arc<str>>,
    /// The partitions of all agents' topics.
    logs: Vec<RequestLog>,
    processes: Vec<AgentProcess>,
    /// The agents in the processes of schedulers.
    direct: BTreeMap<Incarnation, DirectAgents>,
    attempts: Vec<RunningAttempt>,
    /// When the group's coordinator looks at its members again.
    rebalances_at: Option<Timestamp>,
}

/// One life of a process of agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentIncarnation {
    pub process: usize,
    pub number: u32,
}

/// An attempt that was started.
#[derive(Debug)]
struct RunningAttempt {
    request: Rc<StepRequest>,
    agent: usize,
    step: usize,
    runs_in: RunsIn,
    bytes: usize,
    deadline: Deadline,
    began: BootTime,
    /// When the agent stops waiting for it.
    ends_at: Timestamp,
    retries_left: u32,
    /// One of its tries may have taken effect without a reply.
    is_unknown: bool,
    /// It no longer waits for an answer to its call.
    gave_up: bool,
    has_ended: bool,
}

/// Where an attempt runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunsIn {
    /// In a process of agents, which has read the request from a topic.
    Topic {
        life: AgentIncarnation,
        source: Source,
    },
    /// In the process of the scheduler that has requested it.
    Direct {
        of: Incarnation,
        requester: Requester,
    },
}

impl Agents {
    pub fn new(plan: &Plan, rng: &mut Rng) -> Self {
        let names = plan.workflows.agents();
        let logs = names.len() * PARTITIONS as usize;
        let one = |_| AgentProcess::new(plan, rng, 0);
        Self {
            logs: (0..logs).map(|_| RequestLog::default()).collect(),
            processes: (0..plan.agent_processes).map(one).collect(),
            direct: BTreeMap::new(),
            attempts: Vec::new(),
            rebalances_at: None,
            names,
        }
    }

    /// Sets the clock of a process.
    pub fn set_clock(&mut self, rng: &mut Rng, offset: i64) {
        let index = rng.index(self.processes.len());
        self.processes[index].clock.set(offset);
    }

    fn number_of(&self, name: &str) -> usize {
        let index = self.names.iter().position(|known| **known == *name);
        index.expect("requests are for agents of known workflows")
    }

    /// The index of a partition of an agent's topic among all of them.
    fn log_of(agent: usize, partition: PartitionId) -> usize {
        agent * PARTITIONS as usize + partition.0 as usize
    }

    /// The agent and the partition of a log.
    fn partition_of(log: usize) -> (usize, PartitionId) {
        let partition = u32::try_from(log % PARTITIONS as usize).unwrap();
        (log / PARTITIONS as usize, PartitionId(partition))
    }

    /// Their state, for people.
    pub fn describe(&self, now: Timestamp) -> Vec<String> {
        let processes = self.processes.iter();
        let processes = processes.map(|process| process.describe(now));
        let logs = self.logs.iter().enumerate();
        let logs = logs.map(|(index, log)| format!("log {index}: {}", log.describe()));
        processes.chain(logs).collect()
    }

    /// How many processes there are.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    fn lives(&self, life: AgentIncarnation) -> bool {
        self.processes[life.process].number == life.number
    }
}

impl Run {
    /// The index of the step that is requested.
    pub fn step_of(&self, request: &StepRequest) -> usize {
        let workflow = self.plan.workflows.newest(&request.workflow);
        let index = workflow.and_then(|found| found.step_index(&request.step));
        index.expect("requests are about steps of known workflows")
    }

    /// A request arrives at an agent's topic.
    pub fn receive(&mut self, request: StepRequest) {
        self.count_request(&request);
        self.append_request(request);
    }

    /// A request is about to be delivered.
    fn count_request(&mut self, request: &StepRequest) {
        let step = self.step_of(request);
        let effect = self.services.effect(request.operation, step);
        effect.requested(request.attempt.0);
    }

    /// Whether agents have nothing left to do.
    pub fn agents_rest(&self) -> bool {
        self.agents.logs.iter().all(RequestLog::is_owned)
            && self.agents.processes.iter().all(AgentProcess::rests)
            && self.every_request_was_read()
            && self.direct_agents_rest()
    }

    fn fault(&mut self, percent: u64) -> bool {
        !self.is_calm() && self.rng.chance(percent)
    }
}

/// The memory that a request counts for.
fn bytes_of(request: &StepRequest) -> usize {
    let is_undo = request.action == Action::Compensate;
    REQUEST_BYTES << u32::from(is_undo)
}

/// Names a request in the history.
pub fn name_of(request: &StepRequest) -> String {
    let (step, attempt) = (&request.step, request.attempt);
    match request.action {
        Action::Run => format!("{step}, attempt {attempt}"),
        Action::Compensate => format!("undo of {step}, attempt {attempt}"),
        Action::Probe => format!("probe of {step}, attempt {attempt}"),
    }
}

fn outcome_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Success { .. } => "success".to_owned(),
        Outcome::NotPerformed => "not performed".to_owned(),
        Outcome::Transient { error } => format!("a transient failure, {}", error.code),
        Outcome::Permanent { error } => format!("a refusal, {}", error.code),
        Outcome::Unknown { error } => format!("an unknown outcome, {}", error.code),
        Outcome::NotAttempted { error, .. } => format!("no attempt, {}", error.code),
    }
}
