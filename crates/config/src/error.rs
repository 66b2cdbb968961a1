//! Why a configuration is refused.

use std::path::Path;

use crate::FileError;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// An unknown variable with the prefix `WAYBILL_`.
    #[error("unknown environment variable {name}{}", did_you_mean(.nearest.as_deref()))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The most similar known variable.
        nearest: Option<String>,
    },
    /// A variable whose value does not fit its key.
    #[error("the environment variable {name} is invalid for {key}: {cause}")]
    Variable {
        /// The variable.
        name: String,
        /// The key that it sets.
        key: String,
        /// What is wrong with it; never the value of a secret.
        cause: String,
    },
    /// A file that a key names is unreadable.
    #[error("{key}: {path} cannot be read{}", tried(.path))]
    NamedFile {
        /// The key.
        key: String,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Values that are invalid, alone or together.
    #[error("{key} {problem}")]
    Invalid {
        /// The key at fault.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
}

impl ConfigError {
    /// An invalid value of `key`.
    pub fn invalid(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

/// The absolute form of a relative path, whose author may have meant another directory.
fn tried(path: &str) -> String {
    match (Path::new(path).is_relative(), std::path::absolute(path)) {
        (true, Ok(absolute)) => format!(
            " ({}: a relative path starts at the working directory)",
            absolute.display()
        ),
        _ => String::new(),
    }
}

/// The end of a message about an unknown name.
pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default()
}
