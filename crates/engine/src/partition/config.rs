//! The settings of a partition engine, and the figures that it reports.

use std::time::Duration;

use crate::id::{Epoch, LayoutShard, Offset, OperationId, OwnerId, PartitionId};
use crate::operation::ProcessState;
use crate::priority::{ByPriority, Priority};
use crate::shard::TopicOffsets;
use crate::time::{Stamp, Timestamp};

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

/// The rights that the lease of a shard grants, and where the previous owner stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// The partition.
    pub partition: PartitionId,
    /// The shard that is owned.
    pub shard: LayoutShard,
    /// The owner's name.
    pub owner: OwnerId,
    /// The number of this ownership. **One engine per epoch**: this engine has sent everything that
    /// a row of this epoch intends, so nothing is sent again when such a row is loaded.
    pub epoch: Epoch,
    /// The first record to read of each topic, from the checkpoint.
    pub next: TopicOffsets,
    /// The end of each requests log when the lease was taken. A server-generated id at or past it
    /// needs no look-up in the store.
    pub requests_end: ByPriority<Offset>,
    /// The end of the inbox when the scheduler's loop resumed. No time-outs are applied until
    /// replies were read up to it.
    pub replies_end: Offset,
    /// Stamps of this owner's writes are at least this: the limit of the previous owner.
    pub stamp_floor: Stamp,
    /// Stamps of this owner's writes are below this, until a renewal raises it.
    pub stamp_limit: Stamp,
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

/// Counters since the last time they were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Operations created.
    pub created: u64,
    /// Requests that repeated an earlier one.
    pub duplicates: u64,
    /// Requests with the id of an existing operation and another body.
    pub rejected: u64,
    /// Operations that ended `Processed`.
    pub processed: u64,
    /// Operations that were parked in `Error`.
    pub failed: u64,
    /// Operations that ended `Compensated` or `Cancelled`.
    pub undone: u64,
    /// Operations that were parked in `CompensationFailed`.
    pub undo_failed: u64,
    /// Cancels that were applied.
    pub cancelled: u64,
    /// Reschedules that were applied.
    pub rescheduled: u64,
    /// Cancels and reschedules that were refused.
    pub amendments_refused: u64,
    /// Operations whose deadline became unreachable.
    pub deadline_unreachable: u64,
    /// Recoveries that were applied.
    pub recoveries: u64,
    /// Recoveries that came too late to have a meaning.
    pub recoveries_void: u64,
    /// Recoveries that were refused.
    pub recoveries_refused: u64,
    /// Attempts beyond a step's first.
    pub retries: u64,
    /// Steps whose undo was started.
    pub compensations: u64,
    /// Attempts that outlived their complete-by.
    pub time_outs: u64,
    /// Attempts whose outcome the agent reported as unknown.
    pub unknown_outcomes: u64,
    /// Attempts that the agent did not make.
    pub not_attempted: u64,
    /// Attempts that were delayed because their agent was throttled.
    pub put_off: u64,
    /// Replies that changed nothing: superseded, or repeated.
    pub stale_replies: u64,
    /// Of these, successes that proved an effect not otherwise accounted for.
    pub late_successes: u64,
    /// Replies of operations that have no row.
    pub unknown_replies: u64,
    /// Hand-offs to the deadline index; one operation may count several times.
    pub handed_off: u64,
    /// Operations taken over from an earlier ownership.
    pub resumed: u64,
    /// Records that could not be decoded.
    pub unreadable: u64,
    /// Records that belong to another partition.
    pub misrouted: u64,
    /// Records sent to a dead-letter topic.
    pub dead_lettered: u64,
    /// Operations parked because the engine's own logic failed on them.
    pub internal_errors: u64,
    /// Operations whose rows could not be read.
    pub unloadable: u64,
}
