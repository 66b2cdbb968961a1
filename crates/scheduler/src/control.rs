//! Listing, stopping and starting single shards.

use futures_util::future::BoxFuture;
use serde::Serialize;
use waybill_engine::{Epoch, Offset, OperationId, PartitionId, ShardId, Timestamp};

pub use waybill_scheduler_core::ControlError;

/// Lets an operator or a test start and stop single shards of a running scheduler.
pub trait SchedulerControl: std::fmt::Debug + Send + Sync {
    /// The shards of this process, in order.
    fn list(&self) -> Vec<SchedulerView>;

    /// Stops a shard gracefully, releasing its lease, or starts it again. Resolves when it is
    /// stopped, or when it has begun to acquire its lease. Succeeds immediately if the shard is
    /// already in the requested state.
    fn set_running(&self, shard: ShardId, running: bool)
    -> BoxFuture<'_, Result<(), ControlError>>;
}

/// One shard's scheduler, as shown to an operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerView {
    /// The shard; if each partition has a single shard, the partition's number.
    pub shard: ShardId,
    /// The partition that it reads.
    pub partition: PartitionId,
    /// The number of the layout that it belongs to.
    pub layout: u64,
    /// What its scheduler is doing.
    pub state: SchedulerState,
    /// The epoch of the lease, if the shard holds it.
    pub epoch: Option<Epoch>,
    /// Below these offsets every record is done.
    pub checkpoint: CheckpointView,
    /// The next normal-priority request that is not yet consumed durably.
    pub consumed: Offset,
    /// The next high-priority request that is not yet consumed durably.
    pub consumed_high_priority: Offset,
    /// Operations in memory.
    pub in_flight: usize,
    /// Requests that were read and wait for admission.
    pub waiting: usize,
    /// The operation that holds the checkpoint of normal-priority requests, if there is one.
    pub held_by: Option<HeldView>,
    /// The operation that holds the checkpoint of high-priority requests, if there is one.
    pub high_priority_held_by: Option<HeldView>,
    /// Why the shard is blocked or refused, and how to fix it.
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
    /// Since when it, or its request, has been in memory, in microseconds since the Unix epoch.
    pub since_us: Timestamp,
    /// Whether its request was read and waits for admission.
    pub waits: bool,
}

/// What the scheduler of a partition is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SchedulerState {
    /// An operator stopped it.
    Stopped,
    /// It waits for the lease, or reads where the previous owner stopped.
    Acquiring,
    /// It holds the lease and works.
    Running,
    /// It finishes work in flight before it releases the lease.
    Stopping,
    /// Its checkpoint does not match the log, and continuing would lose operations. It does not run
    /// until a person has intervened. [`SchedulerView::reason`] says what is wrong.
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
