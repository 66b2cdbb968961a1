//! The `broker` section of the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{check_host_and_port, check_range, check_range_because, require};
use waybill_config::{ConfigError, ListenAddress};
use waybill_connections::share_of_one_address;
use waybill_units::{ByteSize, DurationText};

use crate::{BrokerSettings, TopicConfig};

/// A higher limit exceeds the file descriptors of a machine.
const CONNECTIONS_MAX: usize = 1_000_000;
/// Partitions, groups and members: each takes some hundred bytes, and a partition an open file.
const COUNT_MAX: usize = 1_000_000;
/// Consumer groups, and members of one: Waybill's own roles may need ten.
const GROUPS: RangeInclusive<usize> = 10..=COUNT_MAX;
/// Unanswered requests of a client. Idempotent producers send up to five before they wait.
const REQUESTS_IN_FLIGHT: RangeInclusive<usize> = 5..=10_000;
const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(10);
/// Positions in a segment fit in 31 bits, as in Apache Kafka.
const SEGMENT_BYTES: RangeInclusive<ByteSize> = ByteSize::kib(64)..=ByteSize::mib(2047);

/// The `broker` section: the embedded broker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BrokerConfig {
    /// The address of the Kafka protocol; port 0 picks a free one.
    #[schemars(with = "ListenAddress")]
    pub listen: SocketAddr,
    /// The `host:port` that clients connect to; `null` for the bound address.
    pub advertised: Option<String>,
    /// The size at which a partition's segment is full and the next one begins.
    pub segment_bytes: ByteSize,
    /// The largest request of a client, which bounds the largest batch.
    pub request_bytes_max: ByteSize,
    /// Memory for produce requests, consumers that join groups, and fetch responses of more than 64
    /// KiB, over all connections. At least twice requestBytesMax, and at least 16MiB.
    pub buffer_bytes_max: ByteSize,
    /// Memory for all other requests of more than about 7 KiB, over all connections; each counts
    /// nine times its size, to include its response. At least 16MiB.
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
    /// The limit on open connections. A new one replaces one without a login, a slow or
    /// an idle one, or is closed if there is none.
    pub connections_max: usize,
    /// The limit on open connections from one address (for IPv6, one /64 network). A new one
    /// replaces a slow or idle one of the address, or is closed if there is none.
    /// `null` for three quarters of `connectionsMax`.
    pub connections_per_address_max: Option<usize>,
    /// How long a connection may be idle before it is closed.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// The maximum size on disk of each of the two request topics. At the limit, ingestion answers
    /// 503.
    pub requests_disk_bytes_max: ByteSize,
    /// The maximum size on disk of the recovery topic. At the limit, verbs get 503, and the
    /// supervisor retries later.
    pub recoveries_disk_bytes_max: ByteSize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9092)),
            advertised: None,
            segment_bytes: ByteSize::mib(64),
            request_bytes_max: ByteSize::mib(16),
            buffer_bytes_max: ByteSize::mib(32),
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
            requests_disk_bytes_max: ByteSize::gib(8),
            recoveries_disk_bytes_max: ByteSize::mib(256),
        }
    }
}

impl BrokerConfig {
    /// `connections_per_address_max`, or its default.
    #[must_use]
    pub fn connections_per_address_max(&self) -> usize {
        self.connections_per_address_max
            .unwrap_or_else(|| share_of_one_address(self.connections_max))
    }

    /// The host and port of `advertised`. Also `None` if it is not `host:port`, which a checked
    /// configuration rules out.
    #[must_use]
    pub fn advertised_host_and_port(&self) -> Option<(String, u16)> {
        let (host, port) = self.advertised.as_ref()?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some((host.to_owned(), port.parse().ok()?))
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (key, count, range) in [
            (
                "broker.connectionsMax",
                self.connections_max,
                1..=CONNECTIONS_MAX,
            ),
            (
                "broker.connectionsPerAddressMax",
                self.connections_per_address_max(),
                1..=CONNECTIONS_MAX,
            ),
            (
                "broker.requestsInFlightMax",
                self.requests_in_flight_max,
                REQUESTS_IN_FLIGHT,
            ),
            ("broker.partitionsMax", self.partitions_max, 1..=COUNT_MAX),
            ("broker.groupsMax", self.groups_max, GROUPS),
            ("broker.groupMembersMax", self.group_members_max, GROUPS),
            ("broker.storedGroupsMax", self.stored_groups_max, GROUPS),
        ] {
            check_range(key, count, range)?;
        }
        check_range_because(
            "broker.idleTimeout",
            self.idle_timeout,
            IDLE_TIMEOUT_MIN..,
            "Waybill's own clients may be silent for up to 10s",
        )?;
        check_host_and_port("broker.advertised", &self.advertised)?;
        check_range("broker.segmentBytes", self.segment_bytes, SEGMENT_BYTES)
    }

