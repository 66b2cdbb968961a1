//! Starts the delivery of alerts and notices.

use std::sync::Arc;

use waybill_agent::InstancePlace;
use waybill_alerts::{AlertSource, followers, owners_followers};
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};

use super::{Dependencies, instance};

/// The subdirectory of the data directory with the names of instances.
const INSTANCES_DIR: &str = "alerts";

/// The share of the shutdown time that a running attempt may take. Other stages stop after it.
const STOP_SHARE: u32 = 4;

/// Starts a follower for every configured receiver, and for every channel to owners.
pub(super) fn start(
    config: &Config,
    dependencies: &Dependencies,
    running: &Running,
) -> anyhow::Result<()> {
    let owners = &config.alerts.owners;
    if config.alerts.receivers.is_empty() && owners.email.is_none() && owners.sms.is_none() {
        return Ok(());
    }
    let place = instance::place(config, INSTANCES_DIR).map(Arc::new);
    let source = AlertSource {
        kafka: dependencies.kafka.clone(),
        topics: dependencies.topics.clone(),
        instance_id: place.as_ref().map(|place| place.id().to_owned()),
        stop_within: config.shutdown_timeout / STOP_SHARE,
    };
    for follower in followers(&config.alerts, &source)? {
        let name = format!("alerts to {}", follower.receiver());
        // Stops after the scheduler, so that alerts of its last decisions are delivered too.
        let place = place.clone();
        running.spawn(Stage::Agents, name, |stop| {
            held_for(place, follower.run(stop))
        });
    }
    for follower in owners_followers(&config.alerts, &source)? {
        let name = format!("alerts to {}", follower.name());
        let place = place.clone();
        running.spawn(Stage::Agents, name, |stop| {
            held_for(place, follower.run(stop))
        });
    }
    Ok(())
}

/// Runs a follower, and keeps its name reserved for this process in the meantime.
async fn held_for(
    place: Option<Arc<InstancePlace>>,
    following: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let result = following.await;
    drop(place);
    result
}
