//! The configuration of the program: a section for each role, from the crate of that role.
//!
//! What must hold: `waybill.example.yaml` documents every key with its default.
//!
//! Deliberately absent: the keys of a role and the checks of its section alone, which are in its
//! crate; here are checks of several sections together. Also reloading: a changed configuration
//! takes a restart, which loses nothing.

mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_agent::AgentsConfig;
use waybill_alerts::AlertsConfig;
use waybill_broker::BrokerConfig;
use waybill_config::{ConfigError, Configuration, Environment, OpenKey, OpenNames, SecretFiles};
use waybill_drone_delivery::services::ServicesConfig;
use waybill_engine::ShardingScheme;
use waybill_http::auth::AuthConfig;
use waybill_ingestion::HttpConfig;
use waybill_kafka::KafkaSettings;
use waybill_registry::RegistryConfig;
use waybill_scheduler::SchedulerConfig;
use waybill_store::{Backend, StoreConfig};
use waybill_supervisor::SupervisorConfig;
use waybill_topology::{EmbeddedTopics, KafkaConfig, TopologySettings};
use waybill_units::DurationText;

use crate::admin::AdminConfig;
use crate::data_dir;
use crate::disk::StorageConfig;
use crate::telemetry::TelemetryConfig;
use crate::workflows::WorkflowsConfig;

pub use validate::check_topics;

/// The whole configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// The directory of the embedded broker, the embedded store and the services' ledger.
    pub data_dir: PathBuf,
    /// Partitions of the operation topics of a new store; `waybill topics grow` adds more.
    pub partitions: u32,
    /// How long a drain may take after SIGTERM or Ctrl-C before the rest is cut off.
    #[serde(with = "DurationText")]
    pub shutdown_timeout: Duration,
    /// Whether unauthenticated listeners on non-loopback addresses are allowed.
    pub insecure: bool,
    /// The brokers to connect to, and their topics.
    pub kafka: KafkaConfig,
    /// The schema registry.
    pub schema_registry: RegistryConfig,
    /// Ingestion over HTTP.
    pub http: HttpConfig,
    /// The admin listener.
    pub admin: AdminConfig,
    /// Authentication for both.
    pub auth: AuthConfig,
    /// The embedded broker.
    pub broker: BrokerConfig,
    /// The disk that the embedded broker and store share.
    pub storage: StorageConfig,
    /// The state store.
    pub store: StoreConfig,
    /// The scheduler.
    pub scheduler: SchedulerConfig,
    /// The supervisor.
    pub supervisor: SupervisorConfig,
    /// The agents.
    pub agents: AgentsConfig,
    /// Values for files of agents, by name: `{{vars.NAME}}`.
    pub variables: BTreeMap<String, String>,
    /// The workflows that can be run.
    pub workflows: WorkflowsConfig,
    /// The simulated services of the drone-delivery application.
    pub services: ServicesConfig,
    /// The receivers of alerts.
    pub alerts: AlertsConfig,
    /// Logs, metrics and traces.
    pub telemetry: TelemetryConfig,
    /// The files that secrets were read from.
    #[serde(skip)]
    pub secret_files: SecretFiles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("data"),
            partitions: 4,
            shutdown_timeout: Duration::from_secs(20),
            insecure: false,
            kafka: KafkaConfig::default(),
            schema_registry: RegistryConfig::default(),
            http: HttpConfig::default(),
            admin: AdminConfig::default(),
            auth: AuthConfig::default(),
            broker: BrokerConfig::default(),
            storage: StorageConfig::default(),
            store: StoreConfig::default(),
            scheduler: SchedulerConfig::default(),
            supervisor: SupervisorConfig::default(),
            agents: AgentsConfig::default(),
            variables: BTreeMap::new(),
            workflows: WorkflowsConfig::default(),
            services: ServicesConfig::default(),
            alerts: AlertsConfig::default(),
            telemetry: TelemetryConfig::default(),
            secret_files: SecretFiles::default(),
        }
    }
}

