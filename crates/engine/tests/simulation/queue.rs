//! What will happen, in the order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use waybill_engine::{
    BatchNumber, Command, Message, OperationId, OperationRow, Recovery, ShardId, Source, StepReply,
    Timestamp,
};

use crate::services::Deed;
use crate::store::{Lease, Spoilt};
use crate::supervisors::Receipt;

/// Something that will happen.
#[derive(Debug)]
pub enum What {
    /// A caller's record reaches the log of a partition.
    Ask(usize),
    /// An operator looks at what there is, and asks for something.
    Operate,
    /// Somebody sets a clock.
    SetClock,
    /// A row cannot be read for a while.
    Spoil,

    /// A record reaches `recovery`; whoever sent it learns of it.
    Recovery {
        partition: usize,
        recovery: Box<Recovery>,
        receipt: Option<Receipt>,
    },
    /// A record reaches `step-replies`; the agent learns of it.
    Reply {
        task: usize,
        incarnation: u32,
        reply: Box<StepReply>,
        is_copy: bool,
    },

    /// Somebody divides the work anew.
    Repartition,
    /// A candidate looks at a shard's lease.
    Watch {
        shard: ShardId,
    },
    /// A new owner begins to work.
    Start {
        owner: usize,
    },
    Poll {
        owner: usize,
        source: Source,
    },
    /// A row is read.
    Read {
        owner: usize,
        operation: OperationId,
    },
    /// The row that was read arrives.
    Loaded {
        owner: usize,
        operation: OperationId,
        row: Result<Option<Box<OperationRow>>, Spoilt>,
    },
    /// Takes the next batch, if there is one.
    Commit {
        owner: usize,
    },
    /// Part of the commit under way becomes durable, or the rest of it.
    Land {
        owner: usize,
        is_rest: bool,
    },
    /// What a dead owner had under way becomes durable after all.
    LandLate {
        owner: usize,
        writes: Vec<Command>,
    },
    /// The owner learns that its commit is durable.
    Committed {
        owner: usize,
    },
    /// A message of an owner's arrives.
    Arrive {
        owner: usize,
        batch: BatchNumber,
        message: Box<Message>,
        /// It had not left the owner's memory when it was sent.
        is_buffered: bool,
        is_copy: bool,
    },
    Settle {
        owner: usize,
        batch: BatchNumber,
    },
    Tick {
        owner: usize,
    },
    Renew {
        owner: usize,
    },
    RenewalLands {
        owner: usize,
        sent: Timestamp,
        lease: Box<Lease>,
    },
    Renewed {
        owner: usize,
        sent: Timestamp,
        lease: Box<Lease>,
        is_written: bool,
    },

    /// A step request reaches an agent.
    Deliver {
        task: usize,
        incarnation: u32,
    },
    /// A call reaches its service.
    Serve {
        task: usize,
        incarnation: u32,
        deed: Deed,
        answer_at: Option<Timestamp>,
    },
    /// The service's answer reaches the agent.
    Answer {
        task: usize,
        incarnation: u32,
        outcome: Box<waybill_engine::Outcome>,
    },
    /// The agent waits for no answer any more.
    GiveUp {
        task: usize,
        incarnation: u32,
    },

    /// A supervisor looks after its index shards.
    Turn {
        supervisor: usize,
        incarnation: u32,
    },
    /// A supervisor reads the row of an index entry.
    Look {
        supervisor: usize,
        incarnation: u32,
        index_shard: usize,
        due: Timestamp,
        operation: OperationId,
    },
    /// A supervisor learns that what it asked is in the log.
    Asked(Receipt),
    /// A supervisor's cursor and position become durable.
    CursorLands {
        index_shard: usize,
        bucket: i64,
        failed_next: usize,
    },
}

impl What {
    /// Whether the run cannot be over while this is to come.
    fn is_work(&self) -> bool {
        match self {
            Self::SetClock
            | Self::Spoil
            | Self::Repartition
            | Self::Watch { .. }
            | Self::Start { .. }
            | Self::Poll { .. }
            | Self::Commit { .. }
            | Self::Tick { .. }
            | Self::Renew { .. }
            | Self::RenewalLands { .. }
            | Self::Renewed { .. }
            | Self::Turn { .. }
            | Self::Look { .. }
            | Self::CursorLands { .. }
            | Self::Asked(_) => false,
            // A wake for an operation that has long ended.
            Self::Recovery { receipt, .. } => receipt.is_none(),
            Self::Ask(_)
            | Self::Operate
            | Self::Reply { .. }
            | Self::Read { .. }
            | Self::Loaded { .. }
            | Self::Land { .. }
            | Self::LandLate { .. }
            | Self::Committed { .. }
            | Self::Arrive { .. }
            | Self::Settle { .. }
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

    /// Whether nothing but what goes on for ever is to come.
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
