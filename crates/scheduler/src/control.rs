//! How single shards are shown, stopped and started.

use futures_util::future::BoxFuture;
use serde::Serialize;
use waybill_engine::{Epoch, Offset, OperationId, PartitionId, ShardId, Timestamp};

/// How an operator, or a test, starts and stops single shards of a running scheduler.
pub trait SchedulerControl: std::fmt::Debug + Send + Sync {
    /// The shards of this process, in order.
    fn list(&self) -> Vec<SchedulerView>;

    /// Stops a shard in order, releasing its lease, or starts it again. Resolves when it
    /// stands still, or when it has begun to take its lease. Asking for what is already so
    /// succeeds.
    fn set_running(&self, shard: ShardId, running: bool)
    -> BoxFuture<'_, Result<(), ControlError>>;
}

/// One shard's scheduler, as shown to an operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerView {
    /// The shard; where each partition has one, the partition's number.
    pub shard: ShardId,
    /// The partition that it reads.
    pub partition: PartitionId,
    /// The number of the layout that it belongs to.
    pub layout: u64,
    /// What its scheduler is doing.
    pub state: SchedulerState,
    /// The number of the ownership that is held, if one is.
    pub epoch: Option<Epoch>,
    /// Below these offsets every record is done.
    pub checkpoint: CheckpointView,
    /// The next request record that is not yet consumed durably.
    pub consumed: Offset,
    /// The next high-priority one.
    pub consumed_high_priority: Offset,
    /// Operations in memory.
    pub in_flight: usize,
    /// Requests that were read and wait for room.
    pub waiting: usize,
    /// The operation that the checkpoint on the requests waits for, if there is one.
    pub held_by: Option<HeldView>,
    /// The one that the checkpoint on the high-priority requests waits for.
    pub high_priority_held_by: Option<HeldView>,
    /// Why it is refused, and how to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An operation that holds a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldView {
    /// The operation.
    pub operation: OperationId,
    /// The offset of its request.
    pub offset: Offset,
    /// Since when it, or its request, is in memory, in microseconds since the Unix epoch.
    pub since_us: Timestamp,
    /// Whether its request was read and waits for room.
    pub waits: bool,
}

/// What the scheduler of a partition is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SchedulerState {
    /// Nothing: an operator stopped it.
    Stopped,
    /// Waiting for the lease of the partition, or reading where its owner left off.
    Acquiring,
    /// Owning the partition and working.
    Running,
    /// Finishing what is under way before it lets go.
    Stopping,
    /// Its checkpoint does not fit the log: it does not run before a person has looked, since going
    /// on would lose operations. [`SchedulerView::reason`] says what is wrong.
    Refused,
}

/// The offsets of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointView {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `high-priority-requests`.
    pub high_priority: Offset,
    /// On `step-replies`.
    pub replies: Offset,
}

/// Why a shard was not started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another process runs it, or nobody.
    #[error("shard {0} is not run by this process")]
    NotHere(ShardId),
    /// The scheduler is shutting down and takes no orders any more.
    #[error("the scheduler is shutting down")]
    ShuttingDown,
    /// It was tried and failed.
    #[error("shard {shard} could not be {wanted}: {cause}")]
    Failed {
        /// The shard.
        shard: ShardId,
        /// `started` or `stopped`.
        wanted: &'static str,
        /// Why not.
        cause: String,
    },
}