impl Configuration for Config {
    const OPEN_KEYS: &'static [OpenKey] = &[
        OpenKey {
            key: "kafka.properties",
            example: "SASL_PASSWORD",
            names: OpenNames::Dotted,
        },
        OpenKey {
            key: "kafka.propertyFiles",
            example: "SASL_PASSWORD",
            names: OpenNames::Dotted,
        },
        OpenKey {
            key: "variables",
            example: "PAYMENTS_URL",
            names: OpenNames::CamelCase,
        },
    ];
    const FILE_KEYS: &'static [&'static str] = &[
        "http.tenantLimits.tenants",
        "alerts.receivers",
        "alerts.owners.email",
        "alerts.owners.sms",
    ];
    const OTHER_VARIABLES: &'static [&'static str] =
        &["WAYBILL_CONFIG", "WAYBILL_TOKEN_FILE", "WAYBILL_CA_FILE"];
}

impl Config {
    /// Loads the defaults, the file over them, and the environment on top.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is invalid, or a variable is unknown or does not fit.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        // Here, so that the parsers of all sections are compiled with this crate, once.
        waybill_config::load(file, environment)
    }

    /// The connection to the configured brokers, or to the embedded one if there are none.
    #[must_use]
    pub fn kafka_settings(&self, embedded: Option<SocketAddr>) -> KafkaSettings {
        let brokers = match (&self.kafka.brokers, embedded) {
            (Some(brokers), _) => brokers.join(","),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        };
        let mut settings = KafkaSettings::new(brokers);
        settings.group_prefix.clone_from(&self.kafka.topic_prefix);
        settings.decompressed_bytes_max = self.kafka.decompressed_bytes_max.as_usize();
        let properties = self.kafka.properties.iter();
        settings
            .properties
            .extend(properties.map(|(name, value)| (name.into(), value.into())));
        settings
    }

    /// The brokers for a command: the configured ones, or the embedded broker of another process if
    /// there are none.
    #[must_use]
    pub fn kafka_settings_of_commands(&self) -> KafkaSettings {
        self.kafka_settings(Some(self.broker.listen))
    }

    /// The configured state store, not open.
    #[must_use]
    pub fn store_backend(&self) -> Backend {
        self.store.backend(data_dir::of_store(&self.data_dir))
    }

    /// The consumer group that agents share.
    #[must_use]
    pub fn agents_group(&self) -> String {
        format!("{}-agents", self.kafka.topic_prefix)
    }

    /// The configuration with another number of partitions.
    #[must_use]
    pub fn with_partitions(&self, partitions: u32) -> Self {
        Self {
            partitions,
            ..self.clone()
        }
    }

    /// The settings for topics and shards.
    #[must_use]
    pub fn topology(&self) -> TopologySettings {
        TopologySettings {
            scheme: ShardingScheme {
                partitions: self.partitions,
                shards_per_partition: self.scheduler.shards_per_partition,
            },
            kafka: self.kafka.clone(),
            embedded: EmbeddedTopics {
                listen: self.broker.listen,
                segment_bytes: self.broker.segment_bytes,
                requests_disk_bytes_max: self.broker.requests_disk_bytes_max,
                recoveries_disk_bytes_max: self.broker.recoveries_disk_bytes_max,
            },
            operations_retention: self.store.retention,
        }
    }

    /// Reads the files that values come from, and checks the values, alone and together. Call it
    /// once, after the last layer.
    ///
    /// # Errors
    ///
    /// If such a file cannot be read, or a value or a combination is invalid.
    pub fn finish(mut self) -> Result<Self, ConfigError> {
        let mut files = SecretFiles::default();
        self.kafka.read_property_files(&mut files)?;
        self.store.read_files(&mut files)?;
        self.schema_registry.read_files(&mut files)?;
        self.alerts.read_files(&mut files)?;
        self.secret_files = files;
        validate::check(&self)?;
        Ok(self)
    }

    /// Warns about files with secrets that every user of this machine may read.
    pub fn warn_of_open_files(&self) {
        self.secret_files.warn();
    }

    /// The whole configuration as YAML, with secrets redacted.
    ///
    /// # Errors
    ///
    /// If it cannot be written as YAML, for example because a path is not UTF-8.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(self)
    }
}

#[cfg(test)]
mod layers_tests;
