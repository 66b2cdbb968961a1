//! The configured kind of state store: how it is prepared, checked and opened.
//!
//! What must hold: **only this crate knows the kinds.** The rest of the program opens the
//! [`Backend`] of its configuration and works with [`Store`]. A further kind is a section of
//! [`StoreConfig`](crate::StoreConfig), an implementation of [`Store`], and a variant here.
//!
//! Deliberately absent: backups of a store on servers, which have tools of their own. Those of the
//! embedded store begin at [`OpenStore::embedded`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};

use crate::{
    CorruptRow, CqlConfig, CqlStore, EmbeddedConfig, EmbeddedStore, KeptRow, Store, StoreError,
    StoreReport,
};

/// Every row of a store, each readable or not; an error instead of rows that cannot be read.
pub type EveryRow<'a> = BoxStream<'a, Result<Result<KeptRow, CorruptRow>, StoreError>>;

/// The configured state store, not open. See
/// [`StoreConfig::backend`](crate::StoreConfig::backend).
///
/// Displays as messages name it, such as `embedded store`.
#[derive(Clone, Debug)]
pub struct Backend(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Embedded(EmbeddedConfig),
    Cql(Box<CqlConfig>),
}

impl Backend {
    /// The embedded store.
    pub(crate) fn embedded(config: EmbeddedConfig) -> Self {
        Self(Kind::Embedded(config))
    }

    /// The store on a cluster.
    pub(crate) fn cql(config: CqlConfig) -> Self {
        Self(Kind::Cql(Box::new(config)))
    }

    /// Limits the time for connecting to servers.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        match &mut self.0 {
            Kind::Embedded(_) => {}
            Kind::Cql(config) => config.connect_timeout = timeout,
        }
        self
    }

    /// Lets this process remove old attention entries that lead to nothing, this often. One process
    /// of those that share a store must. The embedded store does so anyway.
    #[must_use]
    pub fn with_attention_walk(mut self, interval: Duration) -> Self {
        match &mut self.0 {
            Kind::Embedded(_) => {}
            Kind::Cql(config) => config.attention_walk_interval = Some(interval),
        }
        self
    }

    /// The place of the store, for people, such as `keyspace waybill`.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.0 {
            Kind::Embedded(config) => config.path.display().to_string(),
            Kind::Cql(config) => format!("keyspace {}", config.keyspace),
        }
    }

    /// Creates what is missing of the store on its servers. The embedded store needs no
    /// preparation.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if the servers cannot hold the store as it is;
    /// [`StoreError::Unavailable`] or [`StoreError::Unknown`] if it could not be created.
    pub fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        match &self.0 {
            Kind::Embedded(_) => async { Ok(()) }.boxed(),
            Kind::Cql(config) => CqlStore::migrate(config),
        }
    }

    /// Queries the servers about themselves and the store on them; `None` if the store has no
    /// servers. Changes nothing.
    ///
    /// # Errors
    ///
    /// If the servers cannot be queried. Problems that they report are in the report.
    pub fn check(&self) -> BoxFuture<'_, Result<Option<StoreReport>, StoreError>> {
        match &self.0 {
            Kind::Embedded(_) => async { Ok(None) }.boxed(),
            Kind::Cql(config) => async {
                let report = CqlStore::check(config).await?;
                Ok(Some(report.into_report(config.keyspace.clone())))
            }
            .boxed(),
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] if it belongs to one process alone, which has it open;
    /// [`StoreError::Damaged`] or [`StoreError::Unusable`] if it cannot be used as it is;
    /// [`StoreError::Unavailable`] if the disk fails or the servers do not answer.
    pub fn open(&self) -> BoxFuture<'_, Result<OpenStore, StoreError>> {
        match &self.0 {
            Kind::Embedded(config) => async {
                let config = config.clone();
                // Opening replays a journal, which may take a while.
                let opened = tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await;
                let store = opened.map_err(|error| StoreError::unavailable("opening", error))??;
                Ok(OpenStore(Open::Embedded(Arc::new(store))))
            }
            .boxed(),
            Kind::Cql(config) => async {
                let store = CqlStore::connect((**config).clone()).await?;
                Ok(OpenStore(Open::Cql(Arc::new(store))))
            }
            .boxed(),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Embedded(_) => "embedded store",
            Kind::Cql(_) => "state store",
        })
    }
}

/// A store that this process opened, with what only its opener may do.
#[derive(Clone, Debug)]
pub struct OpenStore(Open);

