//! The metrics of the embedded broker.

use std::convert::Infallible;
use std::time::Duration;

use metrics::{Counter, Gauge};
use waybill_broker::{BatchRefusal, Stats};
use waybill_telemetry::{Declared, Metric};

/// How often the metrics are updated.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// A metric, and the broker's counter behind it.
type Counted<K> = (Metric<K>, fn(&Stats) -> u64);

static COUNTERS: [Counted<Counter>; 18] = [
    (
        Metric::new(
            "waybill_broker_received_bytes_total",
            "Bytes read from clients",
            [],
        ),
        |s| s.received_bytes,
    ),
    (
        Metric::new(
            "waybill_broker_sent_bytes_total",
            "Bytes written to clients",
            [],
        ),
        |s| s.sent_bytes,
    ),
    (
        Metric::new("waybill_broker_requests_total", "Requests of all kinds", []),
        |s| s.requests,
    ),
    (
        Metric::new(
            "waybill_broker_produce_requests_total",
            "Produce requests",
            [],
        ),
        |s| s.produce_requests,
    ),
    (
        Metric::new(
            "waybill_broker_batches_total",
            "Record batches appended",
            [],
        ),
        |s| s.batches,
    ),
    (
        Metric::new(
            "waybill_broker_appended_bytes_total",
            "Bytes of record batches appended",
            [],
        ),
        |s| s.appended_bytes,
    ),
    (
        Metric::new("waybill_broker_fetch_requests_total", "Fetch requests", []),
        |s| s.fetch_requests,
    ),
    (
        Metric::new(
            "waybill_broker_fetch_waits_total",
            "Fetch requests that had to wait for records",
            [],
        ),
        |s| s.fetch_waits,
    ),
    (
        Metric::new(
            "waybill_broker_fetched_bytes_total",
            "Bytes of record batches handed to consumers",
            [],
        ),
        |s| s.fetched_bytes,
    ),
    (
        Metric::new(
            "waybill_broker_syncs_total",
            "Syncs to disk that produce requests waited for",
            [],
        ),
        |s| s.syncs,
    ),
    (
        Metric::new(
            "waybill_broker_connections_replaced_total",
            "Connections that were closed to make room for a new one",
            [],
        ),
        |s| s.connections_replaced,
    ),
    (
        Metric::new(
            "waybill_broker_connections_refused_total",
            "New connections that were refused because no open one could be closed for them",
            [],
        ),
        |s| s.connections_refused,
    ),
    (
        Metric::new(
            "waybill_broker_slow_transfers_total",
            "Connections that were closed because their request or response was among the slowest while memory for large ones was short",
            [],
        ),
        |s| s.slow_transfers,
    ),
    (
        Metric::new(
            "waybill_broker_malformed_total",
            "Connections that were closed because they sent malformed data",
            [],
        ),
        |s| s.malformed,
    ),
    (
        Metric::new(
            "waybill_broker_logins_refused_total",
            "Logins that were refused",
            [],
        ),
        |s| s.logins_refused,
    ),
    (
        Metric::new(
            "waybill_broker_unauthorized_total",
            "Topics and groups of requests that the client's login did not allow",
            [],
        ),
        |s| s.unauthorized,
    ),
    (
        Metric::new(
            "waybill_broker_damaged_batches_total",
            "Record batches that were found to be damaged on disk when they were read",
            [],
        ),
        |s| s.damaged_batches,
    ),
    (
        Metric::new(
            "waybill_broker_disk_full_total",
            "Record batches that were refused because the disk is full",
            [],
        ),
        |s| s.disk_full,
    ),
];

