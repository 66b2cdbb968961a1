//! Times as text.

use waybill_engine::Timestamp;

/// A time as RFC 3339 in UTC, to the microsecond. Times after the year 9999 become its last moment.
#[must_use]
pub fn time_text(time: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(time.as_micros()) {
        Ok(time) => time.to_string(),
        Err(_) => jiff::Timestamp::MAX.to_string(),
    }
}
