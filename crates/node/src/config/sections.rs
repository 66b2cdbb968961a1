//! One type per section, each field with its unit, and its default in code.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_drone_delivery::services::{
    DEFAULT_CONNECTIONS_MAX, DEFAULT_REQUESTS_MAX, FaultsByService,
};
use waybill_http::TlsConfig;
use waybill_topology::EmbeddedTopics;

use super::identity::PartitionChoice;
use super::scylla::ScyllaConfig;
use super::tenants::TenantLimitsConfig;
use super::traces::TracesConfig;
use super::units::{self, ByteSize, FreeMin};

/// An address on the loopback interface.
const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The `http` section: ingestion.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpConfig {
    /// The address of the API; port 0 picks a free one.
    pub listen: SocketAddr,
    /// What it proves itself with.
    pub tls: TlsConfig,
    /// The names that it answers for while nobody is asked for a token, beside IP addresses and `localhost`; `*` for every
    /// name. Others are refused, so that no web page reaches it by a name of its own.
    pub hosts: Vec<String>,
    /// The largest body of a single request.
    pub request_bytes_max: ByteSize,
    /// The largest line of a batch; a batch itself has no limit.
    pub batch_line_bytes_max: ByteSize,
    /// How many lines of one batch may wait for the broker at once; further ones are not read.
    pub batch_lines_max: usize,
    /// The largest head of a request: request line and headers.
    pub header_bytes_max: ByteSize,
    /// The most header fields of a request.
    pub headers_max: usize,
    /// Bytes of bodies that may be held at once, over all connections; what would exceed it is
    /// answered 503.
    pub body_bytes_max: ByteSize,
    /// How deep objects and arrays of a body may nest.
    pub json_depth_max: usize,
    /// Connections at once. One more replaces the one that has been idle for longest; where none is idle it waits.
    pub connections_max: usize,
    /// Connections of one address (for IPv6, of one /64 network) at once. One more replaces the address's own that has
    /// been idle for longest; where none is idle it is closed. `None` for three quarters of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// Requests under way at once, over all connections, beyond four of each. Those from one address get three quarters of
    /// them. A further one over HTTP/2 is refused by `REFUSED_STREAM`.
    pub requests_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "units::duration")]
    pub header_read_timeout: Duration,
    /// How long a client may pause while it sends a body, or reads an answer.
    #[serde(with = "units::duration")]
    pub body_read_timeout: Duration,
    /// How long the body of a single request, or a line of a batch, may take in all.
    #[serde(with = "units::duration")]
    pub body_timeout: Duration,
    /// How long a connection may be idle before it is closed; at least a little longer than
    /// `accept_timeout`, whatever stands here.
    #[serde(with = "units::duration")]
    pub idle_timeout: Duration,
    /// How long a request waits for the broker's acknowledgement before it is answered 504.
    #[serde(with = "units::duration")]
    pub accept_timeout: Duration,
    /// How long a stop waits for requests under way to be answered.
    #[serde(with = "units::duration")]
    pub drain_timeout: Duration,
    /// Requests that may wait for the broker at once; further ones are answered 503.
    pub producer_queue_records_max: usize,
    /// Their size in all.
    pub producer_queue_bytes_max: ByteSize,
    /// Accepted requests that are remembered, so that a concurrent twin is recognised before the
    /// scheduler has got there.
    pub recent_accepted_max: usize,
    /// Questions for pending deliveries that may wait for the request to be read from the topic;
    /// further ones are answered without it.
    pub pending_reads_max: usize,
    /// How long such a question waits at most.
    #[serde(with = "units::duration")]
    pub pending_read_timeout: Duration,
    /// What the name of a caller's `replyTo` topic must begin with, any of these; none allows no
    /// `replyTo`.
    pub reply_to_prefixes: Vec<String>,
    /// Streams of an operation's events at once; further ones are answered 503. Less than
    /// `connections_max` and `requests_max`.
    pub event_streams_max: usize,
    /// Lists of operations that may be read, or wait for it, at once; further ones are answered 503. 0 allows none.
    pub lists_max: usize,
    /// How much each tenant may send to this process.
    pub tenant_limits: TenantLimitsConfig,
    /// Whether high-priority requests go by a topic of their own, ahead of the others.
    pub high_priority_topic: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: local(8080),
            tls: TlsConfig::default(),
            hosts: Vec::new(),
            request_bytes_max: ByteSize::kib(64),
            batch_line_bytes_max: ByteSize::kib(64),
            batch_lines_max: 1_000,
            header_bytes_max: ByteSize::kib(16),
            headers_max: 64,
            body_bytes_max: ByteSize::mib(64),
            json_depth_max: 32,
            connections_max: 1_000,
            connections_per_address_max: None,
            requests_max: 4_096,
            header_read_timeout: Duration::from_secs(10),
            body_read_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            accept_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
            producer_queue_records_max: 100_000,
            producer_queue_bytes_max: ByteSize::mib(64),
            recent_accepted_max: 100_000,
            pending_reads_max: 16,
            pending_read_timeout: Duration::from_millis(500),
            reply_to_prefixes: Vec::new(),
            event_streams_max: 500,
            lists_max: 16,
            tenant_limits: TenantLimitsConfig::default(),
            high_priority_topic: true,
        }
    }
}

