//! What is counted. Handles are made once; nothing is looked up by name on the way.

use metrics::{Counter, Unit, counter, describe_counter};

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
