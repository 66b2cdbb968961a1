//! How clients reach the brokers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::batch_limits::{self, DECOMPRESSED_BYTES_MAX};
use crate::error::ClientError;
use crate::group_commits::GroupCommits;

/// The brokers to connect to, and additional librdkafka properties.
///
/// `Debug` shows the names of the properties and none of their values.
#[derive(Clone)]
pub struct KafkaSettings {
    /// Bootstrap brokers: `host:port`, separated by commas.
    pub brokers: String,
    /// The prefix of consumer groups that Waybill names: that of the topics.
    pub group_prefix: String,
    /// Properties that every client passes to librdkafka unchanged: TLS, SASL, socket settings.
    /// They override Waybill's defaults. Properties that Waybill's guarantees depend on are refused
    /// when a client is created.
    pub properties: BTreeMap<String, String>,
    /// How many bytes a compressed batch may hold. Consumers report one that holds more as
    /// undecodable. The whole process has one limit: that of the consumer created last.
    pub decompressed_bytes_max: usize,
    /// Where consumers record that the offset commits of their group are refused.
    pub group_commits: GroupCommits,
}

impl KafkaSettings {
    /// Settings for plain-text brokers without additional properties.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            group_prefix: "waybill".to_owned(),
            properties: BTreeMap::new(),
            decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
            group_commits: GroupCommits::default(),
        }
    }

    /// How often clients refresh the list of partitions; `None` if they do not.
    #[must_use]
    pub fn metadata_refresh(&self) -> Option<Duration> {
        let shared = || SHARED_DEFAULTS.iter().find(|of| of.0 == METADATA_REFRESH);
        let set = self.properties.get(METADATA_REFRESH).map(String::as_str);
        let millis = set.or(shared().map(|of| of.1))?;
        millis.parse().ok().map(Duration::from_millis)
    }

    /// Refuses properties that no client would accept: reserved ones, those unknown to librdkafka,
    /// and values that it refuses. Creates no client, and reads no file that a property names.
    ///
    /// # Errors
    ///
    /// The first such property. No error contains a value.
    pub fn check(&self) -> Result<(), ClientError> {
        const CLIENT_ID: &str = "check";
        let config = self.client_config(CLIENT_ID, &[], &[])?;
        let native = config.create_native_config();
        native
            .map(drop)
            .map_err(|error| ClientError::new(CLIENT_ID, error))
    }

    /// The configuration of a consumer, which verifies the checksum of every batch and limits what
    /// it decompresses.
    pub(crate) fn consumer_config(
        &self,
        client_id: &str,
        defaults: &[(&str, String)],
        fixed: &[(&str, String)],
    ) -> Result<ClientConfig, ClientError> {
        batch_limits::limit(self.decompressed_bytes_max);
        let fixed = [fixed, &[("check.crcs", "true".to_owned())]].concat();
        self.client_config(client_id, defaults, &fixed)
    }

    /// The configuration of a client: the settings of every client, then `defaults`, then the
    /// properties, then `fixed`, which the properties must not name.
    pub(crate) fn client_config(
        &self,
        client_id: &str,
        defaults: &[(&str, String)],
        fixed: &[(&str, String)],
    ) -> Result<ClientConfig, ClientError> {
        let mut config = ClientConfig::new();
        config.set_log_level(log_level());
        for (name, value) in SHARED_DEFAULTS {
            config.set(*name, *value);
        }
        for (name, value) in defaults {
            config.set(*name, value.as_str());
        }
        for (name, value) in &self.properties {
            if RESERVED.contains(&name.as_str()) || fixed.iter().any(|(fixed, _)| fixed == name) {
                return Err(ClientError::Reserved {
                    property: name.clone(),
                });
            }
            config.set(name.as_str(), value.as_str());
        }
        for (name, value) in fixed {
            config.set(*name, value.as_str());
        }
        // A missing topic is an error. Without this, the broker would create it with default
        // settings.
        config.set("allow.auto.create.topics", "false");
        config.set("bootstrap.servers", self.brokers.as_str());
        config.set("client.id", client_id);
        Ok(config)
    }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettings")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// The group name of consumers that join no group, because librdkafka requires one. No consumer
/// commits to it.
#[must_use]
pub fn no_group(group_prefix: &str) -> String {
    format!("{group_prefix}-no-group")
}