impl HttpConfig {
    /// `connections_per_address_max`, or its default.
    #[must_use]
    pub fn connections_per_address_max(&self) -> usize {
        per_address(self.connections_per_address_max, self.connections_max)
    }
}

/// The `admin` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AdminConfig {
    /// The address of livez, readyz, metrics and schedulers; port 0 picks a free one.
    pub listen: SocketAddr,
    /// What it proves itself with.
    pub tls: TlsConfig,
    /// The names that it answers for while nobody is asked for a token, beside IP addresses and `localhost`; `*` for every
    /// name. Others are refused, so that no web page reaches it by a name of its own.
    pub hosts: Vec<String>,
    /// Connections at once. One more replaces the one that has been idle for longest; where none is idle it waits.
    pub connections_max: usize,
    /// Connections of one address (for IPv6, of one /64 network) at once. One more replaces the address's own that has
    /// been idle for longest; where none is idle it is closed. `None` for three quarters of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// Requests under way at once, over all connections, beyond four of each. Those from one address get three quarters of
    /// them. A further one over HTTP/2 is refused by `REFUSED_STREAM`.
    pub requests_max: usize,
    /// The largest head of a request: request line and headers.
    pub header_bytes_max: ByteSize,
    /// The most header fields of a request.
    pub headers_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "units::duration")]
    pub header_read_timeout: Duration,
    /// The largest body.
    pub body_bytes_max: ByteSize,
    /// How long a body may take to arrive.
    #[serde(with = "units::duration")]
    pub body_timeout: Duration,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: local(8081),
            tls: TlsConfig::default(),
            hosts: Vec::new(),
            connections_max: 256,
            connections_per_address_max: None,
            requests_max: 1_024,
            header_bytes_max: ByteSize::kib(16),
            headers_max: 64,
            header_read_timeout: Duration::from_secs(10),
            body_bytes_max: ByteSize::kib(4),
            body_timeout: Duration::from_secs(5),
        }
    }
}

impl AdminConfig {
    /// `connections_per_address_max`, or its default.
    #[must_use]
    pub fn connections_per_address_max(&self) -> usize {
        per_address(self.connections_per_address_max, self.connections_max)
    }
}

/// How many of the connections one address may have: so that no address alone takes all of them.
fn per_address(configured: Option<usize>, max: usize) -> usize {
    configured.unwrap_or(max - max / 4)
}

