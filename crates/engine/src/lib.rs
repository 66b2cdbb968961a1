//! The engine: all of Waybill's decisions, and none of its effects.
//!
//! The engine turns events into commands. Records, replies, loaded rows and ticks go in; rows to
//! persist, messages to send and checkpoints to move come out. It has no clock, socket, store or
//! random number generator: time is an argument, ids are created elsewhere, and jitter is derived
//! from ids. Its manifest cannot reach tokio, rdkafka or a database, and its `clippy.toml` bans the
//! parts of `std` that would give it such access.
//!
//! What must hold here: no message leaves before the row that intends it is durable, a checkpoint
//! never passes unfinished work, and the same events in the same order give the same commands.

mod action;
mod advance;
mod contact;
mod definition;
mod gate;
mod group_progress;
mod id;
mod operation;
mod ownership;
mod partition;
mod partitioner;
mod preview;
mod priority;
mod record;
mod shard;
mod stats;
mod step;
mod supervision;
mod time;
mod tracker;
mod workflow;

pub use action::{Action, Outputs};
pub use advance::{INPUT_BYTES_MAX, OUTPUTS_BYTES_MAX};
pub use contact::Contact;
pub use definition::{
    CancelPolicy, CompensationDefinition, Condition, OnFailure, RetryPolicy, StepDefinition,
    StepKind, WorkflowDefinition,
};
pub use group_progress::{Begun, Consumed, GroupProgress};
pub use id::{
    Attempt, BatchNumber, Epoch, LayoutShard, Offset, OperationId, OwnerId, PartitionId, ShardId,
};
pub use operation::{
    Amended, Created, HISTORY_MAX, HistoryEntry, OperationError, OperationRow, OperationState,
    ProcessState, RequestHash, StepError, StepProgress, StepState,
};
pub use ownership::Ownership;
pub use partition::{
    Batch, Census, Command, EngineCheckpoint, EngineConfig, Event, ForwardRecord, Held, InFlight,
    Message, PartitionEngine, Room, RowChange, Waiting, panic_message,
};
pub use partitioner::{murmur2, partition_for};
pub use preview::{Asked, refusal, workflow_of};
pub use priority::{ByPriority, LogPosition, Position, Priority, Source};
pub use record::{
    AlertKind, AmendRequest, Amendment, AttemptSeen, CreateRequest, FailedOperation, IdOrigin,
    Nonce, OWNER_SUPERSEDED, OperationRequest, OperationStatus, OperatorAlert, Outcome,
    OwnerNotice, Recovery, RecoveryVerb, STEP_REQUEST_REFUSED, StatusKind, StepReply, StepRequest,
};
pub use shard::{
    KeyHash, RepartitionBoundary, ResumeOffsets, SHARDS_PER_PARTITION_MAX, ShardFilter,
    ShardHandover, ShardingError, ShardingScheme, TopicOffsets,
};
pub use stats::EngineStats;
pub use step::RETRY_AFTER_MAX;
pub use supervision::Supervision;
pub use time::{BootTime, Now, Stamp, Timestamp};
pub use tracker::OffsetTracker;
pub use workflow::{
    Compensation, NAME_LENGTH_MAX, RetryIntervals, Step, StepCondition, StepSet, Tries, Undo,
    Workflow, WorkflowError, Workflows,
};
