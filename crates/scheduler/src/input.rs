//! All inputs of the scheduler's loop, in one type and through one channel.

use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;
use waybill_engine::{Event, Offset, OperationId, PartitionId, ShardId, Source, StepReply};
use waybill_store::{Checkpoint, Layout, RowRead, Written};

use super::credit::Amount;
use super::lease::{AcquireError, HeldLease, Renewal};
use super::log_offsets::LogEnds;
use super::task::{Panicked, TaskError};
use crate::control::ControlError;

/// One assignment of one shard to the consumers. Records that were read under an older one are
/// dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Generation(u64);

impl Generation {
    /// The next number among all assignments of this process. Numbers are never reused.
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// One write of a commit, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CommitNumber(u64);

impl CommitNumber {
    /// The next number among all writes of this process.
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// A decoded record for an engine.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The assignment under which it was read.
    pub generation: Generation,
    /// The shard that it is for.
    pub shard: ShardId,
    /// The event.
    pub event: Event,
}

/// The shard that sends requests to an agent of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub shard: ShardId,
    pub generation: Generation,
    /// The partition that the shard reads.
    pub partition: PartitionId,
}

/// An input of the loop.
#[derive(Debug)]
pub(super) enum Input {
    /// The records of one poll of the consumer of `source`, and how far it read.
    Records {
        source: Source,
        amount: Amount,
        records: Vec<Arrived>,
    },
    /// Agents that are called directly have replied.
    Answered,
    /// The broker refused a step request because of its topic. `reply` says that the attempt was
    /// not made.
    Unsent {
        asker: Asker,
        agent: Arc<str>,
        reply: StepReply,
        why: String,
    },
    /// The consumer of `source` cannot continue with the partition of a shard.
    Lost {
        source: Source,
        generation: Generation,
        shard: ShardId,
        cause: LostCause,
    },
    /// The result of acquiring a lease.
    Acquired {
        shard: ShardId,
        generation: Generation,
        result: Result<(HeldLease, LogEnds), AcquireError>,
    },
    /// The result of a renewal: whether it was written.
    Renewed {
        shard: ShardId,
        generation: Generation,
        renewal: Renewal,
        result: Result<bool, TaskError>,
        /// The checkpoint of the whole partition, if it is known and may have moved.
        copy: Option<Checkpoint>,
    },
    /// The result of a commit: its rows are durable, or may not be.
    Committed {
        number: CommitNumber,
        result: Result<Written, TaskError>,
    },
    /// The result of reading rows.
    Loaded {
        shard: ShardId,
        generation: Generation,
        result: Result<Vec<(OperationId, RowRead)>, TaskError>,
    },
    /// The end of the inbox, read after a pause of the loop.
    InboxEnd {
        shard: ShardId,
        generation: Generation,
        end: Result<Offset, Panicked>,
    },
    /// A topic of a shard is blocked at damaged records, or is read again.
    Blocked {
        source: Source,
        generation: Generation,
        shard: ShardId,
        why: Option<String>,
    },
    /// The layout in the store.
    Layout(Result<Option<Layout>, TaskError>),
    /// A consumer's thread panicked: it reads nothing any more.
    Panicked(Panicked),
    /// An operator or a test starts or stops a shard.
    SetRunning {
        shard: ShardId,
        running: bool,
        answer: oneshot::Sender<Result<(), ControlError>>,
    },
    /// Shut down gracefully.
    Shutdown,
}

/// Why a consumer lost the partition of a shard.
#[derive(Clone, Debug)]
pub(super) enum LostCause {
    /// The log does not have the offset to read (any more, or yet).
    OutOfRange,
    /// The record below the checkpoint is not the one that the checkpoint was stored for.
    Fingerprint { expected: u64, found: u64 },
    /// The client failed for good.
    Client(String),
}

impl std::fmt::Display for LostCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// The sending side of the loop's channel. It never blocks. Its length is bounded by the consumers'
/// credit, by the single commit, by the one load and renewal per shard in flight, and by the
/// unacknowledged step requests. [`Input::Answered`] is queued once until the loop receives it; the
/// agents queue the replies themselves.
pub(super) type Inputs = mpsc::Sender<Input>;
