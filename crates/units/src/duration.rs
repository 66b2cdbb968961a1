//! Durations as text.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserializer, Serializer};

use crate::{Quantity, UnitError};

/// In milliseconds.
const DURATION: Quantity = Quantity {
    expected: "a duration with its unit, such as 200ms, 5s, 2m, 1h or 7d",
    units: &[
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ],
    max: (36_500 * 86_400_000, "at most 36500d"),
};

/// Parses `200ms`, `5s`, `2m`, `1h` or `7d`.
///
/// # Errors
///
/// If it has another form, or is longer than 36,500 days.
pub fn duration_from_text(text: &str) -> Result<Duration, UnitError> {
    DURATION.parse(text).map(Duration::from_millis)
}

/// Formats a duration in its largest whole unit, for [`duration_from_text`]. Rounds down to whole
/// milliseconds.
#[must_use]
pub fn duration_to_text(duration: Duration) -> String {
    match u64::try_from(duration.as_millis()).unwrap_or(u64::MAX) {
        0 => "0s".to_owned(),
        millis => DURATION.format(millis),
    }
}

/// The text form of a [`Duration`], for `#[serde(with = "…")]`. A type rather than a module, so
/// that it also is the schema of such a field.
#[derive(Clone, Copy, Debug)]
pub struct DurationText;

impl DurationText {
    /// Serializes for [`duration_from_text`].
    ///
    /// # Errors
    ///
    /// The error of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration_to_text(*duration))
    }

    /// Deserializes text for [`duration_from_text`].
    ///
    /// # Errors
    ///
    /// If the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer
            .deserialize_str(&DURATION)
            .map(Duration::from_millis)
    }
}

/// Deserializes an optional field: if it is there, it is text.
///
/// # Errors
///
/// If the text is not a duration.
pub fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    DurationText::deserialize(deserializer).map(Some)
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A whole number and its unit: ms, s, m, h or d.",
            "pattern": r"^\s*[0-9]+\s*(ms|s|m|h|d)\s*$",
            "examples": ["200ms", "5s", "2m", "1h", "7d"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_with_their_largest_whole_unit() {
        let cases = [
            ("0s", 0, "0s"),
            ("0ms", 0, "0s"),
            ("200ms", 200, "200ms"),
            ("1500ms", 1_500, "1500ms"),
            ("5s", 5_000, "5s"),
            (" 5 s ", 5_000, "5s"),
            ("60s", 60_000, "1m"),
            ("90m", 5_400_000, "90m"),
            ("24h", 86_400_000, "1d"),
            ("36h", 129_600_000, "36h"),
            ("7d", 604_800_000, "7d"),
            ("36500d", 36_500 * 86_400_000, "36500d"),
        ];
        for (text, millis, written) in cases {
            let duration = duration_from_text(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(duration_to_text(duration), written, "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_expected_form() {
        for text in [
            "", "5", "s", "1 5s", "5m s", "5S", "-5s", "+5s", "1.5s", "5sec", "1h30m", "٥s",
        ] {
            assert_eq!(
                duration_from_text(text).expect_err(text).to_string(),
                "must be a duration with its unit, such as 200ms, 5s, 2m, 1h or 7d"
            );
        }
    }

    #[test]
    fn a_duration_above_the_maximum_is_refused_with_the_maximum() {
        for text in [
            "36501d",
            "3153600000001ms",
            "213503982335d",
            "18446744073709551615h",
            "99999999999999999999s",
        ] {
            let error = duration_from_text(text).expect_err(text);
            assert_eq!(error.to_string(), "must be at most 36500d", "{text}");
        }
    }

    #[test]
    fn a_field_is_refused_with_its_text() {
        let read = |json: &str| {
            let read = DurationText::deserialize(&mut serde_json::Deserializer::from_str(json));
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read("\"1d\""), Ok(Duration::from_secs(86_400)));
        for (json, expected) in [
            (
                "\"soon\"",
                "string \"soon\", expected a duration with its unit",
            ),
            ("\"36501d\"", "string \"36501d\", expected at most 36500d"),
            ("5", "expected a duration with its unit"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
