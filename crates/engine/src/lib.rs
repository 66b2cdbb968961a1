//! Everything that Waybill decides, and nothing that it does.
//!
//! The engine turns events into commands: records, replies, loaded rows and ticks go in; rows to
//! persist, messages to send and checkpoints to move come out. It holds no clock, no socket, no
//! store and no random number: time arrives as an argument, ids are made elsewhere, jitter is
//! derived from ids. Its manifest cannot reach tokio, rdkafka or a database, and its `clippy.toml`
//! bans the parts of `std` that would let it cheat.
//!
//! What must hold here: no message leaves before the row that intends it is durable, a checkpoint
//! never passes unfinished work, and the same events in the same order give the same commands.

mod advance;
mod definition;
mod id;
mod operation;
mod partition;
mod partitioner;
mod record;
mod step;
mod time;
mod tracker;
mod workflow;

pub use definition::{
    Backoff, Condition, DurationError, StepDefinition, WorkflowDefinition, parse_duration,
};
pub use id::{Attempt, BatchNumber, Epoch, Offset, OperationId, OwnerId, PartitionId};
pub use operation::{
    Created, OperationError, OperationRow, OperationState, ProcessState, RequestHash, StepError,
    StepProgress, StepState,
};
pub use partition::{
    Batch, Command, EngineCheckpoint, EngineConfig, EngineStats, Event, ForwardRecord, Held,
    InFlight, Message, Ownership, PartitionEngine, RowChange,
};
pub use partitioner::{murmur2, partition_for};
pub use record::{
    Action, CreateRequest, FailedOperation, IdOrigin, OperationStatus, Outcome, Outputs, Position,
    Source, StatusKind, StepReply, StepRequest,
};
pub use time::{Stamp, Timestamp};
pub use tracker::OffsetTracker;
pub use workflow::{Step, StepCondition, StepSet, Workflow, WorkflowError, Workflows};
