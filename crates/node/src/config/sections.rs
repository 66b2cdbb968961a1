//! One type per section, each field with its unit, and its default in code.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_http::TlsConfig;
use waybill_topology::EmbeddedTopics;

use super::tenants::TenantLimitsConfig;
use super::traces::TracesConfig;
use super::units::{self, ByteSize, FreeMin};

/// An address on the loopback interface.
const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The `http` section: ingestion.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpConfig {
    /// The address of the API; port 0 picks a free one.
    #[schemars(with = "units::ListenAddress")]
    pub listen: SocketAddr,
    /// The certificate of the listener.
    pub tls: TlsConfig,
    /// The host names that the listener answers for without authentication, in addition to IP
    /// addresses and `localhost`; `*` for all. Others are refused, so that no web page reaches it
    /// by its own name.
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
    /// Bytes of bodies that may be held at once, over all connections; a request that would exceed
    /// the limit is answered 503.
    pub body_bytes_max: ByteSize,
    /// The deepest nesting of a body.
    pub json_depth_max: usize,
    /// The limit on open connections. A new one replaces the one that has been idle for longest, or
    /// waits if none is idle.
    pub connections_max: usize,
    /// The limit on open connections from one address (for IPv6, one /64 network). A new one
    /// replaces the address's own that has been idle for longest, or is closed if none is idle.
    /// `null` for three quarters of `connectionsMax`.
    pub connections_per_address_max: Option<usize>,
    /// Requests under way at once on all connections, beyond four that each may always have. One
    /// address gets at most three quarters. An HTTP/2 request above the limit is refused by
    /// `REFUSED_STREAM`.
    pub requests_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "units::DurationText")]
    pub header_read_timeout: Duration,
    /// How long a client may pause while it sends a body, or reads an answer.
    #[serde(with = "units::DurationText")]
    pub body_read_timeout: Duration,
    /// How long the body of a single request, or a line of a batch, may take in total.
    #[serde(with = "units::DurationText")]
    pub body_timeout: Duration,
    /// How long a connection may be idle before it is closed; always at least a little longer than
    /// `acceptTimeout`.
    #[serde(with = "units::DurationText")]
    pub idle_timeout: Duration,
    /// How long a request waits for the broker's acknowledgement before it is answered 504.
    #[serde(with = "units::DurationText")]
    pub accept_timeout: Duration,
    /// How long a stop waits for requests under way to be answered.
    #[serde(with = "units::DurationText")]
    pub drain_timeout: Duration,
    /// Requests that may wait for the broker at once; further ones are answered 503.
    pub producer_queue_records_max: usize,
    /// The total size of those requests.
    pub producer_queue_bytes_max: ByteSize,
    /// Accepted requests that are remembered, so that a concurrent repeat is recognised before the
    /// scheduler has read the first one.
    pub recent_accepted_max: usize,
    /// Status requests that may wait for a pending request to be read from the topic; further ones
    /// are answered without it.
    pub pending_reads_max: usize,
    /// The longest such wait.
    #[serde(with = "units::DurationText")]
    pub pending_read_timeout: Duration,
    /// The prefixes that the name of a caller's `replyTo` topic may have; an empty list allows no
    /// `replyTo`.
    pub reply_to_prefixes: Vec<String>,
    /// Streams of an operation's events at once; further ones are answered 503. Less than
    /// `connectionsMax` and `requestsMax`.
    pub event_streams_max: usize,
    /// Lists of operations that may be read, or wait, at once; further ones are answered 503. 0
    /// allows none.
    pub lists_max: usize,
    /// The rate limits of each tenant at this process.
    pub tenant_limits: TenantLimitsConfig,
    /// Whether high-priority requests have their own topic and start first.
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
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AdminConfig {
    /// The address of livez, readyz, metrics and schedulers; port 0 picks a free one.
    #[schemars(with = "units::ListenAddress")]
    pub listen: SocketAddr,
    /// The certificate of the listener.
    pub tls: TlsConfig,
    /// The host names that the listener answers for without authentication, in addition to IP
    /// addresses and `localhost`; `*` for all. Others are refused, so that no web page reaches it
    /// by its own name.
    pub hosts: Vec<String>,
    /// The limit on open connections. A new one replaces the one that has been idle for longest, or
    /// waits if none is idle.
    pub connections_max: usize,
    /// The limit on open connections from one address (for IPv6, one /64 network). A new one
    /// replaces the address's own that has been idle for longest, or is closed if none is idle.
    /// `null` for three quarters of `connectionsMax`.
    pub connections_per_address_max: Option<usize>,
    /// Requests under way at once on all connections, beyond four that each may always have. One
    /// address gets at most three quarters. An HTTP/2 request above the limit is refused by
    /// `REFUSED_STREAM`.
    pub requests_max: usize,
    /// The largest head of a request: request line and headers.
    pub header_bytes_max: ByteSize,
    /// The most header fields of a request.
    pub headers_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "units::DurationText")]
    pub header_read_timeout: Duration,
    /// The largest body.
    pub body_bytes_max: ByteSize,
    /// How long a body may take to arrive.
    #[serde(with = "units::DurationText")]
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

