//! The owner of a shard or of an index shard, and the progress of its work.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{
    ByPriority, Epoch, Offset, OwnerId, PartitionId, ResumeOffsets, ShardHandover, ShardId, Source,
    Stamp, TopicOffsets,
};

use crate::layout::LayoutGeneration;

/// The role in which a process owns a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LeaseRole {
    /// Runs the operations of a shard.
    Scheduler,
    /// Recovers the operations of an index shard; the index shard is the partition.
    Supervisor,
}

/// The purpose of a lease. Leases of different roles are independent, and so are those of different
/// layouts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The role.
    pub role: LeaseRole,
    /// The layout that the shard belongs to; 0 for supervisors.
    pub generation: LayoutGeneration,
    /// The number of the shard, or of the index shard.
    pub number: u32,
}

impl LeaseKey {
    /// The lease of the scheduler that runs `shard` of the layout of this generation.
    #[must_use]
    pub fn scheduler(generation: LayoutGeneration, shard: ShardId) -> Self {
        Self {
            role: LeaseRole::Scheduler,
            generation,
            number: shard.0,
        }
    }

    /// The lease of the supervisor of `index_shard`.
    #[must_use]
    pub fn supervisor(index_shard: PartitionId) -> Self {
        Self {
            role: LeaseRole::Supervisor,
            generation: LayoutGeneration(0),
            number: index_shard.0,
        }
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role,
            generation,
            number,
        } = self;
        match role {
            LeaseRole::Scheduler if generation.0 == 0 => {
                write!(f, "the scheduler of partition {number}")
            }
            LeaseRole::Scheduler => {
                write!(f, "the scheduler of shard {number} of layout {generation}")
            }
            LeaseRole::Supervisor => write!(f, "the supervisor of index shard {number}"),
        }
    }
}

/// The offsets below which every record of a shard is done, on each of its topics.
///
/// The fingerprints let the next owner check whether the topics of requests are still the same. The
/// other topics need none: replies can be derived again, and a recovery that is read twice applies
/// once. At a log's start, with no record below the offset, the owner may give the fingerprint of
/// the topic itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The offsets.
    pub at: TopicOffsets,
    /// Those of the last request record below each or, at the log's start, of the topic, if known.
    pub fingerprints: ByPriority<Option<u64>>,
}

impl Checkpoint {
    /// The offset on one of the topics.
    #[must_use]
    pub const fn on(&self, source: Source) -> Offset {
        self.at.on(source)
    }

    /// A checkpoint at these offsets, with nothing known of the records below.
    #[must_use]
    pub const fn at(offsets: TopicOffsets) -> Self {
        Self {
            at: offsets,
            fingerprints: ByPriority {
                normal: None,
                high: None,
            },
        }
    }

    /// The lower one on each topic.
    #[must_use]
    pub fn lowest(mut self, other: Self) -> Self {
        for source in Source::ALL {
            let (own, others) = (self.at.on_mut(source), other.on(source));
            if others >= *own {
                continue;
            }
            *own = others;
            if let Some(priority) = source.priority() {
                self.fingerprints[priority] = other.fingerprints[priority];
            }
        }
        self
    }
}

/// A lease: who owns the work of a shard or an index shard, until when, and its progress. A
/// supervisor sets only owner, epoch and renewal, and leaves the rest at the defaults: it writes no
/// rows and reads no partition in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// Its purpose.
    pub key: LeaseKey,
    /// The owner; `None` after a clean release.
    pub owner: Option<OwnerId>,
    /// The number of this ownership.
    pub epoch: Epoch,
    /// Counts renewals: while `epoch` and `renewal` do not change, the owner is silent.
    pub renewal: u64,
    /// How long the owner may act after each renewal.
    pub duration: Duration,
    /// The owner's writes use stamps below this.
    pub stamp_limit: Stamp,
    /// Below these offsets everything is done.
    pub checkpoint: Checkpoint,
    /// The offset of the next request record that the owner has not yet consumed durably.
    pub consumed: ByPriority<Offset>,
    /// The partition that the offsets belong to.
    pub partition: PartitionId,
    /// The records that the predecessors of a merging shard had done beyond its checkpoint.
    pub handover: ShardHandover,
    /// Whether the shards of the next layout have taken it over for good: it gets no owner any
    /// more.
    pub is_ended: bool,
    /// Whether the checkpoint says where the shard begins. The first owner stores where each log
    /// began when it took the lease, and every lease that follows keeps this. Before that the shard
    /// has never run, and a checkpoint of 0 means nothing.
    pub is_begun: bool,
}

