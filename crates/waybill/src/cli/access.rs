//! How commands get in where it is asked who one is, and know whom they talk to.
//!
//! What must hold: no token is an argument or the value of a variable, where others of the machine can read it.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Certificate, ClientBuilder};

use crate::auth::{bearer, others};
use crate::config::{Config, Secret};

use super::ops::ApiAddress;

/// What a command needs to get in.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArgs {
    /// The file with the bearer token, where one is asked for
    #[arg(long, global = true, value_name = "FILE", env = "WAYBILL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) that are trusted beside the system's
    #[arg(long, global = true, value_name = "FILE", env = "WAYBILL_CA_FILE")]
    ca_file: Option<PathBuf>,
}

/// What a command needs to ask an admin port.
#[derive(Clone, Debug, Default, Args)]
pub struct AdminArgs {
    /// The admin port's address as a URL, where it is not at --admin
    #[arg(long, global = true, value_name = "URL")]
    admin_url: Option<ApiAddress>,
    #[command(flatten)]
    pub(super) access: AccessArgs,
}

/// Why one cannot get in.
#[derive(Debug)]
pub(super) struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccessError {}

impl AccessArgs {
    /// The same for who asks what anybody may: a token goes nowhere without need, and none has to be there.
    pub(super) fn without_token(&self) -> Self {
        Self {
            token_file: None,
            ..self.clone()
        }
    }

    /// The client with what the files say.
    pub(super) fn apply(&self, mut client: ClientBuilder) -> Result<ClientBuilder, AccessError> {
        if let Some(path) = &self.token_file {
            let refused = |problem: &str| file_refused("--token-file", path, problem);
            let text = std::fs::read_to_string(path)
                .map_err(|error| refused(&format!("cannot be read: {error}")))?;
            let token = Secret::from(text.trim());
            if token.reveal().is_empty() {
                return Err(refused("is empty"));
            }
            let token = bearer(&token).map_err(|_| refused("holds no token"))?;
            others::warn_if_they_may_read(path, "the token");
            client = client.default_headers(HeaderMap::from_iter([(AUTHORIZATION, token)]));
        }
        if let Some(path) = &self.ca_file {
            let refused = |problem: &str| file_refused("--ca-file", path, problem);
            let text = std::fs::read(path)
                .map_err(|error| refused(&format!("cannot be read: {error}")))?;
            let trusted = Certificate::from_pem_bundle(&text)
                .ok()
                .filter(|trusted| !trusted.is_empty())
                .ok_or_else(|| refused("holds no certificate (PEM)"))?;
            for certificate in trusted {
                client = client.add_root_certificate(certificate);
            }
        }
        Ok(client)
    }
}

impl AdminArgs {
    /// The URL of a page on the admin port.
    pub(super) fn url(&self, config: &Config, path: &str) -> anyhow::Result<String> {
        Ok(format!("{}{path}", self.address(config)?))
    }

    /// Where the admin port is.
    fn address(&self, config: &Config) -> anyhow::Result<ApiAddress> {
        match &self.admin_url {
            Some(address) => Ok(address.clone()),
            None => {
                let admin = &config.admin;
                ApiAddress::of_listener(admin.listen, admin.tls.is_on(), "--admin")
                    .map_err(|problem| anyhow::anyhow!(problem))
            }
        }
    }
}

/// The innermost cause of an error, which says what happened; the ones above it only say that something did.
pub(super) fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn file_refused(flag: &str, path: &Path, problem: &str) -> AccessError {
    AccessError(format!("{flag}: {} {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(args: &AccessArgs) -> Result<ClientBuilder, String> {
        args.apply(reqwest::Client::builder())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_comes_from_its_file_and_is_shown_by_nobody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let args = AccessArgs {
            token_file: Some(file.path().to_owned()),
            ca_file: None,
        };
        assert!(apply(&args).unwrap_err().ends_with("is empty"));
        std::fs::write(file.path(), "wb_secret\n").unwrap();
        let client = apply(&args).unwrap();
        assert!(!format!("{client:?} {args:?}").contains("wb_secret"));
        std::fs::write(file.path(), "two\nlines").unwrap();
        assert!(apply(&args).unwrap_err().ends_with("holds no token"));
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_by_their_flags() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (some, none) = (Some(file.path().to_owned()), Some("/nonexistent".into()));
        for (token_file, ca_file, expected) in [
            (
                none.clone(),
                None,
                "--token-file: /nonexistent cannot be read",
            ),
            (None, none, "--ca-file: /nonexistent cannot be read"),
            (None, some, "--ca-file: "),
        ] {
            let args = AccessArgs {
                token_file,
                ca_file,
            };
            let refused = apply(&args).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
