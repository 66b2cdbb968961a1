//! How a [`CqlStore`](super::CqlStore) reaches its servers, and every bound that it has.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::error::CqlError;

/// How a [`CqlStore`](crate::CqlStore) is reached and used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CqlConfig {
    /// Some of the cluster's nodes, `host` or `host:port` (default port: 9042). The driver
    /// discovers the others.
    pub contact_points: Vec<String>,
    /// The keyspace: a lower-case letter, then up to 47 of `a-z`, `0-9` and `_`. Default:
    /// `waybill`.
    pub keyspace: String,
    /// The datacentre whose replicas are read and written. Required if there are several: the
    /// schedulers of one keyspace run in one datacentre. Default: the only one.
    pub local_datacenter: Option<String>,
    /// The login. Default: none.
    pub login: Option<CqlLogin>,
    /// Whether connections are encrypted. Default: they are not.
    pub tls: CqlTls,
    /// The client certificate for servers that require one over TLS. Default: none.
    pub client_certificate: Option<CqlCertificate>,
    /// How often each row is stored. Applies to a keyspace that
    /// [`migrate`](crate::CqlStore::migrate) creates. Default: three times in each datacentre.
    pub replication: CqlReplication,
    /// How many connections there are to each shard of each node (Cassandra: to each node).
    /// Default: 1.
    pub connections_per_shard: NonZeroUsize,
    /// How long one request to the servers may take. Should exceed the servers' own time-outs, so
    /// that their errors come first. Default: 5 s.
    pub request_timeout: Duration,
    /// How long connecting may take. The driver waits for every node that it finds, and for ten
    /// seconds if one accepts connections but does not answer. Default: 90 s.
    pub connect_timeout: Duration,
    /// How long a read or a write is retried while the servers do not answer or its outcome is
    /// unknown; then the call fails. Default: 30 s.
    pub patience: Duration,
    /// How many requests of this store may be in progress. Default: 256.
    pub in_flight_max: NonZeroUsize,
    /// How many bytes one row's state and immutable part may have together; a batch with a longer
    /// one is refused. Must be below half of the servers' commit log segment (Cassandra's default
    /// segment has 32 MiB, and so has ScyllaDB's) and below their largest frame (16 MiB). Default:
    /// 8 MiB.
    pub row_bytes_max: usize,
    /// How long an entry of the deadline index is kept after its instant. Supervisors may be
    /// unavailable for this long without missing one. Default: 30 days.
    pub due_index_retention: Duration,
    /// How often a walk begins over the attention entries that are over a day old, to remove those
    /// that lead to nothing; `None` in processes that leave this to others. Default: 1 h.
    pub attention_walk_interval: Option<Duration>,
}

impl CqlConfig {
    /// The defaults, for these servers.
    #[must_use]
    pub fn new(contact_points: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            contact_points: contact_points.into_iter().map(Into::into).collect(),
            keyspace: "waybill".to_owned(),
            local_datacenter: None,
            login: None,
            tls: CqlTls::Off,
            client_certificate: None,
            replication: CqlReplication::Everywhere(3),
            connections_per_shard: NonZeroUsize::MIN,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(90),
            patience: Duration::from_secs(30),
            in_flight_max: NonZeroUsize::MIN.saturating_add(255),
            row_bytes_max: 8 << 20,
            due_index_retention: Duration::from_secs(30 * 24 * 3_600),
            attention_walk_interval: Some(Duration::from_secs(3_600)),
        }
    }

    /// Refuses settings that cannot work with any server, and values that are unsafe in a
    /// statement.
    pub(super) fn validate(&self) -> Result<(), CqlError> {
        let is_lower = |c: char| c.is_ascii_lowercase();
        let name = &self.keyspace;
        let is_name = name.len() <= 48
            && name.starts_with(is_lower)
            && name
                .chars()
                .all(|c| is_lower(c) || c.is_ascii_digit() || c == '_');
        let factors: Vec<u8> = match &self.replication {
            CqlReplication::Everywhere(factor) => vec![*factor],
            CqlReplication::Datacenters(factors) => factors.values().copied().collect(),
        };
        let is_plain = |name: &String| !name.is_empty() && !name.contains(['\'', '\\']);
        let names_are_plain = match &self.replication {
            CqlReplication::Everywhere(_) => true,
            CqlReplication::Datacenters(factors) => factors.keys().all(is_plain),
        };
        let refusals = [
            (
                self.client_certificate.is_some() && self.tls == CqlTls::Off,
                "a client certificate requires TLS",
            ),
            (
                !is_name,
                "the keyspace is not a plain lower-case name of at most 48 characters",
            ),
            (self.contact_points.is_empty(), "no contact point is given"),
            (
                factors.is_empty() || factors.contains(&0),
                "no replicas are configured, or a datacentre has a replication factor of 0",
            ),
            (
                !names_are_plain,
                "a datacentre's name is empty or has quotes",
            ),
        ];
        match refusals.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(CqlError::Config { why }),
            None => Ok(()),
        }
    }
}