impl Lease {
    /// A lease that was never held, of a shard or index shard of `partition` that has done nothing.
    #[must_use]
    pub fn new(key: LeaseKey, partition: PartitionId) -> Self {
        Self {
            key,
            owner: None,
            epoch: Epoch(0),
            renewal: 0,
            duration: Duration::ZERO,
            stamp_limit: Stamp::default(),
            checkpoint: Checkpoint::default(),
            consumed: ByPriority::default(),
            partition,
            handover: ShardHandover::default(),
            is_ended: false,
            is_begun: false,
        }
    }

    /// The lease of the very first owner: it begins where the logs began when it was taken.
    #[must_use]
    pub fn beginning_at(self, first: TopicOffsets) -> Self {
        Self {
            checkpoint: Checkpoint::at(first),
            consumed: first.on_requests(),
            is_begun: true,
            ..self
        }
    }

    /// The lease that ends its shard for good. Its epoch is its own, so that no owner can renew it.
    #[must_use]
    pub fn ended(&self) -> Self {
        Self {
            owner: None,
            epoch: self.epoch.next(),
            renewal: 0,
            is_ended: true,
            ..self.clone()
        }
    }

    /// Where a shard starts that follows those of `parents`, all of which have ended: at the lowest
    /// of their offsets, with stamps and epochs above all of theirs, or where `begins` says. It has
    /// had no owner yet.
    #[must_use]
    pub(crate) fn following(
        key: LeaseKey,
        partition: PartitionId,
        begins: Begins,
        parents: &[Followed],
    ) -> Self {
        let leases = || parents.iter().map(|parent| &parent.lease);
        let all = Self {
            epoch: leases().map(|lease| lease.epoch).max().unwrap_or_default(),
            stamp_limit: leases()
                .map(|lease| lease.stamp_limit)
                .max()
                .unwrap_or_default(),
            ..Self::new(key, partition)
        };
        if leases().all(|lease| lease.partition != partition) {
            return Self {
                consumed: begins.unread.on_requests(),
                checkpoint: Checkpoint::at(begins.unread),
                // The layout records where an added partition begins. For the first ones this is
                // not known yet.
                is_begun: !parents.is_empty(),
                ..all
            };
        }
        let lowest = leases().map(|lease| lease.checkpoint);
        let checkpoint = lowest.reduce(Checkpoint::lowest).unwrap_or_default();
        let checkpoint = match begins.boundary {
            Some(boundary) => checkpoint.lowest(Checkpoint::at(boundary)),
            None => checkpoint,
        };
        let resume = parents.iter().flat_map(|parent| {
            let theirs = parent.lease.handover.resume_offsets().iter().copied();
            theirs.chain([parent.resume])
        });
        Self {
            consumed: leases()
                .map(|lease| lease.consumed)
                .chain(begins.boundary.map(|boundary| boundary.on_requests()))
                .reduce(|one, other| ByPriority::of(|priority| one[priority].min(other[priority])))
                .unwrap_or_default(),
            handover: ShardHandover::new(resume, |source| checkpoint.on(source)),
            checkpoint,
            // A parent that never ran has done nothing: its part is read from offset 0 on.
            is_begun: leases().any(|lease| lease.is_begun),
            ..all
        }
    }
}

/// Where a shard that follows others begins, if that is not where they ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Begins {
    /// The boundary of its partition: it begins no later, because its parents left the records
    /// beyond to it.
    pub boundary: Option<TopicOffsets>,
    /// The start if none of its parents has read its partition.
    pub unread: TopicOffsets,
}

/// A parent of a shard.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Followed {
    /// Its lease, which has ended.
    lease: Lease,
    resume: ResumeOffsets,
}

