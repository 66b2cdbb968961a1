//! All effects of the loop. The driver performs them in order.

use std::time::Duration;

use waybill_engine::{
    BootTime, ByPriority, Message, Offset, OperationId, PartitionId, ShardFilter, ShardId,
    StepReply,
};
use waybill_state::{Checkpoint, CorruptRow, Layout, Lease, LeaseKey, WriteBatch};

use crate::amount::Amount;
use crate::control::ControlError;
use crate::input::{CallerId, CommitNumber, Generation, Requester, SendNumber};
use crate::log_offsets::{LogEnds, StartOffsets};
use crate::task::{Panicked, StoreFailure, Task};

/// An effect of the loop. Its results return as inputs, at any later time.
#[derive(Debug)]
pub enum Effect {
    /// Acquire the lease of a shard, and read where the logs of its partition begin and end, as
    /// [`Acquisition`](crate::Acquisition) says. Answered with
    /// [`Input::Acquired`](crate::Input::Acquired).
    Acquire {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The layout that it runs under.
        layout: Layout,
    },
    /// Release a lease that no shard uses: write `free` if the stored lease is `held`. Not
    /// answered.
    HandBack {
        /// The lease as it was acquired.
        held: Box<Lease>,
        /// The lease without an owner.
        free: Box<Lease>,
    },
    /// Renew a lease: write it if the stored one has its owner and epoch, and a lower `renewal`.
    /// Answered with [`Input::Renewed`](crate::Input::Renewed).
    Renew {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The lease to write.
        lease: Box<Lease>,
    },
    /// Release a lease: write `free` if the stored lease is `held`. Answered with
    /// [`Input::Renewed`](crate::Input::Renewed).
    Release {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The lease as it was last written.
        held: Box<Lease>,
        /// The lease without an owner.
        free: Box<Lease>,
    },
    /// Read the leases of the other shards of a partition. Answered with
    /// [`Input::Leases`](crate::Input::Leases).
    ReadLeases {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// Their keys.
        keys: Vec<LeaseKey>,
    },
    /// Read the layout of shards. Answered with [`Input::Layout`](crate::Input::Layout).
    ReadLayout,
    /// Read rows. Answered with [`Input::Loaded`](crate::Input::Loaded).
    Load {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The operations.
        operations: Vec<OperationId>,
    },
    /// Write rows durably. Answered with [`Input::Committed`](crate::Input::Committed).
    Write {
        /// The number of the write.
        number: CommitNumber,
        /// The rows and the entries of the indexes.
        batch: WriteBatch,
        /// The pause before rows are written again whose earlier write may have happened; `None`
        /// for rows that are written for the first time.
        again_after: Option<Duration>,
    },
    /// Send the messages of a shard, unless the lease has ended. Answered with
    /// [`Input::Settled`](crate::Input::Settled) once all are acknowledged, or one has failed.
    Send {
        /// The number of the messages.
        number: SendNumber,
        /// The shard.
        from: Requester,
        /// The messages.
        messages: Vec<Message>,
        /// From when on they must not be sent.
        valid_until: BootTime,
    },
    /// Publish a reply to the topic from which the current owner of the operation reads it. Not
    /// answered.
    PassOn {
        /// The shard that requested the step.
        requester: Requester,
        /// The reply.
        reply: StepReply,
    },
    /// Drop requests of a shard that agents of this process have not started. Not answered: its
    /// next owner sends them again.
    Forget(ShardId),
    /// Start reading the topics of a shard. Not answered.
    Assign(Box<Assignment>),
    /// Change the filter of a shard. Not answered.
    SetFilter {
        /// The shard.
        shard: ShardId,
        /// Which records of its partition it takes.
        filter: ShardFilter,
    },
    /// Report once the replies of a shard were read to `end`, even if the last records below it are
    /// never delivered.
    ReadTo {
        /// The shard.
        shard: ShardId,
        /// The end.
        end: Offset,
    },
    /// Stop reading for a shard. Not answered.
    Unassign(ShardId),
    /// Read the end of the replies of a partition; repeat it until the broker answers. Answered
    /// with [`Input::InboxEnd`](crate::Input::InboxEnd).
    ReadInboxEnd {
        /// The shard.
        shard: ShardId,
        /// Its assignment.
        generation: Generation,
        /// The partition.
        partition: PartitionId,
    },
    /// Copy a checkpoint to the consumer group that lag tools read. Not answered.
    CopyCheckpoint {
        /// The partition.
        partition: PartitionId,
        /// The checkpoint.
        checkpoint: Checkpoint,
    },
    /// Let the consumers read this much ahead, including what is queued or being read.
    OfferRoom {
        /// Requests.
        requests: ByPriority<Amount>,
        /// Replies and recoveries.
        inbox: Amount,
    },
    /// The layout changed: operations are spread by its number of partitions from now on, and it
    /// says which shards this process shows.
    Relay,
    /// Answer a caller.
    Answer {
        /// The caller.
        caller: CallerId,
        /// Whether the shard is as it was requested.
        result: Result<(), ControlError>,
    },
    /// Count something, or log it at a limited rate.
    Note(Note),
    /// End the process: it can guarantee nothing any more.
    Fail(LoopError),
}

/// Where a shard starts to read.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The shard.
    pub shard: ShardId,
    /// The partition that it reads.
    pub partition: PartitionId,
    /// The assignment.
    pub generation: Generation,
    /// Which records of its partition it takes.
    pub filter: ShardFilter,
    /// The first records.
    pub start: StartOffsets,
    /// Where the logs begin and end.
    pub ends: LogEnds,
}

/// Something that is counted, or logged at a limited rate.
#[derive(Clone, PartialEq, Debug)]
pub enum Note {
    /// A group commit of this many rows began.
    CommitBegan(usize),
    /// The rows of a commit are durable, this long after they were first written.
    CommitDurable(Duration),
    /// A write was not acknowledged.
    CommitFailed,
    /// The messages of a batch were withheld because the lease had ended.
    Withheld,
    /// A task had no response for too long.
    Stuck(Task),
    /// A lease expired before it was renewed.
    LeaseLost,
    /// An engine requested an unreadable row.
    RowUnreadable(CorruptRow),
    /// A commit replaced an unreadable row.
    RowReplaced(CorruptRow),
}

/// Why the loop ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoopError {
    /// The store of this process could not write, or a store rejects a write.
    #[error("the group commit of step state failed")]
    Commit(#[source] StoreFailure),
    /// A consumer's thread panicked.
    #[error(transparent)]
    Panicked(Panicked),
}
