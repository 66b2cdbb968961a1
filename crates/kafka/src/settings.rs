//! How clients reach the brokers.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::error::ClientError;

/// Which brokers to talk to, and any librdkafka property beside.
///
/// `Debug` shows the names of the properties and none of their values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KafkaSettings {
    /// Bootstrap brokers: `host:port`, separated by commas.
    pub brokers: String,
    /// Properties that are passed to librdkafka as they are, for every client: TLS, SASL, socket
    /// settings. They win over Waybill's defaults; what Waybill's promises rest on cannot be set
    /// and is refused when a client is made.
    pub properties: BTreeMap<String, String>,
}

impl KafkaSettings {
    /// Settings for plain-text brokers without further properties.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            properties: BTreeMap::new(),
        }
    }

    /// What every client has, then `defaults`, then the properties, then `fixed`, which the
    /// properties may not name.
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
            let reserved = ["bootstrap.servers", "metadata.broker.list", "client.id"]
                .into_iter()
                .chain(RESERVED.iter().copied())
                .chain(fixed.iter().map(|(fixed, _)| *fixed))
                .any(|reserved| reserved == name);
            if reserved {
                return Err(ClientError::Reserved {
                    property: name.clone(),
                });
            }
            config.set(name.as_str(), value.as_str());
        }
        for (name, value) in fixed {
            config.set(*name, value.as_str());
        }
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

/// A broker that was restarted is found within a second, and small requests are not held back.
const SHARED_DEFAULTS: &[(&str, &str)] = &[
    ("socket.nagle.disable", "true"),
    ("socket.keepalive.enable", "true"),
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "1000"),
    ("statistics.interval.ms", "0"),
];

/// Properties that no client of this crate lets a configuration change.
const RESERVED: &[&str] = &[
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "group.id",
    "enable.partition.eof",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "transactional.id",
    "log.queue",
];

/// What librdkafka has to hand over so that `tracing` sees what it is set to show.
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
}
