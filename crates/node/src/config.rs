//! The one configuration of the program: a YAML file with a section per role, and layers over it.
//!
//! Later layers win: the defaults in code, the file, the environment (`WAYBILL_SCHEDULER__LEASE`),
//! the flags. What must hold: a key or a variable that is not known is refused, and named with its
//! nearest known neighbour; a refusal of the file says line and column; no secret is shown by
//! `Debug` or by `waybill config show`; and `waybill.example.yaml` documents every key with its
//! default.
//!
//! Units: durations are text with a unit (`200ms`, `5s`, `2m`, `1h`, `7d`), sizes too (`512B`,
//! `64KiB`, `8GiB`); a number without a unit counts things.
//!
//! Deliberately absent: reloading. A changed configuration takes a restart, which loses nothing.

mod alerts;
mod auth;
mod environment;
mod file;
mod identity;
mod kafka;
mod owners;
mod registry;
mod scylla;
mod secret_files;
mod sections;
mod tenants;
mod traces;
mod units;
mod validate;
mod words;
mod workflows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_http::FileRefused;

use secret_files::SecretFiles;

pub use alerts::{
    AlertsConfig, EmailConfig, EmailTls, ReceiverConfig, Secret, SecretUrl, WebhookConfig,
};
pub use auth::{AuthConfig, JwtConfig};
pub use environment::Environment;
pub use environment::variables;
pub use file::FileError;
pub use file::{parse as parse_document, read_document};
pub use identity::{IdentityError, PartitionChoice, readers_of_this_process};
pub use kafka::{KafkaConfig, Properties};
pub use owners::{OwnerEmailConfig, OwnersConfig};
pub use registry::{FramingChoice, RegistryConfig};
pub use scylla::ScyllaConfig;
pub use sections::{
    AdminConfig, AgentReach, AgentsConfig, BrokerConfig, BuiltInCalls, HttpConfig, LogFormat,
    SchedulerConfig, ServicesConfig, StorageConfig, StoreConfig, SupervisorConfig, TelemetryConfig,
    WorkflowsConfig,
};
pub use tenants::{TenantLimit, TenantLimitsConfig};
pub use traces::TracesConfig;
pub use units::{ByteSize, FreeMin, UnitError, duration_from_text, duration_to_text};
pub use validate::PARTITIONS_MAX;
pub use waybill_http::TlsConfig;
pub use words::address_from_text;
pub use workflows::{WorkflowsError, load_workflows};

/// Everything that can be configured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Where the embedded broker, the embedded store and the services' ledger keep their files.
    pub data_dir: PathBuf,
    /// Partitions of the operation topics of a new store; `waybill topics grow` makes more of them.
    pub partitions: u32,
    /// How long a drain may take after SIGTERM or Ctrl-C before what is left is cut off.
    #[serde(with = "units::duration")]
    pub shutdown_timeout: Duration,
    /// Whether a process may listen where others can reach it and nobody has to say who they are.
    pub insecure: bool,
    /// The broker to talk to, and the topics on it.
    pub kafka: KafkaConfig,
    /// The schema registry.
    pub schema_registry: RegistryConfig,
    /// Ingestion over HTTP.
    pub http: HttpConfig,
    /// The admin listener.
    pub admin: AdminConfig,
    /// Who may use both.
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
    /// The workflows that can be run.
    pub workflows: WorkflowsConfig,
    /// The simulated services of the drone-delivery application.
    pub services: ServicesConfig,
    /// Who is told of alerts.
    pub alerts: AlertsConfig,
    /// Log lines.
    pub telemetry: TelemetryConfig,
    /// Where secrets were read from.
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
            workflows: WorkflowsConfig::default(),
            services: ServicesConfig::default(),
            alerts: AlertsConfig::default(),
            telemetry: TelemetryConfig::default(),
            secret_files: SecretFiles::default(),
        }
    }
}

impl Config {
    /// The same for so many partitions.
    #[must_use]
    pub fn with_partitions(&self, partitions: u32) -> Self {
        Self {
            partitions,
            ..self.clone()
        }
    }

    /// The defaults, with the file and the environment over them. Flags come on top of it;
    /// [`Config::finish`] then checks the whole.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or understood, or a variable is not known or does not fit.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        let mut config = match file {
            Some(path) => file::read(path)?,
            None => Self::default(),
        };
        environment.apply(&mut config)?;
        Ok(config)
    }

    /// Reads the files that values come from, and checks what no single layer can know. To be
    /// called once, after the last layer.
    ///
    /// # Errors
    ///
    /// If a file that a value comes from cannot be read, or a value or a combination cannot work.
    pub fn finish(mut self) -> Result<Self, ConfigError> {
        let mut files = SecretFiles::default();
        self.kafka.read_property_files(&mut files)?;
        self.store.scylla.read_files(&mut files)?;
        self.schema_registry.read_files(&mut files)?;
        self.alerts.read_files(&mut files)?;
        self.secret_files = files;
        validate::check(&self)?;
        let faults = self.services.faults.check();
        faults.map_err(|error| ConfigError::Invalid {
            key: "services.faults".to_owned(),
            problem: format!("cannot be: {error}"),
        })?;
        self.alerts.check()?;
        self.schema_registry.check()?;
        self.auth.check()?;
        self.telemetry.traces.check()?;
        Ok(self)
    }

    /// Logs which of the files that secrets were read from every user of this machine may read.
    pub fn warn_of_open_files(&self) {
        self.secret_files.warn();
    }

    /// The whole configuration as YAML, secrets redacted.
    ///
    /// # Errors
    ///
    /// If it cannot be written as YAML, as with a path that is not UTF-8.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(self)
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A `WAYBILL_` variable that means nothing.
    #[error("the environment variable {name} is not known{}", did_you_mean(.nearest.as_deref()))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The known variable that is most like it.
        nearest: Option<String>,
    },
    /// A variable whose value does not fit its key.
    #[error("the environment variable {name} does not fit {key}: {cause}")]
    Variable {
        /// The variable.
        name: String,
        /// The key that it sets.
        key: String,
        /// What is wrong with it; never the value of a secret.
        cause: String,
    },
    /// The file that a property's value should come from cannot be read.
    #[error("kafka.propertyFiles.{property}: {path} cannot be read")]
    PropertyFile {
        /// The property.
        property: String,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file that a secret should come from cannot be read.
    #[error("{key}: {path} cannot be read")]
    SecretFile {
        /// The key that it is for.
        key: String,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file that is needed to listen.
    #[error(transparent)]
    Refused(#[from] FileRefused),
    /// Values that cannot work, alone or together.
    #[error("{key} {problem}")]
    Invalid {
        /// The key at fault.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
}

/// The second half of a message about an unknown name.
fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default()
}
