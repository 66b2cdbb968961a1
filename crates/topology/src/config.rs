//! The `kafka` section of the configuration, including its secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use waybill_config::checks::{
    check_host_and_port, check_not_zero, check_range, check_range_because, require,
};
use waybill_config::{ConfigError, REDACTED, Secret, SecretFiles, secret_to_serialize};
use waybill_kafka::{ClientError, KafkaSettings};
use waybill_units::{ByteSize, DurationText, duration_to_text};

use crate::topics::RETENTION_MS_MIN;

/// Partitions of a topic: more are a typing error.
const STEP_PARTITIONS_MAX: u32 = 1_000_000;
/// What Kafka lets a topic accept by default, and more than a process needs.
const DECOMPRESSED_BYTES: RangeInclusive<ByteSize> = ByteSize::mib(1)..=ByteSize::mib(1024);
const STEPS_RETENTION_MIN: Duration = Duration::from_secs(10 * 60);
const RESULTS_RETENTION_MIN: Duration = Duration::from_secs(60 * 60);

/// The `kafka` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct KafkaConfig {
    /// Bootstrap brokers as `host:port`; `null` for the embedded broker.
    pub brokers: Option<Vec<String>>,
    /// The prefix of all topic names.
    pub topic_prefix: String,
    /// Copies of each partition, for topics that are created.
    pub replication_factor: u16,
    /// Partitions of each agent's topic of step requests: the maximum number of processes that
    /// share the work of one agent. Fixed once data exists. Fewer partitions make larger batches.
    pub step_partitions: u32,
    /// How long requests are kept, for topics that are created. Must be less than
    /// `store.retention`. Not used for the embedded broker, which deletes exactly the requests that
    /// are done.
    #[serde(with = "DurationText")]
    pub requests_retention: Duration,
    /// How long step requests and replies are kept. They can be derived again.
    #[serde(with = "DurationText")]
    pub steps_retention: Duration,
    /// How long `topics grow` waits after it added partitions until clients have refreshed their
    /// metadata, and again until all writers use the new number.
    #[serde(with = "DurationText")]
    pub repartition_settle: Duration,
    /// How long status, failed operations and dead letters are kept.
    #[serde(with = "DurationText")]
    pub results_retention: Duration,
    /// The largest content of a compressed batch. Consumers skip a batch that holds more, and
    /// report it as a dead letter.
    pub decompressed_bytes_max: ByteSize,
    /// Additional librdkafka settings for every client.
    pub properties: Properties,
    /// librdkafka settings whose values are read from files, such as mounted secrets. A line end at
    /// the end of the file is removed.
    pub property_files: BTreeMap<String, PathBuf>,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            brokers: None,
            topic_prefix: "waybill".to_owned(),
            replication_factor: 1,
            step_partitions: 2,
            requests_retention: 3 * DAY,
            steps_retention: DAY,
            repartition_settle: Duration::from_secs(15),
            results_retention: 7 * DAY,
            decompressed_bytes_max: ByteSize::mib(16),
            properties: Properties::default(),
            property_files: BTreeMap::new(),
        }
    }
}

