//! Durations in text: a number and a unit.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];

/// Parses `500ms`, `1.5s`, `10m` or `1h`.
///
/// # Errors
///
/// The error, as the end of a sentence that begins with the field's name.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("must be a number with a unit (ms, s, m, h), not {text:?}");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let seconds = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, seconds) = seconds.ok_or_else(wrong)?;
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// Deserializes a duration.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Deserializes an optional duration.
pub fn read_option<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| parse(&text).map_err(D::Error::custom))
        .transpose()
}

/// Formats a duration in the largest unit that needs no long fraction.
pub fn shown(time: Duration) -> String {
    let mut shown = String::new();
    let seconds = time.as_secs_f64();
    // A write to a string cannot fail.
    let _ = match seconds {
        short if short < 1.0 => write!(shown, "{} ms", short * 1e3),
        long if long >= 120.0 => write!(shown, "{:.1} min", long / 60.0),
        seconds => write!(shown, "{seconds} s"),
    };
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "5 s", "-1s", "5d", "infs"] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains("(ms, s, m, h)"), "{text}: {refused}");
        }
    }
}
