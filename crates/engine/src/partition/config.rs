//! What a partition engine is made from, and what it tells about itself.

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
    /// How young a request with an id of the server's must be to need no look-up. An older one may
    /// have been repeated meanwhile by a caller who was told that its outcome is unknown: less than
    /// the time after which ingestion says so.
    pub fresh_for: Duration,
    /// How many high-priority requests go ahead for each normal one, while both wait for room. At least 1.
    pub high_priority_weight: u32,
    /// How long after its complete-by an attempt counts as timed out: its reply may be on the way.
    pub timeout_grace: Duration,
    /// How long the supervisor may take to decide about an operation that failed for good, before
    /// the deadline index reminds it.
    pub supervisor_decision_timeout: Duration,
    /// After how long an operation whose row could not be read is looked at again.
    pub unreadable_again: Duration,
    /// Whether every operation's steps are told on `operation-status`, and not only to callers who
    /// named a topic of their own.
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

/// What the lease of a partition grants, and where its predecessor stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// The partition.
    pub partition: PartitionId,
    /// The shard that is owned.
    pub shard: LayoutShard,
    /// The owner's name.
    pub owner: OwnerId,
    /// The number of this ownership. **One engine per epoch**: whatever a row of this epoch
    /// intends, this engine has sent, so that it is not sent again when the row is loaded.
    pub epoch: Epoch,
    /// The first record to read of each topic, from the checkpoint.
    pub next: TopicOffsets,
    /// The end of each requests log when the lease was taken: an id of the server's at or past it
    /// needs no read of the store.
    pub requests_end: ByPriority<Offset>,
    /// The end of the inbox when the scheduler's loop resumed: no time-outs until replies were read to it.
    pub replies_end: Offset,
    /// Stamps of this owner's writes are at least this: the limit of the owner before it.
    pub stamp_floor: Stamp,
    /// Stamps of this owner's writes are below this, until a renewal raises it.
    pub stamp_limit: Stamp,
}

/// How much a partition engine holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// Operations in memory, those included whose last batch is not settled yet.
    pub operations: usize,
    /// About how many bytes they and the events that wait for rows take.
    pub bytes: usize,
    /// Operations whose row is awaited.
    pub loading: usize,
}

/// Requests that wait for room, and are nowhere else yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// How many.
    pub requests: usize,
    /// How many bytes their records have.
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
    /// A fingerprint of the last request record below each; `None` until the first record
    /// of this ownership is done: then the one that was stored with the old checkpoint stands.
    pub fingerprints: ByPriority<Option<u64>>,
    /// The next request record that was not yet consumed durably: what lies below it has a row or
    /// was answered. Starts where reading began, which may lie before the predecessor's.
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
    /// Since when the operation, or its request, is in memory.
    pub since: Timestamp,
    /// Whether the request waits for room, and nothing was done for it yet.
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

/// What happened since the counters were last taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Operations created.
    pub created: u64,
    /// Requests that repeated an operation.
    pub duplicates: u64,
    /// Requests with the id of an operation and another body.
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
    /// Operations whose deadline could not be met any more.
    pub deadline_unreachable: u64,
    /// Recoveries that were applied.
    pub recoveries: u64,
    /// Recoveries that came too late to mean anything.
    pub recoveries_void: u64,
    /// Recoveries that were refused.
    pub recoveries_refused: u64,
    /// Attempts beyond a step's first.
    pub retries: u64,
    /// Steps whose undo was begun.
    pub compensations: u64,
    /// Attempts that outlived their complete-by.
    pub time_outs: u64,
    /// Attempts of which the agent could not say how they ended.
    pub unknown_outcomes: u64,
    /// Attempts that the agent did not make.
    pub not_attempted: u64,
    /// Attempts put off to spare an agent.
    pub put_off: u64,
    /// Replies that changed nothing: superseded, or repeated.
    pub stale_replies: u64,
    /// Successes among them that proved an effect which nothing else accounted for.
    pub late_successes: u64,
    /// Replies of operations that have no row.
    pub unknown_replies: u64,
    /// Operations handed off to the deadline index, each time counted.
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
