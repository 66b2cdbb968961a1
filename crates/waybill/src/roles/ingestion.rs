//! The ingestion role: the HTTP API.

use std::net::SocketAddr;

use anyhow::Context as _;
use waybill_http::{Cors, Tls, reread};
use waybill_ingestion::{Guards, Ingestion, IngestionParts};
use waybill_node::admin::Admin;
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};
use waybill_node::telemetry::announce;

use super::Dependencies;

/// How this process reaches its own API.
pub(super) struct Api {
    pub(super) address: SocketAddr,
    pub(super) tls: Tls,
}

/// Starts the API.
pub(super) async fn start(
    config: &Config,
    dependencies: &Dependencies,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<Api> {
    let tls = Tls::load("http.tls", &config.http.tls)?;
    let mut ingestion = Ingestion::start(
        config.http.settings(config.alerts.owners.contact_rules()),
        IngestionParts {
            store: dependencies.store.clone(),
            kafka: dependencies.kafka.clone(),
            topics: dependencies.topics.clone(),
            partition_map: dependencies.partition_map.clone(),
            workflows: dependencies.workflows.clone(),
            forms: super::forms(),
            guards: Guards {
                auth: admin.auth().clone(),
                hosts: admin.auth().hosts(&config.http.hosts, &tls),
                cors: Cors::new(&config.http.cors_origins),
                tls: tls.clone(),
                low_disk: dependencies.low_disk.clone(),
            },
        },
    )
    .await?;
    let address = ingestion.address();
    running.spawn(Stage::Ingestion, "ingestion", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = ingestion.ended() => {
                ended.context("the API's listener, or its event streams, failed")?;
                anyhow::bail!("the API's listener, or its event streams, ended");
            }
        }
        ingestion.shutdown().await;
        Ok(())
    });
    if tls.is_on() {
        let tls = tls.clone();
        running.spawn(Stage::Ingestion, "files of certificates", |stop| {
            reread::follow(move || tls.reload(), stop)
        });
    }
    announce("http", address);
    Ok(Api { address, tls })
}
