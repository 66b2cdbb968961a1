//! The ingestion role: the HTTP API.

use std::net::SocketAddr;

use waybill_http::{Tls, reread};
use waybill_ingestion::{Guards, Ingestion, IngestionConfig};
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
    let ingestion = Ingestion::start(
        ingestion_config(config),
        dependencies.store.clone(),
        dependencies.kafka.clone(),
        dependencies.topics.clone(),
        dependencies.partition_map.clone(),
        dependencies.workflows.clone(),
        Guards {
            auth: admin.auth().clone(),
            hosts: admin.auth().hosts(&config.http.hosts, &tls),
            tls: tls.clone(),
            low_disk: dependencies.low_disk.clone(),
        },
    )
    .await?;
    let address = ingestion.address();
    running.spawn(Stage::Ingestion, "ingestion", |stop| async move {
        stop.cancelled().await;
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

fn ingestion_config(config: &Config) -> IngestionConfig {
    let http = &config.http;
    IngestionConfig {
        listen: http.listen,
        request_bytes_max: http.request_bytes_max.as_usize(),
        batch_line_bytes_max: http.batch_line_bytes_max.as_usize(),
        batch_lines_max: http.batch_lines_max,
        header_bytes_max: http.header_bytes_max.as_usize(),
        headers_max: http.headers_max,
        body_bytes_max: http.body_bytes_max.as_usize(),
        json_depth_max: http.json_depth_max,
        connections_max: http.connections_max,
        connections_per_address_max: http.connections_per_address_max(),
        requests_max: http.requests_max,
        header_read_timeout: http.header_read_timeout,
        body_read_timeout: http.body_read_timeout,
        body_timeout: http.body_timeout,
        idle_timeout: http.idle_timeout,
        accept_timeout: http.accept_timeout,
        producer_queue_records_max: http.producer_queue_records_max,
        producer_queue_bytes_max: http.producer_queue_bytes_max.as_usize(),
        recent_accepted_max: http.recent_accepted_max,
        pending_reads_max: http.pending_reads_max,
        pending_read_timeout: http.pending_read_timeout,
        reply_to_prefixes: http.reply_to_prefixes.clone(),
        contacts: config.alerts.owners.contact_rules(),
        event_streams_max: http.event_streams_max,
        lists_max: http.lists_max,
        tenant_rates: http.tenant_limits.rates(),
        has_high_priority_topic: http.high_priority_topic,
        drain_timeout: http.drain_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingestion_has_the_defaults_of_its_section() {
        assert_eq!(
            ingestion_config(&Config::default()),
            IngestionConfig::default()
        );
    }
}
