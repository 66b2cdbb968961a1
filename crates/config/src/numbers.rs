//! Counts of at least one.

use std::num::NonZeroU64;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with = "…")]` on a number above 0. Negative numbers get the same error.
///
/// # Errors
///
/// If the number is not above 0, or too large.
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
///
/// # Errors
///
/// If the number is not above 0, or too large.
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
