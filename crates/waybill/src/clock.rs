//! The wall clock, as the engine's time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use waybill_engine::Timestamp;

/// The time now.
pub(crate) fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_micros();
    Timestamp(i64::try_from(since_epoch).unwrap_or(i64::MAX))
}
