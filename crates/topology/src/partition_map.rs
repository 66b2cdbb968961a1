//! Over how many partitions operations are spread by whoever writes to the operation topics, as the state
//! store says.
//!
//! What must hold: a number that was announced is gone by within a second and the time of one read,
//! wherever the store can be read. A process that cannot read it uses the old number:
//! schedulers reroute what it writes, and nothing waits for a store that is unavailable.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use waybill_engine::{OperationId, PartitionId, Position, partition_for};
use waybill_store::{Layout, Store, StoreError};
use waybill_telemetry::chain;

use crate::shards;

/// How often the layout is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How operations are spread over partitions, now. Clones see the same.
#[derive(Clone, Debug)]
pub struct PartitionMap(watch::Receiver<Arc<Layout>>);

impl PartitionMap {
    /// Over so many partitions, for good.
    #[must_use]
    pub fn fixed(partitions: u32) -> Self {
        Self::of(Layout::first(partitions))
    }

    /// As a layout says, for good.
    pub fn of(layout: Layout) -> Self {
        Self(watch::channel(Arc::new(layout)).1)
    }

    /// As the store says, or over so many partitions where it says nothing yet; and what keeps that true
    /// until it is stopped.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn follow(
        store: Arc<dyn Store>,
        partitions: u32,
    ) -> Result<(Self, Follower), StoreError> {
        let layout = shards::layout(&*store, partitions).await?;
        let (told, partition_map) = watch::channel(Arc::new(layout));
        Ok((Self(partition_map), Follower { store, told }))
    }

    /// The layout that says it.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.0.borrow())
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.0.borrow().partitions_written()
    }

    /// The partition of an operation.
    #[must_use]
    pub fn partition_of(&self, operation: OperationId) -> PartitionId {
        partition_for(operation, self.partitions())
    }

    /// Whether a partition is, or ever was, that of an operation.
    #[must_use]
    pub fn was_ever_of(&self, partition: PartitionId, operation: OperationId) -> bool {
        let ever = self.0.borrow().partitions_ever();
        let mut ever = ever.into_iter();
        ever.any(|partitions| partition_for(operation, partitions) == partition)
    }

    /// Whether a request at this place came when its partition was already cut, so that it is sent on to its
    /// operation's own: that nobody knows of it there says nothing yet.
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

    /// Every partition that anything of operations was ever kept under.
    #[must_use]
    pub fn all_ever(&self) -> Vec<PartitionId> {
        let ever = self.0.borrow().partitions_ever();
        let partitions = ever.into_iter().max().unwrap_or_default();
        (0..partitions).map(PartitionId).collect()
    }

    /// Waits until the layout is another. Never returns if nobody follows it any more.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a [`PartitionMap`] true.
#[derive(Debug)]
pub struct Follower {
    store: Arc<dyn Store>,
    told: watch::Sender<Arc<Layout>>,
}

impl Follower {
    /// Follows the store's layout until it is stopped.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut is_away = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return Ok(()),
            }
            match self.store.layout().await {
                Ok(Some(layout)) => {
                    is_away = false;
                    self.told.send_if_modified(|known| {
                        // The first one that is stored may differ from what holds where none is.
                        let is_newer =
                            layout.generation() >= known.generation() && layout != **known;
                        let partitions = layout.partitions_written();
                        if is_newer && partitions != known.partitions_written() {
                            tracing::info!(
                                partitions,
                                "operations are spread over another number of partitions"
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
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::warn!(error = %chain(&error), "how operations are partition_map cannot be read");
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

    /// An operation of this partition of two.
    fn of(partition: u32) -> OperationId {
        let mut ids = (0..).map(|number| OperationId(Uuid::from_u128(number)));
        let id = ids.find(|&id| partition_for(id, 2) == PartitionId(partition));
        id.expect("half of them are")
    }

    #[test]
    fn what_came_to_a_partition_after_it_was_cut_is_sent_to_its_own() {
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

        let fewer = more.intended(1).unwrap().cut(vec![at(90)]).unwrap();
        let fewer = fewer.announced(Vec::new()).unwrap();
        let fewer = fewer.moved(vec![at(95), at(40)]).unwrap();
        let fewer = fewer.settled(&[]).unwrap();
        assert!(is_sent_on(&fewer, 1, 40, of(1)));
        assert!(!is_sent_on(&fewer, 1, 39, of(1)), "it was read to there");

        // Used again, its misrouted records may still be on their way; and what was late the first time, too.
        let again = fewer.intended(2).unwrap();
        let again = again.announced(vec![at(50)]).unwrap();
        let again = again.moved(vec![at(99)]).unwrap();
        assert!(is_sent_on(&again, 1, 49, of(1)));
        assert!(!is_sent_on(&again, 1, 50, of(1)));
        assert!(is_sent_on(&again, 0, 60, of(1)));
    }
}
