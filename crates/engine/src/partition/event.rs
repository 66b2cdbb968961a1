//! What a partition engine is told.

use crate::id::{BatchNumber, Offset, OperationId, PartitionId};
use crate::operation::OperationRow;
use crate::priority::{Priority, Source};
use crate::record::{OperationRequest, Recovery, StepReply};
use crate::time::Stamp;

/// Something that happened, for [`PartitionEngine::apply`](super::PartitionEngine::apply).
///
/// Offsets of one source arrive ascending. An offset that was given before is ignored; one that
/// never comes (a compacted or a control record, or one that was passed over) counts as done.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A request that belongs to this partition. It waits until it is let
    /// [in](super::PartitionEngine::admit).
    Request {
        /// The topic that it was read from.
        priority: Priority,
        /// Where it lies.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// The record's size, which counts against the window.
        bytes: usize,
        /// Whether another partition's scheduler rerouted it. It may then have been sent more
        /// than once, so that even an id of the server's is looked up.
        rerouted: bool,
        /// What it asks for.
        request: OperationRequest,
    },
    /// A record of `step-replies` that belongs to this partition.
    Reply {
        /// Where it lies.
        offset: Offset,
        /// What it says.
        reply: StepReply,
    },
    /// A reply of an agent that was asked without a topic, by the loop that runs this engine: it lies nowhere, and
    /// comes once or never.
    DirectReply(StepReply),
    /// A record of `recovery` that belongs to this partition.
    Recovery {
        /// Where it lies.
        offset: Offset,
        /// What it asks for.
        recovery: Box<Recovery>,
    },
    /// A record that cannot be decoded: it goes to the dead-letter topic of its source.
    Unreadable {
        /// The topic that it was read from.
        source: Source,
        /// Where it lies.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// Why it cannot be decoded.
        cause: String,
        /// The record as it came.
        record: Box<ForwardRecord>,
    },
    /// A record whose operation belongs to another partition: it is rerouted once, marked; the
    /// second time it goes to the dead-letter topic.
    Misrouted {
        /// The topic that it was read from.
        source: Source,
        /// Where it lies.
        offset: Offset,
        /// A fingerprint of the record, for the checkpoint.
        fingerprint: u64,
        /// The partition that its operation belongs to.
        home: PartitionId,
        /// Over how many partitions operations are spread.
        partitions: u32,
        /// Whether it bears the mark of having been rerouted before, by that number of partitions.
        already_rerouted: bool,
        /// The record as it came.
        record: Box<ForwardRecord>,
    },
    /// Records that are not this shard's: another's, or done by one that it follows. They are done at
    /// once, all up to this offset that were not given.
    Passed {
        /// The topic that they were read from.
        source: Source,
        /// Where the last of them lies.
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
    /// The other answer to an id of [`PartitionEngine::loads`](super::PartitionEngine::loads): there
    /// is a row, and it cannot be read. Nothing can be done for the operation; a person is told.
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
    /// Where `step-replies` ended when the scheduler's loop resumed after a pause: no time-out is applied until
    /// replies were read to here. Replaces the end that was given before.
    InboxEnd(Offset),
    /// Replies were read to here, though the last records below it were none that are delivered
    /// (control records, or compacted ones).
    InboxRead(Offset),
    /// Time passed: apply what is due.
    Tick,
}

/// A record that is passed on with its bytes as they came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForwardRecord {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}