/// The `broker` section: the embedded broker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BrokerConfig {
    /// The address of the Kafka protocol; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The `host:port` that clients are told to connect to; `None` for the bound address.
    pub advertised: Option<String>,
    /// When a partition's file is full and the next one begins.
    pub segment_bytes: ByteSize,
    /// The largest request of a client, which bounds the largest batch.
    pub request_bytes_max: ByteSize,
    /// Memory of produce requests, joins of consumer groups and answers to fetches that are larger than 64 KiB, over all
    /// connections. At least twice requestBytesMax, and at least 16MiB.
    pub buffer_bytes_max: ByteSize,
    /// Memory of all other requests of more than about 7 KiB, over all connections; each counts nine times its size, for its
    /// answer. At least 16MiB.
    pub control_buffer_bytes_max: ByteSize,
    /// Unanswered requests of one connection; the client waits with further ones.
    pub requests_in_flight_max: usize,
    /// Partitions of all topics.
    pub partitions_max: usize,
    /// Consumer groups with members.
    pub groups_max: usize,
    /// Members of one consumer group.
    pub group_members_max: usize,
    /// Memory of all consumer groups: ids, subscriptions and assignments of their members.
    pub group_bytes_max: ByteSize,
    /// Consumer groups with committed offsets.
    pub stored_groups_max: usize,
    /// Connections at once. One more replaces the one that has been idle for longest, or is closed if none is idle.
    pub connections_max: usize,
    /// Connections of one address (for IPv6, of one /64 network) at once. One more replaces the address's own that has
    /// been idle for longest, or is closed if none is idle. `None` for three quarters of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// How long a connection may be idle before it is closed.
    #[serde(with = "units::duration")]
    pub idle_timeout: Duration,
    /// What each of the two topics of requests may take on disk. Beyond it ingestion answers 503.
    pub requests_disk_bytes_max: ByteSize,
    /// What the topic of recoveries may take on disk. Beyond it verbs are answered 503, and the supervisor tries again
    /// later.
    pub recoveries_disk_bytes_max: ByteSize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        let topics = EmbeddedTopics::default();
        Self {
            listen: topics.listen,
            advertised: None,
            segment_bytes: topics.segment_bytes,
            request_bytes_max: ByteSize::mib(16),
            buffer_bytes_max: ByteSize::mib(64),
            control_buffer_bytes_max: ByteSize::mib(32),
            requests_in_flight_max: 128,
            partitions_max: 4_000,
            groups_max: 1_000,
            group_members_max: 500,
            group_bytes_max: ByteSize::mib(32),
            stored_groups_max: 10_000,
            connections_max: 1_000,
            connections_per_address_max: None,
            idle_timeout: Duration::from_secs(600),
            requests_disk_bytes_max: topics.requests_disk_bytes_max,
            recoveries_disk_bytes_max: topics.recoveries_disk_bytes_max,
        }
    }
}

impl BrokerConfig {
    /// `connections_per_address_max`, or its default.
    #[must_use]
    pub fn connections_per_address_max(&self) -> usize {
        per_address(self.connections_per_address_max, self.connections_max)
    }

    /// `advertised` in its two halves; `None` also where it is not `host:port`, which a checked
    /// configuration rules out.
    #[must_use]
    pub fn advertised_host_and_port(&self) -> Option<(String, u16)> {
        let (host, port) = self.advertised.as_ref()?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some((host.to_owned(), port.parse().ok()?))
    }
}

/// The `storage` section: the disk that the embedded broker and store share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StorageConfig {
    /// How much of the file system of `dataDir` stays free: below it new requests are refused.
    pub free_min: FreeMin,
}

/// The `store` section: the embedded state store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StoreConfig {
    /// Memory of the embedded store for blocks that were read.
    pub cache_bytes: ByteSize,
    /// How long an operation can be asked for after it became final. More than
    /// `kafka.requestsRetention`, so that no request is read again after its row is gone.
    #[serde(with = "units::duration")]
    pub retention: Duration,
    /// The cluster that keeps the state in place of the embedded store.
    pub scylla: ScyllaConfig,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            cache_bytes: ByteSize::mib(8),
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            scylla: ScyllaConfig::default(),
        }
    }
}

