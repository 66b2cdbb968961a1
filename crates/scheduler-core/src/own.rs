//! The shards that a process runs.

use waybill_engine::{ShardId, ShardingScheme};

/// Which shards a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// All shards of the current layout.
    All,
    /// The shards of the layout from the first to the last.
    Range {
        /// The first shard.
        first: ShardId,
        /// The last shard, inclusive.
        last: ShardId,
    },
}

impl Own {
    /// The shards of a sharding scheme.
    pub fn of(self, scheme: ShardingScheme) -> impl Iterator<Item = ShardId> {
        scheme.all().filter(move |shard| match self {
            Self::All => true,
            Self::Range { first, last } => (first..=last).contains(shard),
        })
    }
}
