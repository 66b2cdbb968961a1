//! All inputs of the loop.

use std::fmt;
use std::sync::Arc;

use waybill_engine::{Event, Offset, OperationId, PartitionId, ShardId, Source, StepReply};
use waybill_state::{Layout, Lease, RowRead, Written};

use crate::lease::{AcquireError, HeldLease};
use crate::log_offsets::LogEnds;
use crate::task::{Panicked, TaskError};

/// One assignment of one shard to the consumers. Records that were read under an older one are
/// dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Generation(u64);

impl Generation {
    /// The next number among all assignments of this process. Numbers are never reused.
    pub(crate) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// One write of a commit, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct CommitNumber(u64);

impl CommitNumber {
    /// The next number among all writes of this process.
    pub(crate) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// The messages of one batch of a shard that are sent together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SendNumber(pub u64);

impl SendNumber {
    /// The next number among all of this process.
    pub(crate) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// A caller that waits for a shard to start or stop. The driver chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CallerId(pub u64);

/// A decoded record for an engine.
#[derive(Debug)]
pub struct Arrived {
    /// The assignment under which it was read.
    pub generation: Generation,
    /// The shard that it is for.
    pub shard: ShardId,
    /// The event.
    pub event: Event,
}

/// The shard that sends messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requester {
    /// The shard.
    pub shard: ShardId,
    /// Its assignment.
    pub generation: Generation,
    /// The partition that the shard reads.
    pub partition: PartitionId,
}

/// An input of the loop.
#[derive(Debug)]
pub enum Input {
    /// The records of one poll of a consumer.
    Records(Vec<Arrived>),
    /// An agent that is called directly has replied.
    Replied {
        /// The shard that requested the step.
        requester: Requester,
        /// The reply.
        reply: StepReply,
    },
    /// The broker refused a step request because of its topic.
    Unsent {
        /// The shard that requested the step.
        requester: Requester,
        /// The agent.
        agent: Arc<str>,
        /// Says that the attempt was not made.
        reply: StepReply,
        /// Why the request was refused.
        why: String,
    },
    /// A consumer cannot continue with the partition of a shard.
    Lost {
        /// The topic.
        source: Source,
        /// The assignment of the shard.
        generation: Generation,
        /// The shard.
        shard: ShardId,
        /// Why.
        cause: LostCause,
    },
    /// The result of [`Effect::Acquire`](crate::Effect::Acquire).
    Acquired {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The lease, and where the logs begin and end.
        result: Result<(HeldLease, LogEnds), AcquireError>,
    },
    /// The result of [`Effect::Renew`](crate::Effect::Renew) or
    /// [`Effect::Release`](crate::Effect::Release).
    Renewed {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// Whether the row was written.
        result: Result<bool, TaskError>,
    },
    /// The result of [`Effect::ReadLeases`](crate::Effect::ReadLeases): the leases in the order of
    /// their keys.
    Leases {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// `None` for a lease that was never taken.
        result: Result<Vec<Option<Lease>>, TaskError>,
    },
    /// The result of [`Effect::Write`](crate::Effect::Write): the rows are durable, or may not be.
    Committed {
        /// The number of the write.
        number: CommitNumber,
        /// The result.
        result: Result<Written, TaskError>,
    },
    /// The result of [`Effect::Send`](crate::Effect::Send).
    Settled {
        /// The number of the messages.
        number: SendNumber,
        /// Whether all of them are acknowledged.
        result: Result<(), Undelivered>,
    },
    /// The result of [`Effect::Load`](crate::Effect::Load).
    Loaded {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The rows.
        result: Result<Vec<(OperationId, RowRead)>, TaskError>,
    },
    /// The result of [`Effect::ReadInboxEnd`](crate::Effect::ReadInboxEnd).
    InboxEnd {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The end of the replies.
        end: Result<Offset, Panicked>,
    },
    /// A topic of a shard is blocked at damaged records, or is read again.
    Blocked {
        /// The topic.
        source: Source,
        /// The assignment of the shard.
        generation: Generation,
        /// The shard.
        shard: ShardId,
        /// Why it is blocked; `None` once it is read again.
        why: Option<String>,
    },
    /// The result of [`Effect::ReadLayout`](crate::Effect::ReadLayout).
    Layout(Result<Option<Layout>, TaskError>),
    /// A consumer's thread panicked: it reads nothing any more.
    Panicked(Panicked),
    /// An operator or a test starts or stops a shard.
    SetRunning {
        /// The shard.
        shard: ShardId,
        /// Whether it is to run.
        running: bool,
        /// Who is answered once it does, or does not.
        caller: CallerId,
    },
    /// Shut down gracefully.
    Shutdown,
}

/// Why a consumer lost the partition of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LostCause {
    /// The log does not have the offset to read (any more, or yet).
    OutOfRange,
    /// The record below the checkpoint is not the one that the checkpoint was stored for.
    Fingerprint {
        /// The fingerprint in the checkpoint.
        expected: u64,
        /// That of the record.
        found: u64,
    },
    /// The client failed for good.
    Client(String),
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("the offset to read is outside the log"),
            Self::Fingerprint { expected, found } => write!(
                f,
                "the record below the checkpoint has fingerprint {found:016x}, not \
                 {expected:016x}: the checkpoint belongs to another log of this partition (topic \
                 recreated)"
            ),
            Self::Client(cause) => write!(f, "the Kafka client failed: {cause}"),
        }
    }
}

/// Why the messages of a batch are not all delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Undelivered {
    /// The lease of the shard ended before they were sent. None was sent.
    LeaseEnded,
    /// One of them failed for good; others may be on their topics.
    Failed(String),
}
