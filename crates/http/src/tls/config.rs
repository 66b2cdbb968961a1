//! What a listener proves itself with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A `tls` section of a listener, which is in the clear where it is empty.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TlsConfig {
    /// The certificate, and those of its issuers behind it (PEM).
    pub cert_file: Option<PathBuf>,
    /// The key of the first (PEM), without a passphrase.
    pub key_file: Option<PathBuf>,
}

impl TlsConfig {
    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether there are both files, or neither.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cert_file.is_some() == self.key_file.is_some()
    }
}