/// The `scheduler` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// The partitions of this process; where partitions have several shards, the shards.
    pub partitions: PartitionChoice,
    /// How many shards a partition has. A new store begins with it; of any other `waybill shards set`
    /// changes it.
    pub shards_per_partition: u32,
    /// Operations in memory, over all partitions of the process.
    pub in_flight_max: usize,
    /// Their size in all.
    pub in_flight_bytes_max: ByteSize,
    /// Requests that are read before there is room for them, of each of their two topics, over all partitions of the
    /// process. Among these, tenants take turns, and high-priority requests go first (highPriorityWeight).
    pub read_ahead_max: usize,
    /// Their size in all, of each topic.
    pub read_ahead_bytes_max: ByteSize,
    /// Requests that are known, of each of their two topics, over all partitions of the process: those that wait or are
    /// under way, and those that are done behind one of these, which a restart reads again. Where there are so many, no
    /// more of that topic are read until the one that holds the checkpoint is done or handed off.
    pub tracked_requests_max: usize,
    /// How many high-priority requests go ahead for each normal one, while both wait.
    pub high_priority_weight: u32,
    /// How long an operation stays in memory before it is handed to the deadline index and holds
    /// the checkpoint no longer. One that only waits, and for longer than this, is handed over at once.
    #[serde(with = "units::duration")]
    pub hand_off_after: Duration,
    /// How often the checkpoint moves at least, while there is something to move it for.
    #[serde(with = "units::duration")]
    pub checkpoint_every: Duration,
    /// After how many finished records it moves earlier than that.
    pub checkpoint_records: u64,
    /// How long the ownership of a partition lasts after each renewal.
    #[serde(with = "units::duration")]
    pub lease: Duration,
    /// How long before its end an owner stops acting, and how long after it a candidate waits.
    #[serde(with = "units::duration")]
    pub lease_margin: Duration,
    /// How long after complete-by a reply may still be on its way.
    #[serde(with = "units::duration")]
    pub timeout_grace: Duration,
    /// How long a stop waits for operations in flight; those that take longer are resumed at the
    /// next start.
    #[serde(with = "units::duration")]
    pub drain: Duration,
    /// How long the supervisor may take to say what becomes of an operation that failed for good,
    /// before the deadline index reminds it.
    #[serde(with = "units::duration")]
    pub supervisor_decision_timeout: Duration,
    /// Whether every step of every operation is told on the status topic: 7 more records for a
    /// delivery that has 11. Callers with a topic of their own are told in any case.
    pub publish_step_status: bool,
    /// Whether a partition that the store knows nothing of is begun though its log was run before: every
    /// request of the log is then run again.
    pub start_without_state: bool,
    /// After how long without an answer of the state store to a write or a read of rows a partition is given up, and
    /// taken again by this or another scheduler.
    #[serde(with = "units::duration")]
    pub stuck_after: Duration,
    /// Whether a partition goes on behind requests or recoveries that were not done and are gone from its log: retention
    /// took them, or the topic was made anew.
    pub skip_deleted_requests: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            partitions: PartitionChoice::Auto,
            shards_per_partition: 1,
            in_flight_max: 4_000,
            in_flight_bytes_max: ByteSize::mib(64),
            read_ahead_max: 50_000,
            read_ahead_bytes_max: ByteSize::mib(32),
            tracked_requests_max: 250_000,
            high_priority_weight: 4,
            hand_off_after: Duration::from_secs(5),
            checkpoint_every: Duration::from_secs(1),
            checkpoint_records: 10_000,
            lease: Duration::from_secs(10),
            lease_margin: Duration::from_secs(1),
            timeout_grace: Duration::from_millis(500),
            drain: Duration::from_secs(5),
            supervisor_decision_timeout: Duration::from_secs(15),
            publish_step_status: false,
            start_without_state: false,
            stuck_after: Duration::from_secs(60),
            skip_deleted_requests: false,
        }
    }
}

