//! The cluster that holds the state instead of the embedded store.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{
    BOTH_OR_NEITHER, check_host_and_port, check_not_zero, check_range_because,
    check_request_timeout, require,
};
use waybill_config::{ConfigError, Secret, SecretFiles, numbers};
use waybill_units::DurationText;

use crate::cql::{CqlCertificate, CqlConfig, CqlLogin, CqlReplication, CqlTls};

/// The key of [`ScyllaConfig::request_timeout`].
pub(super) const REQUEST_TIMEOUT: &str = "store.scylla.requestTimeout";

/// All supervisors may be unavailable for a day.
const DUE_INDEX_RETENTION_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// The `store.scylla` section: ScyllaDB or Apache Cassandra.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ScyllaConfig {
    /// The nodes to contact first, as `host:port`; `null` for the embedded store.
    pub nodes: Option<Vec<String>>,
    /// The keyspace.
    pub keyspace: String,
    /// The datacentre whose replicas are read and written; `null` for the only one.
    pub datacenter: Option<String>,
    /// The user to log in as; `null` for no login.
    pub user: Option<String>,
    /// The password of `user`.
    pub password: Option<Secret>,
    /// The file that the password is read from.
    pub password_file: Option<PathBuf>,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Certificates (PEM) that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate (PEM), for nodes that require one.
    pub cert_file: Option<PathBuf>,
    /// The file with its key (PEM), without a passphrase.
    pub key_file: Option<PathBuf>,
    /// The number of replicas of each row in each datacentre, for a keyspace that is created.
    pub replication_factor: u8,
    /// Connections to each shard of each node (Cassandra: to each node).
    #[serde(deserialize_with = "numbers::at_least_one")]
    pub connections_per_shard: NonZeroUsize,
    /// The time limit of one request.
    #[serde(with = "DurationText")]
    pub request_timeout: Duration,
    /// How long a request without an answer is retried before it counts as failed.
    #[serde(with = "DurationText")]
    pub patience: Duration,
    /// Concurrent requests.
    #[serde(deserialize_with = "numbers::at_least_one")]
    pub in_flight_max: NonZeroUsize,
    /// How long the deadline index keeps an entry after it is due: all supervisors may be down for
    /// this long.
    #[serde(with = "DurationText")]
    pub due_index_retention: Duration,
}

impl Default for ScyllaConfig {
    fn default() -> Self {
        let CqlConfig {
            keyspace,
            connections_per_shard,
            request_timeout,
            patience,
            in_flight_max,
            due_index_retention,
            ..
        } = CqlConfig::new([""; 0]);
        Self {
            nodes: None,
            keyspace,
            datacenter: None,
            user: None,
            password: None,
            password_file: None,
            tls: false,
            ca_file: None,
            cert_file: None,
            key_file: None,
            replication_factor: 3,
            connections_per_shard,
            request_timeout,
            patience,
            in_flight_max,
            due_index_retention,
        }
    }
}

impl ScyllaConfig {
    /// The settings of the CQL store; `None` for the embedded store. One role must add the walk
    /// over old attention entries.
    #[must_use]
    pub fn cql(&self) -> Option<CqlConfig> {
        let mut cql = CqlConfig::new(self.nodes.clone()?);
        cql.keyspace.clone_from(&self.keyspace);
        cql.local_datacenter.clone_from(&self.datacenter);
        cql.login = self.user.as_ref().map(|user| CqlLogin {
            user: user.clone(),
            password: self
                .password
                .as_ref()
                .map_or_else(String::new, |password| password.reveal().to_owned()),
        });
        cql.tls = match (&self.ca_file, self.tls) {
            (_, false) => CqlTls::Off,
            (None, true) => CqlTls::SystemRoots,
            (Some(file), true) => CqlTls::CaFile(file.clone()),
        };
        cql.client_certificate =
            self.cert_file
                .as_ref()
                .zip(self.key_file.as_ref())
                .map(|(cert_file, key_file)| CqlCertificate {
                    cert_file: cert_file.clone(),
                    key_file: key_file.clone(),
                });
        cql.replication = CqlReplication::Everywhere(self.replication_factor);
        cql.connections_per_shard = self.connections_per_shard;
        cql.request_timeout = self.request_timeout;
        cql.patience = self.patience;
        cql.in_flight_max = self.in_flight_max;
        cql.due_index_retention = self.due_index_retention;
        cql.attention_walk_interval = None;
        Some(cql)
    }