/// A user of the database.
#[derive(Clone, PartialEq, Eq)]
pub struct CqlLogin {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for CqlLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqlLogin")
            .field("user", &self.user)
            .field("password", &"<redacted>")
            .finish()
    }
}

/// Whether connections are encrypted, and which authorities are trusted.
///
/// A node's certificate must name the IP address that it is reached at: the driver learns addresses
/// from the cluster, not host names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CqlTls {
    /// They are not encrypted.
    Off,
    /// The system's certificate authorities are trusted.
    SystemRoots,
    /// The certificate authorities of this PEM file are trusted, and no others.
    CaFile(PathBuf),
}

/// A certificate of this program's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CqlCertificate {
    /// The file with the certificate and those between it and its authority (PEM), in this order.
    pub cert_file: PathBuf,
    /// The file with its key (PEM), without a passphrase.
    pub key_file: PathBuf,
}

/// How often each row is stored, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CqlReplication {
    /// This often in each datacentre that exists when the keyspace is created.
    Everywhere(u8),
    /// This often in each of these datacentres.
    Datacenters(BTreeMap<String, u8>),
}

impl CqlReplication {
    /// As CQL's map of replication options.
    pub(super) fn to_cql(&self) -> String {
        let factors = match self {
            Self::Everywhere(factor) => format!("'replication_factor': {factor}"),
            Self::Datacenters(factors) => factors
                .iter()
                .map(|(datacenter, factor)| format!("'{datacenter}': {factor}"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        format!("{{'class': 'NetworkTopologyStrategy', {factors}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let mut config = CqlConfig::new(["127.0.0.1:9042"]);
        config.login = Some(CqlLogin {
            user: "waybill".to_owned(),
            password: "open sesame".to_owned(),
        });
        let shown = format!("{config:?}");
        assert!(shown.contains("waybill"), "{shown}");
        assert!(!shown.contains("sesame"), "{shown}");
    }

    #[test]
    fn values_that_could_inject_cql_are_refused() {
        assert_eq!(CqlConfig::new(["a"]).validate(), Ok(()));
        for keyspace in ["", "Waybill", "1st", "a b", "a\"b", "a.b", &"a".repeat(49)] {
            let config = CqlConfig {
                keyspace: keyspace.to_owned(),
                ..CqlConfig::new(["a"])
            };
            let refused = config.validate().unwrap_err().to_string();
            assert!(refused.contains("keyspace"), "{keyspace:?}: {refused}");
        }
        for (datacenter, factor) in [("dc'1", 3), ("", 3), ("dc1", 0)] {
            let factors = BTreeMap::from([(datacenter.to_owned(), factor)]);
            let config = CqlConfig {
                replication: CqlReplication::Datacenters(factors),
                ..CqlConfig::new(["a"])
            };
            assert!(config.validate().is_err(), "{datacenter:?} {factor}");
        }
        assert!(CqlConfig::new([""; 0]).validate().is_err());
    }

    #[test]
    fn replication_is_written_in_cql_syntax() {
        let everywhere = CqlReplication::Everywhere(3).to_cql();
        assert_eq!(
            everywhere,
            "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
        );
        let factors = [("east", 3), ("west", 2)].map(|(name, factor)| (name.to_owned(), factor));
        assert_eq!(
            CqlReplication::Datacenters(factors.into()).to_cql(),
            "{'class': 'NetworkTopologyStrategy', 'east': 3, 'west': 2}"
        );
    }
}
