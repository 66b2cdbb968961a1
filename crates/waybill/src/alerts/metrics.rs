//! What is counted. Handles are made once; nothing is looked up by name on the way.

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

/// Of one receiver.
pub(super) struct ReceiverMetrics {
    /// Alerts that it had, each by itself or as one of several.
    pub delivered: Counter,
    /// Alerts that it will not have.
    pub failed: Counter,
    /// Alerts that became one of several, over all receivers.
    pub folded: Counter,
}

impl ReceiverMetrics {
    pub(super) fn new(receiver: &str) -> Self {
        describe_counter!(
            "waybill_alerts_delivered_total",
            Unit::Count,
            "Alerts that a receiver had, alone or as one of several"
        );
        describe_counter!(
            "waybill_alerts_failed_total",
            Unit::Count,
            "Alerts that a receiver will not have: given up, refused, or wanted no more"
        );
        describe_counter!(
            "waybill_alerts_folded_total",
            Unit::Count,
            "Alerts that were told of together with others like them"
        );
        Self {
            delivered: counter!("waybill_alerts_delivered_total", "receiver" => receiver.to_owned()),
            failed: counter!("waybill_alerts_failed_total", "receiver" => receiver.to_owned()),
            folded: counter!("waybill_alerts_folded_total"),
        }
    }
}

/// Of the follower of one receiver.
pub(super) struct FollowerMetrics {
    /// Alerts that were too old to be told of.
    pub skipped: Counter,
    /// Records that are no alerts.
    pub unreadable: Counter,
    /// Alerts that were read and are not settled, or wait for one before them that is not.
    pub waiting: Gauge,
}

impl FollowerMetrics {
    pub(super) fn new(receiver: &str) -> Self {
        describe_counter!(
            "waybill_alerts_skipped_total",
            Unit::Count,
            "Alerts that a receiver was not told of because they were older than alerts.maxAge"
        );
        describe_counter!(
            "waybill_alerts_unreadable_total",
            Unit::Count,
            "Records of the alerts' topic that could not be read, once for each receiver"
        );
        describe_gauge!(
            "waybill_alerts_waiting",
            Unit::Count,
            "Alerts that were read for a receiver and are not yet behind it"
        );
        Self {
            skipped: counter!("waybill_alerts_skipped_total", "receiver" => receiver.to_owned()),
            unreadable: counter!(
                "waybill_alerts_unreadable_total", "receiver" => receiver.to_owned()
            ),
            waiting: gauge!("waybill_alerts_waiting", "receiver" => receiver.to_owned()),
        }
    }
}
