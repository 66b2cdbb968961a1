//! Sizes as text, and how much of a disk must stay free.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Quantity, UnitError, refused};

/// In bytes.
const SIZE: Quantity = Quantity {
    expected: "a size with its unit, such as 512B, 64KiB, 16MiB or 8GiB",
    units: &[
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ],
    max: (1 << 50, "at most 1048576GiB"),
};

/// A size in bytes, written with a binary unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size of this many bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of this many kibibytes.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// A size of this many mebibytes.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// A size of this many gibibytes.
    #[must_use]
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The size in bytes, at most the largest `usize`.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&SIZE.format(self.0))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        SIZE.parse(text).map(Self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(&SIZE).map(Self)
    }
}

/// How much of a file system must stay free: `auto`, a share such as `5%`, or a size such as
/// `2GiB`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeMin {
    /// 5 % of the file system, at least 512 MiB and at most 16 GiB, but never more than a quarter
    /// of it.
    #[default]
    Auto,
    /// This percentage of the file system, below 100.
    Percent(u8),
    /// This many bytes.
    Size(ByteSize),
}

impl FreeMin {
    /// The amount in bytes for a file system of `size` bytes.
    #[must_use]
    pub fn bytes_of(self, size: u64) -> u64 {
        match self {
            Self::Auto => (size / 20).clamp(512 << 20, 16 << 30).min(size / 4),
            Self::Percent(percent) => size / 100 * u64::from(percent),
            Self::Size(bytes) => bytes.as_u64(),
        }
    }
}

impl fmt::Display for FreeMin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Size(bytes) => bytes.fmt(f),
        }
    }
}

impl FromStr for FreeMin {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let known = match text.strip_suffix('%') {
            Some(share) => share
                .trim_end()
                .parse()
                .ok()
                .filter(|it| *it < 100)
                .map(Self::Percent),
            None => text.parse().ok().map(Self::Size),
        };
        known.ok_or(UnitError {
            expected: "auto, a share below 100% such as 5%, or a size such as 512MiB or 2GiB",
        })
    }
}

impl Serialize for FreeMin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FreeMin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| refused(&text, error))
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A whole number and its unit: B, KiB, MiB or GiB.",
            "pattern": r"^\s*[0-9]+\s*(B|KiB|MiB|GiB)\s*$",
            "examples": ["512B", "64KiB", "16MiB", "8GiB"],
        })
    }
}

impl JsonSchema for FreeMin {
    fn schema_name() -> Cow<'static, str> {
        "FreeMin".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "`auto`, a share of the file system below 100%, or a size.",
            "pattern": r"^\s*(auto|\+?0*[0-9]{1,2}\s*%|[0-9]+\s*(B|KiB|MiB|GiB))\s*$",
            "examples": ["auto", "5%", "2GiB"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_with_their_largest_whole_unit() {
        let cases = [
            ("0B", 0, "0B"),
            ("512B", 512, "512B"),
            ("64KiB", 65_536, "64KiB"),
            (" 64 KiB ", 65_536, "64KiB"),
            ("1024MiB", 1 << 30, "1GiB"),
            ("1025B", 1_025, "1025B"),
        ];
        for (text, bytes, written) in cases {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.as_u64(), bytes, "{text}");
            assert_eq!(size.to_string(), written, "{text}");
        }
    }

    #[test]
    fn disk_minimum_is_a_share_or_a_size() {
        let of = |text: &str, gib: u64| text.parse::<FreeMin>().unwrap().bytes_of(gib << 30) >> 20;
        assert_eq!(of("auto", 1), 256, "a quarter of a small disk");
        assert_eq!(of("auto", 8), 512);
        assert_eq!(of("auto", 100), 5 * 1024);
        assert_eq!(of("auto", 4000), 16 * 1024);
        assert_eq!(of("10%", 100), 10 * 1024);
        assert_eq!(of("2GiB", 1), 2048, "unchanged");
        for text in ["auto", "5%", "0%", "512MiB", "0B"] {
            assert_eq!(text.parse::<FreeMin>().unwrap().to_string(), text);
        }
        for (text, same) in [(" auto ", "auto"), ("5 %", "5%"), (" 2 GiB", "2GiB")] {
            assert_eq!(text.parse::<FreeMin>(), same.parse(), "{text}");
        }
        for text in ["", "5", "100%", "-1%", "1.5%", "%", "5 percent"] {
            assert!(text.parse::<FreeMin>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_the_expected_form_or_the_maximum() {
        let refused = |text: &str| text.parse::<ByteSize>().expect_err(text).to_string();
        for text in ["", "64", "64 K iB", "64KB", "64kib", "-1B", "1.5GiB"] {
            let form = "must be a size with its unit, such as 512B, 64KiB, 16MiB or 8GiB";
            assert_eq!(refused(text), form, "{text}");
        }
        for text in ["1048577GiB", "18446744073709551615GiB"] {
            assert_eq!(refused(text), "must be at most 1048576GiB", "{text}");
        }
        assert_eq!("1048576GiB".parse(), Ok(ByteSize(1 << 50)));
    }
}
