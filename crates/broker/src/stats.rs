//! Counters: atomics that the hot paths add to, and a plain copy of them for whoever shows them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What the broker has done since it started, and what it holds now.
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
    /// Connections now open.
    pub connections: u64,
    /// Connections that may be open.
    pub connections_max: u64,
    /// Connections now open of the address that has the most.
    pub connections_per_address: u64,
    /// Connections that one address may have open.
    pub connections_per_address_max: u64,
    /// Idle connections that were closed to make room for a new one.
    pub connections_replaced: u64,
    /// New connections that were closed because the limit was reached and no connection was idle.
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
    /// Consumer groups that have members.
    pub groups: u64,
    /// Consumer groups that may have members.
    pub groups_max: u64,
    /// Memory of all consumer groups, in bytes: ids, subscriptions and assignments of their members.
    pub group_bytes: u64,
    /// Memory that all consumer groups may take, in bytes.
    pub group_bytes_max: u64,
    /// Consumer groups with committed offsets, at most: one whose first commit fails counts until the groups are counted
    /// again.
    pub stored_groups: u64,
    /// Consumer groups that may have committed offsets.
    pub stored_groups_max: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) produce_requests: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) fetch_requests: AtomicU64,
    pub(crate) fetch_waits: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) sync_micros: AtomicU64,
    pub(crate) damaged_batches: AtomicU64,
    pub(crate) disk_full: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_replaced: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) logins_refused: AtomicU64,
    pub(crate) unauthorized: AtomicU64,
}

impl Counters {
    /// A copy of the counters. What is not counted here is as in `held`.
    pub(crate) fn snapshot(&self, held: Stats) -> Stats {
        Stats {
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            requests: self.requests.load(Relaxed),
            produce_requests: self.produce_requests.load(Relaxed),
            batches: self.batches.load(Relaxed),
            appended_bytes: self.appended_bytes.load(Relaxed),
            fetch_requests: self.fetch_requests.load(Relaxed),
            fetch_waits: self.fetch_waits.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            sync_time: Duration::from_micros(self.sync_micros.load(Relaxed)),
            damaged_batches: self.damaged_batches.load(Relaxed),
            disk_full: self.disk_full.load(Relaxed),
            connections: self.connections.load(Relaxed),
            connections_replaced: self.connections_replaced.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            logins_refused: self.logins_refused.load(Relaxed),
            unauthorized: self.unauthorized.load(Relaxed),
            ..held
        }
    }
}

/// Adds `amount` to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Relaxed);
}
