//! Arguments that name files, the bearer token in such a file, and the error for a file that cannot
//! be used.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use reqwest::header::HeaderValue;
use waybill_config::{Secret, file_permissions};
use waybill_http::auth::bearer;

/// Parses a path that the environment variable may give instead. The error for an empty path names
/// the variable.
pub fn named_file(variable: &'static str) -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(move |path| match path.is_empty() {
        true => Err(format!(
            "it is empty; name a file, or unset the variable {variable}"
        )),
        false => Ok(PathBuf::from(path)),
    })
}

/// Why a token or certificate file cannot be used.
#[derive(Debug)]
pub(crate) struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccessError {}

/// Reads the token from a file.
pub(crate) fn read_token(path: &Path) -> Result<Secret, AccessError> {
    read_bearer(path).map(|(token, _)| token)
}

/// Reads a token and makes its header. A file of several lines, such as a private key, is refused.
pub(crate) fn read_bearer(path: &Path) -> Result<(Secret, HeaderValue), AccessError> {
    let refused = |problem: &str| file_refused("--token-file", path, problem);
    let text = std::fs::read_to_string(path)
        .map_err(|error| refused(&format!("cannot be read: {error}")))?;
    let token = Secret::from(text.trim());
    if token.reveal().is_empty() {
        return Err(refused("is empty"));
    }
    let bearer = bearer(&token).map_err(|_| refused("holds no token"))?;
    file_permissions::warn_if_world_readable(path, "the token");
    Ok((token, bearer))
}

/// The error for a file that a flag names.
pub(crate) fn file_refused(flag: &str, path: &Path, problem: &str) -> AccessError {
    AccessError(format!("{flag}: {} {problem}", path.display()))
}
