//! Looks for signs that a partition has run before its first owner; `waybill_scheduler_core` judges
//! them.

use waybill_engine::{PartitionId, Priority, ShardId};
use waybill_scheduler_core::{LogEnds, check_beginnings, check_committed};
use waybill_state::{Layout, LayoutGeneration};
use waybill_store::Store;
use waybill_topology::shards;

use super::acquire_error::AcquireError;
use super::consumers::EndsReader;

/// What the first owner of a partition needs to know about its logs.
#[derive(Clone)]
pub(super) struct FirstOwner {
    /// Reads where they begin and end.
    pub(super) logs: EndsReader,
    /// Whether a person has allowed the partition to start anyway (`scheduler.startWithoutState`).
    pub(super) may_lack_state: bool,
}

impl FirstOwner {
    /// Refuses a shard that has never run according to the store, although its log shows that it
    /// has.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Refused`] if it has run; the other variants if the store or the
    /// broker cannot be read.
    pub(super) async fn check(
        &self,
        store: &dyn Store,
        layout: &Layout,
        generation: LayoutGeneration,
        shard: ShardId,
    ) -> Result<(), AcquireError> {
        if self.may_lack_state {
            return Ok(());
        }
        let lease = shards::current_lease(store, layout, generation, shard).await?;
        if lease.is_begun {
            return Ok(());
        }
        let partition = lease.partition;
        let ends = self.logs.read(partition).await?;
        for priority in Priority::ALL {
            let source = priority.source();
            let committed = self.logs.committed(source, partition).await?;
            check_committed(ends.next.on(source), committed)?;
        }
        Ok(check_beginnings(&ends.first)?)
    }

    /// Where the logs of a partition begin for its first owner, and the IDs of their topics.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Refused`] if a log has lost its beginning; [`AcquireError::Broker`]
    /// if the broker does not answer.
    pub(super) async fn beginnings(&self, partition: PartitionId) -> Result<LogEnds, AcquireError> {
        let ends = self.logs.read(partition).await?;
        if !self.may_lack_state {
            check_beginnings(&ends.first)?;
        }
        Ok(ends)
    }
}
