//! The number of partitions over which writers spread operations, as stored in the state store.
//!
//! What must hold: all writers that can read the store use an announced number within a second plus
//! the time of one read. A process that cannot read the store keeps the old number. Schedulers then
//! reroute its records, so that nothing waits for an unavailable store.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use waybill_engine::{OperationId, PartitionId, Position, partition_for};
use waybill_store::{Layout, Store, StoreError};
use waybill_telemetry::chain;

use crate::shards;

/// The interval between reads of the layout.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The current mapping of operations to partitions. Clones share it.
#[derive(Clone, Debug)]
pub struct PartitionMap(watch::Receiver<Arc<Layout>>);

impl PartitionMap {
    /// A constant number of partitions.
    #[must_use]
    pub fn fixed(partitions: u32) -> Self {
        Self::of(Layout::first(partitions))
    }

    /// A constant layout.
    pub fn of(layout: Layout) -> Self {
        Self(watch::channel(Arc::new(layout)).1)
    }

    /// The stored layout, or `partitions` while none is stored. Also returns the follower that
    /// keeps the map current until it is stopped.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn follow(
        store: Arc<dyn Store>,
        partitions: u32,
    ) -> Result<(Self, Follower), StoreError> {
        let layout = shards::layout(&*store, partitions).await?;
        let (sender, partition_map) = watch::channel(Arc::new(layout));
        Ok((Self(partition_map), Follower { store, sender }))
    }

    /// The current layout.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.0.borrow())
    }

    /// The number of partitions that writers use.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.0.borrow().partitions_written()
    }

    /// The partition of an operation.
    #[must_use]
    pub fn partition_of(&self, operation: OperationId) -> PartitionId {
        partition_for(operation, self.partitions())
    }

    /// Whether an operation belongs or ever belonged to a partition.
    #[must_use]
    pub fn was_ever_of(&self, partition: PartitionId, operation: OperationId) -> bool {
        let ever = self.0.borrow().partitions_ever();
        let mut ever = ever.into_iter();
        ever.any(|partitions| partition_for(operation, partitions) == partition)
    }

    /// Whether the request at this position is rerouted to its operation's own partition, because
    /// its partition was already ended. A missing operation is then no proof that the request was
    /// lost.
    #[must_use]
    pub fn is_sent_on(&self, position: Position, operation: OperationId) -> bool {
        let Position {
            priority,
            partition,
            offset,
        } = position;
        let source = priority.source();
        let layout = self.layout();
        let boundary = layout.first_boundary(partition);
        let is_beyond = boundary.is_some_and(|boundary| offset >= boundary.on(source));
        let mut retired = layout.retired().iter();
        let is_left_over = retired.any(|of| of.partition == partition && of.has(source, offset));
        is_left_over || is_beyond && self.partition_of(operation) != partition
    }

    /// Every partition that ever held data of operations.
    #[must_use]
    pub fn all_ever(&self) -> Vec<PartitionId> {
        let ever = self.0.borrow().partitions_ever();
        let partitions = ever.into_iter().max().unwrap_or_default();
        (0..partitions).map(PartitionId).collect()
    }

    /// Waits until the layout changes. Never returns once the follower has stopped.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a [`PartitionMap`] current.
#[derive(Debug)]
pub struct Follower {
    store: Arc<dyn Store>,
    sender: watch::Sender<Arc<Layout>>,
}

impl Follower {
    /// Follows the stored layout until it is stopped.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut has_failed = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
            match self.store.layout().await {
                Ok(Some(layout)) => {
                    has_failed = false;
                    self.sender.send_if_modified(|known| {
                        // The first stored layout may differ from the default and have the same
                        // generation.
                        let is_newer =
                            layout.generation() >= known.generation() && layout != **known;
                        let partitions = layout.partitions_written();
                        if is_newer && partitions != known.partitions_written() {
                            tracing::info!(
                                partitions,
                                "the number of partitions for new operations changed"
                            );
                        }
                        if is_newer {
                            *known = Arc::new(layout);
                        }
                        is_newer
                    });
                }
                Ok(None) => {}
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(error = %chain(&error), "could not read the partition map");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::{Offset, Priority, TopicOffsets};

    use super::*;

    fn at(requests: i64) -> TopicOffsets {
        TopicOffsets {
            requests: Offset(requests),
            ..TopicOffsets::default()
        }
    }

    /// The ID of an operation that belongs to this partition of two.
    fn of(partition: u32) -> OperationId {
        let mut ids = (0..).map(|number| OperationId(Uuid::from_u128(number)));
        let id = ids.find(|&id| partition_for(id, 2) == PartitionId(partition));
        id.expect("half of them are")
    }

    #[test]
    fn records_beyond_the_boundary_of_a_partition_are_rerouted() {
        let more = Layout::first(1).intended(2).unwrap();
        let more = more.announced(vec![at(0)]).unwrap();
        let more = more.moved(vec![at(10)]).unwrap().settled(&[]).unwrap();
        let is_sent_on = |layout: &Layout, partition, offset, operation| {
            let partition_map = PartitionMap::of(layout.clone());
            let position = Position {
                priority: Priority::Normal,
                partition: PartitionId(partition),
                offset: Offset(offset),
            };
            partition_map.is_sent_on(position, operation)
        };
        assert!(is_sent_on(&more, 0, 10, of(1)), "late by the old number");
        assert!(!is_sent_on(&more, 0, 9, of(1)), "before");
        assert!(!is_sent_on(&more, 0, 10, of(0)), "its own");

        let fewer = more
            .intended(1)
            .unwrap()
            .with_boundaries(vec![at(90)])
            .unwrap();
        let fewer = fewer.announced(Vec::new()).unwrap();
        let fewer = fewer.moved(vec![at(95), at(40)]).unwrap();
        let fewer = fewer.settled(&[]).unwrap();
        assert!(is_sent_on(&fewer, 1, 40, of(1)));
        assert!(!is_sent_on(&fewer, 1, 39, of(1)), "it was read to there");

        // Partition 1 is used again. Its misrouted records, also late ones of the first time, may
        // still be on their way.
        let again = fewer.intended(2).unwrap();
        let again = again.announced(vec![at(50)]).unwrap();
        let again = again.moved(vec![at(99)]).unwrap();
        assert!(is_sent_on(&again, 1, 49, of(1)));
        assert!(!is_sent_on(&again, 1, 50, of(1)));
        assert!(is_sent_on(&again, 0, 60, of(1)));
    }
}