/// The limit for one address, so that it cannot take all connections.
fn per_address(configured: Option<usize>, max: usize) -> usize {
    configured.unwrap_or(max - max / 4)
}

/// The `broker` section: the embedded broker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BrokerConfig {
    /// The address of the Kafka protocol; port 0 picks a free one.
    #[schemars(with = "units::ListenAddress")]
    pub listen: SocketAddr,
    /// The `host:port` that clients connect to; `null` for the bound address.
    pub advertised: Option<String>,
    /// The size at which a partition's segment is full and the next one begins.
    pub segment_bytes: ByteSize,
    /// The largest request of a client, which bounds the largest batch.
    pub request_bytes_max: ByteSize,
    /// Memory for produce requests, joins of consumer groups and fetch answers of more than 64 KiB,
    /// over all connections. At least twice requestBytesMax, and at least 16MiB.
    pub buffer_bytes_max: ByteSize,
    /// Memory for all other requests of more than about 7 KiB, over all connections; each counts
    /// nine times its size, for its answer. At least 16MiB.
    pub control_buffer_bytes_max: ByteSize,
    /// Unanswered requests of one connection; further ones are read later.
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
    /// The limit on open connections. A new one replaces the one that has been idle for longest, or
    /// is closed if none is idle.
    pub connections_max: usize,
    /// The limit on open connections from one address (for IPv6, one /64 network). A new one
    /// replaces the address's own that has been idle for longest, or is closed if none is idle.
    /// `null` for three quarters of `connectionsMax`.
    pub connections_per_address_max: Option<usize>,
    /// How long a connection may be idle before it is closed.
    #[serde(with = "units::DurationText")]
    pub idle_timeout: Duration,
    /// The disk bound of each of the two request topics. Beyond it ingestion answers 503.
    pub requests_disk_bytes_max: ByteSize,
    /// The disk bound of the topic of recoveries. Beyond it verbs are answered 503, and the
    /// supervisor retries later.
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
            buffer_bytes_max: ByteSize::mib(48),
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

    /// The host and port of `advertised`. Also `None` if it is not `host:port`, which a checked
    /// configuration rules out.
    #[must_use]
    pub fn advertised_host_and_port(&self) -> Option<(String, u16)> {
        let (host, port) = self.advertised.as_ref()?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some((host.to_owned(), port.parse().ok()?))
    }
}

/// The `storage` section: the disk that the embedded broker and store share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StorageConfig {
    /// How much of the file system of `dataDir` must stay free: below it new requests are refused.
    pub free_min: FreeMin,
}

/// The `workflows` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkflowsConfig {
    /// Whether the workflow of the drone-delivery application can be run.
    pub built_in: bool,
    /// Files of further workflows, one per file. The newest version of a workflow starts new
    /// operations; keep older versions while operations run them.
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

/// The `telemetry` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TelemetryConfig {
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or `target=level` pairs separated by commas.
    pub log_filter: String,
    /// The collector of spans.
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

/// The format of log lines.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}
