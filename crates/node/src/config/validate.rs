//! Checks that no type can express: ranges, and values that depend on each other.

mod broker;
mod counts;
mod durations;
mod requests;

pub use broker::partitions as check_topics;

use std::time::Duration;

use waybill_broker::BrokerConfig as BrokerLimits;
use waybill_config::{ByteSize, ConfigError, duration_to_text};
use waybill_engine::INPUT_BYTES_MAX;
use waybill_ingestion::IngestionConfig;
use waybill_topology::PARTITIONS_MAX;
use waybill_topology::topics::disk_bytes_min;

use super::Config;
use crate::log_filter::LogFilter;

/// A lease is at least this many margins long, so that an owner has time to act between the end
/// of its margin and the next renewal.
const MARGINS_PER_LEASE_MIN: u32 = 3;

/// The largest input over HTTP: it grows a little before it is sent, and must fit in step requests.
const REQUEST_BYTES_MAX: usize = INPUT_BYTES_MAX - 32 * 1024;

/// The largest request of Waybill's producers, with room for its head. A larger one closes its
/// connection, and is sent again.
const BROKER_REQUEST_BYTES_MIN: ByteSize = ByteSize::mib(2);

/// Positions in a segment fit in 31 bits, as in Apache Kafka.
const SEGMENT_BYTES_MAX: ByteSize = ByteSize::mib(2047);

