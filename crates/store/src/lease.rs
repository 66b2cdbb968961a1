//! Who owns a reader's work or a shard, and how far it has got.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{
    ByPriority, Epoch, Handover, Offset, OwnerId, PartitionId, Places, ReaderId, Source, Stamp,
    Stood,
};

use crate::layout::LayoutGeneration;

/// In which role a process owns something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LeaseRole {
    /// Runs the operations of a reader.
    Scheduler,
    /// Recovers the operations of a shard; the shard is the partition.
    Supervisor,
}

/// What a lease is for. The leases of different roles have nothing to do with each other, nor have
/// those of different layouts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The role.
    pub role: LeaseRole,
    /// The layout that the reader belongs to; 0 for supervisors.
    pub generation: LayoutGeneration,
    /// The number of the reader, or of the shard.
    pub number: u32,
}

impl LeaseKey {
    /// The lease of the scheduler that runs `reader` of the layout of this generation.
    #[must_use]
    pub fn scheduler(generation: LayoutGeneration, reader: ReaderId) -> Self {
        Self {
            role: LeaseRole::Scheduler,
            generation,
            number: reader.0,
        }
    }

    /// The lease of the supervisor that looks after `shard`.
    #[must_use]
    pub fn supervisor(shard: PartitionId) -> Self {
        Self {
            role: LeaseRole::Supervisor,
            generation: LayoutGeneration(0),
            number: shard.0,
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
                write!(f, "the scheduler of reader {number} of layout {generation}")
            }
            LeaseRole::Supervisor => write!(f, "the supervisor of shard {number}"),
        }
    }
}

/// The offsets below which every record of a reader is done, on each of its topics.
///
/// The fingerprints tell the next owner whether the topics of requests are still the same. The others
/// need none: replies can be derived again, and a recovery that is read twice applies once. At a log's start, where no
/// record lies below the offset, the owner may give the fingerprint of the topic itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The offsets.
    pub at: Places,
    /// Of the last request record below each of them, or, at the log's start, of the topic, if that is known.
    #[serde(with = "normal")]
    pub fingerprints: ByPriority<Option<u64>>,
}

impl Checkpoint {
    /// The offset on one of the topics.
    #[must_use]
    pub const fn on(&self, source: Source) -> Offset {
        self.at.on(source)
    }

    /// At these offsets, with nothing known of what lies below.
    #[must_use]
    pub const fn at(places: Places) -> Self {
        Self {
            at: places,
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

/// Serializes the values of the normal priority alone, as it was when there was no other.
/// The codec puts the rest behind.
mod normal {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use waybill_engine::ByPriority;

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        of: &ByPriority<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        of.normal.serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ByPriority<T>, D::Error> {
        Ok(ByPriority {
            normal: T::deserialize(deserializer)?,
            high: T::default(),
        })
    }
}

/// A lease: who owns the work of a reader, or a shard, until when, and how far it has got. A supervisor
/// leaves all but owner, epoch and renewal as they are by default: it writes no rows and reads no
/// partition in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// What it is for.
    pub key: LeaseKey,
    /// The owner; `None` after a clean release.
    pub owner: Option<OwnerId>,
    /// The number of this ownership.
    pub epoch: Epoch,
    /// Counts renewals: a lease whose `epoch` and `renewal` stand still has a silent owner.
    pub renewal: u64,
    /// How long the owner may act after each renewal.
    pub duration: Duration,
    /// Stamps of the owner's writes lie below this.
    pub stamp_limit: Stamp,
    /// Below these offsets everything is done.
    pub checkpoint: Checkpoint,
    /// The offset of the next request record that the owner has not yet consumed durably.
    #[serde(with = "normal")]
    pub consumed: ByPriority<Offset>,
    /// The partition that the offsets are of.
    pub partition: PartitionId,
    /// What those whom a merging reader follows had done beyond its checkpoint.
    pub handover: Handover,
    /// Whether its reader was taken for good by those of the next layout: nobody owns it any more.
    pub is_ended: bool,
    /// Whether the checkpoint says where the reader begins: from the first owner on, which stores where each log began
    /// when it took the lease, and in every lease that follows such a one. Until then nobody has run the reader, and
    /// a checkpoint of 0 means nothing. The codec puts this into the value's format.
    #[serde(skip)]
    pub is_begun: bool,
}

impl Lease {
    /// A lease that nobody has ever held, of a reader or shard of `partition` that has done nothing.
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
            handover: Handover::default(),
            is_ended: false,
            is_begun: false,
        }
    }

    /// The lease of the first owner of all: it begins where the logs did when it was taken.
    #[must_use]
    pub fn beginning_at(self, first: Places) -> Self {
        Self {
            checkpoint: Checkpoint::at(first),
            consumed: first.on_requests(),
            is_begun: true,
            ..self
        }
    }

    /// What is written when its reader is taken for good. It has an epoch of its own, so that no owner
    /// can renew it.
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

