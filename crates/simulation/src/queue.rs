//! The future events of a run, ordered by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use waybill_engine::{Recovery, StepReply, Timestamp};

use crate::agents::{AgentAct, AgentIncarnation, Arrival};
use crate::schedulers::{Act, Incarnation};
use crate::services::Deed;
use crate::supervisor_calls::{Answer, Call};
use crate::supervisors::{Caller, Machine};

/// A future event.
#[derive(Debug)]
pub enum What {
    /// A caller's record arrives at the log of a partition.
    Ask(usize),
    /// An operator looks at the operations, and sends a request.
    Operate,
    /// A clock is set.
    SetClock,
    /// A row becomes unreadable for a while.
    Spoil,

    /// A record arrives at `recovery`, and its sender receives the acknowledgement.
    Recovery {
        partition: usize,
        recovery: Box<Recovery>,
        receipt: Option<Caller>,
    },
    /// A reply arrives at `step-replies` that no process waits for.
    Reply(Box<StepReply>),
    /// A record of a process of agents arrives at its topic.
    AgentRecord(Box<Arrival>),

    /// The number of shards changes.
    Repartition,
    /// Something happens to a scheduler, or that it has caused.
    Scheduler(Incarnation, Box<Act>),
    /// A scheduler wakes up after a long pause.
    Woken(Incarnation),
    /// Retention deletes records that are done.
    Retention { partition: usize },
    /// Retention deletes requests, whether they are done or not.
    LoseRequests,
    /// The store or the broker loses what would wake an operation.
    LoseWake,

    /// Something happens to a process of agents, or that it has caused.
    Agent {
        life: AgentIncarnation,
        act: Box<AgentAct>,
    },
    /// The coordinator has not heard from a process of agents for long.
    AgentSession(AgentIncarnation),
    /// The coordinator of the agents' consumer group looks at its members.
    RebalanceAgents,
    /// An undecodable record arrives at an agent's topic.
    SpoilAgentTopic,
    /// A call arrives at its service.
    Serve {
        attempt: usize,
        deed: Deed,
        answer_at: Option<Timestamp>,
    },
    /// The service's answer arrives at the agent.
    Answer {
        attempt: usize,
        outcome: Box<waybill_engine::Outcome>,
    },
    /// The agent stops waiting for an answer.
    GiveUp { attempt: usize },

    /// A supervisor's process starts.
    StartSupervisor { supervisor: usize, incarnation: u32 },
    /// A call of a supervisor arrives at the store, or at the broker.
    SupervisorCall { caller: Caller, call: Call },
    /// The answer to a call arrives at the supervisor.
    SupervisorAnswer { caller: Caller, answer: Box<Answer> },
    /// A supervisor learns that one of its recoveries was appended to the log.
    Acknowledged(Caller),
    /// The coordinator of the consumer group of failed-operations looks at its members.
    Rebalance { partition: usize },
}

impl What {
    /// Whether a crash before it differs from a crash before the event after it.
    pub fn is_point(&self) -> bool {
        match self {
            Self::Scheduler(_, act) => act.is_point(),
            // The calls of an audit only read. The recoveries that it publishes are other events.
            Self::SupervisorCall { caller, .. } | Self::SupervisorAnswer { caller, .. } => {
                !matches!(caller.machine, Machine::Audit(_))
            }
            _ => true,
        }
    }

    /// Whether this event keeps the run from ending.
    fn is_work(&self) -> bool {
        match self {
            Self::Scheduler(_, act) => act.is_work(),
            Self::Agent { act, .. } => act.is_work(),
            Self::SetClock
            | Self::Spoil
            | Self::Repartition
            | Self::Woken(_)
            | Self::Retention { .. }
            | Self::LoseRequests
            | Self::LoseWake
            | Self::StartSupervisor { .. }
            | Self::SupervisorCall { .. }
            | Self::SupervisorAnswer { .. }
            | Self::Acknowledged(_)
            | Self::Rebalance { .. }
            | Self::AgentSession(_)
            | Self::RebalanceAgents
            | Self::SpoilAgentTopic => false,
            // A recovery without a receipt may wake an operation that has long ended.
            Self::Recovery { receipt, .. } => receipt.is_none(),
            Self::Ask(_)
            | Self::Operate
            | Self::Reply(_)
            | Self::AgentRecord(_)
            | Self::Serve { .. }
            | Self::Answer { .. }
            | Self::GiveUp { .. } => true,
        }
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    /// When each event happens, its number, and its index among the events.
    heap: BinaryHeap<Reverse<(Timestamp, u64, usize)>>,
    /// The events by index. The heap moves its entries, so the larger events are kept here.
    events: Vec<Option<What>>,
    /// Unused indices of events.
    free: Vec<usize>,
    count: u64,
    work: usize,
}

impl Queue {
    pub fn push(&mut self, at: Timestamp, what: What) {
        self.count += 1;
        self.work += usize::from(what.is_work());
        let index = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = Some(what);
        self.heap.push(Reverse((at, self.count, index)));
    }

    pub fn pop(&mut self) -> Option<(Timestamp, What)> {
        let Reverse((at, _, index)) = self.heap.pop()?;
        let what = self.events[index].take();
        let what = what.expect("every entry of the heap has an event");
        self.free.push(index);
        self.work -= usize::from(what.is_work());
        Some((at, what))
    }

    /// Whether only recurring events are left.
    pub fn is_idle(&self) -> bool {
        self.work == 0
    }
}
