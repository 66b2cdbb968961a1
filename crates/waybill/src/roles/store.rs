//! The state store: the embedded one of this process, or the cluster that the configuration names.

use std::sync::Arc;

use anyhow::Context as _;
use waybill_store::{CqlStore, EmbeddedConfig, EmbeddedStore, Store};

use crate::cli::Role;
use crate::config::Config;
use crate::shutdown::{Running, Stage};

/// How often one supervisor looks whether old attention entries still lead anywhere.
const ATTENTION_WALK: std::time::Duration = std::time::Duration::from_secs(60 * 60);

/// Opens the store. A process with all roles prepares a cluster for itself; one with a single role
/// leaves that to whoever deploys it.
pub(super) async fn open(
    role: Role,
    config: &Config,
    running: &Running,
) -> anyhow::Result<Arc<dyn Store>> {
    let Some(mut cql) = config.store.scylla.cql() else {
        return embedded(config, running).await;
    };
    if let Role::Up { .. } | Role::Supervisor = role {
        cql.attention_walk_interval = Some(ATTENTION_WALK);
    }
    if let Role::Up { .. } = role {
        CqlStore::migrate(&cql)
            .await
            .context("the state store cannot be prepared")?;
    }
    let store = CqlStore::connect(cql)
        .await
        .context("the state store cannot be opened")?;
    Ok(Arc::new(store))
}

async fn embedded(config: &Config, running: &Running) -> anyhow::Result<Arc<dyn Store>> {
    let mut store_config = EmbeddedConfig::new(config.data_dir.join("store"));
    store_config.cache_bytes = config.store.cache_bytes.as_u64();
    let store = tokio::task::spawn_blocking(move || EmbeddedStore::open(store_config))
        .await?
        .context("the embedded store cannot be opened")?;
    let store = Arc::new(store);
    let closing = store.clone();
    // Closed when nobody writes any more: in the broker's stage, after the scheduler's.
    running.spawn(Stage::Broker, "store", |stop| async move {
        stop.cancelled().await;
        Ok(closing.close().await?)
    });
    Ok(store)
}
