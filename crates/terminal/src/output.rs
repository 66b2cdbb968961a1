//! Formats bytes and times: as JSON for programs, as table cells for people.
//!
//! Bytes that are UTF-8 are shown as text, others as `{"base64": "…"}`. Control characters in a
//! record never reach the terminal.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, ValueEnum};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use waybill_telemetry::visible::{escaped, to_json};

/// The format of a command's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Output {
    /// One JSON object per line
    Json,
    /// Columns
    Table,
}

impl Output {
    /// The value as JSON, or as text of one line or more.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn text(self, value: &(impl fmt::Display + Serialize)) -> serde_json::Result<String> {
        match self {
            Self::Json => to_json(value),
            Self::Table => Ok(value.to_string()),
        }
    }
}

/// The format of the findings of a check.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// The output format; JSON is one object per line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    pub output: Output,
}

impl OutputArgs {
    /// The finding as JSON, or as text of one line or more.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn text(self, found: &(impl fmt::Display + Serialize)) -> serde_json::Result<String> {
        self.output.text(found)
    }
}

/// Bytes of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// The bytes in base64.
    #[must_use]
    pub fn to_base64(self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &self.to_base64())?;
                map.end()
            }
        }
    }
}

/// A table cell: text, or `base64:` and the bytes.
impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) => f.pad(&escaped(text)),
            Err(_) => f.pad(&format!("base64:{}", self.to_base64())),
        }
    }
}

/// A record's timestamp; RFC 3339, in UTC, to the millisecond.
pub fn time(timestamp_ms: Option<i64>) -> Option<String> {
    let timestamp = jiff::Timestamp::from_millisecond(timestamp_ms?).ok()?;
    Some(format!("{timestamp:.3}"))
}

/// The cell without a value.
pub const NOTHING: &str = "-";

/// A record's header.
#[derive(Serialize)]
pub struct ShownHeader<'a> {
    name: &'a str,
    value: Option<Bytes<'a>>,
}

impl<'a> ShownHeader<'a> {
    /// A header as a record has it.
    #[must_use]
    pub fn new(name: &'a str, value: Option<&'a [u8]>) -> Self {
        let value = value.map(Bytes);
        Self { name, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_text_or_base64() {
        let json = |bytes| serde_json::to_string(&Bytes(bytes)).unwrap();
        assert_eq!(json("Zürich".as_bytes()), "\"Zürich\"");
        assert_eq!(json(b""), "\"\"");
        assert_eq!(json(b"\xc3\x01\xff"), r#"{"base64":"wwH/"}"#);
        assert_eq!(format!("[{:<6}]", Bytes(b"ab")), "[ab    ]");
        assert_eq!(Bytes(b"\xc3\x01\xff").to_string(), "base64:wwH/");
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        let hostile = "a\x1b[2Jb\nc\u{9b}d";
        assert_eq!(
            Bytes(hostile.as_bytes()).to_string(),
            "a\\u{1b}[2Jb\\nc\\u{9b}d"
        );
    }

    #[test]
    fn times_are_shown_in_utc_and_impossible_ones_omitted() {
        assert_eq!(time(Some(0)).unwrap(), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(Some(i64::MAX)), None);
        assert_eq!(time(None), None);
    }
}
