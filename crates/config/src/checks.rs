//! Checks of values that no type can express, for the `validate` of a section. A refusal names the
//! key, its value and what the value must be.

use std::ops::{RangeFrom, RangeInclusive};
use std::time::Duration;

use waybill_units::{ByteSize, duration_to_text};

use crate::ConfigError;

/// The problem of a pair of keys of which only one is set.
pub const BOTH_OR_NEITHER: &str = "must both be set, or neither";

const REQUEST_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// A value that has a range: a count, a size or a duration.
pub trait Value: PartialOrd {
    /// Formats it as people write it.
    fn to_text(&self) -> String;
}

impl Value for usize {
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Value for ByteSize {
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    fn to_text(&self) -> String {
        duration_to_text(*self)
    }
}

/// The range of a value: `1..` or `1..=10`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range<T> {
    least: T,
    most: Option<T>,
}

impl<T> From<RangeFrom<T>> for Range<T> {
    fn from(range: RangeFrom<T>) -> Self {
        Self {
            least: range.start,
            most: None,
        }
    }
}

impl<T> From<RangeInclusive<T>> for Range<T> {
    fn from(range: RangeInclusive<T>) -> Self {
        let (least, most) = range.into_inner();
        Self {
            least,
            most: Some(most),
        }
    }
}

impl<T: Value> Range<T> {
    /// Why the range does not contain the value, if so.
    fn problem_of(&self, value: &T) -> Option<String> {
        let is_below_most = self.most.as_ref().is_none_or(|most| value <= most);
        if value >= &self.least && is_below_most {
            return None;
        }
        let [value, least] = [value, &self.least].map(Value::to_text);
        let range = match &self.most {
            Some(most) => format!("from {least} to {}", most.to_text()),
            None => format!("at least {least}"),
        };
        Some(format!("is {value}, and must be {range}"))
    }
}

/// Refuses a key with this problem unless the rule holds.
///
/// # Errors
///
/// If `holds` is false.
pub fn require(
    holds: bool,
    key: impl Into<String>,
    problem: impl Into<String>,
) -> Result<(), ConfigError> {
    match holds {
        true => Ok(()),
        false => Err(ConfigError::invalid(key, problem)),
    }
}

/// Refuses 0.
///
/// # Errors
///
/// If the value is not above 0.
pub fn check_not_zero<T: PartialOrd + Default>(key: &str, value: T) -> Result<(), ConfigError> {
    require(value > T::default(), key, "must be more than 0")
}

/// Refuses a value out of its range.
///
/// # Errors
///
/// If the range does not contain the value.
pub fn check_range<T: Value>(
    key: &str,
    value: T,
    range: impl Into<Range<T>>,
) -> Result<(), ConfigError> {
    match range.into().problem_of(&value) {
        None => Ok(()),
        Some(problem) => Err(ConfigError::invalid(key, problem)),
    }
}

/// Refuses a value out of its range, with the reason for the range.
///
/// # Errors
///
/// If the range does not contain the value.
pub fn check_range_because<T: Value>(
    key: &str,
    value: T,
    range: impl Into<Range<T>>,
    reason: &str,
) -> Result<(), ConfigError> {
    match range.into().problem_of(&value) {
        None => Ok(()),
        Some(problem) => Err(ConfigError::invalid(key, format!("{problem}: {reason}"))),
    }
}

/// Refuses a time limit that is too short for a request to another machine.
///
/// # Errors
///
/// If it is below 100 ms.
pub fn check_request_timeout(key: &str, timeout: Duration) -> Result<(), ConfigError> {
    let reason = "a request to another machine takes tens of milliseconds";
    check_range_because(key, timeout, REQUEST_TIMEOUT_MIN.., reason)
}

/// Refuses addresses other than `host:port`, whose host may be a name.
///
/// # Errors
///
/// If an address has another form.
pub fn check_host_and_port<'a>(
    key: &str,
    addresses: impl IntoIterator<Item = &'a String>,
) -> Result<(), ConfigError> {
    let mut addresses = addresses.into_iter();
    match addresses.find(|address| !is_host_and_port(address)) {
        None => Ok(()),
        Some(address) => Err(ConfigError::invalid(
            key,
            format!("holds {address:?}, which is not host:port"),
        )),
    }
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
    fn a_value_out_of_its_range_is_refused_with_the_range_and_its_reason() {
        let refused = |checked: Result<(), ConfigError>| checked.unwrap_err().to_string();
        check_range("a.b", 1_usize, 1..).unwrap();
        check_range("a.b", 10_u32, 1..=10).unwrap();
        assert_eq!(
            refused(check_range("a.b", 0_usize, 1..)),
            "a.b is 0, and must be at least 1"
        );
        let sizes = ByteSize::kib(1)..=ByteSize::mib(1);
        assert_eq!(
            refused(check_range("a.b", ByteSize::mib(2), sizes)),
            "a.b is 2MiB, and must be from 1KiB to 1MiB"
        );
        let seconds = Duration::from_secs(2)..;
        assert_eq!(
            refused(check_range_because(
                "a.b",
                Duration::ZERO,
                seconds,
                "it is slow"
            )),
            "a.b is 0s, and must be at least 2s: it is slow"
        );
        check_request_timeout("a.b", REQUEST_TIMEOUT_MIN).unwrap();
        assert_eq!(
            refused(check_request_timeout("a.b", Duration::from_millis(99))),
            "a.b is 99ms, and must be at least 100ms: a request to another machine takes tens of milliseconds"
        );
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
        let refused = check_host_and_port("a.b", [&"localhost".to_owned()]);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "a.b holds \"localhost\", which is not host:port"
        );
    }
}
