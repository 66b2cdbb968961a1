//! How commands authenticate, and which certificates they trust.
//!
//! What must hold: no token is an argument or the value of an environment variable, because other
//! users of the machine can read both.

use std::path::PathBuf;

use clap::Args;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Certificate, ClientBuilder};
use waybill_node::config::Config;

use crate::address::ApiAddress;
use crate::broker_login::with_login;
use crate::credentials::{AccessError, file_refused, named_file, read_bearer};

/// The credentials of a command.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArgs {
    /// The file with the bearer token, if authentication is on
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WAYBILL_TOKEN_FILE",
        value_parser = named_file("WAYBILL_TOKEN_FILE")
    )]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust in addition to the system's
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WAYBILL_CA_FILE",
        value_parser = named_file("WAYBILL_CA_FILE")
    )]
    ca_file: Option<PathBuf>,
}

/// The flags of commands that call an admin port.
#[derive(Clone, Debug, Default, Args)]
pub struct AdminArgs {
    /// The URL of the admin port, if it is not at --admin
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) admin_url: Option<ApiAddress>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

impl AccessArgs {
    /// The same access without the token, for requests that need none. The token is not sent, and
    /// its file need not exist.
    pub(crate) fn without_token(&self) -> Self {
        Self {
            token_file: None,
            ..self.clone()
        }
    }

    /// Adds the token and the trusted certificates from the files to a client.
    pub(crate) fn apply(&self, mut client: ClientBuilder) -> Result<ClientBuilder, AccessError> {
        if let Some(path) = &self.token_file {
            let (_, bearer) = read_bearer(path)?;
            client = client.default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]));
        }
        if let Some(path) = &self.ca_file {
            let refused = |problem: &str| file_refused("--ca-file", path, problem);
            let text = std::fs::read(path)
                .map_err(|error| refused(&format!("cannot be read: {error}")))?;
            let trusted = Certificate::from_pem_bundle(&text)
                .ok()
                .filter(|trusted| !trusted.is_empty())
                .ok_or_else(|| refused("contains no certificate (PEM)"))?;
            for certificate in trusted {
                client = client.add_root_certificate(certificate);
            }
        }
        Ok(client)
    }
}

impl AdminArgs {
    /// The configuration with this token as the login for the embedded broker.
    pub(crate) fn broker_login(&self, config: &Config) -> anyhow::Result<Config> {
        with_login(config, self.access.token_file.as_deref())
    }

    /// The URL of a page on the admin port.
    pub(crate) fn url(&self, config: &Config, path: &str) -> anyhow::Result<String> {
        Ok(format!("{}{path}", self.address(config)?))
    }

    /// Whether a flag or the configuration names the admin port.
    pub(crate) fn is_named(&self, config: &Config) -> bool {
        self.admin_url.is_some() || config.admin.listen != Config::default().admin.listen
    }

    /// The address of the admin port.
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

/// The hint when the peer closes a connection on which the client speaks HTTP.
const ANOTHER_PROTOCOL: &str = "the port may speak another protocol, such as https or Kafka";

/// Why a request got no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Silence {
    /// Nothing listens at the address, or the connection broke; with the reason.
    Unreachable(String),
    /// The peer's certificate is not trusted; with the reason and a hint.
    Distrusted(String),
}

impl Silence {
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        let first: &dyn std::error::Error = error;
        let causes = std::iter::successors(Some(first), |cause| cause.source());
        let silence = Self::from_causes(causes.map(ToString::to_string));
        match error.url().is_some_and(|url| url.scheme() == "http") {
            true => silence.of_plain_http(),
            false => silence,
        }
    }

    /// Adds a hint after a request without TLS: a TLS peer accepts such a connection and closes it.
    fn of_plain_http(self) -> Self {
        let is_cut_off = |why: &str| {
            let cuts = ["Connection reset", "connection closed"];
            cuts.iter().any(|cut| why.starts_with(cut))
        };
        match self {
            Self::Unreachable(why) if is_cut_off(&why) => {
                Self::Unreachable(format!("{why}; {ANOTHER_PROTOCOL}"))
            }
            other => other,
        }
    }

    /// Uses the innermost cause, because the outer ones only say that something failed. The reason
    /// for a refused certificate is in an outer cause than that of OpenSSL.
    fn from_causes(causes: impl Iterator<Item = String>) -> Self {
        let mut innermost = String::new();
        for cause in causes {
            if let Some(why) = distrust(&cause) {
                return Self::Distrusted(why);
            }
            innermost = cause;
        }
        Self::Unreachable(of_openssl(&innermost).unwrap_or(innermost))
    }
}