impl KafkaConfig {
    /// Moves the values of `propertyFiles` to `properties`, and refuses properties that no client
    /// accepts.
    pub fn read_property_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        for (property, path) in std::mem::take(&mut self.property_files) {
            if self.properties.0.contains_key(&property) {
                return Err(ConfigError::invalid(
                    format!("kafka.propertyFiles.{property}"),
                    "is also set in kafka.properties; remove one of the two",
                ));
            }
            let text = files.read(&path, &format!("kafka.properties.{property}"))?;
            self.properties.0.insert(property, text);
        }
        self.check_properties()
    }

    /// The settings of clients, without the brokers.
    pub fn clients(&self) -> KafkaSettings {
        KafkaSettings {
            properties: self.properties.0.clone(),
            decompressed_bytes_max: self.decompressed_bytes_max.as_usize(),
            ..KafkaSettings::new("")
        }
    }

    /// Whether clients log in, as the properties say.
    pub fn has_login(&self) -> bool {
        self.properties.0.contains_key("sasl.password")
    }

    /// Configures clients to log in to the embedded broker, and overrides the properties.
    pub fn log_in(&mut self, user: &str, token: &Secret) {
        let login = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", user),
            ("sasl.password", token.reveal()),
        ];
        // An alias of the mechanism property.
        self.properties.0.remove("sasl.mechanisms");
        let login = login.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.properties.0.extend(login);
    }

    /// Checks the section, apart from `properties`, which [`Self::read_property_files`] checks.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range(
            "kafka.stepPartitions",
            self.step_partitions,
            1..=STEP_PARTITIONS_MAX,
        )?;
        let reason = "records could be deleted before they are read";
        check_range_because(
            "kafka.stepsRetention",
            self.steps_retention,
            STEPS_RETENTION_MIN..,
            reason,
        )?;
        check_range_because(
            "kafka.resultsRetention",
            self.results_retention,
            RESULTS_RETENTION_MIN..,
            reason,
        )?;
        require(
            self.brokers
                .as_ref()
                .is_none_or(|brokers| !brokers.is_empty()),
            "kafka.brokers",
            "must name a broker, or be null for the embedded one",
        )?;
        check_host_and_port("kafka.brokers", self.brokers.iter().flatten())?;
        require(
            is_topic_name(&self.topic_prefix),
            "kafka.topicPrefix",
            format!(
                "is {:?}, and must have 1 to 100 characters, only a-z, A-Z, 0-9, '.', '_' and '-'",
                self.topic_prefix
            ),
        )?;
        check_not_zero("kafka.replicationFactor", self.replication_factor)?;
        check_range(
            "kafka.decompressedBytesMax",
            self.decompressed_bytes_max,
            DECOMPRESSED_BYTES,
        )?;
        require(
            self.requests_retention.as_millis() >= u128::from(RETENTION_MS_MIN),
            "kafka.requestsRetention",
            "must be at least 1h",
        )?;
        let refreshed_after = self.clients().metadata_refresh();
        require(
            refreshed_after.is_none_or(|after| self.repartition_settle > after),
            "kafka.repartitionSettle",
            format!(
                "is {}, and must be more than the {} after which clients refresh the number of partitions \
                 (topic.metadata.refresh.interval.ms of kafka.properties)",
                duration_to_text(self.repartition_settle),
                duration_to_text(refreshed_after.unwrap_or_default())
            ),
        )
    }

    fn check_properties(&self) -> Result<(), ConfigError> {
        let (property, problem) = match self.clients().check() {
            Ok(()) => return self.check_security(),
            Err(ClientError::Reserved { property }) => {
                let problem = match property.as_str() {
                    "bootstrap.servers" | "metadata.broker.list" => "must be set as kafka.brokers",
                    _ => {
                        "is set by Waybill and cannot be configured: Waybill's guarantees depend \
                         on it"
                    }
                };
                (property, problem.to_owned())
            }
            Err(ClientError::UnknownProperty { property }) => {
                (property, "is not a librdkafka property".to_owned())
            }
            Err(ClientError::InvalidValue { property }) => {
                (property, "has a value that librdkafka rejects".to_owned())
            }
            Err(ClientError::Create { reason, .. }) => (String::new(), reason),
        };
        let dot = if property.is_empty() { "" } else { "." };
        Err(ConfigError::invalid(
            format!("kafka.properties{dot}{property}"),
            problem,
        ))
    }

    /// Refuses logins and certificates that librdkafka would ignore.
    fn check_security(&self) -> Result<(), ConfigError> {
        let protocol = self.properties.0.get("security.protocol");
        let protocol = protocol.map(|protocol| protocol.to_ascii_uppercase());
        let protocol = protocol.as_deref().unwrap_or("PLAINTEXT");
        for (name, _) in self.properties.iter() {
            let needed = match name.split_once('.') {
                Some(("sasl", _)) if !protocol.starts_with("SASL_") => {
                    "SASL_SSL (or SASL_PLAINTEXT)"
                }
                Some(("ssl", _)) if !protocol.ends_with("SSL") => "SASL_SSL (or SSL)",
                _ => continue,
            };
            let problem = format!(
                "has no effect when kafka.properties.security.protocol is {protocol}: set \
                 security.protocol to {needed}"
            );
            return Err(ConfigError::invalid(
                format!("kafka.properties.{name}"),
                problem,
            ));
        }
        Ok(())
    }
}

/// Kafka's rule for names of topics, with room for the suffixes after the prefix.
fn is_topic_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=100).contains(&name.len()) && name.bytes().all(fits)
}

/// librdkafka settings by name. `Debug` and serialization hide secret values. [`Properties::iter`]
/// returns them.
#[derive(Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    description = "librdkafka settings by name.",
    extend("additionalProperties" = {"type": ["string", "number", "boolean"]})
)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Names and values, including secrets, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter()
            .map(|(name, value)| (name, if is_secret(name) { REDACTED } else { value }))
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for ((name, value), (_, shown)) in self.iter().zip(self.shown()) {
            map.serialize_entry(name, secret_to_serialize(value, shown))?;
        }
        map.end()
    }
}

