//! The metrics of alerts. Handles are created once; later code looks nothing up by name.

use metrics::{Counter, Gauge};
use waybill_telemetry::{Declared, Metric};

const DELIVERED: Metric<Counter, 1> = Metric::new(
    "waybill_alerts_delivered_total",
    "Alerts that were delivered to a receiver, alone or combined with others",
    ["receiver"],
);
const FAILED: Metric<Counter, 1> = Metric::new(
    "waybill_alerts_failed_total",
    "Alerts that will not be delivered to a receiver: given up, refused, or the receiver is gone",
    ["receiver"],
);
const FOLDED: Metric<Counter> = Metric::new(
    "waybill_alerts_folded_total",
    "Alerts that were combined with similar ones into one message",
    [],
);
const SKIPPED: Metric<Counter, 1> = Metric::new(
    "waybill_alerts_skipped_total",
    "Alerts that were not sent to a receiver because they were older than alerts.maxAge",
    ["receiver"],
);
const UNREADABLE: Metric<Counter, 1> = Metric::new(
    "waybill_alerts_unreadable_total",
    "Records of the topic of alerts that could not be read, once for each receiver",
    ["receiver"],
);
const WAITING: Metric<Gauge, 1> = Metric::new(
    "waybill_alerts_waiting",
    "Alerts read for a receiver, counted from the oldest unsettled one",
    ["receiver"],
);
const OWNERS_DELIVERED: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_delivered_total",
    "Messages that were sent to owners who asked for notifications",
    ["channel"],
);
const OWNERS_FAILED: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_failed_total",
    "Messages to owners that were given up or refused",
    ["channel"],
);
const OWNERS_LIMITED: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_limited_total",
    "Messages to owners that were not sent because of the limits of alerts.owners",
    ["channel"],
);
const OWNERS_REFUSED: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_refused_total",
    "Contacts of owners that were rejected, in requests that bypassed ingestion",
    ["channel"],
);
const OWNERS_SKIPPED: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_skipped_total",
    "Notices that were not sent to owners because they were older than alerts.maxAge",
    ["channel"],
);
const OWNERS_UNREADABLE: Metric<Counter, 1> = Metric::new(
    "waybill_owner_notices_unreadable_total",
    "Records of the topic of notices that could not be read, once for each channel",
    ["channel"],
);
const OWNERS_WAITING: Metric<Gauge, 1> = Metric::new(
    "waybill_owner_notices_waiting",
    "Notices read for a channel, counted from the oldest unsettled one",
    ["channel"],
);

/// All metrics of alerts.
pub const METRICS: &[&dyn Declared] = &[
    &DELIVERED,
    &FAILED,
    &FOLDED,
    &SKIPPED,
    &UNREADABLE,
    &WAITING,
    &OWNERS_DELIVERED,
    &OWNERS_FAILED,
    &OWNERS_LIMITED,
    &OWNERS_REFUSED,
    &OWNERS_SKIPPED,
    &OWNERS_UNREADABLE,
    &OWNERS_WAITING,
];

/// The metrics of one receiver.
pub(super) struct ReceiverMetrics {
    /// Delivered alerts, each individually or as one of several.
    pub delivered: Counter,
    /// Alerts that were given up or refused.
    pub failed: Counter,
    /// Alerts that were folded into one message, over all receivers.
    pub folded: Counter,
}

impl ReceiverMetrics {
    pub(super) fn new(receiver: &str) -> Self {
        Self {
            delivered: DELIVERED.of([receiver]),
            failed: FAILED.of([receiver]),
            folded: FOLDED.of([]),
        }
    }
}

/// The metrics of one channel to owners.
pub(super) struct OwnerMetrics {
    /// Messages that were sent.
    pub delivered: Counter,
    /// Messages that will not be sent: given up or refused.
    pub failed: Counter,
    /// Messages that were not sent because their contact reached its hourly limit.
    pub limited: Counter,
    /// Contacts that may not be notified.
    pub refused: Counter,
}

impl OwnerMetrics {
    pub(super) fn new(channel: &str) -> Self {
        Self {
            delivered: OWNERS_DELIVERED.of([channel]),
            failed: OWNERS_FAILED.of([channel]),
            limited: OWNERS_LIMITED.of([channel]),
            refused: OWNERS_REFUSED.of([channel]),
        }
    }
}

/// The metrics of the follower of one receiver, or of one channel to owners.
pub(super) struct FollowerMetrics {
    /// Alerts that were skipped because of their age.
    pub skipped: Counter,
    /// Records that cannot be decoded.
    pub unreadable: Counter,
    /// Alerts that were read and are not settled, or that wait for an unsettled one before them.
    pub waiting: Gauge,
}

impl FollowerMetrics {
    pub(super) fn new(receiver: &str) -> Self {
        Self {
            skipped: SKIPPED.of([receiver]),
            unreadable: UNREADABLE.of([receiver]),
            waiting: WAITING.of([receiver]),
        }
    }

    /// The metrics of the follower of a channel to owners.
    pub(super) fn of_owners(channel: &str) -> Self {
        Self {
            skipped: OWNERS_SKIPPED.of([channel]),
            unreadable: OWNERS_UNREADABLE.of([channel]),
            waiting: OWNERS_WAITING.of([channel]),
        }
    }
}
