//! The `store` section of the configuration.

mod scylla;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_units::{ByteSize, DurationText};

pub use scylla::ScyllaConfig;

/// The `store` section: the state store, embedded or a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StoreConfig {
    /// Memory of the embedded store for cached blocks.
    pub cache_bytes: ByteSize,
    /// How long the status of a final operation is kept. More than `kafka.requestsRetention`, so
    /// that no request is read again after its row is deleted.
    #[serde(with = "DurationText")]
    pub retention: Duration,
    /// The cluster that holds the state instead of the embedded store.
    pub scylla: ScyllaConfig,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            cache_bytes: ByteSize::mib(8),
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            scylla: ScyllaConfig::default(),
        }
    }
}

impl StoreConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.scylla.validate()
    }
}
