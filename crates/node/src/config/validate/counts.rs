//! Counts that have a lower and an upper bound.
//!
//! Why it exists: a count with some zeros too many is refused at the start, with its key. Without
//! the check the process would later run out of memory.

use waybill_config::ConfigError;

use super::Config;

/// Connections of the API or the admin port: health probes, a scraper of metrics, a command, and clients.
const CONNECTIONS_MIN: usize = 8;
/// Of these, from one address: a browser opens six, which is also the share of one address at the
/// minimum.
const CONNECTIONS_PER_ADDRESS_MIN: usize = 6;
/// Connections of a listener: a higher limit exceeds the file descriptors of a machine.
const CONNECTIONS_MAX: usize = 1_000_000;
/// Requests under way at a listener: each takes some kilobytes.
const REQUESTS_MAX: usize = 1_000_000;
/// Requests that wait for the broker: clients send some at once.
const QUEUE_RECORDS_MIN: usize = 16;
/// Waiting lines of a batch, remembered requests, waiting alerts and waiting spans.
const RECORDS_MAX: usize = 10_000_000;
/// Waiting reads of pending requests.
const READS_MAX: usize = 100_000;
/// Partitions, groups and members of the embedded broker: each takes some hundred bytes, and a partition an open file.
const BROKER_MAX: usize = 1_000_000;
/// Consumer groups, and members of one, that Waybill's own roles may need.
const GROUPS_MIN: usize = 10;
/// Unanswered requests of a client of the embedded broker. Idempotent producers send up to five before they wait.
const IN_FLIGHT_MIN: usize = 5;
const IN_FLIGHT_MAX: usize = 10_000;

/// Reports the first count out of its range.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Config {
        http,
        admin,
        broker,
        alerts,
        telemetry,
        ..
    } = config;
    let counts: [(&str, usize, usize, usize); 21] = [
        ("alerts.foldedMax", alerts.folded_max, 1, RECORDS_MAX),
        ("alerts.queueMax", alerts.queue_max, 1, RECORDS_MAX),
        (
            "telemetry.traces.queueMax",
            telemetry.traces.queue_max,
            1,
            RECORDS_MAX,
        ),
        (
            "http.connectionsMax",
            http.connections_max,
            CONNECTIONS_MIN,
            CONNECTIONS_MAX,
        ),
        (
            "admin.connectionsMax",
            admin.connections_max,
            CONNECTIONS_MIN,
            CONNECTIONS_MAX,
        ),
        (
            "broker.connectionsMax",
            broker.connections_max,
            1,
            CONNECTIONS_MAX,
        ),
        ("http.requestsMax", http.requests_max, 1, REQUESTS_MAX),
        ("admin.requestsMax", admin.requests_max, 1, REQUESTS_MAX),
        ("http.batchLinesMax", http.batch_lines_max, 1, RECORDS_MAX),
        (
            "http.producerQueueRecordsMax",
            http.producer_queue_records_max,
            QUEUE_RECORDS_MIN,
            RECORDS_MAX,
        ),
        (
            "http.recentAcceptedMax",
            http.recent_accepted_max,
            0,
            RECORDS_MAX,
        ),
        ("http.pendingReadsMax", http.pending_reads_max, 0, READS_MAX),
        ("http.listsMax", http.lists_max, 0, READS_MAX),
        (
            "http.connectionsPerAddressMax",
            http.connections_per_address_max(),
            CONNECTIONS_PER_ADDRESS_MIN,
            CONNECTIONS_MAX,
        ),
        (
            "admin.connectionsPerAddressMax",
            admin.connections_per_address_max(),
            CONNECTIONS_PER_ADDRESS_MIN,
            CONNECTIONS_MAX,
        ),
        (
            "broker.connectionsPerAddressMax",
            broker.connections_per_address_max(),
            1,
            CONNECTIONS_MAX,
        ),
        (
            "broker.requestsInFlightMax",
            broker.requests_in_flight_max,
            IN_FLIGHT_MIN,
            IN_FLIGHT_MAX,
        ),
        ("broker.partitionsMax", broker.partitions_max, 1, BROKER_MAX),
        (
            "broker.groupsMax",
            broker.groups_max,
            GROUPS_MIN,
            BROKER_MAX,
        ),
        (
            "broker.groupMembersMax",
            broker.group_members_max,
            GROUPS_MIN,
            BROKER_MAX,
        ),
        (
            "broker.storedGroupsMax",
            broker.stored_groups_max,
            GROUPS_MIN,
            BROKER_MAX,
        ),
    ];
    let wrong = counts
        .into_iter()
        .find(|(_, count, least, most)| !(least..=most).contains(&count));
    match wrong {
        Some((key, count, least, most)) => Err(ConfigError::invalid(
            key,
            format!("is {count}, and must be from {least} to {most}"),
        )),
        None => Ok(()),
    }
}
