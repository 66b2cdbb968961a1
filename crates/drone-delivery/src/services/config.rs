//! The `services` section of the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{check_host_and_port, check_range};
use waybill_config::{ConfigError, ListenAddress};
use waybill_http::limits;

use super::faults::FaultsByService;
use super::{DEFAULT_CONNECTIONS_MAX, DEFAULT_REQUESTS_MAX, ServicesSettings};

/// Each of the five agents keeps one connection, and opens more under load.
const CONNECTIONS_MIN: usize = 8;

/// The `services` section: the five simulated services.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServicesConfig {
    /// The address that they listen on; port 0 picks a free one.
    #[schemars(with = "ListenAddress")]
    pub listen: SocketAddr,
    /// The `host:port` of services in another process; `null` for those of this process, or at
    /// `listen`.
    pub address: Option<String>,
    /// The limit on open connections. A new one replaces a slow or idle one, or waits
    /// if there is none. One address gets at most three quarters.
    pub connections_max: usize,
    /// The limit on requests in progress over all connections, not counting four for each
    /// connection. One address gets at most three quarters. An HTTP/2 request above the limit is
    /// refused with `REFUSED_STREAM`.
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
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8082)),
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
    /// The address of services that do not run in this process: `address`, or `listen` if it is not
    /// set.
    #[must_use]
    pub fn elsewhere(&self) -> String {
        self.address
            .clone()
            .unwrap_or_else(|| self.listen.to_string())
    }

    /// The settings of services in this process, with their ledger in `data_dir`.
    #[must_use]
    pub fn settings(&self, data_dir: PathBuf) -> ServicesSettings {
        ServicesSettings {
            listen: self.listen,
            connections_max: self.connections_max,
            requests_max: self.requests_max,
            data_dir,
            suspended_prefix: self.suspended_prefix.clone(),
            remote_marker: self.remote_marker.clone(),
            faults: self.faults,
        }
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range(
            "services.connectionsMax",
            self.connections_max,
            CONNECTIONS_MIN..=limits::CONNECTIONS_MAX,
        )?;
        check_range("services.requestsMax", self.requests_max, limits::REQUESTS)?;
        check_host_and_port("services.address", &self.address)?;
        self.faults.check().map_err(|error| {
            ConfigError::invalid("services.faults", format!("is invalid: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, ServicesConfig> = &[
            ("services.address", |c| {
                c.address = Some("services".to_owned())
            }),
            ("services.connectionsMax", |c| c.connections_max = 0),
            ("services.connectionsMax", |c| c.connections_max = 7),
            ("services.requestsMax", |c| c.requests_max = 0),
            ("services.requestsMax", |c| c.requests_max = 1_000_001),
            ("services.faults is invalid: ", |c| {
                c.faults.drone.error_rate = 2.0;
            }),
        ];
        assert_refused(
            &ServicesConfig::default(),
            ServicesConfig::validate,
            changes,
        );
    }
}