/// Finds a restarted broker within a second, and does not delay small requests.
const SHARED_DEFAULTS: &[(&str, &str)] = &[
    ("socket.nagle.disable", "true"),
    ("socket.keepalive.enable", "true"),
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "1000"),
    ("statistics.interval.ms", "0"),
    // Clients soon know partitions that were added.
    (METADATA_REFRESH, "10000"),
];

/// How often a client refreshes the list of partitions, in milliseconds.
const METADATA_REFRESH: &str = "topic.metadata.refresh.interval.ms";

/// Properties that the configuration of no client may change, under all their names.
const RESERVED: &[&str] = &[
    // Where to connect, and under which client name.
    "bootstrap.servers",
    "metadata.broker.list",
    "client.id",
    // Which topics exist, and which of their records are read.
    "allow.auto.create.topics",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "isolation.level",
    // Group membership.
    "group.id",
    "group.instance.id",
    "group.protocol",
    "partition.assignment.strategy",
    // When a record counts as sent, exactly once and to the partition of its key, and that the
    // outcome is reported.
    "acks",
    "request.required.acks",
    "delivery.report.only.error",
    "enable.idempotence",
    "partitioner",
    "transactional.id",
    // Callbacks and events that this crate relies on.
    "log.queue",
    // Simulated brokers.
    "test.mock.num.brokers",
];

/// The level at which librdkafka must log for `tracing` to see the events that it is set to show.
fn log_level() -> RDKafkaLogLevel {
    if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
        RDKafkaLogLevel::Debug
    } else if tracing::enabled!(target: "librdkafka", tracing::Level::INFO) {
        RDKafkaLogLevel::Info
    } else {
        RDKafkaLogLevel::Warning
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::error::KafkaError;
    use rdkafka::types::RDKafkaConfRes;

    use super::*;

    fn with(property: &str, value: &str) -> KafkaSettings {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings
            .properties
            .insert(property.to_owned(), value.to_owned());
        settings
    }

    #[test]
    fn debug_names_properties_and_shows_no_value() {
        let shown = format!("{:?}", with("sasl.password", "hunter2"));
        assert!(shown.contains("sasl.password"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn properties_win_over_defaults_and_lose_against_what_is_fixed() {
        let settings = with("reconnect.backoff.ms", "7");
        let config = settings
            .client_config("c", &[], &[("linger.ms", "0".to_owned())])
            .unwrap();
        assert_eq!(config.get("reconnect.backoff.ms"), Some("7"));
        assert_eq!(config.get("linger.ms"), Some("0"));
        assert_eq!(config.get("client.id"), Some("c"));

        let refused = with("linger.ms", "5").client_config("c", &[], &[("linger.ms", "0".into())]);
        assert!(
            matches!(refused, Err(ClientError::Reserved { property }) if property == "linger.ms")
        );
    }

    #[test]
    fn automatic_commits_cannot_be_switched_on() {
        for property in [
            "enable.auto.commit",
            "auto.offset.reset",
            "enable.idempotence",
        ] {
            let refused = with(property, "true").client_config("c", &[], &[]);
            assert!(
                matches!(refused, Err(ClientError::Reserved { .. })),
                "{property}"
            );
        }
    }

    #[test]
    fn every_reserved_property_exists_in_librdkafka() {
        for property in RESERVED {
            let refused = ClientConfig::new()
                .set(*property, "x")
                .create_native_config();
            let is_unknown = matches!(
                refused,
                Err(KafkaError::ClientConfig(
                    RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN,
                    ..
                ))
            );
            assert!(!is_unknown, "{property}");
        }
    }

    #[test]
    fn no_client_creates_topics_automatically() {
        let config = KafkaSettings::new("localhost:9092").client_config("c", &[], &[]);
        assert_eq!(
            config.unwrap().get("allow.auto.create.topics"),
            Some("false")
        );
    }

    #[test]
    fn a_check_names_the_invalid_property_and_never_its_value() {
        with("client.rack", "rack-1").check().unwrap();
        // Files that properties name are not read.
        with("ssl.ca.location", "/nonexistent").check().unwrap();
        for (property, value, expected) in [
            ("acks", "hunter2", "property \"acks\" is set by Waybill"),
            ("sasl.pasword", "hunter2", "is not a librdkafka property"),
            ("security.protocol", "hunter2", "rejects the value"),
            ("socket.timeout.ms", "hunter2", "rejects the value"),
        ] {
            let refused = with(property, value).check().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
            assert!(refused.contains(property), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
