//! The steps of a change of the number of partitions.

use serde::{Deserialize, Serialize};
use waybill_engine::{Offset, PartitionId, RepartitionBoundary, Source, TopicOffsets};

use super::LayoutGeneration;

/// A change of the number of partitions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) step: Step,
    /// Where other shards begin, once that is recorded.
    pub(super) begins: Option<Begins>,
}

/// The progress of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Topics may have the new number.
    Intended,
    /// For a smaller number: shards leave records beyond the cut to those that follow them.
    Bounded,
    /// Producers use the new number.
    Announced,
    /// Shards read by the new number.
    Moved {
        /// The first generation of the new number.
        into: LayoutGeneration,
        /// Where each of the old partitions ended, in order.
        ends: Vec<TopicOffsets>,
    },
}

/// Where shards that get another partition begin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Begins {
    /// The generation that recorded it.
    pub(super) since: LayoutGeneration,
    /// One for each added partition or, for a smaller number, each remaining one, in order. No
    /// record that was written by the new number is before it.
    pub(super) at: Vec<TopicOffsets>,
}

impl Change {
    pub(super) fn is_to_fewer(&self) -> bool {
        self.to < self.from
    }

    /// How many partitions get other shards: the added ones or, for a smaller number, the remaining
    /// ones.
    pub(super) fn begun(&self) -> u32 {
        match self.is_to_fewer() {
            true => self.to,
            false => self.to - self.from,
        }
    }

    /// Where the new shards of a partition begin, once that is recorded.
    pub(super) fn begin(&self, partition: PartitionId) -> Option<TopicOffsets> {
        let first = match self.is_to_fewer() {
            true => 0,
            false => self.from,
        };
        let nth = partition.0.checked_sub(first)?;
        self.begins.as_ref()?.at.get(nth as usize).copied()
    }

    /// The boundary of a partition, and the first generation whose shards use it.
    pub(super) fn boundary(
        &self,
        partition: PartitionId,
    ) -> Option<(LayoutGeneration, RepartitionBoundary)> {
        let (since, ends) = match (&self.step, &self.begins) {
            (_, Some(begins)) if self.is_to_fewer() => (begins.since, self.begin(partition)?),
            (Step::Moved { into, ends }, _) if !self.is_to_fewer() => {
                (*into, *ends.get(partition.0 as usize)?)
            }
            _ => return None,
        };
        let before = self.from;
        Some((since, RepartitionBoundary { before, ends }))
    }
}

/// A time in which the sharding scheme did not use a partition that the topics have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retired {
    /// The partition.
    pub partition: PartitionId,
    /// Records from here on are rerouted.
    pub from: TopicOffsets,
    /// The end of that, once the partition is read again.
    pub until: Option<TopicOffsets>,
}

impl Retired {
    /// Whether a record at this offset is rerouted.
    #[must_use]
    pub fn has(&self, source: Source, offset: Offset) -> bool {
        self.from.on(source) <= offset && !self.is_over(source, offset)
    }

    /// Whether the partition is read again from here on.
    #[must_use]
    pub fn is_over(&self, source: Source, offset: Offset) -> bool {
        self.until.is_some_and(|until| offset >= until.on(source))
    }

    /// Whether all of it is below these offsets.
    #[must_use]
    pub fn is_over_below(&self, done: &TopicOffsets) -> bool {
        self.until.is_some_and(|until| done.reach(&until))
    }
}
