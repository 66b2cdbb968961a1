//! Telling people of alerts.

use waybill_kafka::KafkaSettings;

use super::topic_names;
use crate::alerts::{AlertSource, followers};
use crate::config::Config;
use crate::shutdown::{Running, Stage};

/// The share of the stop that an attempt under way may take: others stop after it.
const STOP_SHARE: u32 = 4;

/// Starts a follower for every configured receiver.
pub(super) fn start(
    config: &Config,
    kafka: &KafkaSettings,
    running: &Running,
) -> anyhow::Result<()> {
    let source = AlertSource {
        kafka: kafka.clone(),
        topics: topic_names(config),
        stop_within: config.shutdown_timeout / STOP_SHARE,
    };
    for follower in followers(&config.alerts, &source)? {
        let name = format!("alerts to {}", follower.receiver());
        // After the scheduler, so that what its last decisions raise is told of, too.
        running.spawn(Stage::Agents, name, |stop| follower.run(stop));
    }
    Ok(())
}
