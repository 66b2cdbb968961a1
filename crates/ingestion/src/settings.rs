//! The settings and limits of ingestion.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use waybill_api::tenant_limits::TenantRates;
use waybill_contacts::ContactRules;
use waybill_http::json::DEPTH_LIMIT_MAX;
use waybill_http::{GateLimits, REQUESTS_PER_CONNECTION_MAX, ServerLimits};

/// The settings of ingestion. They bound every queue, and everything that a client can make grow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IngestionSettings {
    /// The address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The largest body of a single request.
    pub request_bytes_max: usize,
    /// The largest line of a batch; a batch itself has no limit.
    pub batch_line_bytes_max: usize,
    /// How many lines of one batch may wait for the broker.
    pub batch_lines_max: usize,
    /// The largest head of a request.
    pub header_bytes_max: usize,
    /// The maximum number of header fields of a request.
    pub headers_max: usize,
    /// The deepest nesting of JSON; at most 100.
    pub json_depth_max: usize,
    /// The limit on open connections. A new one replaces a slow or idle one, or waits
    /// if there is none.
    pub connections_max: usize,
    /// The limit on open connections from one address. A new one replaces a slow or
    /// idle one of the address, or is closed if there is none.
    pub connections_per_address_max: usize,
    /// The limit on requests in progress over all connections, not counting four for each
    /// connection.
    pub requests_max: usize,
    /// Memory for request bodies, in bytes, over all connections; a request that would exceed it
    /// gets 503.
    pub body_bytes_max: usize,
    /// How long a head may take to arrive.
    pub header_read_timeout: Duration,
    /// How long a client may pause within a body, or stop reading its answer.
    pub body_read_timeout: Duration,
    /// How long the body of a single request, or a line of a batch, may take in total.
    pub body_timeout: Duration,
    /// How long a connection may stay idle.
    pub idle_timeout: Duration,
    /// How long a request waits for the broker's acknowledgement.
    pub accept_timeout: Duration,
    /// Requests that may wait for the broker; further ones get 503.
    pub producer_queue_records_max: usize,
    /// The total size of those requests.
    pub producer_queue_bytes_max: usize,
    /// How many accepted requests are remembered until the scheduler has read them.
    pub recent_accepted_max: usize,
    /// How many status requests may wait for a pending request to be read from the topic; further
    /// ones are answered without it.
    pub pending_reads_max: usize,
    /// The longest such wait.
    pub pending_read_timeout: Duration,
    /// The prefixes that the name of a `replyTo` topic may have; an empty list allows no `replyTo`.
    pub reply_to_prefixes: Vec<String>,
    /// Which contacts a request may name to be notified of its operation.
    pub contacts: ContactRules,
    /// Open streams of operation events; further ones get 503.
    pub event_streams_max: usize,
    /// The longest wait of a request for a result.
    pub wait_max: Duration,
    /// Lists of operations that may be in progress or queued; further ones get 503.
    pub lists_max: usize,
    /// The rate limits of each tenant.
    pub tenant_rates: TenantRates,
    /// Whether high-priority requests have their own topic.
    pub has_high_priority_topic: bool,
    /// How long requests in progress may take to finish at shutdown.
    pub drain_timeout: Duration,
}

impl Default for IngestionSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            request_bytes_max: 64 * 1024,
            batch_line_bytes_max: 64 * 1024,
            batch_lines_max: 1_000,
            header_bytes_max: 16 * 1024,
            headers_max: 64,
            json_depth_max: 32,
            connections_max: 1_000,
            connections_per_address_max: 750,
            requests_max: 4_096,
            body_bytes_max: 64 * 1024 * 1024,
            header_read_timeout: Duration::from_secs(10),
            body_read_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            accept_timeout: Duration::from_secs(10),
            producer_queue_records_max: 100_000,
            producer_queue_bytes_max: 64 * 1024 * 1024,
            recent_accepted_max: 100_000,
            pending_reads_max: 16,
            pending_read_timeout: Duration::from_millis(500),
            reply_to_prefixes: Vec::new(),
            contacts: ContactRules::default(),
            event_streams_max: 500,
            wait_max: Duration::from_secs(60),
            lists_max: 16,
            tenant_rates: TenantRates::default(),
            has_high_priority_topic: true,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// The share of `body_bytes_max` that every body takes in addition to its bytes: the request
/// itself.
pub(super) const REQUEST_BYTES: usize = 4 * 1024;

/// How many bytes the answers of a batch may hold in memory at the same time: answers that wait for
/// earlier ones, and answers that the client has not read, here and in its connection.
const BATCH_ANSWERS_BYTES: usize = 256 * 1024;

/// How many bytes the lines of a batch and their answers may hold in memory at the same time. An
/// arriving part may exceed it by at most its own size.
pub(super) fn batch_bytes(line_bytes_max: usize) -> usize {
    let lines = line_bytes_max.saturating_mul(4).max(256 * 1024);
    lines.saturating_add(BATCH_ANSWERS_BYTES)
}

impl IngestionSettings {
    /// The lowest `body_bytes_max` with which the largest request, and a batch, can be received.
    pub(super) fn body_bytes_min(request_bytes_max: usize, batch_line_bytes_max: usize) -> usize {
        request_bytes_max
            .max(batch_bytes(batch_line_bytes_max))
            .saturating_add(REQUEST_BYTES)
    }

    /// How much later the connection's time-outs are than the service's own, so that the service
    /// can still answer.
    const CONNECTION_GRACE: Duration = Duration::from_secs(1);

    /// The limits of all connections.
    pub(super) fn server_limits(&self) -> ServerLimits {
        ServerLimits {
            connections_max: self.connections_max.max(1),
            connections_per_address_max: self.connections_per_address_max.max(1),
            requests_per_connection_max: REQUESTS_PER_CONNECTION_MAX,
            requests_shared_max: self.requests_max,
            gate: self.gate_limits(),
        }
    }

    /// The limits of a connection.
    fn gate_limits(&self) -> GateLimits {
        GateLimits {
            head_bytes_max: self.header_bytes_max,
            headers_max: self.headers_max,
            head_timeout: self.header_read_timeout,
            stall_timeout: self.body_read_timeout + Self::CONNECTION_GRACE,
            idle_timeout: self
                .idle_timeout
                .max(self.accept_timeout + Self::CONNECTION_GRACE),
        }
    }

    /// The longest wait of a request for a result. A silent connection that lasts longer counts as
    /// idle.
    pub(super) fn wait_max(&self) -> Duration {
        let idle = self.gate_limits().idle_timeout;
        self.wait_max
            .min(idle.saturating_sub(Self::CONNECTION_GRACE))
    }

    /// The longest silence of an event stream, so that the client, and any proxy between, sees in
    /// time that the connection is alive.
    pub(super) fn heartbeat(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(15);
        LONGEST.min(self.gate_limits().idle_timeout / 2)
    }

    /// The deepest nesting of JSON, below the limit of the parser.
    pub(super) fn depth_max(&self) -> usize {
        self.json_depth_max.min(DEPTH_LIMIT_MAX)
    }
}
