//! Another number of partitions, step by step.

use serde::{Deserialize, Serialize};
use waybill_engine::{Offset, PartitionId, RepartitionBoundary, Source, TopicOffsets};

use super::LayoutGeneration;

/// A change of the number of partitions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) step: Step,
    /// Where other shards begin, once that is said.
    pub(super) begins: Option<Begins>,
}

/// How far a change has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Topics may have so many.
    Intended,
    /// Of fewer: who reads leaves what lies beyond the cut to those who come.
    Cut,
    /// Who writes goes by it.
    Announced,
    /// It is read.
    Moved {
        /// The first generation of the new number.
        into: LayoutGeneration,
        /// Where each of the old partitions ended, in order.
        ends: Vec<TopicOffsets>,
    },
}

/// Where the shards begin that get another partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Begins {
    /// The generation that said it.
    pub(super) since: LayoutGeneration,
    /// Of more partitions for those that come, of fewer for those that stay, in order: nothing that was written by
    /// the new number lies before.
    pub(super) at: Vec<TopicOffsets>,
}

impl Change {
    pub(super) fn is_to_fewer(&self) -> bool {
        self.to < self.from
    }

    /// How many partitions get shards that did not read them before: those that come, or of fewer those that stay.
    pub(super) fn begun(&self) -> u32 {
        match self.is_to_fewer() {
            true => self.to,
            false => self.to - self.from,
        }
    }

    /// Where shards begin that come to a partition, once that is said.
    pub(super) fn begin(&self, partition: PartitionId) -> Option<TopicOffsets> {
        let first = match self.is_to_fewer() {
            true => 0,
            false => self.from,
        };
        let nth = partition.0.checked_sub(first)?;
        self.begins.as_ref()?.at.get(nth as usize).copied()
    }

    /// Where a partition is cut, and the first generation whose shards go by that.
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
    /// Which one.
    pub partition: PartitionId,
    /// What was written from here on is rerouted.
    pub from: TopicOffsets,
    /// To where, since the partition is read again.
    pub until: Option<TopicOffsets>,
}

impl Retired {
    /// Whether what lies at this place is rerouted.
    #[must_use]
    pub fn has(&self, source: Source, offset: Offset) -> bool {
        self.from.on(source) <= offset && !self.is_over(source, offset)
    }

    /// Whether the partition is read again from here on.
    #[must_use]
    pub fn is_over(&self, source: Source, offset: Offset) -> bool {
        self.until.is_some_and(|until| offset >= until.on(source))
    }

    /// Whether everything of it lies below these.
    #[must_use]
    pub fn is_over_below(&self, done: &TopicOffsets) -> bool {
        self.until.is_some_and(|until| done.reach(&until))
    }
}