impl Followed {
    /// The shard of an ended lease.
    #[must_use]
    pub(crate) fn new(lease: Lease, scheme: waybill_engine::ShardingScheme) -> Self {
        let resume = ResumeOffsets {
            scheme,
            shard: ShardId(lease.key.number),
            at: lease.checkpoint.at,
        };
        Self { lease, resume }
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::ShardingScheme;

    use super::*;

    fn ended(shard: u32, at: i64, fingerprint: u64) -> Followed {
        let key = LeaseKey::scheduler(LayoutGeneration(1), ShardId(shard));
        let lease = Lease {
            epoch: Epoch(u64::from(shard) + 3),
            stamp_limit: Stamp(1_000 - i64::from(shard)),
            consumed: ByPriority {
                normal: Offset(at + 5),
                high: Offset(61 - at),
            },
            checkpoint: Checkpoint {
                at: TopicOffsets {
                    requests: Offset(at),
                    high_priority: Offset(60 - at),
                    replies: Offset(200 - at),
                    recoveries: Offset(7),
                },
                fingerprints: ByPriority {
                    normal: Some(fingerprint),
                    high: Some(fingerprint + 10),
                },
            },
            is_begun: true,
            ..Lease::new(key, PartitionId(0))
        };
        let scheme = ShardingScheme {
            partitions: 1,
            shards_per_partition: 2,
        };
        Followed::new(lease.ended(), scheme)
    }

    #[test]
    fn a_merged_shard_begins_at_the_lowest_checkpoint_above_all_stamps_and_epochs() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(0));
        let parents = [ended(0, 50, 1), ended(1, 40, 2)];
        let lease = Lease::following(key, PartitionId(0), Begins::default(), &parents);
        let expected = Lease {
            is_begun: true,
            epoch: Epoch(5),
            stamp_limit: Stamp(1_000),
            consumed: ByPriority {
                normal: Offset(45),
                high: Offset(11),
            },
            checkpoint: Checkpoint {
                at: TopicOffsets {
                    requests: Offset(40),
                    high_priority: Offset(10),
                    replies: Offset(150),
                    recoveries: Offset(7),
                },
                fingerprints: ByPriority {
                    normal: Some(2),
                    high: Some(11),
                },
            },
            handover: lease.handover.clone(),
            ..Lease::new(key, PartitionId(0))
        };
        assert_eq!(lease, expected);
        let resume: Vec<ShardId> = lease
            .handover
            .resume_offsets()
            .iter()
            .map(|of| of.shard)
            .collect();
        assert_eq!(resume, [ShardId(0), ShardId(1)]);
    }

    #[test]
    fn a_split_shard_begins_at_its_predecessors_checkpoint() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(3));
        let parent = ended(1, 40, 2);
        let lease = Lease::following(
            key,
            PartitionId(0),
            Begins::default(),
            std::slice::from_ref(&parent),
        );
        assert_eq!(lease.checkpoint, parent.lease.checkpoint);
        assert!(lease.handover.is_empty());
    }

    #[test]
    fn a_shard_has_begun_after_a_first_owner_or_a_predecessor_that_had_begun() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(0));
        let following = |partition: u32, parents: &[Followed]| {
            let partition = PartitionId(partition);
            Lease::following(key, partition, Begins::default(), parents).is_begun
        };
        let [begun, mut unbegun] = [ended(0, 50, 1), ended(1, 0, 2)];
        unbegun.lease.is_begun = false;
        assert!(!following(0, &[]), "the first layout of a new store");
        assert!(!following(0, std::slice::from_ref(&unbegun)));
        assert!(following(0, &[begun, unbegun.clone()]));
        assert!(following(1, &[unbegun]), "the layout has its begin offset");

        let first = TopicOffsets {
            requests: Offset(7),
            high_priority: Offset(8),
            replies: Offset(9),
            recoveries: Offset(10),
        };
        let lease = Lease::new(key, PartitionId(0)).beginning_at(first);
        assert_eq!(lease.checkpoint, Checkpoint::at(first));
        assert_eq!(lease.consumed, first.on_requests());
        assert!(lease.is_begun);
    }

    #[test]
    fn a_shard_with_a_new_partition_begins_at_its_begin_offset_above_all_stamps() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(5));
        let parent = ended(1, 40, 2);
        let begins = Begins {
            unread: TopicOffsets {
                requests: Offset(3),
                ..TopicOffsets::default()
            },
            boundary: None,
        };
        let lease = Lease::following(key, PartitionId(5), begins, std::slice::from_ref(&parent));
        let expected = Lease {
            is_begun: true,
            epoch: parent.lease.epoch,
            stamp_limit: parent.lease.stamp_limit,
            consumed: ByPriority {
                normal: Offset(3),
                high: Offset(0),
            },
            checkpoint: Checkpoint::at(begins.unread),
            ..Lease::new(key, PartitionId(5))
        };
        assert_eq!(lease, expected);
    }

    #[test]
    fn a_shard_that_keeps_a_bounded_partition_begins_no_later_than_the_boundary() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(1));
        let parent = ended(1, 40, 2);
        let boundary = TopicOffsets {
            requests: Offset(30),
            high_priority: Offset(25),
            replies: Offset(170),
            recoveries: Offset(7),
        };
        let begins = Begins {
            boundary: Some(boundary),
            ..Begins::default()
        };
        let parents = std::slice::from_ref(&parent);
        let lease = Lease::following(key, PartitionId(0), begins, parents);
        let expected = Checkpoint {
            at: TopicOffsets {
                requests: Offset(30),
                high_priority: Offset(20),
                replies: Offset(160),
                recoveries: Offset(7),
            },
            fingerprints: ByPriority {
                normal: None,
                high: Some(12),
            },
        };
        let consumed = ByPriority {
            normal: Offset(30),
            high: Offset(21),
        };
        assert_eq!((lease.checkpoint, lease.consumed), (expected, consumed));
        // Its own work beyond the checkpoint is not repeated.
        assert_eq!(lease.handover.resume_offsets(), [parent.resume]);
    }
}
