//! Opens the state store: the embedded one of this process, or the configured cluster.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_node::Role;
use waybill_node::config::Config;
use waybill_node::data_dir;
use waybill_node::instrumented_store::InstrumentedStore;
use waybill_node::shutdown::{Running, Stage};
use waybill_store::{CqlStore, DamageReport, EmbeddedConfig, EmbeddedStore, Store, StoreError};
use waybill_telemetry::chain;
use waybill_telemetry::visible::counted;

use super::embedded::in_use;

/// The maximum time for a database to start.
const DATABASE_PATIENCE: Duration = Duration::from_secs(60);
/// The maximum time for one attempt to connect. Longer than the driver waits for a silent node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause before an unavailable database is tried again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a supervisor checks whether old attention entries are still valid.
const ATTENTION_WALK: Duration = Duration::from_secs(60 * 60);

/// Readiness warnings about damage in the store.
pub(super) fn messages_of(damage: &DamageReport) -> Vec<String> {
    let refused = damage.refused.iter();
    let refused = refused.map(|cause| format!("the state store refuses every write: {cause}"));
    let parts = damage.parts.iter().map(ToString::to_string);
    let mut messages: Vec<String> = refused.chain(parts).collect();
    if damage.more > 0 {
        let more = counted(damage.more, "more damaged part");
        messages.push(format!("{more} of the store"));
    }
    messages
}

/// An open store.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    /// The same store, if it is embedded.
    pub(super) embedded: Option<Weak<EmbeddedStore>>,
}

/// Opens the store. A process with all roles migrates a cluster itself. With a single role, that is
/// left to the deployment.
pub(super) async fn open(role: Role, config: &Config, running: &Running) -> anyhow::Result<Opened> {
    let Some(mut cql) = config.store.scylla.cql() else {
        let store = embedded(config, running).await?;
        let embedded = Some(Arc::downgrade(&store));
        return Ok(Opened {
            store: Arc::new(InstrumentedStore::new(store)),
            embedded,
        });
    };
    cql.connect_timeout = CONNECT_TIMEOUT;
    if let Role::Up { .. } | Role::Supervisor = role {
        cql.attention_walk_interval = Some(ATTENTION_WALK);
    }
    if let Role::Up { .. } = role {
        once_there(|| CqlStore::migrate(&cql))
            .await
            .context("cannot prepare the state store")?;
    }
    let store = once_there(|| CqlStore::connect(cql.clone()))
        .await
        .context("cannot open the state store")?;
    Ok(Opened {
        store: Arc::new(InstrumentedStore::new(Arc::new(store))),
        embedded: None,
    })
}

/// Retries for as long as a database may take to start.
async fn once_there<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + DATABASE_PATIENCE;
    let mut is_logged = false;
    loop {
        match ask().await {
            Err(error @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. }))
                if Instant::now() < deadline =>
            {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(error = %chain(&error), "waiting for the database");
                }
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
            answer => return answer,
        }
    }
}

async fn embedded(config: &Config, running: &Running) -> anyhow::Result<Arc<EmbeddedStore>> {
    let mut store_config = EmbeddedConfig::new(data_dir::of_store(&config.data_dir));
    store_config.cache_bytes = config.store.cache_bytes.as_u64();
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(store_config)).await?;
    let store = opened.map_err(|error| match error {
        StoreError::Locked { .. } => in_use(&config.data_dir.display()),
        error => anyhow::Error::from(error).context("cannot open the embedded store"),
    })?;
    let store = Arc::new(store);
    let closing = store.clone();
    // Closed in the broker's stage, after the scheduler's, when nothing writes any more.
    running.spawn(Stage::Broker, "store", |stop| async move {
        let refused = tokio::select! {
            () = stop.cancelled() => None,
            why = closing.refuses_writes() => Some(why),
        };
        let closed = closing.close().await;
        if let Some(why) = refused {
            anyhow::bail!("the state store no longer accepts writes: {why}");
        }
        Ok(closed?)
    });
    Ok(store)
}
