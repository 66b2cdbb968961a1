//! The `tls` section of a listener.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `tls` section of a listener. TLS is off if it is empty.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TlsConfig {
    /// The certificate, followed by those of its issuers (PEM).
    pub cert_file: Option<PathBuf>,
    /// The private key of the certificate (PEM), without a passphrase.
    pub key_file: Option<PathBuf>,
}

impl TlsConfig {
    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether both files are set, or neither.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cert_file.is_some() == self.key_file.is_some()
    }
}
