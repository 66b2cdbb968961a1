//! The scheduler role.

use waybill_agent::DirectConfig;
use waybill_agent::http::NamedHandler;
use waybill_node::admin::Admin;
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};
use waybill_scheduler::metrics::show_requests_retention;
use waybill_scheduler::{Own, Scheduler, SchedulerParts, SchedulerSettings, reply_key};
use waybill_topology::repartition::{self, Repartition};
use waybill_topology::shards::{self, show::Shards};
use waybill_topology::topics::BrokerKind;
use waybill_topology::trim;

use super::Dependencies;

/// Starts the scheduler of this process's shards, with the `agents` that it calls directly.
pub(super) async fn start(
    config: &Config,
    own: Own,
    agents: Vec<NamedHandler>,
    dependencies: &Dependencies,
    admin: &Admin,
    running: &Running,
) -> anyhow::Result<()> {
    let layout = shards::layout_at_start(&*dependencies.store, config.topology().scheme).await?;
    let parts = SchedulerParts {
        store: dependencies.store.clone(),
        kafka: dependencies.kafka.clone(),
        topics: dependencies.topics.clone(),
        workflows: dependencies.workflows.clone(),
        forms: super::forms(),
        layout,
        reply_key: reply_key(&*dependencies.store).await?,
        agents,
        agents_hold: DirectConfig {
            // One commit may send all operations in flight to the same agent.
            in_flight_max: config
                .agents
                .in_flight_max
                .max(config.scheduler.in_flight_max),
            in_flight_bytes_max: config.scheduler.in_flight_bytes_max.as_usize(),
        },
    };
    match dependencies.broker {
        BrokerKind::Kafka => show_requests_retention(config.kafka.requests_retention),
        // On the embedded broker, requests do not expire but are deleted once they are done.
        BrokerKind::Embedded => {
            let (kafka, topics) = (dependencies.kafka.clone(), dependencies.topics.clone());
            let (partition_map, store) = (
                dependencies.partition_map.clone(),
                dependencies.store.clone(),
            );
            running.spawn(
                Stage::Scheduler,
                "trimming of finished requests and recoveries",
                move |stop| trim::run(kafka, topics, partition_map, store, stop),
            );
        }
    }
    let settings = scheduler_settings(config, own);
    let scheduler = Scheduler::start(settings, parts, &admin.readiness, &admin.liveness)?;
    admin.set_schedulers(scheduler.control());
    admin.set_shards(Shards::new(dependencies.store.clone(), config.partitions));
    let repartition = Repartition::new(
        &config.topology(),
        dependencies.store.clone(),
        dependencies.kafka.clone(),
        dependencies.topics.clone(),
        &dependencies.workflows,
    );
    admin.set_repartition(repartition.clone());
    let partition_map = dependencies.partition_map.clone();
    running.spawn(Stage::Scheduler, "partitions", move |stop| {
        repartition::finish(repartition, partition_map, stop)
    });
    let stop = scheduler.stopper();
    running.push(
        Stage::Scheduler,
        "scheduler",
        stop,
        tokio::spawn(scheduler.ended()),
    );
    Ok(())
}

fn scheduler_settings(config: &Config, own: Own) -> SchedulerSettings {
    let settings = &config.scheduler;
    SchedulerSettings {
        step_partitions: config.kafka.step_partitions,
        own,
        in_flight_max: settings.in_flight_max,
        in_flight_bytes_max: settings.in_flight_bytes_max.as_usize(),
        read_ahead_max: settings.read_ahead_max,
        read_ahead_bytes_max: settings.read_ahead_bytes_max.as_usize(),
        tracked_requests_max: settings.tracked_requests_max,
        high_priority_weight: settings.high_priority_weight,
        hand_off_after: settings.hand_off_after,
        retention: config.store.retention,
        timeout_grace: settings.timeout_grace,
        // Well before ingestion asks a caller to retry.
        fresh_for: config.http.accept_timeout / 2,
        checkpoint_every: settings.checkpoint_every,
        checkpoint_records: i64::try_from(settings.checkpoint_records).unwrap_or(i64::MAX),
        lease: settings.lease,
        lease_margin: settings.lease_margin,
        start_without_state: settings.start_without_state,
        stuck_after: settings.stuck_after,
        skip_deleted_requests: settings.skip_deleted_requests,
        drain: settings.drain,
        supervisor_decision_timeout: settings.supervisor_decision_timeout,
        publish_step_status: settings.publish_step_status,
        reply_to_prefixes: config.http.reply_to_prefixes.clone(),
    }
}
