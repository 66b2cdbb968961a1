//! The checks of the `http` section.

use std::ops::RangeInclusive;
use std::time::Duration;

use waybill_config::ConfigError;
use waybill_config::checks::{BOTH_OR_NEITHER, check_range, check_range_because, require};
use waybill_engine::INPUT_BYTES_MAX;
use waybill_http::json::DEPTH_LIMIT_MAX;
use waybill_http::{ANY_ORIGIN, ORIGINS_MAX, check_origin, limits};
use waybill_units::ByteSize;

use super::HttpConfig;
use crate::settings::IngestionSettings;

/// Waiting lines of a batch, and remembered requests: with more, the process would run out of
/// memory later.
const RECORDS_MAX: usize = 10_000_000;
/// Requests that wait for the broker: clients send some concurrently.
const QUEUE_RECORDS: RangeInclusive<usize> = 16..=RECORDS_MAX;
/// Waiting reads of pending requests.
const READS_MAX: usize = 100_000;
const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const ACCEPT_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The lower end is for an input of three levels within its request. Deeper than the limit, reading
/// a body could exhaust the stack.
const JSON_DEPTH: RangeInclusive<usize> = 4..=DEPTH_LIMIT_MAX;
/// A request with its contacts and references.
const REQUEST_BYTES_MIN: ByteSize = ByteSize::kib(1);
/// The largest input over HTTP: it grows a little before it is sent, and must fit in step requests.
const REQUEST_BYTES_MAX: usize = INPUT_BYTES_MAX - 32 * 1024;
const BODY_READ_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(10 * 60);
const WAIT_MAX: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(10 * 60);
const BODY_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60 * 60);

