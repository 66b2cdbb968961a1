//! What a caller learns that starts or stops a shard.

use waybill_engine::ShardId;

/// Why a shard was not started or stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// No scheduler of this process runs the shard.
    #[error("this process does not run shard {0}")]
    NotHere(ShardId),
    /// The scheduler is shutting down and accepts no more orders.
    #[error("the scheduler is shutting down")]
    ShuttingDown,
    /// The attempt to start or stop it failed.
    #[error("shard {shard} could not be {wanted}: {cause}")]
    Failed {
        /// The shard.
        shard: ShardId,
        /// The requested state: `started` or `stopped`.
        wanted: &'static str,
        /// Why it failed.
        cause: String,
    },
}