    /// What a reader goes on from that follows those of `parents`, all of which have ended: at the lowest
    /// of their offsets, with stamps and epochs above all of theirs, or where `begins` says. Nobody has held it
    /// yet.
    #[must_use]
    pub fn following(
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
                // The layout has kept where a partition begins that was added; of the first ones nobody knows it yet.
                is_begun: !parents.is_empty(),
                ..all
            };
        }
        let lowest = leases().map(|lease| lease.checkpoint);
        let checkpoint = lowest.reduce(Checkpoint::lowest).unwrap_or_default();
        let checkpoint = match begins.cut {
            Some(cut) => checkpoint.lowest(Checkpoint::at(cut)),
            None => checkpoint,
        };
        let stood = parents.iter().flat_map(|parent| {
            let theirs = parent.lease.handover.stood().iter().copied();
            theirs.chain([parent.stood])
        });
        Self {
            consumed: leases()
                .map(|lease| lease.consumed)
                .chain(begins.cut.map(|cut| cut.on_requests()))
                .reduce(|one, other| ByPriority::of(|priority| one[priority].min(other[priority])))
                .unwrap_or_default(),
            handover: Handover::new(stood, |source| checkpoint.on(source)),
            checkpoint,
            // One of them that nobody has run has done nothing: its part is read from offset 0 on.
            is_begun: leases().any(|lease| lease.is_begun),
            ..all
        }
    }
}

/// Where a reader begins that follows others, other than where they stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Begins {
    /// Where its partition was cut: it begins no later, for what they passed over beyond, others have left to it.
    pub cut: Option<Places>,
    /// If none of them has read its partition.
    pub unread: Places,
}

/// One of those whom a reader follows.
#[derive(Clone, PartialEq, Debug)]
pub struct Followed {
    /// Its lease, which has ended.
    lease: Lease,
    stood: Stood,
}

impl Followed {
    /// The reader of an ended lease.
    #[must_use]
    pub fn new(lease: Lease, division: waybill_engine::Division) -> Self {
        let stood = Stood {
            division,
            reader: ReaderId(lease.key.number),
            at: lease.checkpoint.at,
        };
        Self { lease, stood }
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::Division;

    use super::*;

    fn ended(reader: u32, at: i64, fingerprint: u64) -> Followed {
        let key = LeaseKey::scheduler(LayoutGeneration(1), ReaderId(reader));
        let lease = Lease {
            epoch: Epoch(u64::from(reader) + 3),
            stamp_limit: Stamp(1_000 - i64::from(reader)),
            consumed: ByPriority {
                normal: Offset(at + 5),
                high: Offset(61 - at),
            },
            checkpoint: Checkpoint {
                at: Places {
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
        let division = Division {
            partitions: 1,
            readers_per_partition: 2,
        };
        Followed::new(lease.ended(), division)
    }

    #[test]
    fn whoever_merges_begins_at_the_lowest_with_stamps_and_epochs_above_all() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ReaderId(0));
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
                at: Places {
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
        let stood: Vec<ReaderId> = lease.handover.stood().iter().map(|of| of.reader).collect();
        assert_eq!(stood, [ReaderId(0), ReaderId(1)]);
    }

    #[test]
    fn whoever_splits_stands_where_the_one_stood_that_it_follows() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ReaderId(3));
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
    fn a_reader_begins_with_the_first_owner_or_where_one_that_it_follows_had_begun() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ReaderId(0));
        let following = |partition: u32, parents: &[Followed]| {
            let partition = PartitionId(partition);
            Lease::following(key, partition, Begins::default(), parents).is_begun
        };
        let [begun, mut unbegun] = [ended(0, 50, 1), ended(1, 0, 2)];
        unbegun.lease.is_begun = false;
        assert!(!following(0, &[]), "the first layout of a new store");
        assert!(!following(0, std::slice::from_ref(&unbegun)));
        assert!(following(0, &[begun, unbegun.clone()]));
        assert!(following(1, &[unbegun]), "the layout says where it begins");

        let first = Places {
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
    fn whoever_gets_another_partition_begins_where_that_is_said_with_stamps_above() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ReaderId(5));
        let parent = ended(1, 40, 2);
        let begins = Begins {
            unread: Places {
                requests: Offset(3),
                ..Places::default()
            },
            cut: None,
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
    fn whoever_stays_with_a_partition_that_was_cut_begins_no_later_than_there() {
        let key = LeaseKey::scheduler(LayoutGeneration(2), ReaderId(1));
        let parent = ended(1, 40, 2);
        let cut = Places {
            requests: Offset(30),
            high_priority: Offset(25),
            replies: Offset(170),
            recoveries: Offset(7),
        };
        let begins = Begins {
            cut: Some(cut),
            ..Begins::default()
        };
        let parents = std::slice::from_ref(&parent);
        let lease = Lease::following(key, PartitionId(0), begins, parents);
        let expected = Checkpoint {
            at: Places {
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
        // What it had done itself beyond is not done again.
        assert_eq!(lease.handover.stood(), [parent.stood]);
    }
}
