//! The settings of a member of a consumer group.

use std::time::Duration;

/// How the members of a group divide its partitions. The brokers refuse a member that has no
/// strategy in common with those of its group.
pub const ASSIGNMENT_STRATEGY: &str = "cooperative-sticky";

/// Settings of a [`GroupConsumer`](super::GroupConsumer).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupOptions {
    /// The group.
    pub group: String,
    /// The client's name in the brokers' metrics and in logs.
    pub client_id: String,
    /// A name that stays the same over restarts. A member that ended without leaving and returns
    /// under it within the session timeout takes its place again; a new member would have to wait
    /// until the old session ends. At most one process may use a name at a time.
    pub instance_id: Option<String>,
    /// A member without a heartbeat for this long loses its partitions. Default 6 s; at most five
    /// minutes.
    pub session_timeout: Duration,
    /// Approximate size limit of prefetched records, over all partitions. Default 16 MiB.
    pub queue_kib_max: u32,
    /// Approximate limit of prefetched records per partition. Default 1,000: other members cannot
    /// do what one has prefetched.
    pub queue_records_max: u32,
    /// How long a partition with damaged records stays paused before it is read again from there.
    /// Default 30 s.
    pub damaged_again_after: Duration,
}

impl GroupOptions {
    /// The defaults for a member of a group.
    #[must_use]
    pub fn new(group: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            client_id: client_id.into(),
            instance_id: None,
            session_timeout: Duration::from_secs(6),
            queue_kib_max: 16 * 1024,
            queue_records_max: 1_000,
            damaged_again_after: Duration::from_secs(30),
        }
    }
}
