//! The effects that a partition engine requests.
//!
//! The order of a batch is its contract. Index entries, attention entries and rows are made durable
//! in this order; only then are its messages sent. A loop that executes a batch front to back, and
//! waits for durability before the first [`Command::Send`], cannot send a message whose intent is
//! not stored.

use std::sync::Arc;
use std::time::Duration;

use crate::id::{BatchNumber, Offset, OperationId, PartitionId};
use crate::operation::{Created, OperationState};
use crate::partition::event::ForwardRecord;
use crate::priority::Source;
use crate::record::{FailedOperation, OperationStatus, OperatorAlert, OwnerNotice, StepRequest};
use crate::time::{Stamp, Timestamp};

/// Commands that are executed as one: made durable together, then sent, then settled.
///
/// Batches are executed in the order of their numbers, but the next one need not wait for the
/// acknowledgements of the last. A batch without commands only marks records without effects as
/// done; it is settled immediately.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// Its number, which [`Event::Settled`](crate::Event::Settled) gives back.
    pub number: BatchNumber,
    /// Ordered: `Index`, `Attention`, `Persist`, `Send`.
    pub commands: Vec<Command>,
}

/// One effect.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Adds an entry to the deadline index; durable before any row of the batch is visible.
    Index {
        /// When the entry comes up.
        due: Timestamp,
        /// The operation.
        operation: OperationId,
    },
    /// Adds an entry to the attention table: the operation lingers or failed.
    Attention {
        /// Since when.
        at: Timestamp,
        /// The operation.
        operation: OperationId,
    },
    /// Writes a row; durable before any message of the batch is sent.
    Persist(Box<RowChange>),
    /// Sends a message; acknowledged before the batch is settled.
    Send(Message),
}

/// One write of one operation's row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowChange {
    /// The operation.
    pub id: OperationId,
    /// The immutable columns: given at create and once more with the final state.
    pub created: Option<Arc<Created>>,
    /// The mutable state.
    pub state: OperationState,
    /// The write's stamp.
    pub stamp: Stamp,
    /// For a final state: how long the whole row is kept from now.
    pub keep_for: Option<Duration>,
}

/// A record to produce.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// To `<agent>.requests`: perform a step.
    Step(StepRequest),
    /// To `operation-status`, and to the caller's own topic if it named one.
    Status(Box<OperationStatus>),
    /// To `failed-operations`.
    Failed(Box<FailedOperation>),
    /// To `operator-alerts`.
    Alert(Box<OperatorAlert>),
    /// To `owner-notices`.
    Owner(Box<OwnerNotice>),
    /// Back to its own topic, to the partition that its operation belongs to, marked.
    Reroute {
        /// The topic that it was read from.
        source: Source,
        /// The partition that it belongs to.
        partition: PartitionId,
        /// Over how many partitions operations are spread.
        partitions: u32,
        /// The record as it arrived.
        record: Box<ForwardRecord>,
    },
    /// To `<topic>.dlq`, with its original position and the reason.
    DeadLetter {
        /// The topic that it was read from.
        source: Source,
        /// Its original offset.
        offset: Offset,
        /// The reason, for people.
        cause: String,
        /// The record as it arrived.
        record: Box<ForwardRecord>,
    },
}