static GAUGES: [Counted<Gauge>; 23] = [
    (
        Metric::new(
            "waybill_broker_connections",
            "Connections that are open",
            [],
        ),
        |s| s.connections,
    ),
    (
        Metric::new(
            "waybill_broker_connections_max",
            "Connections that may be open",
            [],
        ),
        |s| s.connections_max,
    ),
    (
        Metric::new(
            "waybill_broker_connections_per_address",
            "Connections that are open of the address that has the most",
            [],
        ),
        |s| s.connections_per_address,
    ),
    (
        Metric::new(
            "waybill_broker_connections_per_address_max",
            "Connections that one address may have open",
            [],
        ),
        |s| s.connections_per_address_max,
    ),
    (
        Metric::new(
            "waybill_broker_own_connections",
            "Connections of the roles of the broker's own process",
            [],
        ),
        |s| s.own_connections,
    ),
    (
        Metric::new(
            "waybill_broker_own_connections_max",
            "Connections that may be open to the listener for the roles of the broker's own process",
            [],
        ),
        |s| s.own_connections_max,
    ),
    (
        Metric::new(
            "waybill_broker_groups",
            "Consumer groups that have members",
            [],
        ),
        |s| s.groups,
    ),
    (
        Metric::new(
            "waybill_broker_groups_max",
            "Consumer groups that may have members",
            [],
        ),
        |s| s.groups_max,
    ),
    (
        Metric::new(
            "waybill_broker_group_members",
            "Members of the consumer group that has the most",
            [],
        ),
        |s| s.group_members,
    ),
    (
        Metric::new(
            "waybill_broker_group_members_max",
            "Members that one consumer group may have",
            [],
        ),
        |s| s.group_members_max,
    ),
    (
        Metric::new(
            "waybill_broker_group_bytes",
            "Memory of all consumer groups in bytes: ids, subscriptions and assignments of their members",
            [],
        ),
        |s| s.group_bytes,
    ),
    (
        Metric::new(
            "waybill_broker_group_bytes_max",
            "Limit on the memory of all consumer groups, in bytes",
            [],
        ),
        |s| s.group_bytes_max,
    ),
    (
        Metric::new(
            "waybill_broker_stored_groups",
            "Consumer groups with committed offsets, recounted within ten seconds after some were removed",
            [],
        ),
        |s| s.stored_groups,
    ),
    (
        Metric::new(
            "waybill_broker_stored_groups_max",
            "Consumer groups that may have committed offsets",
            [],
        ),
        |s| s.stored_groups_max,
    ),
    (
        Metric::new("waybill_broker_log_bytes", "Bytes of all logs on disk", []),
        |s| s.log_bytes,
    ),
    (
        Metric::new("waybill_broker_partitions", "Partitions of all topics", []),
        |s| s.partitions,
    ),
    (
        Metric::new(
            "waybill_broker_partitions_max",
            "Partitions that all topics may have",
            [],
        ),
        |s| s.partitions_max,
    ),
    (
        Metric::new(
            "waybill_broker_requests_in_flight",
            "Unanswered requests of the connection that has the most",
            [],
        ),
        |s| s.requests_in_flight,
    ),
    (
        Metric::new(
            "waybill_broker_requests_in_flight_max",
            "Unanswered requests that one connection may have",
            [],
        ),
        |s| s.requests_in_flight_max,
    ),
    (
        Metric::new(
            "waybill_broker_buffer_bytes",
            "Memory of produce requests, members that join groups, and fetch responses, if they are larger than 64 KiB, in bytes: the most within the last second",
            [],
        ),
        |s| s.buffer_bytes,
    ),
    (
        Metric::new(
            "waybill_broker_buffer_bytes_max",
            "Limit on the memory of large produce requests, joining members, and fetch responses, in bytes",
            [],
        ),
        |s| s.buffer_bytes_max,
    ),
    (
        Metric::new(
            "waybill_broker_control_buffer_bytes",
            "Memory of other requests of more than about 7 KiB, with their responses, in bytes: the most within the last second",
            [],
        ),
        |s| s.control_buffer_bytes,
    ),
    (
        Metric::new(
            "waybill_broker_control_buffer_bytes_max",
            "Limit on the memory of other large requests, with their responses, in bytes",
            [],
        ),
        |s| s.control_buffer_bytes_max,
    ),
];

const BATCHES_REFUSED: Metric<Counter, 1> = Metric::new(
    "waybill_broker_batches_refused_total",
    "Record batches that the broker refused as invalid or too large, by reason",
    ["reason"],
);

/// A gauge, because counters of this library cannot hold fractions as Prometheus' can.
const SYNC_SECONDS: Metric<Gauge> = Metric::new(
    "waybill_broker_sync_seconds",
    "Time spent in syncs since the broker started",
    [],
);

/// All of these metrics.
#[must_use]
pub fn declared() -> Vec<&'static dyn Declared> {
    let counters = COUNTERS.iter().map(|(metric, _)| metric as &dyn Declared);
    let gauges = GAUGES.iter().map(|(metric, _)| metric as &dyn Declared);
    let others: [&dyn Declared; 2] = [&BATCHES_REFUSED, &SYNC_SECONDS];
    counters.chain(gauges).chain(others).collect()
}

/// The handles of these metrics.
#[derive(Debug)]
pub struct BrokerMetrics {
    counters: [Counter; COUNTERS.len()],
    gauges: [Gauge; GAUGES.len()],
    batches_refused: [Counter; BatchRefusal::ALL.len()],
    sync_seconds: Gauge,
}

impl BrokerMetrics {
    /// Handles that are registered with the recorder of the process.
    #[must_use]
    pub fn registered() -> Self {
        Self {
            counters: COUNTERS.each_ref().map(|(metric, _)| metric.of([])),
            gauges: GAUGES.each_ref().map(|(metric, _)| metric.of([])),
            batches_refused: BatchRefusal::ALL.map(|(_, reason)| BATCHES_REFUSED.of([reason])),
            sync_seconds: SYNC_SECONDS.of([]),
        }
    }

    /// Updates the metrics periodically.
    pub async fn show(self, stats: impl Fn() -> Stats) -> Infallible {
        let mut ticks = tokio::time::interval(SHOW_EVERY);
        loop {
            ticks.tick().await;
            let stats = stats();
            for (counter, (_, count)) in self.counters.iter().zip(&COUNTERS) {
                counter.absolute(count(&stats));
            }
            for (gauge, (_, count)) in self.gauges.iter().zip(&GAUGES) {
                gauge.set(count(&stats) as f64);
            }
            for (counter, count) in self.batches_refused.iter().zip(stats.batches_refused) {
                counter.absolute(count);
            }
            self.sync_seconds.set(stats.sync_time.as_secs_f64());
        }
    }
}
