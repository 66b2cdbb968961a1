//! The settings of a partition engine, and the figures that it reports.

use std::time::Duration;

use crate::id::{Offset, OperationId};
use crate::operation::ProcessState;
use crate::priority::{ByPriority, Priority};
use crate::shard::TopicOffsets;
use crate::time::Timestamp;

/// Settings of a partition engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// How long the row of a final operation is kept.
    pub retention: Duration,
    /// How long an operation may stay in memory, and hold the checkpoint, before it is handed off
    /// to the deadline index.
    pub hand_off_after: Duration,
    /// Maximum age of a request with a server-generated id that needs no look-up. A caller may
    /// repeat an older request after ingestion has reported its outcome as unknown. So this must be
    /// less than the time after which ingestion does so.
    pub fresh_for: Duration,
    /// How many high-priority requests are admitted for each normal one, while both wait. At least
    /// 1.
    pub high_priority_weight: u32,
    /// How long after its complete-by an attempt counts as timed out: its reply may be in transit.
    pub timeout_grace: Duration,
    /// How long the supervisor may take to decide about an operation that failed for good, before
    /// the deadline index triggers the decision again.
    pub supervisor_decision_timeout: Duration,
    /// How long until an operation with an unreadable row is loaded again.
    pub unreadable_again: Duration,
    /// Whether the step states of every operation are published on `operation-status`, and not only
    /// to the topics that callers have named.
    pub publish_step_status: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            hand_off_after: Duration::from_secs(5),
            fresh_for: Duration::from_secs(5),
            high_priority_weight: 4,
            timeout_grace: Duration::from_millis(500),
            supervisor_decision_timeout: Duration::from_secs(15),
            unreadable_again: Duration::from_secs(10 * 60),
            publish_step_status: false,
        }
    }
}

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
