//! Durations as text.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserializer, Serializer, de};

/// Units, largest first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is not a duration: expected a whole number and a unit of ms, s, m or h, as in 200ms"
)]
pub struct DurationError {
    text: String,
}

/// Parses a duration: a whole number and its unit, `ms`, `s`, `m` or `h`, without a space.
///
/// # Errors
///
/// If the text has another form, or exceeds a `u64` of milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let refuse = || DurationError {
        text: text.to_owned(),
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, unit_ms) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(refuse)?;
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let ms = number.checked_mul(*unit_ms).ok_or_else(refuse)?;
    Ok(Duration::from_millis(ms))
}

/// The text form of a [`Duration`], for `#[serde(with = "…")]`, and the schema of such a field.
#[derive(Clone, Copy, Debug)]
pub struct DurationText;

impl DurationText {
    /// Serializes in the largest whole unit. Rounds down to whole milliseconds.
    ///
    /// # Errors
    ///
    /// The error of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = duration.as_millis();
        let whole = UNITS
            .iter()
            .find(|(_, unit)| ms >= u128::from(*unit) && ms.is_multiple_of(u128::from(*unit)));
        let (name, unit_ms) = whole.unwrap_or(&("ms", 1));
        serializer.collect_str(&format_args!("{}{name}", ms / u128::from(*unit_ms)))
    }

    /// Deserializes text for [`parse_duration`].
    ///
    /// # Errors
    ///
    /// If the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl de::Visitor<'_> for TextVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a duration such as \"5s\" or \"200ms\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
    }
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A whole number and its unit, without a space: ms, s, m or h.",
            "pattern": "^[0-9]+(ms|s|m|h)$",
            "examples": ["200ms", "5s", "2m", "1h"],
        })
    }
}

/// Deserializes an optional field: if it is there, it is text.
pub(super) fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    DurationText::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        for (text, expected_ms) in [
            ("200ms", 200),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(expected_ms)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_expected_form() {
        for text in [
            "",
            "5",
            "s",
            "5 s",
            " 5s",
            "5S",
            "-5s",
            "1.5s",
            "5sec",
            "1h30m",
            "٥s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            let error = parse_duration(text).expect_err(text);
            assert!(
                error
                    .to_string()
                    .contains("expected a whole number and a unit"),
                "{error}"
            );
        }
    }

    #[test]
    fn durations_are_written_in_their_largest_whole_unit() {
        for (ms, expected) in [
            (0, "0ms"),
            (200, "200ms"),
            (1_500, "1500ms"),
            (60_000, "1m"),
            (5_400_000, "90m"),
            (86_400_000, "24h"),
        ] {
            let duration = Duration::from_millis(ms);
            let written = DurationText::serialize(&duration, serde_json::value::Serializer);
            assert_eq!(written.unwrap(), expected);
            assert_eq!(parse_duration(expected), Ok(duration));
        }
    }
}
