//! The figures that a partition engine reports, and the room that it gets.

use crate::id::{Offset, OperationId};
use crate::operation::ProcessState;
use crate::priority::{ByPriority, Priority};
use crate::shard::TopicOffsets;
use crate::time::Timestamp;

/// How much a partition engine holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// Operations in memory, including those whose last batch is not settled yet.
    pub operations: usize,
    /// Approximate size of these and of the events that wait for rows, in bytes.
    pub bytes: usize,
    /// Operations that wait for their row.
    pub loading: usize,
}

/// Requests that wait for admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// How many.
    pub requests: usize,
    /// The size of their records in bytes.
    pub bytes: usize,
}

/// How much may still be admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Operations.
    pub operations: usize,
    /// Bytes. One request may exceed them.
    pub bytes: usize,
}

/// How far a partition engine has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineCheckpoint {
    /// Below these offsets every record is done.
    pub at: TopicOffsets,
    /// A fingerprint of the last request record below each; `None` until the first record of this
    /// ownership is done. Until then the stored fingerprint of the old checkpoint applies.
    pub fingerprints: ByPriority<Option<u64>>,
    /// The next request record that is not yet consumed durably: every record below it has a row or
    /// was answered. Starts at the first record read, which may be below the previous owner's
    /// value.
    pub consumed: ByPriority<Offset>,
}

/// The operation whose request holds the checkpoint of a priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The operation.
    pub operation: OperationId,
    /// That priority.
    pub priority: Priority,
    /// Its request: the checkpoint cannot pass it.
    pub offset: Offset,
    /// Since when the operation, or its request, has been in memory.
    pub since: Timestamp,
    /// Whether the request waits for admission, with no work started.
    pub waits: bool,
}

/// How many operations are in memory in one process state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Census {
    /// The state.
    pub state: ProcessState,
    /// How many.
    pub operations: usize,
    /// When the oldest of them was requested.
    pub oldest: Option<Timestamp>,
}

impl Census {
    pub(super) fn none(state: ProcessState) -> Self {
        Self {
            state,
            operations: 0,
            oldest: None,
        }
    }
}
