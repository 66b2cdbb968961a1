//! The `admin` section of the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{BOTH_OR_NEITHER, check_range, require};
use waybill_config::{ConfigError, ListenAddress};
use waybill_connections::share_of_one_address;
use waybill_http::{TlsConfig, limits};
use waybill_units::{ByteSize, DurationText};

/// Bodies for the admin port are small.
const BODY_BYTES: RangeInclusive<ByteSize> = ByteSize::kib(1)..=ByteSize::mib(1);
const BODY_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(5 * 60);

/// The `admin` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AdminConfig {
    /// The address of livez, readyz, metrics and schedulers; port 0 picks a free one.
    #[schemars(with = "ListenAddress")]
    pub listen: SocketAddr,
    /// The certificate of the listener.
    pub tls: TlsConfig,
    /// The host names that the listener answers for without authentication, in addition to IP
    /// addresses and `localhost`; `*` for all. Others are refused, so that no web page can reach it
    /// through its own host name (DNS rebinding).
    pub hosts: Vec<String>,
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
    /// The largest head of a request: request line and headers.
    pub header_bytes_max: ByteSize,
    /// The maximum number of header fields of a request.
    pub headers_max: usize,
    /// How long a client may take to send a request's head.
    #[serde(with = "DurationText")]
    pub header_read_timeout: Duration,
    /// The largest body.
    pub body_bytes_max: ByteSize,
    /// How long a body may take to arrive.
    #[serde(with = "DurationText")]
    pub body_timeout: Duration,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
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
        self.connections_per_address_max
            .unwrap_or_else(|| share_of_one_address(self.connections_max))
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (key, count, range) in [
            (
                "admin.connectionsMax",
                self.connections_max,
                limits::CONNECTIONS,
            ),
            ("admin.requestsMax", self.requests_max, limits::REQUESTS),
            (
                "admin.connectionsPerAddressMax",
                self.connections_per_address_max(),
                limits::CONNECTIONS_PER_ADDRESS,
            ),
            ("admin.headersMax", self.headers_max, limits::HEADERS),
        ] {
            check_range(key, count, range)?;
        }
        check_range(
            "admin.headerBytesMax",
            self.header_bytes_max,
            limits::HEADER_BYTES,
        )?;
        check_range(
            "admin.headerReadTimeout",
            self.header_read_timeout,
            limits::HEADER_READ_TIMEOUT,
        )?;
        check_range("admin.bodyTimeout", self.body_timeout, BODY_TIMEOUT)?;
        require(
            self.tls.is_whole(),
            "admin.tls.certFile and admin.tls.keyFile",
            BOTH_OR_NEITHER,
        )?;
        check_range("admin.bodyBytesMax", self.body_bytes_max, BODY_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, AdminConfig> = &[
            ("admin.requestsMax", |c| c.requests_max = 0),
            ("admin.headerBytesMax", |c| {
                c.header_bytes_max = ByteSize::bytes(0)
            }),
            ("admin.headerBytesMax", |c| {
                c.header_bytes_max = ByteSize::kib(3)
            }),
            ("admin.headerBytesMax", |c| {
                c.header_bytes_max = ByteSize::kib(257)
            }),
            ("admin.headersMax", |c| c.headers_max = 101),
            ("admin.headersMax", |c| c.headers_max = 31),
            ("admin.connectionsMax", |c| c.connections_max = 7),
            ("admin.connectionsPerAddressMax", |c| {
                c.connections_per_address_max = Some(3)
            }),
            ("admin.headerReadTimeout", |c| {
                c.header_read_timeout = Duration::from_millis(999)
            }),
            ("admin.headerReadTimeout", |c| {
                c.header_read_timeout = Duration::from_secs(301)
            }),
            ("admin.bodyBytesMax", |c| {
                c.body_bytes_max = ByteSize::bytes(0)
            }),
            ("admin.bodyBytesMax", |c| {
                c.body_bytes_max = ByteSize::mib(2)
            }),
            ("admin.bodyTimeout", |c| c.body_timeout = Duration::ZERO),
            ("admin.bodyTimeout", |c| {
                c.body_timeout = Duration::from_secs(301)
            }),
            ("admin.requestsMax", |c| c.requests_max = 1_000_001),
            ("admin.tls.certFile", |c| {
                c.tls.key_file = Some("/a.key".into())
            }),
        ];
        assert_refused(&AdminConfig::default(), AdminConfig::validate, changes);
    }
}
