//! Changes of the store. Once begun, they happen whatever becomes of their process.

use std::time::Duration;

use waybill_engine::PartitionId;
use waybill_state::{DueBucket, Lease, WriteBatch};

use crate::world::World;

/// A change of the store.
pub enum Change {
    Write(WriteBatch),
    Renew(Lease),
    Take { seen: Option<Lease>, lease: Lease },
    Cursor(PartitionId, DueBucket),
}

/// A change of the store that happens after its process has ended.
pub struct LateChange {
    pub at: Duration,
    pub(super) change: Change,
}

impl Change {
    /// Returns whether the store wrote it.
    pub fn happen(self, world: &mut World) -> bool {
        match self {
            Self::Write(batch) => {
                world.write(&batch);
                true
            }
            Self::Renew(lease) => world.renew_lease(&lease),
            Self::Take { seen, lease } => world.take_lease(seen.as_ref(), &lease),
            Self::Cursor(index_shard, cursor) => {
                world.advance_cursor(index_shard, cursor);
                true
            }
        }
    }
}

impl LateChange {
    pub fn happen(self, world: &mut World) {
        self.change.happen(world);
    }
}