    /// Reads the password from its file. Refuses half a certificate, and a certificate that is
    /// never used. The files of the certificate are read at each connection to a cluster.
    pub(super) fn read_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        let refused = |key: &str, problem: &str| {
            Err(ConfigError::invalid(format!("store.scylla.{key}"), problem))
        };
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => return refused("certFile", "needs store.scylla.keyFile"),
            (None, Some(_)) => return refused("keyFile", "needs store.scylla.certFile"),
            (Some(_), Some(_)) if !self.tls => {
                return refused("certFile", "requires store.scylla.tls");
            }
            (Some(_), Some(key)) => files.note(key, "store.scylla.keyFile"),
            (None, None) => {}
        }
        let key = "store.scylla.password";
        files.read_secret(&mut self.password, &mut self.password_file, key)
    }

    /// Checks the section.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.nodes.is_some() {
            check_request_timeout(REQUEST_TIMEOUT, self.request_timeout)?;
            check_range_because(
                "store.scylla.dueIndexRetention",
                self.due_index_retention,
                DUE_INDEX_RETENTION_MIN..,
                "only the audit finds operations without index entries",
            )?;
        }
        check_host_and_port("store.scylla.nodes", self.nodes.iter().flatten())?;
        require(
            self.nodes.as_ref().is_none_or(|nodes| !nodes.is_empty()),
            "store.scylla.nodes",
            "must name a node, or be null for the embedded store",
        )?;
        require(
            self.user.is_some() == self.password.is_some(),
            "store.scylla.user and store.scylla.password",
            BOTH_OR_NEITHER,
        )?;
        require(
            self.tls || self.ca_file.is_none(),
            "store.scylla.caFile",
            "requires store.scylla.tls",
        )?;
        check_not_zero("store.scylla.replicationFactor", self.replication_factor)
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn without_nodes_the_store_is_the_embedded_one() {
        assert_eq!(ScyllaConfig::default().cql(), None);
    }

    #[test]
    fn the_defaults_are_those_of_the_store() {
        let config = ScyllaConfig {
            nodes: Some(vec!["a:1".to_owned()]),
            ..ScyllaConfig::default()
        };
        let mut expected = CqlConfig::new(["a:1"]);
        expected.attention_walk_interval = None;
        assert_eq!(config.cql(), Some(expected));
    }

    #[test]
    fn every_key_reaches_the_store_and_the_password_is_not_shown() {
        let config = ScyllaConfig {
            nodes: Some(vec!["a:1".to_owned(), "b:2".to_owned()]),
            keyspace: "orders".to_owned(),
            datacenter: Some("east".to_owned()),
            user: Some("anna".to_owned()),
            password: Some("open sesame".into()),
            tls: true,
            ca_file: Some("/ca.pem".into()),
            cert_file: Some("/cert.pem".into()),
            key_file: Some("/key.pem".into()),
            replication_factor: 2,
            ..ScyllaConfig::default()
        };
        assert!(!format!("{config:?}").contains("sesame"));
        let yaml = serde_saphyr::to_string(&config).unwrap();
        assert!(!yaml.contains("sesame"), "{yaml}");
        let cql = config.cql().unwrap();
        assert_eq!(cql.contact_points, ["a:1", "b:2"]);
        assert_eq!(cql.keyspace, "orders");
        assert_eq!(cql.local_datacenter.as_deref(), Some("east"));
        assert_eq!(cql.login.unwrap().password, "open sesame");
        assert_eq!(cql.tls, CqlTls::CaFile("/ca.pem".into()));
        let certificate = CqlCertificate {
            cert_file: "/cert.pem".into(),
            key_file: "/key.pem".into(),
        };
        assert_eq!(cql.client_certificate, Some(certificate));
        assert_eq!(cql.replication, CqlReplication::Everywhere(2));
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, ScyllaConfig> = &[
            ("store.scylla.nodes", |c| {
                c.nodes = Some(vec!["db.example".to_owned()])
            }),
            ("store.scylla.nodes", |c| c.nodes = Some(Vec::new())),
            ("store.scylla.user", |c| c.user = Some("anna".to_owned())),
            ("store.scylla.user", |c| c.password = Some("sesame".into())),
            ("store.scylla.caFile", |c| {
                c.ca_file = Some("/ca.pem".into())
            }),
            ("store.scylla.replicationFactor", |c| {
                c.replication_factor = 0
            }),
            ("store.scylla.requestTimeout", |c| {
                c.nodes = Some(vec!["a:1".to_owned()]);
                c.request_timeout = Duration::from_millis(99);
            }),
            ("store.scylla.dueIndexRetention", |c| {
                c.nodes = Some(vec!["a:1".to_owned()]);
                c.due_index_retention = Duration::from_secs(60);
            }),
        ];
        assert_refused(&ScyllaConfig::default(), ScyllaConfig::validate, changes);
    }

    #[test]
    fn half_a_certificate_or_one_without_tls_is_refused() {
        let of = |cert: Option<&str>, key: Option<&str>, tls| ScyllaConfig {
            cert_file: cert.map(PathBuf::from),
            key_file: key.map(PathBuf::from),
            tls,
            ..ScyllaConfig::default()
        };
        for (mut config, expected) in [
            (
                of(Some("/c"), None, true),
                "certFile needs store.scylla.keyFile",
            ),
            (
                of(None, Some("/k"), true),
                "keyFile needs store.scylla.certFile",
            ),
            (of(Some("/c"), Some("/k"), false), "certFile requires"),
        ] {
            let refused = config
                .read_files(&mut SecretFiles::default())
                .unwrap_err()
                .to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        of(Some("/c"), Some("/k"), true)
            .read_files(&mut SecretFiles::default())
            .unwrap();
    }
}
