//! The broker's settings. Every limit of the broker is here, with its default.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::{Logins, TopicConfig};

/// How many times larger than a control request its decoded form and its answer may be.
pub(crate) const CONTROL_GROWTH: usize = 8;

/// The settings of a [`Broker`](crate::Broker).
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// Where to listen; port 0 picks a free one. Default: 127.0.0.1:9092.
    pub listen: SocketAddr,
    /// The host and port that clients receive for connections. `None` (the default) gives each
    /// client the address that it reached the broker at.
    pub advertised: Option<(String, u16)>,
    /// Where everything is kept. One process owns it at a time.
    pub data_dir: PathBuf,
    /// Partitions of a topic whose creator leaves their number to the broker. Default: 1.
    pub default_partitions: u32,
    /// Create a topic when a client that allows it asks for its metadata. Default: no.
    pub auto_create_topics: bool,
    /// Settings of topics that do not set their own.
    pub topic_defaults: TopicConfig,
    /// Partitions of all topics together (each holds a file open). Default: 4,000.
    pub partitions_max: usize,
    /// Open connections. A further one replaces one without a login, a slow or an idle one; if
    /// there is none, it is closed itself. Default: 1,000.
    pub connections_max: usize,
    /// Open connections of one address (for IPv6, of one /64 network). A further one replaces
    /// such a one of the address, or is closed itself. Default: 750.
    pub connections_per_address_max: usize,
    /// The largest request. Default: 16 MiB.
    pub request_bytes_max: usize,
    /// The largest request other than a produce request. Default: 1 MiB.
    pub control_request_bytes_max: usize,
    /// The most record bytes in one fetch response, unless a single batch is larger. Default:
    /// 8 MiB.
    pub fetch_bytes_max: usize,
    /// Minimum time between two answers to fetches of a connection, after an answer with 8 records
    /// or more: so records travel together under load. It does not apply if 512 records, or a
    /// partition's `max_bytes`, can be read, and is at most the fetch's own maximum wait. Default:
    /// 5 ms.
    pub fetch_gather: Duration,
    /// Unanswered requests per connection. Further ones stay in the socket: the client waits, and
    /// none is refused. Default: 128.
    pub requests_in_flight_max: usize,
    /// Buffers of more than 64 KiB of all connections together, for produce requests, members that
    /// join groups and fetch answers. A connection that needs more waits. Slow ones are closed
    /// while they hold over half. At least [`Self::buffer_bytes_min`]. Default: 32 MiB.
    pub buffer_bytes_max: usize,
    /// The same for all other requests with their answers, so that no request waits for memory that
    /// the previous answer holds. At least [`Self::control_buffer_bytes_min`]. Default: 32 MiB.
    pub control_buffer_bytes_max: usize,
    /// A connection without traffic for this long is closed. Default: 10 minutes.
    pub idle_timeout: Duration,
    /// A request must have arrived, the first one of a connection begun, and a response must make
    /// progress, within this time. Default: 60 s.
    pub stall_timeout: Duration,
    /// How often retention is applied. Default: 10 s.
    pub retention_interval: Duration,
    /// How long the first member of an empty consumer group waits for others, so that members
    /// that start together share one rebalance. Default: 100 ms.
    pub group_initial_delay: Duration,
    /// Consumer groups with members. Default: 1,000.
    pub groups_max: usize,
    /// Consumer groups with committed offsets. A further one cannot commit; `DeleteGroups` makes
    /// room. Default: 10,000.
    pub stored_groups_max: usize,
    /// Members of one consumer group. Default: 500.
    pub group_members_max: usize,
    /// Memory of all consumer groups: ids, subscriptions and assignments of their members. A join
    /// or an assignment that would exceed it is refused. Default: 32 MiB.
    pub group_bytes_max: usize,
    /// Idempotent producers remembered per partition; the longest unused is forgotten first.
    /// Default: 1,000.
    pub producers_max: usize,
    /// Checks the logins of clients. `None` (the default) lets every client do everything.
    pub logins: Option<Arc<dyn Logins>>,
    /// Checks the logins at [`Broker::own_address`](crate::Broker::own_address) instead of
    /// `logins`, so that only clients of the own process get in there. Default: `None`, as at the
    /// other address.
    pub own_logins: Option<Arc<dyn Logins>>,
    /// A connection that has not logged in within this time is closed. Default: 10 s.
    pub login_timeout: Duration,
    /// How long an orderly shutdown waits for connections to finish. Default: 5 s.
    pub shutdown_timeout: Duration,
    /// Set by the owner while the disk is low: topics with `waybill.disk.low.refuse=true` then
    /// refuse records, and all others accept them. Default: not set.
    pub low_on_disk: Arc<AtomicBool>,
}

impl BrokerSettings {
    /// The defaults, with everything kept below `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9092)),
            advertised: None,
            data_dir: data_dir.into(),
            default_partitions: 1,
            auto_create_topics: false,
            topic_defaults: TopicConfig::default(),
            partitions_max: 4_000,
            connections_max: 1_000,
            connections_per_address_max: 750,
            request_bytes_max: 16 << 20,
            control_request_bytes_max: 1 << 20,
            fetch_bytes_max: 8 << 20,
            fetch_gather: Duration::from_millis(5),
            requests_in_flight_max: 128,
            buffer_bytes_max: 32 << 20,
            control_buffer_bytes_max: 32 << 20,
            idle_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(60),
            retention_interval: Duration::from_secs(10),
            group_initial_delay: Duration::from_millis(100),
            groups_max: 1_000,
            stored_groups_max: 10_000,
            group_members_max: 500,
            group_bytes_max: 32 << 20,
            producers_max: 1_000,
            logins: None,
            own_logins: None,
            login_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(5),
            low_on_disk: Arc::default(),
        }
    }

    /// The least `buffer_bytes_max`: while one of the largest requests or answers is in memory,
    /// others need not wait.
    #[must_use]
    pub fn buffer_bytes_min(&self) -> usize {
        2 * self.request_bytes_max.max(self.fetch_bytes_max)
    }

    /// The least `control_buffer_bytes_max`: while requests wait for the memory of their answers
    /// and hold no more than half, the largest one can have its own.
    #[must_use]
    pub fn control_buffer_bytes_min(&self) -> usize {
        2 * self.control_request_bytes_max * CONTROL_GROWTH
    }
}
