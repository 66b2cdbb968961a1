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

/// Of one way to owners.
pub(super) struct OwnerMetrics {
    /// Messages that were sent.
    pub delivered: Counter,
    /// Messages that will not be sent: given up or refused.
    pub failed: Counter,
    /// Messages that were not sent because their contact was told often enough.
    pub limited: Counter,
    /// Contacts that may not be told.
    pub refused: Counter,
}

impl OwnerMetrics {
    pub(super) fn new(way: &'static str) -> Self {
        describe_counter!(
            "waybill_owner_notices_delivered_total",
            Unit::Count,
            "Messages that were sent to owners who asked to be told"
        );
        describe_counter!(
            "waybill_owner_notices_failed_total",
            Unit::Count,
            "Messages to owners that were given up or refused"
        );
        describe_counter!(
            "waybill_owner_notices_limited_total",
            Unit::Count,
            "Messages to owners that were not sent because of alerts.owners' limits"
        );
        describe_counter!(
            "waybill_owner_notices_refused_total",
            Unit::Count,
            "Contacts of owners that may not be told, in requests that passed no ingestion"
        );
        Self {
            delivered: counter!("waybill_owner_notices_delivered_total", "way" => way),
            failed: counter!("waybill_owner_notices_failed_total", "way" => way),
            limited: counter!("waybill_owner_notices_limited_total", "way" => way),
            refused: counter!("waybill_owner_notices_refused_total", "way" => way),
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

    /// Of the follower of a way to owners.
    pub(super) fn of_owners(way: &'static str) -> Self {
        describe_counter!(
            "waybill_owner_notices_skipped_total",
            Unit::Count,
            "Notices that owners were not told of because they were older than alerts.maxAge"
        );
        describe_counter!(
            "waybill_owner_notices_unreadable_total",
            Unit::Count,
            "Records of the notices' topic that could not be read, once for each way"
        );
        describe_gauge!(
            "waybill_owner_notices_waiting",
            Unit::Count,
            "Notices that were read for a way to owners and are not yet behind it"
        );
        Self {
            skipped: counter!("waybill_owner_notices_skipped_total", "way" => way),
            unreadable: counter!("waybill_owner_notices_unreadable_total", "way" => way),
            waiting: gauge!("waybill_owner_notices_waiting", "way" => way),
        }
    }
}