/// Whether a librdkafka setting may hold a secret, judged by words in its name. Errs on the safe
/// side: the text of `sasl.oauthbearer.config` may contain one.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 7] = [
        "password",
        "passphrase",
        "secret",
        "pem",
        "token",
        "oauthbearer.config",
        "credential",
    ];
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn every_setting_that_librdkafka_calls_sensitive_is_secret_and_plain_ones_are_not() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.private.key.pem",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "sasl.username",
            "sasl.mechanism",
            "ssl.ca.location",
            "socket.timeout.ms",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, KafkaConfig> = &[
            ("kafka.brokers", |c| c.brokers = Some(Vec::new())),
            ("kafka.brokers", |c| {
                c.brokers = Some(vec!["kafka://a:1".to_owned()])
            }),
            ("kafka.topicPrefix", |c| {
                c.topic_prefix = "way bill".to_owned()
            }),
            ("kafka.replicationFactor", |c| c.replication_factor = 0),
            ("kafka.stepPartitions", |c| c.step_partitions = 0),
            ("kafka.stepsRetention", |c| {
                c.steps_retention = Duration::from_millis(1)
            }),
            ("kafka.resultsRetention", |c| {
                c.results_retention = Duration::from_secs(3_599)
            }),
            ("kafka.requestsRetention", |c| {
                c.requests_retention = Duration::from_secs(3_599)
            }),
            ("kafka.repartitionSettle", |c| {
                c.repartition_settle = Duration::from_secs(10)
            }),
        ];
        assert_refused(&KafkaConfig::default(), KafkaConfig::validate, changes);
    }

    #[test]
    fn only_the_line_end_of_a_value_in_a_file_is_removed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), " pass word \r\n").unwrap();
        let mut kafka = KafkaConfig {
            property_files: [("sasl.password".to_owned(), file.path().to_owned())].into(),
            ..KafkaConfig::default()
        };
        let mut plain = kafka.clone();
        let protocol = ("security.protocol".to_owned(), "SASL_SSL".to_owned());
        kafka.properties.0.extend([protocol]);
        kafka
            .read_property_files(&mut SecretFiles::default())
            .unwrap();
        assert_eq!(
            kafka.properties.iter().collect::<Vec<_>>(),
            [
                ("sasl.password", " pass word "),
                ("security.protocol", "SASL_SSL")
            ]
        );

        // librdkafka would ignore the password and send records unencrypted.
        let error = plain
            .read_property_files(&mut SecretFiles::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("security.protocol"), "{error}");
        assert!(!error.contains("pass word"), "{error}");
    }

    #[test]
    fn an_invalid_property_is_refused_by_name_without_its_value() {
        for (property, expected) in [
            ("acks", "acks is set by Waybill"),
            ("enable.idempotence", "enable.idempotence is set by Waybill"),
            ("auto.offset.reset", "auto.offset.reset is set by Waybill"),
            (
                "bootstrap.servers",
                "bootstrap.servers must be set as kafka.brokers",
            ),
            ("sasl.pasword", "sasl.pasword is not a librdkafka property"),
            ("security.protocol", "security.protocol has a value"),
        ] {
            let properties = [(property.to_owned(), "hunter2".to_owned())].into();
            let mut kafka = KafkaConfig {
                properties: Properties(properties),
                ..KafkaConfig::default()
            };
            let refused = kafka
                .read_property_files(&mut SecretFiles::default())
                .unwrap_err()
                .to_string();
            assert_eq!(
                refused.find(&format!("kafka.properties.{expected}")),
                Some(0),
                "{refused}"
            );
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_a_property_that_is_set_twice_is_refused_by_name() {
        let files = [(
            "sasl.password".to_owned(),
            PathBuf::from("/nonexistent/secret"),
        )];
        let mut kafka = KafkaConfig {
            property_files: files.into(),
            ..KafkaConfig::default()
        };
        let mut twice = kafka.clone();
        let error = kafka
            .read_property_files(&mut SecretFiles::default())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "kafka.properties.sasl.password: /nonexistent/secret cannot be read"
        );

        twice
            .properties
            .0
            .insert("sasl.password".to_owned(), "hunter2".to_owned());
        let error = twice
            .read_property_files(&mut SecretFiles::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sasl.password is also set in kafka.properties"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}
