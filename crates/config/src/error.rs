//! Why a configuration is refused.

use crate::FileError;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A `WAYBILL_` variable that means nothing.
    #[error("the environment variable {name} is not known{}", did_you_mean(.nearest.as_deref()))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The known variable that is most like it.
        nearest: Option<String>,
    },
    /// A variable whose value does not fit its key.
    #[error("the environment variable {name} does not fit {key}: {cause}")]
    Variable {
        /// The variable.
        name: String,
        /// The key that it sets.
        key: String,
        /// What is wrong with it; never the value of a secret.
        cause: String,
    },
    /// A file that a key names cannot be read.
    #[error("{key}: {path} cannot be read")]
    NamedFile {
        /// The key.
        key: String,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Values that cannot work, alone or together.
    #[error("{key} {problem}")]
    Invalid {
        /// The key at fault.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
}

impl ConfigError {
    /// A value at `key` that cannot work.
    pub fn invalid(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

/// The second half of a message about an unknown name.
pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default()
}
