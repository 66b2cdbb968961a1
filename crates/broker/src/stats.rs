//! Counters: atomics that the hot paths add to, and a plain copy of them for readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The broker's activity since it started, and its current use of resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Bytes read from clients.
    pub received_bytes: u64,
    /// Bytes written to clients.
    pub sent_bytes: u64,
    /// Requests of all kinds.
    pub requests: u64,
    /// Produce requests.
    pub produce_requests: u64,
    /// Record batches appended.
    pub batches: u64,
    /// Bytes of record batches appended.
    pub appended_bytes: u64,
    /// Fetch requests.
    pub fetch_requests: u64,
    /// Fetch requests that had to wait for records.
    pub fetch_waits: u64,
    /// Bytes of record batches handed to consumers.
    pub fetched_bytes: u64,
    /// Syncs to disk that produce requests waited for.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_time: Duration,
    /// Record batches that were found to be damaged on disk when they were read.
    pub damaged_batches: u64,
    /// Record batches that were refused because the disk is full.
    pub disk_full: u64,
    /// Record batches that were refused as invalid or too large, in the order of
    /// [`BatchRefusal::ALL`].
    pub batches_refused: [u64; BatchRefusal::ALL.len()],
    /// Connections now open.
    pub connections: u64,
    /// Connections that may be open.
    pub connections_max: u64,
    /// Connections now open of the address that has the most.
    pub connections_per_address: u64,
    /// Connections that one address may have open.
    pub connections_per_address_max: u64,
    /// Connections now open to the listener of the broker's own process.
    pub own_connections: u64,
    /// Connections that may be open to it.
    pub own_connections_max: u64,
    /// Connections that were closed to make room for a new one.
    pub connections_replaced: u64,
    /// New connections that were refused because no open one could be closed for them.
    pub connections_refused: u64,
    /// Connections that were closed because of what they sent.
    pub malformed: u64,
    /// Logins that were refused.
    pub logins_refused: u64,
    /// Requests, or parts of them, that the rights of a login did not allow.
    pub unauthorized: u64,
    /// Bytes of all logs on disk.
    pub log_bytes: u64,
    /// Partitions of all topics.
    pub partitions: u64,
    /// Partitions that all topics may have.
    pub partitions_max: u64,
    /// Unanswered requests of the connection that has the most.
    pub requests_in_flight: u64,
    /// Unanswered requests that a connection may have.
    pub requests_in_flight_max: u64,
    /// Memory of large produce requests, joins of groups and answers to fetches, in bytes: the most
    /// since the last look.
    pub buffer_bytes: u64,
    /// Memory that they may take, in bytes.
    pub buffer_bytes_max: u64,
    /// Memory of other large requests and their answers, in bytes: the most since the last look.
    pub control_buffer_bytes: u64,
    /// Memory that they may take, in bytes.
    pub control_buffer_bytes_max: u64,
    /// Connections that were closed because their transfer was among the slowest while memory for
    /// large requests and answers was short.
    pub slow_transfers: u64,
    /// Consumer groups that have members.
    pub groups: u64,
    /// Consumer groups that may have members.
    pub groups_max: u64,
    /// Members of the consumer group that has the most.
    pub group_members: u64,
    /// Members that a consumer group may have.
    pub group_members_max: u64,
    /// Memory of all consumer groups, in bytes: ids, subscriptions and assignments of their
    /// members.
    pub group_bytes: u64,
    /// Memory that all consumer groups may take, in bytes.
    pub group_bytes_max: u64,
    /// Consumer groups with committed offsets, at most: one whose first commit fails counts until
    /// the groups are counted again.
    pub stored_groups: u64,
    /// Consumer groups that may have committed offsets.
    pub stored_groups_max: u64,
}

/// Why a record batch was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchRefusal {
    /// It is larger than its topic's `max.message.bytes`.
    TooLarge,
    /// Decompressed, it is larger than that.
    ExpandedTooLarge,
    /// It is not whole, its checksum does not match, or it cannot be decompressed.
    Corrupt,
    /// Its message format or its compression is not supported.
    Unsupported,
    /// Its fields contradict each other, or request a feature that the broker lacks, such as
    /// transactions.
    Invalid,
}

impl BatchRefusal {
    /// Every reason, in order, with its name.
    pub const ALL: [(Self, &str); 5] = [
        (Self::TooLarge, "too-large"),
        (Self::ExpandedTooLarge, "expanded-too-large"),
        (Self::Corrupt, "corrupt"),
        (Self::Unsupported, "unsupported"),
        (Self::Invalid, "invalid"),
    ];
}

/// Declares [`Counters`], with the fields of [`Stats`] that count on their own.
macro_rules! counters {
    ($($name:ident)*) => {
        /// The counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) sync_micros: AtomicU64,
            pub(crate) batches_refused: [AtomicU64; BatchRefusal::ALL.len()],
        }

        impl Counters {
            /// A copy of the counters. All other fields are those of `held`.
            pub(crate) fn snapshot(&self, held: Stats) -> Stats {
                let refused = self.batches_refused.each_ref();
                Stats {
                    $($name: self.$name.load(Relaxed),)*
                    sync_time: Duration::from_micros(self.sync_micros.load(Relaxed)),
                    batches_refused: refused.map(|count| count.load(Relaxed)),
                    ..held
                }
            }
        }
    };
}

counters! {
    received_bytes sent_bytes requests produce_requests batches appended_bytes fetch_requests fetch_waits fetched_bytes
    syncs damaged_batches disk_full malformed logins_refused unauthorized
}

/// Adds `amount` to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Relaxed);
}
