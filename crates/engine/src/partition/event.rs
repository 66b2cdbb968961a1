//! The events that a partition engine receives.

use crate::id::{BatchNumber, Offset, OperationId, PartitionId};
use crate::operation::OperationRow;
use crate::priority::{Priority, Source};
use crate::record::{OperationRequest, Recovery, StepReply};
use crate::time::Stamp;

/// An input of [`PartitionEngine::apply`](super::PartitionEngine::apply).
///
/// Offsets of one source arrive in ascending order. An offset that was given before is ignored. An
/// offset that never arrives (a compacted, control or skipped record) counts as done.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A request that belongs to this partition. It waits for
    /// [admission](super::PartitionEngine::admit).
    Request {
        /// The topic that it was read from.
        priority: Priority,
        /// Its offset.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// The record's size, which counts against the window.
        bytes: usize,
        /// Whether another partition's scheduler rerouted it. It may then have been sent more than
        /// once, so even a server-generated id is looked up.
        rerouted: bool,
        /// The request.
        request: OperationRequest,
    },
    /// A record of `step-replies` that belongs to this partition.
    Reply {
        /// Its offset.
        offset: Offset,
        /// The reply.
        reply: StepReply,
    },
    /// A reply of an agent that the loop of this engine called without a topic. It has no offset,
    /// and occurs at most once.
    DirectReply(StepReply),
    /// A record of `recovery` that belongs to this partition.
    Recovery {
        /// Its offset.
        offset: Offset,
        /// The recovery.
        recovery: Box<Recovery>,
    },
    /// A record that cannot be decoded, or is refused. It goes to the dead-letter topic of its
    /// source.
    Unreadable {
        /// The topic that it was read from.
        source: Source,
        /// Its offset.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// For a request, the operation of this shard that its key names. It may have begun with
        /// the record, which an earlier owner could read.
        operation: Option<OperationId>,
        /// Why it cannot be decoded, or is refused.
        cause: String,
        /// The record as it arrived.
        record: Box<ForwardRecord>,
    },
    /// A record whose operation belongs to another partition. It is rerouted once, with a mark; the
    /// second time it goes to the dead-letter topic.
    Misrouted {
        /// The topic that it was read from.
        source: Source,
        /// Its offset.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// The partition that its operation belongs to.
        home: PartitionId,
        /// Over how many partitions operations are spread.
        partitions: u32,
        /// Whether it has the mark of an earlier reroute with that number of partitions.
        already_rerouted: bool,
        /// The record as it arrived.
        record: Box<ForwardRecord>,
    },
    /// Records that this shard skips: they belong to another shard, or a shard that it follows has
    /// done them. All records up to this offset that were not given are done immediately.
    Passed {
        /// The topic that they were read from.
        source: Source,
        /// The offset of the last of them.
        offset: Offset,
        /// A fingerprint of the last of them, for the checkpoint.
        fingerprint: u64,
    },
    /// The answer to an id of [`PartitionEngine::loads`](super::PartitionEngine::loads).
    Loaded {
        /// The operation.
        operation: OperationId,
        /// Its row; `None` if the store has none.
        row: Option<Box<OperationRow>>,
    },
    /// The other answer to an id of [`PartitionEngine::loads`](super::PartitionEngine::loads):
    /// there is a row, but it cannot be read. The operation cannot continue, and operators are
    /// alerted.
    Unloadable {
        /// The operation.
        operation: OperationId,
        /// Why its row cannot be read.
        cause: String,
    },
    /// Every message of the batch is acknowledged; its index entries and rows were durable before
    /// the first of them was sent.
    Settled {
        /// The batch.
        batch: BatchNumber,
    },
    /// A renewal of the lease raised the limit of stamps.
    StampLimit(Stamp),
    /// The end of `step-replies` when the scheduler's loop resumed after a pause. No time-out is
    /// applied until replies were read up to it. Replaces an earlier end.
    InboxEnd(Offset),
    /// Replies were read up to here, although the last records below it are never delivered
    /// (control records, or compacted ones).
    InboxRead(Offset),
    /// Time has passed: handle due work.
    Tick,
}

/// A record that is forwarded with its original bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForwardRecord {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}
