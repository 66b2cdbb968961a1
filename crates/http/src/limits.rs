//! The ranges of the limits that every listener has in its section of the configuration.
//!
//! Why it exists: a limit that is too low refuses health probes and the commands of `waybill`, and
//! one that is too high limits nothing.

use std::ops::RangeInclusive;
use std::time::Duration;

use waybill_units::ByteSize;

use crate::HEADERS_LIMIT_MAX;

/// Connections of a listener: a higher limit exceeds the file descriptors of a machine.
pub const CONNECTIONS_MAX: usize = 1_000_000;
/// Connections of the API or the admin port: health probes, a scraper of metrics, a command, and
/// clients.
pub const CONNECTIONS: RangeInclusive<usize> = 8..=CONNECTIONS_MAX;
/// Of these, from one address: a browser opens six, which is also the share of one address at the
/// minimum.
pub const CONNECTIONS_PER_ADDRESS: RangeInclusive<usize> = 6..=CONNECTIONS_MAX;
/// Requests in progress at a listener: each takes some kilobytes.
pub const REQUESTS: RangeInclusive<usize> = 1..=1_000_000;
/// Header fields of a request: a browser sends about 20, and proxies add about 10.
pub const HEADERS: RangeInclusive<usize> = 32..=HEADERS_LIMIT_MAX;
/// A head with a signed token, which may take 2 KiB, a long address and the fields of proxies.
pub const HEADER_BYTES: RangeInclusive<ByteSize> = ByteSize::kib(4)..=ByteSize::kib(256);
/// How long a head may take.
pub const HEADER_READ_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(5 * 60);