/// Why the peer's certificate is not trusted, if the error says so.
fn distrust(text: &str) -> Option<String> {
    let (_, behind) = text.split_once("certificate verify failed")?;
    let why = behind.rsplit_once('(').map(|(_, why)| why);
    let why = why.and_then(|why| why.strip_suffix(')'));
    let why = why.unwrap_or("no reason was given");
    let is_about = |word: &str| why.to_ascii_lowercase().contains(word);
    Some(if is_about("mismatch") {
        format!("its certificate is for another name ({why}); use a name in the certificate")
    } else if is_about("expired") || is_about("not yet valid") {
        format!("its certificate is expired or not yet valid ({why})")
    } else {
        format!(
            "its certificate is not trusted ({why}); --ca-file or WAYBILL_CA_FILE names a file with the one to trust"
        )
    })
}

/// The reason in an OpenSSL error, without source locations:
/// `error:CODE:LIBRARY:FUNCTION:REASON:FILE:LINE:`.
fn of_openssl(text: &str) -> Option<String> {
    let reason = text.strip_prefix("error:")?.split(':').nth(3)?;
    Some(match reason {
        "wrong version number" | "packet length too long" | "record layer failure" => {
            format!("TLS: {reason}; the server may not use TLS: try http://")
        }
        reason => format!("TLS: {reason}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(args: &AccessArgs) -> Result<ClientBuilder, String> {
        args.apply(reqwest::Client::builder())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_untrusted_certificate_is_not_unreachable_and_no_source_of_openssl_is_named() {
        const REFUSED: &str = "error:0A000086:SSL routines:tls_post_process_server_certificate:certificate verify \
                               failed:../ssl/statem/statem_clnt.c:1889:";
        let distrusted = |why: &str| {
            let causes = [
                "client error (Connect)",
                &format!("{REFUSED}{why}"),
                REFUSED,
            ];
            match Silence::from_causes(causes.map(str::to_owned).into_iter()) {
                Silence::Distrusted(why) => why,
                Silence::Unreachable(why) => panic!("{why}"),
            }
        };
        for (why, expected) in [
            (
                " (self-signed certificate)",
                "its certificate is not trusted (self-signed certificate); --ca-file or WAYBILL_CA_FILE names",
            ),
            (
                " (hostname mismatch)",
                "its certificate is for another name (hostname mismatch); use a name",
            ),
            (
                " (certificate has expired)",
                "its certificate is expired or not yet valid (certificate has expired)",
            ),
            ("", "its certificate is not trusted (no reason was given)"),
        ] {
            let text = distrusted(why);
            assert!(text.starts_with(expected), "{text}");
            assert!(!text.contains("statem"), "{text}");
        }
        let silence = |text: &str| Silence::from_causes([text.to_owned()].into_iter());
        assert_eq!(
            silence(
                "error:0A00010B:SSL routines:ssl3_get_record:wrong version number:../ssl/record/x.c:354:"
            ),
            Silence::Unreachable(
                "TLS: wrong version number; the server may not use TLS: try http://".to_owned()
            )
        );
        assert_eq!(
            silence("Connection refused (os error 111)"),
            Silence::Unreachable("Connection refused (os error 111)".to_owned())
        );
    }

    #[test]
    fn a_closed_plain_connection_gets_a_hint_at_https() {
        let of_plain_http = |why: &str| Silence::Unreachable(why.to_owned()).of_plain_http();
        for why in [
            "Connection reset by peer (os error 104)",
            "connection closed before message completed",
        ] {
            let hinted = Silence::Unreachable(format!("{why}; {ANOTHER_PROTOCOL}"));
            assert_eq!(of_plain_http(why), hinted);
        }
        let refused = "Connection refused (os error 111)";
        assert_eq!(
            of_plain_http(refused),
            Silence::Unreachable(refused.to_owned())
        );
    }

    #[test]
    fn a_token_comes_from_its_file_and_is_never_shown() {
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
    fn an_empty_path_is_refused_with_the_variable_to_unset() {
        let arg = clap::Arg::new("file").long("file");
        let command = clap::Command::new("x").arg(arg.value_parser(named_file("WAYBILL_X")));
        let parse = |path: &str| command.clone().try_get_matches_from(["x", "--file", path]);
        let refused = parse("").unwrap_err().to_string();
        assert!(
            refused.contains("unset the variable WAYBILL_X"),
            "{refused}"
        );
        assert!(parse("a").is_ok());
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
