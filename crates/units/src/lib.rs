//! Durations and sizes as people write them: a whole number and its unit, perhaps with blanks
//! around them. Also the durations between retries ([`backoff`]).
//!
//! Workflows, agents, the configuration, command lines, queries and scenarios of the load test
//! share this grammar, and their JSON Schemas share its patterns. A pattern accepts what the parser
//! accepts, except that only the parser knows the maximum.
//!
//! Deliberately absent: ranges of single settings. The crate that owns a setting checks its range.

mod backoff;
mod duration;
mod size;

use std::fmt;

use serde::de;

pub use backoff::backoff;
pub use duration::{DurationText, duration_from_text, duration_to_text, optional_duration};
pub use size::{ByteSize, FreeMin};

/// Why a text is neither a duration nor a size: the end of a sentence that begins with the text, or
/// with the name of the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be {expected}")]
pub struct UnitError {
    expected: &'static str,
}

/// The values that are written with the same units.
struct Quantity {
    expected: &'static str,
    /// The units, largest first, and how many of the smallest one each is.
    units: &'static [(&'static str, u64)],
    /// The largest value, and what a larger one must be. Sums of a few such values still fit in 64
    /// bits.
    max: (u64, &'static str),
}

impl Quantity {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = self
            .units
            .iter()
            .find(|(name, _)| *name == unit.trim_start());
        let (_, size) = unit.filter(|_| digits > 0).ok_or(UnitError {
            expected: self.expected,
        })?;
        // Digits alone are a number, if perhaps of more than 64 bits.
        let number = number.parse().unwrap_or(u64::MAX).saturating_mul(*size);
        match self.max {
            (max, _) if number <= max => Ok(number),
            (_, expected) => Err(UnitError { expected }),
        }
    }

    /// Formats a number in the largest unit that divides it.
    fn format(&self, number: u64) -> String {
        let divides = |size: u64| number >= size && number.is_multiple_of(size);
        let unit = self.units.iter().find(|(_, size)| divides(*size));
        let (unit, size) = unit.unwrap_or(&self.units[self.units.len() - 1]);
        format!("{}{unit}", number / size)
    }
}

impl de::Visitor<'_> for &Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        self.parse(text).map_err(|error| refused(text, error))
    }
}

/// The error for a value that is text, but not of the right form.
fn refused<E: de::Error>(text: &str, error: UnitError) -> E {
    E::invalid_value(de::Unexpected::Str(text), &error.expected)
}
