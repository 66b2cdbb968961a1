//! The settings that the loop's decisions depend on.

use std::time::Duration;

use crate::Own;
use crate::amount::Amount;
use crate::lease::LeaseTerms;

/// The settings of the loop.
#[derive(Clone, Debug)]
pub struct LoopSettings {
    /// The shards that this process runs.
    pub own: Own,
    /// Whether no other process can have the state store open.
    pub store_is_exclusive: bool,
    /// Maximum number of operations in memory, over all partitions of the process.
    pub in_flight_max: usize,
    /// Maximum size of requests in memory, in bytes.
    pub in_flight_bytes_max: usize,
    /// Maximum number of requests of each priority that wait for admission, over all partitions of
    /// the process.
    pub read_ahead_max: usize,
    /// Maximum size of the waiting requests of each priority, in bytes.
    pub read_ahead_bytes_max: usize,
    /// Maximum number of tracked requests of each priority: waiting, in flight, or done after one
    /// that is not.
    pub tracked_requests_max: usize,
    /// How often the checkpoint is stored while records are done.
    pub checkpoint_every: Duration,
    /// The number of done records after which it is stored earlier.
    pub checkpoint_records: i64,
    /// How long leases last.
    pub lease: LeaseTerms,
    /// How long a shard waits for an answer from the store before it is given up.
    pub stuck_after: Duration,
    /// Whether a partition continues if unfinished requests or recoveries were deleted from its
    /// log.
    pub skip_deleted_requests: bool,
    /// How long a shutdown waits for operations in flight.
    pub drain: Duration,
}

impl LoopSettings {
    /// How much may be queued between the inbox and the loop: as many replies as operations may be
    /// in flight, and room for one to arrive while none is.
    pub(crate) fn inbox_room(&self) -> Amount {
        Amount {
            records: self.in_flight_max.max(1),
            bytes: self.in_flight_bytes_max.max(1),
        }
    }
}
