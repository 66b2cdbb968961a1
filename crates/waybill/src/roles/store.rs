//! Opens the configured state store, and closes it at the end.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_node::Role;
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};
use waybill_store::{DamageReport, OpenStore, StoreError};
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

/// Opens the store. A process with all roles migrates a cluster itself. With a single role, that is
/// left to the deployment.
pub(super) async fn open(
    role: Role,
    config: &Config,
    running: &Running,
) -> anyhow::Result<OpenStore> {
    let mut backend = config.store_backend().with_connect_timeout(CONNECT_TIMEOUT);
    if let Role::Up { .. } | Role::Supervisor = role {
        backend = backend.with_attention_walk(ATTENTION_WALK);
    }
    // A store of this process alone has no servers that may still be starting.
    let patience = match config.store.is_exclusive() {
        true => Duration::ZERO,
        false => DATABASE_PATIENCE,
    };
    if let Role::Up { .. } = role {
        once_there(patience, || backend.migrate())
            .await
            .context("cannot prepare the state store")?;
    }
    let opened = once_there(patience, || backend.open()).await;
    let opened = opened.map_err(|error| match error {
        StoreError::Locked { .. } => in_use(&config.data_dir.display()),
        error => anyhow::Error::from(error).context(format!("cannot open the {backend}")),
    })?;
    let closing = opened.clone();
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
    Ok(opened)
}

/// Retries for as long as a database may take to start.
async fn once_there<T, F>(patience: Duration, ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + patience;
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