/// Reports the first invalid value.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Config {
        kafka,
        http,
        admin,
        broker,
        store,
        scheduler,
        supervisor,
        agents,
        workflows,
        ..
    } = config;
    let scylla = &store.scylla;
    let log_filter_problem = config.telemetry.log_filter.parse::<LogFilter>().err();
    let bad_address = brokers
        .map(|address| ("kafka.brokers", address))
        .chain(
            broker
                .advertised
                .iter()
                .map(|address| ("broker.advertised", address)),
        )
        .find(|(_, address)| !is_host_and_port(address));
    let body_bytes_min = IngestionConfig::body_bytes_min(
        http.request_bytes_max.as_usize(),
        http.batch_line_bytes_max.as_usize(),
    );
    let queue_bytes_min = http.request_bytes_max.max(http.batch_line_bytes_max);
    let queue_bytes_min = ByteSize::bytes(queue_bytes_min.as_u64().saturating_mul(2));
    let lease_min = scheduler.lease_margin * MARGINS_PER_LEASE_MIN;
    let broker_limits = BrokerLimits {
        request_bytes_max: broker.request_bytes_max.as_usize(),
        ..BrokerLimits::new(&config.data_dir)
    };
    let buffers_min = ByteSize::bytes(broker_limits.buffer_bytes_min() as u64);
    let control_min = ByteSize::bytes(broker_limits.control_buffer_bytes_min() as u64);
    let rules: [(bool, &str, String); 26] = [
        (
            (1..=PARTITIONS_MAX).contains(&config.partitions),
            "partitions",
            format!(
                "is {}, and must be from 1 to {PARTITIONS_MAX}",
                config.partitions
            ),
        ),
        (
            !config.data_dir.as_os_str().is_empty(),
            "dataDir",
            "must not be empty".to_owned(),
        ),
        (
            bad_address.is_none(),
            bad_address.map_or("", |(key, _)| key),
            format!(
                "holds {:?}, which is not host:port",
                bad_address.map_or("", |(_, address)| address)
            ),
        ),
        (
            scylla.nodes.is_none()
                || scylla.request_timeout < scheduler.lease.min(supervisor.lease),
            "store.scylla.requestTimeout",
            format!(
                "is {}, and must be less than scheduler.lease ({}) and supervisor.lease ({}): the result of a \
                 renewal must arrive in time",
                duration_to_text(scylla.request_timeout),
                duration_to_text(scheduler.lease),
                duration_to_text(supervisor.lease)
            ),
        ),
        (
            store.retention > kafka.requests_retention,
            "store.retention",
            format!(
                "is {}, and must be more than kafka.requestsRetention ({}): a request must not \
                 outlive the row of its operation",
                duration_to_text(store.retention),
                duration_to_text(kafka.requests_retention)
            ),
        ),
        (
            kafka.repartition_settle > config.http.accept_timeout,
            "kafka.repartitionSettle",
            format!(
                "is {}, and must be more than http.acceptTimeout",
                duration_to_text(kafka.repartition_settle)
            ),
        ),
        (
            http.tls.is_whole(),
            "http.tls.certFile and http.tls.keyFile",
            "must both be set, or neither".to_owned(),
        ),
        (
            admin.tls.is_whole(),
            "admin.tls.certFile and admin.tls.keyFile",
            "must both be set, or neither".to_owned(),
        ),
        (
            (ByteSize::kib(1)..=ByteSize::mib(1)).contains(&admin.body_bytes_max),
            "admin.bodyBytesMax",
            format!("is {}, and must be from 1KiB to 1MiB", admin.body_bytes_max),
        ),
        (
            http.event_streams_max < http.connections_max,
            "http.eventStreamsMax",
            "must be less than http.connectionsMax: streams must leave room for requests"
                .to_owned(),
        ),
        (
            http.event_streams_max < http.requests_max,
            "http.eventStreamsMax",
            format!(
                "is {}, and must be less than http.requestsMax ({}): each stream is an open request, and over \
                 HTTP/2 streams must leave room for other requests",
                http.event_streams_max, http.requests_max
            ),
        ),
        (
            http.body_bytes_max.as_usize() >= body_bytes_min,
            "http.bodyBytesMax",
            format!(
                "must be at least {body_bytes_min}B, the memory for one largest request (http.requestBytesMax) \
                 or one batch (http.batchLineBytesMax)"
            ),
        ),
        (
            http.drain_timeout < config.shutdown_timeout,
            "http.drainTimeout",
            "must be less than shutdownTimeout".to_owned(),
        ),
        (
            http.producer_queue_records_max >= http.batch_lines_max,
            "http.producerQueueRecordsMax",
            format!(
                "is {}, and must be at least http.batchLinesMax ({}): the lines of one batch wait there",
                http.producer_queue_records_max, http.batch_lines_max
            ),
        ),
        (
            http.producer_queue_bytes_max >= queue_bytes_min,
            "http.producerQueueBytesMax",
            format!(
                "is {}, and must be at least {queue_bytes_min}, twice http.requestBytesMax and http.batchLineBytesMax: a \
                 record is larger than its request",
                http.producer_queue_bytes_max
            ),
        ),
        (
            broker.requests_disk_bytes_max.as_u64() >= disk_bytes_min(config.partitions),
            "broker.requestsDiskBytesMax",
            disk_too_small(config.partitions),
        ),
        (
            broker.recoveries_disk_bytes_max.as_u64() >= disk_bytes_min(config.partitions),
            "broker.recoveriesDiskBytesMax",
            disk_too_small(config.partitions),
        ),
        (
            broker.request_bytes_max >= BROKER_REQUEST_BYTES_MIN || kafka.brokers.is_some(),
            "broker.requestBytesMax",
            format!(
                "is {}, and must be at least {BROKER_REQUEST_BYTES_MIN}: Waybill's own producers send batches of up to \
                 1MiB, and dead letters that are larger",
                broker.request_bytes_max
            ),
        ),
        (
            broker.buffer_bytes_max >= buffers_min || kafka.brokers.is_some(),
            "broker.bufferBytesMax",
            format!(
                "is {}, and must be at least {buffers_min}: twice broker.requestBytesMax ({}), or twice the {} that an \
                 answer to a fetch takes",
                broker.buffer_bytes_max,
                broker.request_bytes_max,
                ByteSize::bytes(broker_limits.fetch_bytes_max as u64)
            ),
        ),
        (
            broker.control_buffer_bytes_max >= control_min || kafka.brokers.is_some(),
            "broker.controlBufferBytesMax",
            format!(
                "is {}, and must be at least {control_min}, which the largest request other than a produce request and \
                 its answer take",
                broker.control_buffer_bytes_max
            ),
        ),
        (
            broker.group_bytes_max >= ByteSize::mib(1) || kafka.brokers.is_some(),
            "broker.groupBytesMax",
            at_least("1MiB"),
        ),
        (
            (ByteSize::kib(64)..=SEGMENT_BYTES_MAX).contains(&broker.segment_bytes),
            "broker.segmentBytes",
            format!(
                "is {}, and must be from 64KiB to {SEGMENT_BYTES_MAX}",
                broker.segment_bytes
            ),
        ),
        (
            scheduler.drain < config.shutdown_timeout,
            "scheduler.drain",
            "must be less than shutdownTimeout".to_owned(),
        ),
        (
            supervisor.lease >= lease_min,
            "supervisor.lease",
            lease_too_short(supervisor.lease, lease_min),
        ),
        (
            workflows.built_in || !workflows.files.is_empty(),
            "workflows.files",
            "must name a workflow if workflows.builtIn is false".to_owned(),
        ),
        (
            http.request_bytes_max
                .max(http.batch_line_bytes_max)
                .as_usize()
                <= REQUEST_BYTES_MAX,
            "http.requestBytesMax and http.batchLineBytesMax",
            format!(
                "must be at most {}KiB: an input must fit into step requests together with results",
                REQUEST_BYTES_MAX / 1024
            ),
        ),
    ];
    if let Some(problem) = log_filter_problem {
        return Err(ConfigError::invalid(
            "telemetry.logFilter (or --log)",
            format!("is invalid: {problem}"),
        ));
    }
    counts::check(config)?;
    durations::check(config)?;
    requests::check(config)?;
    match rules.into_iter().find(|(holds, ..)| !holds) {
        Some((_, key, problem)) => Err(ConfigError::invalid(key, problem)),
        None => broker::check(config),
    }
}

