//! Durations, sizes and counts in the form that people write.

mod schema;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use schema::ListenAddress;

/// Units of time, largest first, in milliseconds.
const TIME_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Units of size, largest first, in bytes.
const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// The longest duration and the largest size in a configuration: sums of a few stay far below 64
/// bits.
const DURATION_MAX: (u64, &str) = (36_500 * 86_400_000, "36500d");
const SIZE_MAX: (u64, &str) = (1 << 50, "1048576GiB");

const DURATION_EXPECTED: &str = "a duration with its unit, such as 200ms, 5s, 2m, 1h or 7d";
const SIZE_EXPECTED: &str = "a size with its unit, such as 512B, 64KiB, 16MiB or 8GiB";

/// Why a text is neither a duration nor a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected}")]
pub struct UnitError {
    expected: &'static str,
}

/// Parses `200ms`, `5s`, `2m`, `1h` or `7d`.
///
/// # Errors
///
/// If it has another form, or its milliseconds do not fit in 64 bits.
pub fn duration_from_text(text: &str) -> Result<Duration, UnitError> {
    parse(text, &TIME_UNITS)
        .map(Duration::from_millis)
        .ok_or(UnitError {
            expected: DURATION_EXPECTED,
        })
}

/// Formats a duration in its largest whole unit, for [`duration_from_text`]. Rounds down to whole
/// milliseconds.
#[must_use]
pub fn duration_to_text(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        "0s".to_owned()
    } else {
        format(millis, &TIME_UNITS)
    }
}

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
        f.write_str(&format(self.0, &SIZE_UNITS))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, &SIZE_UNITS).map(Self).ok_or(UnitError {
            expected: SIZE_EXPECTED,
        })
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(UnitVisitor {
                expected: SIZE_EXPECTED,
                units: &SIZE_UNITS,
                most: SIZE_MAX,
            })
            .map(Self)
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
    const EXPECTED: &str = "auto, a share below 100% such as 5%, or a size such as 512MiB or 2GiB";

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
        let refused = UnitError {
            expected: Self::EXPECTED,
        };
        let text = text.trim();
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.strip_suffix('%') {
            Some(share) => match share.trim_end().parse() {
                Ok(percent) if percent < 100 => Ok(Self::Percent(percent)),
                Ok(_) | Err(_) => Err(refused),
            },
            None => text.parse().map(Self::Size).map_err(|_| refused),
        }
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
        text.parse()
            .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &Self::EXPECTED))
    }
}

/// The text form of a [`Duration`], for `#[serde(with = "…")]`. A type rather than a module, so
/// that it also is the schema of such a field.
#[derive(Clone, Copy, Debug)]
pub struct DurationText;

impl DurationText {
    /// Serializes as text with a unit.
    ///
    /// # Errors
    ///
    /// The error of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration_to_text(*duration))
    }

    /// Deserializes text with a unit.
    ///
    /// # Errors
    ///
    /// If the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let visitor = UnitVisitor {
            expected: DURATION_EXPECTED,
            units: &TIME_UNITS,
            most: DURATION_MAX,
        };
        deserializer
            .deserialize_str(visitor)
            .map(Duration::from_millis)
    }
}

/// For `#[serde(deserialize_with = "…")]` on a number above 0. Negative numbers get the same error.
pub fn at_least_one<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<NonZeroU64>,
{
    let number = i64::deserialize(deserializer)?;
    let above = u64::try_from(number).ok().and_then(NonZeroU64::new);
    let above = above
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Signed(number), &"a nonzero number"))?;
    T::try_from(above).map_err(|_| D::Error::custom(format_args!("{number} is too large")))
}

/// The same for an optional number.
pub fn at_least_one_if_any<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<NonZeroU64>,
{
    let number = Option::<AtLeastOne<T>>::deserialize(deserializer)?;
    Ok(number.map(|AtLeastOne(number)| number))
}

struct AtLeastOne<T>(T);

impl<'de, T: TryFrom<NonZeroU64>> Deserialize<'de> for AtLeastOne<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        at_least_one(deserializer).map(Self)
    }
}

struct UnitVisitor {
    expected: &'static str,
    units: &'static [(&'static str, u64)],
    /// The maximum, and its text.
    most: (u64, &'static str),
}

impl Visitor<'_> for UnitVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        let number = parse(text, self.units)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))?;
        match self.most {
            (most, _) if number <= most => Ok(number),
            (_, most) => Err(E::custom(format_args!(
                "{text} is too large: the maximum is {most}"
            ))),
        }
    }
}

/// Parses a whole number and a unit, with only blanks between them.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.checked_mul(*size)
}

/// Formats the number in the largest unit that divides it.
fn format(number: u64, units: &[(&str, u64)]) -> String {
    let whole = units
        .iter()
        .find(|(_, size)| number >= *size && number.is_multiple_of(*size));
    let (unit, size) = whole.unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", number / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_with_their_largest_whole_unit() {
        let cases = [
            ("0s", 0, "0s"),
            ("200ms", 200, "200ms"),
            ("1500ms", 1_500, "1500ms"),
            ("5s", 5_000, "5s"),
            ("60s", 60_000, "1m"),
            ("2 m", 120_000, "2m"),
            ("36h", 129_600_000, "36h"),
            ("7d", 604_800_000, "7d"),
        ];
        for (text, millis, written) in cases {
            let duration = duration_from_text(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(duration_to_text(duration), written, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_and_written_with_their_largest_whole_unit() {
        let cases = [
            ("0B", 0, "0B"),
            ("512B", 512, "512B"),
            ("64KiB", 65_536, "64KiB"),
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
        for text in ["", "5", "100%", "-1%", "1.5%", "%", "5 percent"] {
            assert!(text.parse::<FreeMin>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_with_a_missing_or_wrong_unit_are_refused() {
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "1.5s",
            "5sec",
            "5S",
            "99999999999999999999s",
        ] {
            assert!(duration_from_text(text).is_err(), "{text}");
        }
        for text in ["", "64", "64KB", "64kib", "-1B", "18446744073709551615GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_configuration_takes_durations_and_sizes_up_to_a_bound() {
        #[derive(Debug, Deserialize)]
        struct Settings {
            #[serde(with = "super::DurationText")]
            wait: Duration,
            room: ByteSize,
        }
        let read = |wait: &str, room: &str| {
            let text = format!("{{\"wait\": \"{wait}\", \"room\": \"{room}\"}}");
            let read = serde_json::from_str::<Settings>(&text);
            read.map_err(|error| error.to_string())
        };
        let most = read("36500d", "1048576GiB").unwrap();
        assert_eq!(most.wait.as_secs(), 36_500 * 86_400);
        assert_eq!(most.room.as_u64(), 1 << 50);
        for (wait, room, expected) in [
            ("36501d", "1B", "36501d is too large: the maximum is 36500d"),
            ("213503982334d", "1B", "the maximum is 36500d"),
            (
                "1s",
                "1048577GiB",
                "1048577GiB is too large: the maximum is 1048576GiB",
            ),
        ] {
            let error = read(wait, room).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
