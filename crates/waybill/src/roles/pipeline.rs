//! Ingestion, scheduler and store: what turns requests into finished operations.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use waybill_engine::Workflows;
use waybill_kafka::KafkaSettings;
use waybill_store::{EmbeddedConfig, EmbeddedStore, Store};

use super::{instance, topic_names, trim};
use crate::admin::Admin;
use crate::config::{Config, Environment, partitions_of_this_process};
use crate::ingestion::{Ingestion, IngestionConfig};
use crate::scheduler::{Scheduler, SchedulerParts, SchedulerSettings};
use crate::shutdown::{Running, Stage};
use crate::supervisor::{self, SupervisorParts, SupervisorSettings};
use crate::telemetry::announce;

/// Where in the data directory supervisors find their names.
const SUPERVISORS_DIR: &str = "supervisor";

/// Opens the store, starts scheduler and ingestion, and returns the API's address.
pub(super) async fn start(
    config: &Config,
    environment: &Environment,
    kafka: KafkaSettings,
    workflows: Workflows,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<SocketAddr> {
    let own = partitions_of_this_process(config, environment)?;
    let workflows = Arc::new(workflows);
    let store = open_store(config, running).await?;

    let parts = SchedulerParts {
        store: store.clone(),
        kafka: kafka.clone(),
        topics: topic_names(config),
        workflows: workflows.clone(),
    };
    let scheduler = Scheduler::start(scheduler_settings(config, own), parts, admin)?;
    admin.set_schedulers(scheduler.control());
    let stop = scheduler.stopper();
    running.push(
        Stage::Scheduler,
        "scheduler",
        stop,
        tokio::spawn(scheduler.ended()),
    );

    if config.supervisor.enabled {
        let parts = SupervisorParts {
            store: store.clone(),
            kafka: kafka.clone(),
            topics: topic_names(config),
            workflows: workflows.clone(),
        };
        let place = instance::place(config, SUPERVISORS_DIR);
        let settings = SupervisorSettings {
            instance_id: place.as_ref().map(|place| place.id().to_owned()),
            ..supervisor_settings(config)
        };
        running.spawn(Stage::Scheduler, "supervisor", move |stop| async move {
            // The name is this process's for as long as the supervisor uses it.
            let _place = place;
            supervisor::run(settings, parts, stop).await
        });
    }

    if config.kafka.brokers.is_none() {
        let requests = topic_names(config).requests().to_owned();
        let (kafka, store, partitions) = (kafka.clone(), store.clone(), config.partitions);
        running.spawn(
            Stage::Scheduler,
            "trimming of finished requests",
            move |stop| trim::run(kafka, requests, partitions, store, stop),
        );
    }

    let ingestion = Ingestion::start(
        ingestion_config(config),
        store,
        kafka,
        topic_names(config),
        config.partitions,
        workflows,
    )
    .await?;
    let address = ingestion.address();
    running.spawn(Stage::Ingestion, "ingestion", |stop| async move {
        stop.cancelled().await;
        ingestion.shutdown().await;
        Ok(())
    });
    announce("http", address);
    Ok(address)
}

async fn open_store(config: &Config, running: &Running) -> anyhow::Result<Arc<dyn Store>> {
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
        drain_timeout: http.drain_timeout,
    }
}

fn supervisor_settings(config: &Config) -> SupervisorSettings {
    let settings = &config.supervisor;
    SupervisorSettings {
        partitions: config.partitions,
        interval: settings.interval,
        timeout_grace: config.scheduler.timeout_grace,
        recoveries_per_second_max: settings.recoveries_per_second_max,
        lease: settings.lease,
        lease_margin: config.scheduler.lease_margin,
        scheduler_lease: config.scheduler.lease,
        clock_skew: settings.clock_skew,
        instance_id: None,
    }
}

fn scheduler_settings(config: &Config, own: Vec<waybill_engine::PartitionId>) -> SchedulerSettings {
    let settings = &config.scheduler;
    SchedulerSettings {
        partitions: config.partitions,
        step_partitions: config.kafka.step_partitions,
        own,
        in_flight_max: settings.in_flight_max,
        in_flight_bytes_max: settings.in_flight_bytes_max.as_usize(),
        hand_off_after: settings.hand_off_after,
        retention: config.store.retention,
        timeout_grace: settings.timeout_grace,
        // Well before ingestion tells a caller to repeat.
        fresh_for: config.http.accept_timeout / 2,
        checkpoint_every: settings.checkpoint_every,
        checkpoint_records: i64::try_from(settings.checkpoint_records).unwrap_or(i64::MAX),
        lease: settings.lease,
        lease_margin: settings.lease_margin,
        drain: settings.drain,
        decide_within: settings.decide_within,
        tell_steps: settings.tell_steps,
        reply_to_prefixes: config.http.reply_to_prefixes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingestion_has_the_same_defaults_as_its_section_of_the_configuration() {
        assert_eq!(
            ingestion_config(&Config::default()),
            IngestionConfig::default()
        );
    }
}
