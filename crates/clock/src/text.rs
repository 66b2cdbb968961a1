//! Times as text.

use waybill_engine::Timestamp;

/// A time as RFC 3339 in UTC, to the microsecond. One after the year 9999 is the last moment of that year.
#[must_use]
pub fn time_text(time: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(time.as_micros()) {
        Ok(time) => time.to_string(),
        Err(_) => jiff::Timestamp::MAX.to_string(),
    }
}