impl HttpConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_counts()?;
        self.check_times()?;
        self.check_sizes()?;
        self.check_origins()?;
        require(
            self.tls.is_whole(),
            "http.tls.certFile and http.tls.keyFile",
            BOTH_OR_NEITHER,
        )?;
        require(
            self.event_streams_max < self.connections_max,
            "http.eventStreamsMax",
            "must be less than http.connectionsMax: streams must leave room for requests",
        )?;
        require(
            self.event_streams_max < self.requests_max,
            "http.eventStreamsMax",
            format!(
                "is {}, and must be less than http.requestsMax ({}): each stream is an open request, and over \
                 HTTP/2 streams must leave room for other requests",
                self.event_streams_max, self.requests_max
            ),
        )?;
        self.check_memory()
    }

    fn check_counts(&self) -> Result<(), ConfigError> {
        for (key, count, range) in [
            (
                "http.connectionsMax",
                self.connections_max,
                limits::CONNECTIONS,
            ),
            ("http.requestsMax", self.requests_max, limits::REQUESTS),
            ("http.batchLinesMax", self.batch_lines_max, 1..=RECORDS_MAX),
            (
                "http.producerQueueRecordsMax",
                self.producer_queue_records_max,
                QUEUE_RECORDS,
            ),
            (
                "http.recentAcceptedMax",
                self.recent_accepted_max,
                0..=RECORDS_MAX,
            ),
            (
                "http.pendingReadsMax",
                self.pending_reads_max,
                0..=READS_MAX,
            ),
            ("http.listsMax", self.lists_max, 0..=READS_MAX),
            (
                "http.connectionsPerAddressMax",
                self.connections_per_address_max(),
                limits::CONNECTIONS_PER_ADDRESS,
            ),
            ("http.headersMax", self.headers_max, limits::HEADERS),
            ("http.jsonDepthMax", self.json_depth_max, JSON_DEPTH),
        ] {
            check_range(key, count, range)?;
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        check_range_because(
            "http.idleTimeout",
            self.idle_timeout,
            IDLE_TIMEOUT_MIN..,
            "clients reuse connections",
        )?;
        check_range_because(
            "http.acceptTimeout",
            self.accept_timeout,
            ACCEPT_TIMEOUT_MIN..,
            "the broker syncs a record before it acknowledges it, which takes tens of milliseconds",
        )?;
        check_range(
            "http.headerReadTimeout",
            self.header_read_timeout,
            limits::HEADER_READ_TIMEOUT,
        )?;
        check_range(
            "http.bodyReadTimeout",
            self.body_read_timeout,
            BODY_READ_TIMEOUT,
        )?;
        check_range("http.waitMax", self.wait_max, WAIT_MAX)?;
        check_range("http.bodyTimeout", self.body_timeout, BODY_TIMEOUT)
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        check_range(
            "http.headerBytesMax",
            self.header_bytes_max,
            limits::HEADER_BYTES,
        )?;
        check_range(
            "http.requestBytesMax",
            self.request_bytes_max,
            REQUEST_BYTES_MIN..,
        )?;
        check_range(
            "http.batchLineBytesMax",
            self.batch_line_bytes_max,
            REQUEST_BYTES_MIN..,
        )
    }

    fn check_origins(&self) -> Result<(), ConfigError> {
        const KEY: &str = "http.corsOrigins";
        check_range(KEY, self.cors_origins.len(), 0..=ORIGINS_MAX)?;
        for origin in &self.cors_origins {
            let checked = check_origin(origin);
            require(
                checked.is_ok(),
                KEY,
                checked
                    .err()
                    .map_or_else(String::new, |bad| bad.to_string()),
            )?;
        }
        let others = self.cors_origins.len() > 1;
        let has_any = self.cors_origins.iter().any(|it| it == ANY_ORIGIN);
        require(
            !(has_any && others),
            KEY,
            "must list either * or single origins",
        )
    }

    /// Checks that requests of the largest size fit into the buffers and the records.
    fn check_memory(&self) -> Result<(), ConfigError> {
        let body_bytes_min = IngestionSettings::body_bytes_min(
            self.request_bytes_max.as_usize(),
            self.batch_line_bytes_max.as_usize(),
        );
        require(
            self.body_bytes_max.as_usize() >= body_bytes_min,
            "http.bodyBytesMax",
            format!(
                "must be at least {body_bytes_min}B, the memory for one largest request (http.requestBytesMax) \
                 or one batch (http.batchLineBytesMax)"
            ),
        )?;
        require(
            self.producer_queue_records_max >= self.batch_lines_max,
            "http.producerQueueRecordsMax",
            format!(
                "is {}, and must be at least http.batchLinesMax ({}): the lines of one batch wait there",
                self.producer_queue_records_max, self.batch_lines_max
            ),
        )?;
        let largest = self.request_bytes_max.max(self.batch_line_bytes_max);
        let queue_bytes_min = ByteSize::bytes(largest.as_u64().saturating_mul(2));
        require(
            self.producer_queue_bytes_max >= queue_bytes_min,
            "http.producerQueueBytesMax",
            format!(
                "is {}, and must be at least {queue_bytes_min}, twice http.requestBytesMax and http.batchLineBytesMax: a \
                 record is larger than its request",
                self.producer_queue_bytes_max
            ),
        )?;
        require(
            largest.as_usize() <= REQUEST_BYTES_MAX,
            "http.requestBytesMax and http.batchLineBytesMax",
            format!(
                "must be at most {}KiB: an input must fit into step requests together with results",
                REQUEST_BYTES_MAX / 1024
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, HttpConfig> = &[
            ("http.requestsMax", |c| c.requests_max = 0),
            ("http.requestsMax", |c| c.requests_max = usize::MAX),
            ("http.producerQueueRecordsMax", |c| {
                c.producer_queue_records_max = usize::MAX
            }),
            ("http.headersMax", |c| c.headers_max = 101),
            ("http.headersMax", |c| c.headers_max = 31),
            ("http.headerBytesMax", |c| {
                c.header_bytes_max = ByteSize::mib(1)
            }),
            ("http.connectionsMax", |c| c.connections_max = 7),
            ("http.connectionsPerAddressMax", |c| {
                c.connections_per_address_max = Some(3)
            }),
            ("http.jsonDepthMax", |c| c.json_depth_max = 3),
            ("http.requestBytesMax", |c| {
                c.request_bytes_max = ByteSize::bytes(1_023)
            }),
            ("http.batchLineBytesMax", |c| {
                c.batch_line_bytes_max = ByteSize::bytes(1_023)
            }),
            ("http.batchLinesMax", |c| c.batch_lines_max = 0),
            ("http.eventStreamsMax", |c| {
                c.event_streams_max = c.connections_max
            }),
            ("http.eventStreamsMax", |c| c.requests_max = 500),
            ("http.bodyBytesMax", |c| {
                c.batch_line_bytes_max = ByteSize::mib(15);
                c.body_bytes_max = ByteSize::mib(60);
            }),
            ("http.headerReadTimeout", |c| {
                c.header_read_timeout = Duration::ZERO
            }),
            ("http.waitMax", |c| c.wait_max = Duration::from_millis(999)),
            ("http.waitMax", |c| c.wait_max = Duration::from_secs(601)),
            ("http.bodyTimeout", |c| c.body_timeout = Duration::ZERO),
            ("http.bodyTimeout", |c| {
                c.body_timeout = Duration::from_secs(3_601)
            }),
            ("http.bodyReadTimeout", |c| {
                c.body_read_timeout = Duration::from_secs(601)
            }),
            ("http.idleTimeout", |c| c.idle_timeout = Duration::ZERO),
            ("http.producerQueueBytesMax", |c| {
                c.request_bytes_max = ByteSize::gib(1);
                c.body_bytes_max = ByteSize::gib(2);
            }),
            ("http.producerQueueBytesMax", |c| {
                c.producer_queue_bytes_max = ByteSize::kib(127)
            }),
            ("http.corsOrigins", |c| {
                c.cors_origins = vec!["console.example.org".to_owned()]
            }),
            ("http.corsOrigins", |c| {
                c.cors_origins = vec!["https://a.example".to_owned(), "*".to_owned()]
            }),
            ("http.corsOrigins", |c| {
                c.cors_origins = vec!["https://a.example".to_owned(); 101]
            }),
            ("http.tls.certFile", |c| {
                c.tls.cert_file = Some("/a.pem".into())
            }),
            ("http.acceptTimeout", |c| {
                c.accept_timeout = Duration::from_millis(99)
            }),
            ("http.idleTimeout", |c| {
                c.idle_timeout = Duration::from_millis(999)
            }),
            ("http.connectionsPerAddressMax", |c| {
                c.connections_per_address_max = Some(5)
            }),
            ("http.producerQueueRecordsMax", |c| {
                c.batch_lines_max = 1;
                c.producer_queue_records_max = 15;
            }),
            ("http.producerQueueRecordsMax", |c| {
                c.producer_queue_records_max = 999
            }),
        ];
        assert_refused(&HttpConfig::default(), HttpConfig::validate, changes);
    }
}
