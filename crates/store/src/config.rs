//! The `store` section of the configuration, and the kind of store that it chooses.

mod scylla;

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::{ConfigError, SecretFiles};
use waybill_units::{ByteSize, DurationText};

pub use scylla::ScyllaConfig;

use crate::{Backend, EmbeddedConfig};

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

/// The time limit of one request to the servers of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestTimeout {
    /// The key that sets it.
    pub key: &'static str,
    /// Its value.
    pub limit: Duration,
}

impl StoreConfig {
    /// The store of this configuration, not open. The embedded store is in `directory`.
    #[must_use]
    pub fn backend(&self, directory: impl Into<PathBuf>) -> Backend {
        if let Some(cql) = self.scylla.cql() {
            return Backend::cql(cql);
        }
        let mut embedded = EmbeddedConfig::new(directory);
        embedded.cache_bytes = self.cache_bytes.as_u64();
        Backend::embedded(embedded)
    }

    /// Whether the store belongs to one process alone, on whose disk it is. See
    /// [`Store::is_exclusive`](crate::Store::is_exclusive).
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.scylla.nodes.is_none()
    }

    /// The time limit of one request; `None` if the store has no servers.
    #[must_use]
    pub fn request_timeout(&self) -> Option<RequestTimeout> {
        self.scylla.nodes.as_ref().map(|_| RequestTimeout {
            key: scylla::REQUEST_TIMEOUT,
            limit: self.scylla.request_timeout,
        })
    }

    /// Reads the secrets that are in files, and notes the files.
    ///
    /// # Errors
    ///
    /// If such a file cannot be read, or keys that belong together do not fit.
    pub fn read_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        self.scylla.read_files(files)
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.scylla.validate()
    }
}
