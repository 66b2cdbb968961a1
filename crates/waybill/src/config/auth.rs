//! Who may use the API and the admin port.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The `auth` section. Authentication is on where one of its files is named.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthConfig {
    /// The file with the hashes of tokens.
    pub tokens_file: Option<PathBuf>,
}

impl AuthConfig {
    /// Whether it is asked who somebody is.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.tokens_file.is_some()
    }
}
