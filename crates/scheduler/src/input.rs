//! Everything that the scheduler's loop wakes for, in one type and through one channel.

use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;
use waybill_engine::{
    ByPriority, Event, Offset, OperationId, ShardId, Source, StepReply, TopicOffsets,
};
use waybill_kafka::TopicId;
use waybill_store::{Checkpoint, Layout, RowRead, StoreError, Written};

use super::credit::Amount;
use super::dispatcher::Asker;
use super::ownership::{HeldLease, Renewal};
use super::tasks::{Panicked, TaskError};
use crate::control::ControlError;

/// One assignment of one shard to the consumers. Records that were read under an older one are
/// dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Generation(u64);

impl Generation {
    /// The next number of all assignments of this process: none is ever another's again.
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// One write of a commit, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CommitNumber(u64);

impl CommitNumber {
    /// The next number of all writes of this process.
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// A decoded record on its way to an engine.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The assignment under which it was read.
    pub generation: Generation,
    /// The shard that it is for.
    pub shard: ShardId,
    /// What it says.
    pub event: Event,
}

/// Where a partition's records stand when its lease was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogEnds {
    /// The first offset of each topic.
    pub first: TopicOffsets,
    /// The next one.
    pub next: TopicOffsets,
    /// The IDs of the topics of requests; `None` where the broker does not tell.
    pub topics: ByPriority<Option<TopicId>>,
}

/// What the loop reacts to.
#[derive(Debug)]
pub(super) enum Input {
    /// What one poll of the consumer of `source` brought: so many records, and how far it read.
    Records {
        source: Source,
        amount: Amount,
        records: Vec<Arrived>,
    },
    /// Agents that were asked directly have answered.
    Answered,
    /// The broker refuses a step request because of its topic: the reply says that the attempt was not made.
    Unsent {
        asker: Asker,
        agent: Arc<str>,
        reply: StepReply,
        why: String,
    },
    /// The consumer of `source` cannot go on with the partition of a shard.
    Lost {
        source: Source,
        generation: Generation,
        shard: ShardId,
        cause: LostCause,
    },
    /// A lease was taken, or cannot be.
    Acquired {
        shard: ShardId,
        generation: Generation,
        result: Result<(HeldLease, LogEnds), AcquireError>,
    },
    /// A renewal was answered: whether it was written.
    Renewed {
        shard: ShardId,
        generation: Generation,
        renewal: Renewal,
        result: Result<bool, TaskError>,
        /// The checkpoint of the whole partition, if it may have moved and is known.
        copy: Option<Checkpoint>,
    },
    /// The rows of a commit are durable, or may not be.
    Committed {
        number: CommitNumber,
        result: Result<Written, TaskError>,
    },
    /// Rows were read.
    Loaded {
        shard: ShardId,
        generation: Generation,
        result: Result<Vec<(OperationId, RowRead)>, TaskError>,
    },
    /// Where the inbox ends, asked after the loop had stood still.
    InboxEnd {
        shard: ShardId,
        generation: Generation,
        end: Result<Offset, Panicked>,
    },
    /// A topic of a shard stands still at damaged records, or is read again.
    Blocked {
        source: Source,
        generation: Generation,
        shard: ShardId,
        why: Option<String>,
    },
    /// Which layout the store has.
    Layout(Result<Option<Layout>, TaskError>),
    /// A consumer's thread panicked: nothing is read any more.
    Panicked(Panicked),
    /// A person or a test starts or stops a shard.
    SetRunning {
        shard: ShardId,
        running: bool,
        answer: oneshot::Sender<Result<(), ControlError>>,
    },
    /// Stop in order.
    Shutdown,
}

/// Why a consumer lost the partition of a shard.
#[derive(Clone, Debug)]
pub(super) enum LostCause {
    /// The offset to read is not in the log (any more, or yet).
    OutOfRange,
    /// The record below the checkpoint is not the one that the checkpoint saw.
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
                "the record below the checkpoint has fingerprint {found:016x}, not {expected:016x}: \
                 this is another topic than the checkpoint was taken on"
            ),
            Self::Client(cause) => write!(f, "the Kafka client failed: {cause}"),
        }
    }
}

/// Why a shard's work could not be owned.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcquireError {
    /// The store failed.
    #[error("the lease cannot be taken")]
    Store(#[from] StoreError),
    /// Its log was run before, and the store knows nothing of it.
    #[error(
        "the state store has no record of this partition, but {sign}: check that it is the right store (keyspace, data \
         directory) and that no accepted request is missing from the log; to start from what the log still has, set \
         scheduler.startWithoutState: true"
    )]
    StateElsewhere {
        /// What says so.
        sign: String,
    },
    /// The work is divided in another way by now.
    #[error("the layout of shards was changed")]
    LayoutChanged,
    /// The broker did not tell where the log begins and ends.
    #[error("the ends of the log cannot be read: {0}")]
    Broker(String),
    /// The task that took it panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// The sending side of the loop's channel. It never blocks: what may wait there is bounded by the credit of the consumers,
/// by the one commit, by the one load and renewal a shard that may be under way, and by the step requests that wait for an
/// acknowledgement. That agents have answered is said once until it is heard; their answers wait with them.
pub(super) type Inputs = mpsc::Sender<Input>;