#[derive(Clone, Debug)]
enum Open {
    Embedded(Arc<EmbeddedStore>),
    Cql(Arc<CqlStore>),
}

impl OpenStore {
    /// The store.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.0 {
            Open::Embedded(store) => Arc::clone(store) as Arc<dyn Store>,
            Open::Cql(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }

    /// The embedded store, if it is that one.
    #[must_use]
    pub fn embedded(&self) -> Option<&Arc<EmbeddedStore>> {
        match &self.0 {
            Open::Embedded(store) => Some(store),
            Open::Cql(_) => None,
        }
    }

    /// Every row that exists now, in no particular order, each readable or not. Reads the whole
    /// store: only for moving it elsewhere. The rows of the embedded store are read from its disk
    /// on the thread that polls the stream.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the disk fails or the servers do not answer, also instead of
    /// rows.
    pub fn rows(&self) -> BoxFuture<'_, Result<EveryRow<'_>, StoreError>> {
        match &self.0 {
            Open::Embedded(store) => async { Ok(stream::iter(store.rows()).boxed()) }.boxed(),
            Open::Cql(store) => store.rows(),
        }
    }

    /// Waits until the store refuses writes until it is opened again, and returns why. That never
    /// happens to a store on servers. See [`EmbeddedStore::refuses_writes`].
    pub async fn refuses_writes(&self) -> String {
        match &self.0 {
            Open::Embedded(store) => store.refuses_writes().await,
            Open::Cql(_) => std::future::pending().await,
        }
    }

    /// Closes the store: completes waiting writes, and refuses new ones. A store on servers needs
    /// no closing: each of its writes that was acknowledged is complete.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if it had failed before.
    pub async fn close(&self) -> Result<(), StoreError> {
        match &self.0 {
            Open::Embedded(store) => store.close().await,
            Open::Cql(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_util::TryStreamExt as _;
    use waybill_engine::PartitionId;

    use super::*;
    use crate::{DueBucket, StoreConfig};

    fn on_a_cluster() -> StoreConfig {
        let mut config = StoreConfig::default();
        config.scylla.nodes = Some(vec!["127.0.0.1:1".to_owned()]);
        config.scylla.keyspace = "orders".to_owned();
        config
    }

    #[tokio::test]
    async fn a_backend_without_nodes_opens_the_embedded_store() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::default();
        let backend = config.backend(dir.path().join("store"));
        assert_eq!(backend.to_string(), "embedded store");
        backend.migrate().await.unwrap();
        assert!(backend.check().await.unwrap().is_none());

        let opened = backend.open().await.unwrap();
        assert!(opened.embedded().is_some());
        let store = opened.store();
        assert_eq!(store.is_exclusive(), config.is_exclusive());
        let rows = opened.rows().await.unwrap();
        assert!(rows.try_collect::<Vec<_>>().await.unwrap().is_empty());
        let second = backend.open().await.unwrap_err();
        assert!(matches!(second, StoreError::Locked { .. }), "{second:?}");

        opened.close().await.unwrap();
        let refused = store.advance_due_cursor(PartitionId(0), DueBucket(1)).await;
        assert!(refused.is_err());
    }

    #[tokio::test]
    async fn a_backend_with_nodes_connects_to_them() {
        let config = on_a_cluster();
        assert!(!config.is_exclusive());
        let backend = config.backend(Path::new("unused"));
        let backend = backend.with_connect_timeout(Duration::from_secs(5));
        assert_eq!(backend.to_string(), "state store");
        assert_eq!(backend.place(), "keyspace orders");
        let refused = [
            backend.migrate().await.unwrap_err(),
            backend.check().await.unwrap_err(),
            backend.open().await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.to_string(), "connecting failed in the state store");
        }
    }

    #[test]
    fn what_a_role_sets_reaches_the_cluster_only() {
        let set = |config: &StoreConfig| {
            let backend = config.backend(Path::new("data/store"));
            let backend = backend.with_connect_timeout(Duration::from_secs(7));
            backend.with_attention_walk(Duration::from_secs(9)).0
        };
        let Kind::Cql(cql) = set(&on_a_cluster()) else {
            panic!("not the cluster")
        };
        assert_eq!(cql.connect_timeout, Duration::from_secs(7));
        assert_eq!(cql.attention_walk_interval, Some(Duration::from_secs(9)));
        let Kind::Embedded(embedded) = set(&StoreConfig::default()) else {
            panic!("not the embedded store")
        };
        assert_eq!(embedded, EmbeddedConfig::new("data/store"));
    }
}
