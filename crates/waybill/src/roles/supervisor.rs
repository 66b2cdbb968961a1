//! The supervisor role.

use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};
use waybill_supervisor::{SupervisorParts, SupervisorSettings};

use super::{Dependencies, instance};

/// The subdirectory of the data directory with the names of instances.
const INSTANCES_DIR: &str = "supervisor";

/// Starts the supervisor.
pub(super) fn start(config: &Config, dependencies: &Dependencies, running: &Running) {
    let parts = SupervisorParts {
        store: dependencies.store.clone(),
        kafka: dependencies.kafka.clone(),
        topics: dependencies.topics.clone(),
        workflows: dependencies.workflows.clone(),
        partition_map: dependencies.partition_map.clone(),
    };
    let place = instance::place(config, INSTANCES_DIR);
    let settings = SupervisorSettings {
        instance_id: place.as_ref().map(|place| place.id().to_owned()),
        ..supervisor_settings(config)
    };
    running.spawn(Stage::Scheduler, "supervisor", move |stop| async move {
        // Keeps the name reserved for this process while the supervisor uses it.
        let _place = place;
        waybill_supervisor::run(settings, parts, stop).await
    });
}

fn supervisor_settings(config: &Config) -> SupervisorSettings {
    let settings = &config.supervisor;
    SupervisorSettings {
        interval: settings.interval,
        timeout_grace: config.scheduler.timeout_grace,
        recoveries_per_second_max: settings.recoveries_per_second_max,
        audit_interval: settings.audit_interval,
        lease: settings.lease,
        lease_margin: config.scheduler.lease_margin,
        scheduler_lease: config.scheduler.lease,
        clock_skew: settings.clock_skew,
        instance_id: None,
    }
}
