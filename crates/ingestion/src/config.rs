//! The `http` section of the configuration.

mod tenants;
mod validate;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ListenAddress;
use waybill_connections::share_of_one_address;
use waybill_contacts::ContactRules;
use waybill_http::TlsConfig;
use waybill_units::{ByteSize, DurationText};

use crate::settings::IngestionSettings;

pub use tenants::{TenantLimit, TenantLimitsConfig};

/// The `http` section: ingestion.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpConfig {
    /// The address of the API; port 0 picks a free one.
    #[schemars(with = "ListenAddress")]
    pub listen: SocketAddr,
    /// The certificate of the listener.
    pub tls: TlsConfig,
    /// The host names that the listener answers for without authentication, in addition to IP
    /// addresses and `localhost`; `*` for all. Others are refused, so that no web page can reach it
    /// through its own host name (DNS rebinding).
    pub hosts: Vec<String>,
    /// The origins of web pages that may use the API from a browser (CORS), for example
    /// `https://console.example.org`; `*` for all, with authentication only.
    pub cors_origins: Vec<String>,
    /// The largest body of a single request.
    pub request_bytes_max: ByteSize,
    /// The largest line of a batch; a batch itself has no limit.
    pub batch_line_bytes_max: ByteSize,
    /// How many lines of one batch may wait for the broker; while so many wait, the server reads no
    /// further ones.
    pub batch_lines_max: usize,
    /// The largest head of a request: request line and headers.
    pub header_bytes_max: ByteSize,
    /// The maximum number of header fields of a request.
    pub headers_max: usize,
    /// Memory for request bodies, in bytes, over all connections; a request that would exceed it
    /// gets 503.
    pub body_bytes_max: ByteSize,
    /// The deepest nesting of a body.
    pub json_depth_max: usize,
    /// The limit on open connections. A new one replaces a slow or idle one, or waits
    /// if there is none.
    pub connections_max: usize,
    /// The limit on open connections from one address (for IPv6, one /64 network). A new one
    /// replaces a slow or idle one of the address, or is closed if there is none.
    /// `null` for three quarters of `connectionsMax`.
    pub connections_per_address_max: Option<usize>,
    /// The limit on requests in progress over all connections, not counting four for each
    /// connection. One address gets at most three quarters. An HTTP/2 request above the limit is
    /// refused with `REFUSED_STREAM`.
    pub requests_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "DurationText")]
    pub header_read_timeout: Duration,
    /// How long a client may pause while it sends a body or reads a response.
    #[serde(with = "DurationText")]
    pub body_read_timeout: Duration,
    /// How long the body of a single request, or a line of a batch, may take in total.
    #[serde(with = "DurationText")]
    pub body_timeout: Duration,
    /// How long a connection may be idle before it is closed; always at least a little longer than
    /// `acceptTimeout`.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// How long a request waits for the broker's acknowledgement before it gets 504.
    #[serde(with = "DurationText")]
    pub accept_timeout: Duration,
    /// How long a shutdown waits for requests in progress.
    #[serde(with = "DurationText")]
    pub drain_timeout: Duration,
    /// Requests that may wait for the broker; further ones get 503.
    pub producer_queue_records_max: usize,
    /// The total size of those requests.
    pub producer_queue_bytes_max: ByteSize,
    /// Accepted requests that are remembered, so that a concurrent repeat is recognised before the
    /// scheduler has read the first one.
    pub recent_accepted_max: usize,
    /// Status requests that may wait until a pending request is read from the topic; further ones
    /// are answered without it.
    pub pending_reads_max: usize,
    /// The longest such wait.
    #[serde(with = "DurationText")]
    pub pending_read_timeout: Duration,
    /// The prefixes that the name of a caller's `replyTo` topic may have; an empty list allows no
    /// `replyTo`.
    pub reply_to_prefixes: Vec<String>,
    /// Open streams of operation events; further ones get 503. Less than `connectionsMax` and
    /// `requestsMax`.
    pub event_streams_max: usize,
    /// The longest wait of a request for a result (`?wait=`), and less than `idleTimeout`. A
    /// waiting request counts as an event stream.
    #[serde(with = "DurationText")]
    pub wait_max: Duration,
    /// Lists of operations that may be in progress or queued; further ones get 503. 0 allows none.
    pub lists_max: usize,
    /// The rate limits of each tenant at this process.
    pub tenant_limits: TenantLimitsConfig,
    /// Whether high-priority requests have their own topic and start first.
    pub high_priority_topic: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls: TlsConfig::default(),
            hosts: Vec::new(),
            cors_origins: Vec::new(),
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
            wait_max: Duration::from_secs(60),
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
        self.connections_per_address_max
            .unwrap_or_else(|| share_of_one_address(self.connections_max))
    }

    /// The settings of ingestion in this process.
    #[must_use]
    pub fn settings(&self, contacts: ContactRules) -> IngestionSettings {
        IngestionSettings {
            listen: self.listen,
            request_bytes_max: self.request_bytes_max.as_usize(),
            batch_line_bytes_max: self.batch_line_bytes_max.as_usize(),
            batch_lines_max: self.batch_lines_max,
            header_bytes_max: self.header_bytes_max.as_usize(),
            headers_max: self.headers_max,
            body_bytes_max: self.body_bytes_max.as_usize(),
            json_depth_max: self.json_depth_max,
            connections_max: self.connections_max,
            connections_per_address_max: self.connections_per_address_max(),
            requests_max: self.requests_max,
            header_read_timeout: self.header_read_timeout,
            body_read_timeout: self.body_read_timeout,
            body_timeout: self.body_timeout,
            idle_timeout: self.idle_timeout,
            accept_timeout: self.accept_timeout,
            producer_queue_records_max: self.producer_queue_records_max,
            producer_queue_bytes_max: self.producer_queue_bytes_max.as_usize(),
            recent_accepted_max: self.recent_accepted_max,
            pending_reads_max: self.pending_reads_max,
            pending_read_timeout: self.pending_read_timeout,
            reply_to_prefixes: self.reply_to_prefixes.clone(),
            contacts,
            event_streams_max: self.event_streams_max,
            wait_max: self.wait_max,
            lists_max: self.lists_max,
            tenant_rates: self.tenant_limits.rates(),
            has_high_priority_topic: self.high_priority_topic,
            drain_timeout: self.drain_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_have_the_same_defaults_as_the_section() {
        assert_eq!(
            HttpConfig::default().settings(ContactRules::default()),
            IngestionSettings::default()
        );
    }
}
