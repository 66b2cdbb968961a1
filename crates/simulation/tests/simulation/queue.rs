//! The future events of a run, ordered by time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use waybill_engine::{Recovery, StepReply, Timestamp};

use crate::schedulers::{Act, Incarnation};
use crate::services::Deed;
use crate::supervisor_calls::{Answer, Call};
use crate::supervisors::Caller;

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
    /// A record arrives at `step-replies`, and the agent receives the acknowledgement.
    Reply {
        task: usize,
        incarnation: u32,
        reply: Box<StepReply>,
        is_copy: bool,
    },

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

    /// A step request arrives at an agent.
    Deliver { task: usize, incarnation: u32 },
    /// A call arrives at its service.
    Serve {
        task: usize,
        incarnation: u32,
        deed: Deed,
        answer_at: Option<Timestamp>,
    },
    /// The service's answer arrives at the agent.
    Answer {
        task: usize,
        incarnation: u32,
        outcome: Box<waybill_engine::Outcome>,
    },
    /// The agent stops waiting for an answer.
    GiveUp { task: usize, incarnation: u32 },

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
            _ => true,
        }
    }

    /// Whether this event keeps the run from ending.
    fn is_work(&self) -> bool {
        match self {
            Self::Scheduler(_, act) => act.is_work(),
            Self::SetClock
            | Self::Spoil
            | Self::Repartition
            | Self::Woken(_)
            | Self::Retention { .. }
            | Self::LoseRequests
            | Self::StartSupervisor { .. }
            | Self::SupervisorCall { .. }
            | Self::SupervisorAnswer { .. }
            | Self::Acknowledged(_)
            | Self::Rebalance { .. } => false,
            // A recovery without a receipt may wake an operation that has long ended.
            Self::Recovery { receipt, .. } => receipt.is_none(),
            Self::Ask(_)
            | Self::Operate
            | Self::Reply { .. }
            | Self::Deliver { .. }
            | Self::Serve { .. }
            | Self::Answer { .. }
            | Self::GiveUp { .. } => true,
        }
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    count: u64,
    work: usize,
}

#[derive(Debug)]
struct Entry {
    at: Timestamp,
    number: u64,
    what: What,
}

impl Queue {
    pub fn push(&mut self, at: Timestamp, what: What) {
        self.count += 1;
        self.work += usize::from(what.is_work());
        self.heap.push(Reverse(Entry {
            at,
            number: self.count,
            what,
        }));
    }

    pub fn pop(&mut self) -> Option<(Timestamp, What)> {
        let Reverse(entry) = self.heap.pop()?;
        self.work -= usize::from(entry.what.is_work());
        Some((entry.at, entry.what))
    }

    /// Whether only recurring events are left.
    pub fn is_idle(&self) -> bool {
        self.work == 0
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}
