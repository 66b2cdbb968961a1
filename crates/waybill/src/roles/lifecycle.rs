//! The lifetime of a process with roles: ordered start, readiness, and ordered shutdown.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context as _;
use waybill_config::Environment;
use waybill_http::auth::Auth;
use waybill_http::{Tls, reread};
use waybill_node::admin::Admin;
use waybill_node::config::Config;
use waybill_node::exposure::{exposed, in_the_clear, open_to_all};
use waybill_node::shutdown::{Running, Signals, Stage};
use waybill_node::telemetry::{Telemetry, traces};
use waybill_node::{Role, open_files};

use super::{ports, prepare_data_dir, start};

/// How many tasks a runtime thread runs before it polls sockets and timers (tokio's default is 61).
/// Rarer polls make larger batches. An idle thread polls immediately.
const EVENT_INTERVAL_TASKS: u32 = 200;

/// Runs a role until a signal or a failure ends it.
///
/// Not an `async fn`, so that the roles' code is compiled once with this crate, and not in every
/// program that awaits it.
///
/// # Errors
///
/// If the runtime cannot be created, a part cannot be started, or one fails. A failure was logged
/// with its causes when it happened.
pub fn run(
    role: Role,
    config: &Config,
    environment: &Environment,
    telemetry: Telemetry,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL_TASKS)
        .build()
        .context("cannot start the threads of the runtime")?;
    // Boxed: the runtime's loops, with all that the future awaits, would be compiled several times.
    let live: Pin<Box<dyn Future<Output = _>>> =
        Box::pin(live(role, config, environment, telemetry));
    let outcome = runtime.block_on(live);
    // Tasks that still run were cut off on purpose.
    runtime.shutdown_background();
    outcome
}

async fn live(
    role: Role,
    config: &Config,
    environment: &Environment,
    telemetry: Telemetry,
) -> anyhow::Result<()> {
    for listener in exposed(role, config) {
        tracing::warn!("{listener}: reachable from other machines without authentication");
    }
    if let Some(open) = open_to_all(role, config) {
        tracing::info!(
            listeners = open,
            "authentication is off: every process that can reach these listeners may do everything"
        );
    }
    for listener in in_the_clear(role, config) {
        tracing::warn!(
            "{listener}: receives tokens unencrypted, unless a proxy in front of it terminates TLS"
        );
    }
    open_files::prepare(role, config);
    let mut signals = Signals::of_process().context("cannot receive signals")?;
    let running = Running::new();
    let auth = Auth::load(&config.auth)?;
    let tls = Tls::load("admin.tls", &config.admin.tls)?;
    let spans = traces::install(&config.telemetry.traces, role.service())?;
    let hosts = auth.hosts(&config.admin.hosts, &tls);
    let admin = Admin::new(telemetry, auth.clone(), hosts);
    let all_started = admin
        .readiness
        .expect("all roles to be started, and none to be stopping");
    let start = async {
        ports::check(role, config)?;
        prepare_data_dir(role, config)?;
        let bound = admin.start(&config.admin, tls.clone(), &running).await;
        bound.with_context(|| {
            let listen = config.admin.listen;
            format!("cannot bind the admin address {listen} (--admin; another Waybill may run)")
        })?;
        if let Some(issuer) = auth.authenticator().and_then(|known| known.issuer()) {
            let issuer = Arc::clone(issuer);
            running.spawn(Stage::Admin, "keys of the issuer", |stop| {
                issuer.follow(&admin.readiness, stop)
            });
        }
        let reload = move || {
            auth.reload();
            tls.reload();
        };
        running.spawn(Stage::Admin, "files of tokens", |stop| {
            reread::follow(reload, stop)
        });
        if let Some(spans) = spans {
            running.spawn(Stage::Admin, "spans", |stop| spans.run(stop));
        }
        start(role, config, environment, &admin, &running).await?;
        admin.set_started();
        all_started.set(true);
        // A shutdown ends readiness first, so that no more requests are routed to this process.
        running.spawn(Stage::Samples, "readiness", |stop| async move {
            stop.cancelled().await;
            all_started.set(false);
            Ok(())
        });
        Ok(())
    };
    Ok(running
        .run(start, &mut signals, config.shutdown_timeout)
        .await?)
}
