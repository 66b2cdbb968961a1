//! The limits on HTTP requests.
//!
//! Why it exists: a limit that is too low refuses health probes and the commands of `waybill`, and one that is too high
//! limits nothing.

use std::ops::RangeInclusive;
use std::time::Duration;

use waybill_config::{ByteSize, ConfigError, duration_to_text};
use waybill_ingestion::IngestionConfig;

use super::Config;

/// Header fields of a request: a browser sends about 20, and proxies add about 10.
const HEADERS_MIN: usize = 32;
/// A head with a signed token, which may take 2 KiB, a long address and the fields of proxies.
const HEADER_BYTES: RangeInclusive<ByteSize> = ByteSize::kib(4)..=ByteSize::kib(256);
const HEADER_READ_TIMEOUT: RangeInclusive<Duration> = seconds(1, 5 * 60);
const BODY_TIMEOUT: RangeInclusive<Duration> = seconds(1, 60 * 60);
/// Bodies for the admin port are small.
const ADMIN_BODY_TIMEOUT: RangeInclusive<Duration> = seconds(1, 5 * 60);
const BODY_READ_TIMEOUT: RangeInclusive<Duration> = seconds(1, 10 * 60);
/// A request with its contacts and references.
const REQUEST_BYTES_MIN: ByteSize = ByteSize::kib(1);
/// A delivery nests three levels.
const JSON_DEPTH_MIN: usize = 4;
/// Deeper than this, reading a body could exhaust the stack.
const JSON_DEPTH_MAX: usize = 100;

/// Reports the first limit out of its range.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let (http, admin) = (&config.http, &config.admin);
    let headers = HEADERS_MIN..=IngestionConfig::HEADERS_LIMIT_MAX;
    within("http.headersMax", http.headers_max, &headers)?;
    within("admin.headersMax", admin.headers_max, &headers)?;
    within(
        "http.jsonDepthMax",
        http.json_depth_max,
        &(JSON_DEPTH_MIN..=JSON_DEPTH_MAX),
    )?;
    within("http.headerBytesMax", http.header_bytes_max, &HEADER_BYTES)?;
    within(
        "admin.headerBytesMax",
        admin.header_bytes_max,
        &HEADER_BYTES,
    )?;
    for (key, bytes) in [
        ("http.requestBytesMax", http.request_bytes_max),
        ("http.batchLineBytesMax", http.batch_line_bytes_max),
    ] {
        if bytes < REQUEST_BYTES_MIN {
            return Err(ConfigError::invalid(
                key,
                format!("is {bytes}, and must be at least {REQUEST_BYTES_MIN}"),
            ));
        }
    }
    let durations = [
        (
            "http.headerReadTimeout",
            http.header_read_timeout,
            HEADER_READ_TIMEOUT,
        ),
        (
            "admin.headerReadTimeout",
            admin.header_read_timeout,
            HEADER_READ_TIMEOUT,
        ),
        (
            "http.bodyReadTimeout",
            http.body_read_timeout,
            BODY_READ_TIMEOUT,
        ),
        ("http.bodyTimeout", http.body_timeout, BODY_TIMEOUT),
        ("admin.bodyTimeout", admin.body_timeout, ADMIN_BODY_TIMEOUT),
    ];
    for (key, duration, range) in durations {
        if !range.contains(&duration) {
            let [duration, least, most] =
                [duration, *range.start(), *range.end()].map(duration_to_text);
            return Err(ConfigError::invalid(
                key,
                format!("is {duration}, and must be from {least} to {most}"),
            ));
        }
    }
    Ok(())
}

fn within<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ConfigError::invalid(
        key,
        format!(
            "is {value}, and must be from {} to {}",
            range.start(),
            range.end()
        ),
    ))
}

const fn seconds(least: u64, most: u64) -> RangeInclusive<Duration> {
    Duration::from_secs(least)..=Duration::from_secs(most)
}
