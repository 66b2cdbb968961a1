//! Who owns a partition or a shard, and how far it has got.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{Epoch, Offset, OwnerId, PartitionId, Stamp};

/// In which role a process owns something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LeaseRole {
    /// Runs the operations of a partition.
    Scheduler,
    /// Recovers the operations of a shard; the shard is the partition.
    Supervisor,
}

/// What a lease is for. The leases of different roles have nothing to do with each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The role.
    pub role: LeaseRole,
    /// The partition, or the shard of that number.
    pub partition: PartitionId,
}

impl LeaseKey {
    /// The lease of the scheduler that runs `partition`.
    #[must_use]
    pub fn scheduler(partition: PartitionId) -> Self {
        Self {
            role: LeaseRole::Scheduler,
            partition,
        }
    }

    /// The lease of the supervisor that looks after `shard`.
    #[must_use]
    pub fn supervisor(shard: PartitionId) -> Self {
        Self {
            role: LeaseRole::Supervisor,
            partition: shard,
        }
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            LeaseRole::Scheduler => write!(f, "the scheduler of partition {}", self.partition),
            LeaseRole::Supervisor => write!(f, "the supervisor of shard {}", self.partition),
        }
    }
}

/// The offsets below which every record of a partition is done, on each of its three topics.
///
/// The fingerprint tells the next owner whether the topic of requests is still the same. The others
/// need none: replies can be derived again, and a recovery that is read twice applies once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// On `recovery`.
    pub recoveries: Offset,
    /// Of the last request record below `requests`; `None` at the log's start.
    pub requests_fingerprint: Option<u64>,
}

/// A lease: who owns a partition or shard, until when, and how far it has got. A supervisor leaves
/// stamp limit, checkpoint and consumed as they are by default: it writes no rows and reads no
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
    pub consumed: Offset,
}
