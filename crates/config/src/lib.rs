//! Configuration in layers: the defaults in code, a YAML file over them, and environment variables over that.
//!
//! What must hold: a key or a variable that is not known is refused, and named with its nearest known neighbour; an error
//! in a file says line and column; and no secret is shown by `Debug` or serialized (except within
//! this crate, while a layer is put over a configuration).
//!
//! Units: durations are text with a unit (`200ms`, `5s`, `2m`, `1h`, `7d`), sizes too (`512B`, `64KiB`, `8GiB`); a number
//! without a unit counts things.
//!
//! Deliberately absent: which keys there are. A [`Configuration`] is a struct of the crate that uses it.

mod environment;
mod error;
mod file;
pub mod file_modes;
mod secret;
mod secret_files;
pub mod units;
mod words;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use environment::{Environment, variables};
pub use error::ConfigError;
pub use file::{FileError, misspelling_of, parse, parse_over_defaults, read_document, read_text};
pub use secret::{REDACTED, Secret, SecretUrl, secret_to_serialize};
pub use secret_files::SecretFiles;
pub use units::{ByteSize, FreeMin, UnitError, duration_from_text, duration_to_text};
pub use words::address_from_text;

/// A whole configuration, whose defaults have every key that a variable can set.
pub trait Configuration: Default + Serialize + DeserializeOwned {
    /// Keys below which any name may stand, as `kafka.properties`, and an example of such a name.
    const OPEN_KEYS: &'static [(&'static str, &'static str)];
    /// Keys that no variable sets, since their values are structures that belong into a file.
    const FILE_KEYS: &'static [&'static str];
    /// Variables with the prefix `WAYBILL_` that are not keys.
    const OTHER_VARIABLES: &'static [&'static str];
}

/// The defaults, with the file and the environment over them.
///
/// # Errors
///
/// If the file cannot be read or understood, or a variable is not known or does not fit.
pub fn load<C: Configuration>(
    file: Option<&Path>,
    environment: &Environment,
) -> Result<C, ConfigError> {
    let config = match file {
        Some(path) => file::read(path)?,
        None => C::default(),
    };
    environment.apply(config)
}
