//! Who owns a partition, and how far it has got.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{Epoch, Offset, OwnerId, PartitionId, Stamp};

/// The offsets below which every record of a partition is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// A fingerprint of the last request record below `requests`; `None` at the log's start.
    pub requests_fingerprint: Option<u64>,
}

/// The lease of one partition: who owns it, until when, and how far it has got.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// The partition.
    pub partition: PartitionId,
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
