//! The ownership of a shard.

use crate::id::{Epoch, LayoutShard, Offset, OwnerId, PartitionId};
use crate::priority::ByPriority;
use crate::shard::TopicOffsets;
use crate::time::Stamp;

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
