//! Where the logs of a partition begin and end, and where a shard starts to read them.

use waybill_engine::{ByPriority, Offset, ShardHandover, TopicOffsets};
use waybill_messages::TopicId;

/// The bounds of a partition's logs when its lease was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogEnds {
    /// The first offset of each topic.
    pub first: TopicOffsets,
    /// The next offset of each topic.
    pub next: TopicOffsets,
    /// The IDs of the request topics; `None` if the broker does not report them.
    pub topics: ByPriority<Option<TopicId>>,
}

/// Where the consumers start.
#[derive(Clone, PartialEq, Debug)]
pub struct StartOffsets {
    /// The first record of each topic to apply.
    pub at: TopicOffsets,
    /// The record below the first request of each priority, with its expected fingerprint.
    pub verify: ByPriority<Option<(Offset, u64)>>,
    /// The records beyond these offsets that the shard's predecessors have done.
    pub handover: ShardHandover,
}
