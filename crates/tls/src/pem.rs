//! Certificates and private keys as PEM.

use std::fmt;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::SslContextBuilder;
use openssl::x509::{X509, X509Ref};
use waybill_config::file_permissions;

/// A certificate with its issuers' certificates and its private key.
pub struct Identity {
    certificate: X509,
    issuers: Vec<X509>,
    key: PKey<Private>,
}

impl Identity {
    /// Reads the contents of two files. `of` names the owner in the log: `a listener`.
    ///
    /// # Errors
    ///
    /// If one of them is not PEM of the expected kind, or they do not belong together. The message
    /// names the file.
    pub fn read(
        (certificates_path, certificates): (&Path, &[u8]),
        (key_path, key): (&Path, &[u8]),
        of: &str,
    ) -> Result<Self, String> {
        let mut issuers = read_certificates(certificates_path, certificates)?;
        let certificate = issuers.remove(0);
        let key = read_key(key_path, key)?;
        file_permissions::warn_if_world_readable(key_path, &format!("the key of {of}"));
        if !certificate
            .public_key()
            .is_ok_and(|public| public.public_eq(&key))
        {
            return Err(format!(
                "the key in {} does not match the first certificate in {}",
                key_path.display(),
                certificates_path.display()
            ));
        }
        let now = Asn1Time::days_from_now(0);
        if now.is_ok_and(|now| *certificate.not_after() < *now) {
            let path = certificates_path.display();
            tracing::warn!(%path, "the certificate has expired: peers will reject it");
        }
        Ok(Self {
            certificate,
            issuers,
            key,
        })
    }

    /// The certificate.
    #[must_use]
    pub fn certificate(&self) -> &X509Ref {
        &self.certificate
    }

    /// Presents the identity to the peer of each connection.
    ///
    /// # Errors
    ///
    /// If OpenSSL refuses it.
    pub fn add_to(&self, settings: &mut SslContextBuilder) -> Result<(), ErrorStack> {
        settings.set_certificate(&self.certificate)?;
        settings.set_private_key(&self.key)?;
        for issuer in &self.issuers {
            settings.add_extra_chain_cert(issuer.clone())?;
        }
        settings.check_private_key()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Reads the content of a file with at least one certificate.
///
/// # Errors
///
/// If there is none, or one is invalid. The message names the file.
pub fn read_certificates(path: &Path, text: &[u8]) -> Result<Vec<X509>, String> {
    let path = path.display();
    let certificates = X509::stack_from_pem(text)
        .map_err(|_| format!("{path} contains an invalid certificate"))?;
    match certificates.is_empty() {
        true => Err(format!("{path} contains no certificate (PEM)")),
        false => Ok(certificates),
    }
}

fn read_key(path: &Path, text: &[u8]) -> Result<PKey<Private>, String> {
    // Without this callback OpenSSL would ask for the passphrase on the terminal.
    PKey::private_key_from_pem_callback(text, |_| Ok(0)).map_err(|_| {
        format!(
            "{} contains no unencrypted private key (PEM)",
            path.display()
        )
    })
}
