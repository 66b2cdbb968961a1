//! What `waybill` brings along: the embedded broker and the simulated services.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use waybill_broker::{Broker, BrokerConfig, Logs};
use waybill_drone_delivery::services::{Services, ServicesConfig};

use super::agents::Reached;
use super::broker_metrics::BrokerMetrics;
use crate::config::Config;
use crate::shutdown::{Running, Stage};
use crate::telemetry::announce;

/// Where the embedded broker keeps its files.
pub(crate) fn broker_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("broker")
}

/// Starts the embedded broker and returns its address, and where copies of it are begun.
pub(super) async fn broker(
    config: &Config,
    running: &Running,
) -> anyhow::Result<(SocketAddr, Logs)> {
    let settings = &config.broker;
    let mut broker_config = BrokerConfig::new(broker_dir(&config.data_dir));
    broker_config.listen = settings.listen;
    broker_config.advertised = settings.advertised_host_and_port();
    broker_config.connections_max = settings.connections_max;
    broker_config.request_bytes_max = settings.request_bytes_max.as_usize();
    broker_config.topic_defaults.segment_bytes = settings.segment_bytes.as_u64();
    let broker = Broker::start(broker_config)
        .await
        .context("the embedded broker cannot be started")?;
    let (address, logs) = (broker.address(), broker.logs());
    running.spawn(Stage::Broker, "broker", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => {}
            failure = broker.failed() => anyhow::bail!(failure),
            never = BrokerMetrics::new().show(|| broker.stats()) => match never {},
        }
        broker.shutdown().await;
        Ok(())
    });
    announce("broker", address);
    Ok((address, logs))
}

/// Starts the simulated services and returns how they are reached.
pub(super) async fn services(config: &Config, running: &Running) -> anyhow::Result<Reached> {
    let settings = &config.services;
    let mut services_config =
        ServicesConfig::new(settings.listen, config.data_dir.join("services"));
    services_config.suspended_prefix = settings.suspended_prefix.clone();
    services_config.remote_marker = settings.remote_marker.clone();
    services_config.faults = settings.faults;
    let services = Services::start(services_config).await?;
    let (address, caller) = (services.address(), services.caller());
    running.spawn(Stage::Services, "services", |stop| async move {
        stop.cancelled().await;
        services.shutdown().await;
        Ok(())
    });
    announce("services", address);
    Ok(Reached {
        address: address.to_string(),
        caller: Some(caller),
    })
}
