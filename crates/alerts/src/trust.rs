//! Certificates that a connection to a receiver trusts in addition to the system's.

use std::fs;
use std::path::Path;

use super::ReceiverError;

const KEY: &str = "caFile";
const END: &str = "-----END CERTIFICATE-----";

/// Reads a file of certificates (PEM), each parsed by `read`.
pub(super) fn read_certificates<C, E: std::fmt::Display>(
    path: &Path,
    read: impl Fn(&[u8]) -> Result<C, E>,
) -> Result<Vec<C>, ReceiverError> {
    let refuse = |problem| {
        let problem = format!("is {}, which {problem}", path.display());
        ReceiverError::new(KEY, problem)
    };
    let text =
        fs::read_to_string(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let certificates = text.split_inclusive(END).filter(|part| part.ends_with(END));
    let certificates = certificates
        .map(|part| read(part.as_bytes()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| refuse(format!("contains an invalid certificate: {error}")))?;
    if certificates.is_empty() {
        return Err(refuse("contains no certificate (PEM)".to_owned()));
    }
    Ok(certificates)
}