fn disk_too_small(partitions: u32) -> String {
    let kib = disk_bytes_min(partitions) / 1024;
    format!("must be at least {kib}KiB with this number of partitions: each keeps its last file")
}

fn lease_too_short(lease: Duration, least: Duration) -> String {
    format!(
        "is {}, and must be at least {}: {MARGINS_PER_LEASE_MIN} times scheduler.leaseMargin",
        duration_to_text(lease),
        duration_to_text(least)
    )
}

fn not_zero() -> String {
    "must be more than 0".to_owned()
}

fn at_least(what: &str) -> String {
    format!("must be at least {what}")
}

fn is_host_and_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', ' ', ',']) && port.parse::<u16>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        check(&Config::default()).unwrap();
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 77] = [
            ("partitions", |c| c.partitions = 0),
            ("partitions", |c| c.partitions = 5_000),
            ("kafka.repartitionSettle", |c| {
                c.kafka.repartition_settle = c.http.accept_timeout
            }),
            ("store.retention", |c| {
                c.store.retention = c.kafka.requests_retention
            }),
            ("admin.requestsMax", |c| c.admin.requests_max = 0),
            ("admin.headerBytesMax", |c| {
                c.admin.header_bytes_max = ByteSize::bytes(0)
            }),
            ("admin.headerBytesMax", |c| {
                c.admin.header_bytes_max = ByteSize::kib(3)
            }),
            ("admin.headerBytesMax", |c| {
                c.admin.header_bytes_max = ByteSize::kib(257)
            }),
            ("admin.headersMax", |c| c.admin.headers_max = 101),
            ("admin.headersMax", |c| c.admin.headers_max = 31),
            ("admin.connectionsMax", |c| c.admin.connections_max = 7),
            ("admin.connectionsPerAddressMax", |c| {
                c.admin.connections_per_address_max = Some(3)
            }),
            ("admin.headerReadTimeout", |c| {
                c.admin.header_read_timeout = Duration::from_millis(999)
            }),
            ("admin.headerReadTimeout", |c| {
                c.admin.header_read_timeout = Duration::from_secs(301)
            }),
            ("admin.bodyBytesMax", |c| {
                c.admin.body_bytes_max = ByteSize::bytes(0)
            }),
            ("admin.bodyBytesMax", |c| {
                c.admin.body_bytes_max = ByteSize::mib(2)
            }),
            ("admin.bodyTimeout", |c| {
                c.admin.body_timeout = Duration::ZERO
            }),
            ("admin.bodyTimeout", |c| {
                c.admin.body_timeout = Duration::from_secs(301)
            }),
            ("http.requestsMax", |c| c.http.requests_max = 0),
            ("http.requestsMax", |c| c.http.requests_max = usize::MAX),
            ("admin.requestsMax", |c| c.admin.requests_max = 1_000_001),
            ("http.producerQueueRecordsMax", |c| {
                c.http.producer_queue_records_max = usize::MAX
            }),
            ("http.headersMax", |c| c.http.headers_max = 101),
            ("http.headersMax", |c| c.http.headers_max = 31),
            ("http.headerBytesMax", |c| {
                c.http.header_bytes_max = ByteSize::mib(1)
            }),
            ("http.connectionsMax", |c| c.http.connections_max = 7),
            ("http.connectionsPerAddressMax", |c| {
                c.http.connections_per_address_max = Some(3)
            }),
            ("http.jsonDepthMax", |c| c.http.json_depth_max = 3),
            ("http.requestBytesMax", |c| {
                c.http.request_bytes_max = ByteSize::bytes(1_023)
            }),
            ("http.batchLineBytesMax", |c| {
                c.http.batch_line_bytes_max = ByteSize::bytes(1_023)
            }),
            ("http.batchLinesMax", |c| c.http.batch_lines_max = 0),
            ("http.eventStreamsMax", |c| {
                c.http.event_streams_max = c.http.connections_max
            }),
            ("http.eventStreamsMax", |c| c.http.requests_max = 500),
            ("http.bodyBytesMax", |c| {
                c.http.batch_line_bytes_max = ByteSize::mib(15);
                c.http.body_bytes_max = ByteSize::mib(60);
            }),
            ("http.headerReadTimeout", |c| {
                c.http.header_read_timeout = Duration::ZERO
            }),
            ("http.bodyTimeout", |c| c.http.body_timeout = Duration::ZERO),
            ("http.bodyTimeout", |c| {
                c.http.body_timeout = Duration::from_secs(3_601)
            }),
            ("http.bodyReadTimeout", |c| {
                c.http.body_read_timeout = Duration::from_secs(601)
            }),
            ("http.idleTimeout", |c| c.http.idle_timeout = Duration::ZERO),
            ("http.drainTimeout", |c| {
                c.http.drain_timeout = c.shutdown_timeout
            }),
            ("telemetry.logFilter", |c| {
                c.telemetry.log_filter = "bananas".to_owned()
            }),
            ("http.producerQueueBytesMax", |c| {
                c.http.request_bytes_max = ByteSize::gib(1);
                c.http.body_bytes_max = ByteSize::gib(2);
            }),
            ("broker.requestBytesMax", |c| {
                c.broker.request_bytes_max = ByteSize::kib(2_047)
            }),
            ("http.producerQueueBytesMax", |c| {
                c.http.producer_queue_bytes_max = ByteSize::kib(127)
            }),
            ("broker.requestsDiskBytesMax", |c| {
                c.broker.requests_disk_bytes_max = ByteSize::kib(64)
            }),
            ("broker.recoveriesDiskBytesMax", |c| {
                c.broker.recoveries_disk_bytes_max = ByteSize::kib(64)
            }),
            ("broker.idleTimeout", |c| {
                c.broker.idle_timeout = Duration::ZERO
            }),
            ("broker.bufferBytesMax", |c| {
                c.broker.buffer_bytes_max = ByteSize::mib(31)
            }),
            ("broker.bufferBytesMax", |c| {
                c.broker.request_bytes_max = ByteSize::mib(65)
            }),
            ("broker.bufferBytesMax", |c| {
                c.broker.request_bytes_max = ByteSize::mib(2);
                c.broker.buffer_bytes_max = ByteSize::mib(15);
            }),
            ("broker.controlBufferBytesMax", |c| {
                c.broker.control_buffer_bytes_max = ByteSize::mib(8)
            }),
            ("broker.groupBytesMax", |c| {
                c.broker.group_bytes_max = ByteSize::kib(1_023)
            }),
            ("broker.partitionsMax", |c| c.broker.partitions_max = 59),
            ("broker.requestsInFlightMax", |c| {
                c.broker.requests_in_flight_max = 4
            }),
            ("broker.connectionsMax", |c| c.broker.connections_max = 2),
            ("broker.groupsMax", |c| c.broker.groups_max = 0),
            ("broker.groupMembersMax", |c| c.broker.group_members_max = 9),
            ("broker.storedGroupsMax", |c| c.broker.stored_groups_max = 0),
            ("scheduler.drain", |c| {
                c.scheduler.drain = c.shutdown_timeout
            }),
            ("store.scylla.requestTimeout", |c| {
                c.store.scylla.nodes = Some(vec!["a:1".to_owned()]);
                c.store.scylla.request_timeout = c.scheduler.lease;
            }),
            ("http.tls.certFile", |c| {
                c.http.tls.cert_file = Some("/a.pem".into())
            }),
            ("admin.tls.certFile", |c| {
                c.admin.tls.key_file = Some("/a.key".into())
            }),
            ("workflows.files", |c| c.workflows.built_in = false),
            ("telemetry.logFilter", |c| {
                c.telemetry.log_filter = "waybill=loud".to_owned()
            }),
            ("broker.segmentBytes", |c| {
                c.broker.segment_bytes = ByteSize::kib(63)
            }),
            ("broker.segmentBytes", |c| {
                c.broker.segment_bytes = ByteSize::gib(2)
            }),
            ("shutdownTimeout", |c| {
                c.shutdown_timeout = Duration::from_secs(1)
            }),
            ("http.acceptTimeout", |c| {
                c.http.accept_timeout = Duration::from_millis(99)
            }),
            ("http.idleTimeout", |c| {
                c.http.idle_timeout = Duration::from_millis(999)
            }),
            ("http.connectionsPerAddressMax", |c| {
                c.http.connections_per_address_max = Some(5)
            }),
            ("http.producerQueueRecordsMax", |c| {
                c.http.batch_lines_max = 1;
                c.http.producer_queue_records_max = 15;
            }),
            ("http.producerQueueRecordsMax", |c| {
                c.http.producer_queue_records_max = 999
            }),
            ("broker.idleTimeout", |c| {
                c.broker.idle_timeout = Duration::from_secs(9)
            }),
            ("telemetry.traces.requestTimeout", |c| {
                c.telemetry.traces.endpoint = Some("http://collector.example/v1/traces".to_owned());
                c.telemetry.traces.request_timeout = Duration::from_millis(99);
            }),
            ("telemetry.traces.queueMax", |c| {
                c.telemetry.traces.queue_max = usize::MAX
            }),
            ("alerts.foldedMax", |c| c.alerts.folded_max = usize::MAX),
            ("alerts.queueMax", |c| c.alerts.queue_max = usize::MAX),
        ];
        for (key, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let error = check(&config).expect_err(key).to_string();
            assert!(error.starts_with(key), "{key}: {error}");
        }
    }

    #[test]
    fn a_memory_of_buffers_that_is_too_small_is_refused_with_what_needs_it() {
        let mut config = Config::default();
        config.broker.request_bytes_max = ByteSize::mib(100);
        let error = check(&config).unwrap_err().to_string();
        let expected = "broker.bufferBytesMax is 48MiB, and must be at least 200MiB: twice broker.requestBytesMax (100MiB)";
        assert!(error.starts_with(expected), "{error}");
        config.broker.buffer_bytes_max = ByteSize::mib(200);
        check(&config).unwrap();
    }

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for good in [
            "localhost:9092",
            "10.0.0.1:80",
            "[::1]:9092",
            "kafka.example:65535",
        ] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in [
            "localhost",
            ":9092",
            "localhost:",
            "localhost:99999",
            "http://a:80",
            "a,b:1",
        ] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }
}