    /// Checks that the memory suffices for the requests that the broker accepts. Only a broker that
    /// runs needs it.
    ///
    /// # Errors
    ///
    /// If a memory is too small.
    pub fn validate_memory(&self) -> Result<(), ConfigError> {
        let settings = self.settings(PathBuf::new());
        let buffers_min = ByteSize::bytes(settings.buffer_bytes_min() as u64);
        require(
            self.buffer_bytes_max >= buffers_min,
            "broker.bufferBytesMax",
            format!(
                "is {}, and must be at least {buffers_min}: twice broker.requestBytesMax ({}), or twice the {} that an \
                 answer to a fetch takes",
                self.buffer_bytes_max,
                self.request_bytes_max,
                ByteSize::bytes(settings.fetch_bytes_max as u64)
            ),
        )?;
        let control_min = ByteSize::bytes(settings.control_buffer_bytes_min() as u64);
        require(
            self.control_buffer_bytes_max >= control_min,
            "broker.controlBufferBytesMax",
            format!(
                "is {}, and must be at least {control_min}, which the largest request other than a produce request and \
                 its answer take",
                self.control_buffer_bytes_max
            ),
        )?;
        require(
            self.group_bytes_max >= ByteSize::mib(1),
            "broker.groupBytesMax",
            "must be at least 1MiB",
        )
    }

    /// The settings of a broker with this section, in `data_dir`.
    #[must_use]
    pub fn settings(&self, data_dir: impl Into<PathBuf>) -> BrokerSettings {
        let defaults = BrokerSettings::new(data_dir);
        BrokerSettings {
            listen: self.listen,
            advertised: self.advertised_host_and_port(),
            topic_defaults: TopicConfig {
                segment_bytes: self.segment_bytes.as_u64(),
                ..defaults.topic_defaults
            },
            partitions_max: self.partitions_max,
            connections_max: self.connections_max,
            connections_per_address_max: self.connections_per_address_max(),
            request_bytes_max: self.request_bytes_max.as_usize(),
            requests_in_flight_max: self.requests_in_flight_max,
            buffer_bytes_max: self.buffer_bytes_max.as_usize(),
            control_buffer_bytes_max: self.control_buffer_bytes_max.as_usize(),
            idle_timeout: self.idle_timeout,
            groups_max: self.groups_max,
            stored_groups_max: self.stored_groups_max,
            group_members_max: self.group_members_max,
            group_bytes_max: self.group_bytes_max.as_usize(),
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let check = |config: &BrokerConfig| {
            config.validate()?;
            config.validate_memory()
        };
        let changes: Changes<'_, BrokerConfig> = &[
            ("broker.advertised", |c| {
                c.advertised = Some("broker".to_owned())
            }),
            ("broker.idleTimeout", |c| c.idle_timeout = Duration::ZERO),
            ("broker.idleTimeout", |c| {
                c.idle_timeout = Duration::from_secs(9)
            }),
            ("broker.bufferBytesMax", |c| {
                c.buffer_bytes_max = ByteSize::mib(31)
            }),
            ("broker.bufferBytesMax", |c| {
                c.request_bytes_max = ByteSize::mib(65)
            }),
            ("broker.bufferBytesMax", |c| {
                c.request_bytes_max = ByteSize::mib(2);
                c.buffer_bytes_max = ByteSize::mib(15);
            }),
            ("broker.controlBufferBytesMax", |c| {
                c.control_buffer_bytes_max = ByteSize::mib(8)
            }),
            ("broker.groupBytesMax", |c| {
                c.group_bytes_max = ByteSize::kib(1_023)
            }),
            ("broker.partitionsMax", |c| c.partitions_max = 0),
            ("broker.requestsInFlightMax", |c| {
                c.requests_in_flight_max = 4
            }),
            ("broker.connectionsMax", |c| c.connections_max = 0),
            ("broker.connectionsPerAddressMax", |c| {
                c.connections_per_address_max = Some(0)
            }),
            ("broker.groupsMax", |c| c.groups_max = 0),
            ("broker.groupMembersMax", |c| c.group_members_max = 9),
            ("broker.storedGroupsMax", |c| c.stored_groups_max = 0),
            ("broker.segmentBytes", |c| {
                c.segment_bytes = ByteSize::kib(63)
            }),
            ("broker.segmentBytes", |c| {
                c.segment_bytes = ByteSize::gib(2)
            }),
        ];
        assert_refused(&BrokerConfig::default(), check, changes);
    }

    #[test]
    fn a_memory_of_buffers_that_is_too_small_is_refused_with_what_needs_it() {
        let mut config = BrokerConfig {
            request_bytes_max: ByteSize::mib(100),
            ..BrokerConfig::default()
        };
        let error = config.validate_memory().unwrap_err().to_string();
        let expected = "broker.bufferBytesMax is 32MiB, and must be at least 200MiB: twice broker.requestBytesMax (100MiB)";
        assert!(error.starts_with(expected), "{error}");
        config.buffer_bytes_max = ByteSize::mib(200);
        config.validate_memory().unwrap();
    }

    #[test]
    fn a_broker_has_the_same_defaults_as_its_section() {
        let [section, broker] = [
            BrokerConfig::default().settings("data"),
            BrokerSettings::new("data"),
        ];
        assert_eq!(format!("{section:?}"), format!("{broker:?}"));
    }
}