/// The `agents` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentsConfig {
    /// How the scheduler reaches those of this process.
    pub transport: AgentTransport,
    /// Whether the five agents of the drone-delivery application run.
    pub built_in: bool,
    /// How those call the simulated services.
    pub built_in_calls: BuiltInCalls,
    /// Files of further declarative HTTP agents.
    pub files: Vec<PathBuf>,
    /// Step requests that one agent holds at once, running and waiting.
    pub in_flight_max: usize,
    /// A name that stays the same over restarts of this process, so that it gets its share of
    /// the work back at once, and that no other process has; `None` for one that is kept below
    /// the data directory.
    pub instance_id: Option<String>,
    /// How long an agent process may be silent before others take over its share.
    #[serde(with = "units::duration")]
    pub session_timeout: Duration,
}

impl Default for AgentsConfig {
    fn default() -> Self {
        Self {
            transport: AgentTransport::Topics,
            built_in: true,
            built_in_calls: BuiltInCalls::Http,
            files: Vec::new(),
            in_flight_max: 4_096,
            instance_id: None,
            session_timeout: Duration::from_secs(6),
        }
    }
}

/// How a scheduler reaches agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentTransport {
    /// Over their topics, wherever they run.
    Topics,
    /// In its own process, without a record.
    Direct,
}

/// How the agents of the drone-delivery application call the simulated services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BuiltInCalls {
    /// As any service.
    Http,
    /// As functions of the same process.
    Function,
}

/// The `workflows` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkflowsConfig {
    /// Whether the workflow of the drone-delivery application can be run.
    pub built_in: bool,
    /// Files of further workflows, one in each. Of a workflow's versions the newest starts new
    /// operations; keep the older ones while operations run them.
    pub files: Vec<PathBuf>,
}

impl Default for WorkflowsConfig {
    fn default() -> Self {
        Self {
            built_in: true,
            files: Vec::new(),
        }
    }
}

/// The `services` section: the five simulated services.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServicesConfig {
    /// The address that they listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The `host:port` of services that run elsewhere; `None` for those of this process, or at
    /// `listen`.
    pub address: Option<String>,
    /// Connections at once. One more replaces the one that has been idle for longest; where none is idle it waits. One
    /// address gets three quarters of them.
    pub connections_max: usize,
    /// Requests under way at once, over all connections, beyond four of each. Those from one address get three quarters of
    /// them. A further one over HTTP/2 is refused by `REFUSED_STREAM`.
    pub requests_max: usize,
    /// Owners whose id begins with this are suspended: their deliveries are refused.
    pub suspended_prefix: String,
    /// Locations that contain this need third-party transport.
    pub remote_marker: String,
    /// The latency and the faults that each service starts with.
    pub faults: FaultsByService,
}

impl Default for ServicesConfig {
    fn default() -> Self {
        Self {
            listen: local(8082),
            address: None,
            connections_max: DEFAULT_CONNECTIONS_MAX,
            requests_max: DEFAULT_REQUESTS_MAX,
            suspended_prefix: "suspended-".to_owned(),
            remote_marker: "remote".to_owned(),
            faults: FaultsByService::default(),
        }
    }
}

impl ServicesConfig {
    /// Where services that do not run in this process are: `address`, else where they would
    /// listen.
    #[must_use]
    pub fn elsewhere(&self) -> String {
        self.address
            .clone()
            .unwrap_or_else(|| self.listen.to_string())
    }
}

/// The `telemetry` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TelemetryConfig {
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or `target=level` pairs separated by commas.
    pub log_filter: String,
    /// Where spans go.
    pub traces: TracesConfig,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            traces: TracesConfig::default(),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for programs.
    Json,
}
