//! Configuration in layers: the defaults in code, a YAML file over them, and environment variables
//! on top.
//!
//! What must hold: an unknown key or variable is refused with the most similar known one; an error
//! in a file names line and column; and no secret is shown by `Debug` or serialized (except within
//! this crate, while a layer is applied).
//!
//! Durations and sizes are text with a unit, in the grammar of `waybill-units`. A number without a
//! unit is a count.
//!
//! Deliberately absent: the keys themselves. A [`Configuration`] is a struct of the crate that uses
//! it.

pub mod checks;
mod environment;
mod error;
mod file;
pub mod file_permissions;
pub mod numbers;
mod schema;
mod secret;
mod secret_files;
pub mod testing;
mod words;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use environment::{Environment, variables};
pub use error::ConfigError;
pub use file::{FileError, misspelling_of, parse, parse_over_defaults, read_document, read_text};
pub use schema::{ListenAddress, schema_of_file};
pub use secret::{REDACTED, Secret, SecretUrl, secret_to_serialize};
pub use secret_files::SecretFiles;
pub use words::address_from_text;

/// A key below which any name is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenKey {
    /// The key.
    pub key: &'static str,
    /// An example of a name, as in an environment variable: `SASL_PASSWORD`.
    pub example: &'static str,
    /// How a name in an environment variable is written in a file.
    pub names: OpenNames,
}

/// How the names below an [`OpenKey`] are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenNames {
    /// Words with dots between them: `sasl.password`.
    Dotted,
    /// As keys of the configuration: `paymentsUrl`.
    CamelCase,
}

/// A whole configuration. Its defaults contain every key that a variable can set.
pub trait Configuration: Default + Serialize + DeserializeOwned {
    /// Keys below which any name is valid, such as `kafka.properties`.
    const OPEN_KEYS: &'static [OpenKey];
    /// Keys that no variable sets, because their values are structures for a file.
    const FILE_KEYS: &'static [&'static str];
    /// Variables with the prefix `WAYBILL_` that are not keys.
    const OTHER_VARIABLES: &'static [&'static str];
}

/// Loads the defaults, the file over them, and the environment on top.
///
/// # Errors
///
/// If the file cannot be read or is invalid, or a variable is unknown or does not fit.
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
