//! The rules for the leases of schedulers and supervisors.

use std::time::Duration;

use waybill_config::ConfigError;
use waybill_config::checks::check_range_because;

/// A renewal that waits for a slow disk or a busy CPU must still be in time.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// No other process takes over from a killed one before its lease expires.
const LEASE_MAX: Duration = Duration::from_secs(60 * 60);
/// A lease is at least this many margins long, so that an owner has time to act between the end
/// of its margin and the next renewal.
const MARGINS_PER_LEASE_MIN: u32 = 3;

/// Refuses a lease that would expire while its owner is busy, or would delay a takeover for a long
/// time.
///
/// # Errors
///
/// If the lease is out of range.
pub fn check_lease(key: &str, lease: Duration) -> Result<(), ConfigError> {
    check_range_because(
        key,
        lease,
        LEASE_MIN..=LEASE_MAX,
        "a shorter lease expires while its owner is busy; a longer one delays the takeover from a killed process",
    )
}

/// Refuses a lease that leaves its owner no time to act before the margin.
///
/// # Errors
///
/// If the lease is shorter than three margins.
pub fn check_lease_and_margin(
    key: &str,
    lease: Duration,
    margin: Duration,
) -> Result<(), ConfigError> {
    check_range_because(
        key,
        lease,
        margin.saturating_mul(MARGINS_PER_LEASE_MIN)..,
        &format!("{MARGINS_PER_LEASE_MIN} times scheduler.leaseMargin"),
    )
}
