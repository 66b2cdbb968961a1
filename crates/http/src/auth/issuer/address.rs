//! Where the keys of an issuer are, and OpenID Connect Discovery 1.0.
//!
//! What must hold: keys come over an authenticated connection, which is HTTPS, or HTTP within this
//! machine; and metadata counts only if it names exactly the configured issuer, so that no issuer
//! can stand in for another.

use reqwest::Url;
use serde_json::Value;
use waybill_config::ConfigError;

use crate::auth::JwtConfig;
use crate::json::{self, JsonError};

/// The path of the metadata, below the issuer (Discovery, section 4).
const METADATA_PATH: &str = "/.well-known/openid-configuration";
/// The deepest nesting of metadata.
const DEPTH_MAX: usize = 8;

/// Where the keys are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::auth) enum KeysAddress {
    /// At this URL.
    Keys(Url),
    /// Where the metadata says.
    Metadata {
        /// The issuer that the metadata must name.
        issuer: String,
        /// Where the metadata is.
        url: Url,
    },
}

impl KeysAddress {
    /// Where the configuration says; `None` if keys are not fetched.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub(in crate::auth) fn of(config: &JwtConfig) -> Result<Option<Self>, ConfigError> {
        if let Some(url) = &config.jwks_url {
            let url = trusted_url(url)
                .map_err(|problem| ConfigError::invalid("auth.jwt.jwksUrl", problem))?;
            return Ok(Some(Self::Keys(url)));
        }
        let Some(issuer) = config.issuer.as_ref().filter(|_| config.discovery) else {
            return Ok(None);
        };
        let url = metadata_url(issuer)
            .map_err(|problem| ConfigError::invalid("auth.jwt.issuer", problem))?;
        Ok(Some(Self::Metadata {
            issuer: issuer.clone(),
            url,
        }))
    }
}

/// The URL of an issuer's metadata.
fn metadata_url(issuer: &str) -> Result<Url, String> {
    let url = trusted_url(issuer)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must have neither a query nor a fragment for discovery".to_owned());
    }
    let text = format!("{}{METADATA_PATH}", issuer.trim_end_matches('/'));
    text.parse()
        .map_err(|error| format!("is not a URL: {error}"))
}

/// Parses a URL that keys or metadata may be fetched from.
fn trusted_url(text: &str) -> Result<Url, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("is not a URL: {error}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a login".to_owned());
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        _ => Err(
            "must begin with https:// (or http:// for this machine): anyone on the path could \
             replace the keys"
                .to_owned(),
        ),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Why metadata gives no URL of keys.
#[derive(Debug, thiserror::Error)]
pub(in crate::auth) enum MetadataError {
    /// It is not JSON that all parsers read alike.
    #[error("the metadata is invalid: {0}")]
    Json(#[from] JsonError),
    /// It is of another issuer.
    #[error("the metadata is of the issuer {found:?}, and auth.jwt.issuer is {expected:?}")]
    Issuer {
        /// The configured issuer.
        expected: String,
        /// The one that the metadata names; empty if it names none.
        found: String,
    },
    /// It has no `jwks_uri`.
    #[error("the metadata has no jwks_uri")]
    NoKeys,
    /// `jwks_uri` may not be used.
    #[error("the jwks_uri of the metadata {0}")]
    Url(String),
}

/// The URL of the keys that the metadata of `issuer` names.
pub(in crate::auth) fn keys_url(issuer: &str, metadata: &[u8]) -> Result<Url, MetadataError> {
    let metadata = json::parse(metadata, DEPTH_MAX)?;
    let text = |name: &str| metadata.get(name).and_then(Value::as_str);
    let found = text("issuer").unwrap_or_default();
    if found != issuer {
        return Err(MetadataError::Issuer {
            expected: issuer.to_owned(),
            found: found.chars().take(256).collect(),
        });
    }
    let url = text("jwks_uri").ok_or(MetadataError::NoKeys)?;
    trusted_url(url).map_err(MetadataError::Url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_https_or_from_this_machine() {
        for good in [
            "https://id.example/keys",
            "https://id.example:8443/realms/a?x=1",
            "http://localhost:8080/keys",
            "http://127.0.0.1/keys",
            "http://[::1]:8080/keys",
        ] {
            assert!(trusted_url(good).is_ok(), "{good}");
        }
        for bad in [
            "id.example/keys",
            "",
            "file:///etc/passwd",
            "http://id.example/keys",
            "http://localhost.example/keys",
            "http://10.0.0.1/keys",
            "http://127.0.0.1.example/keys",
            "https://anna@id.example/keys",
            "https://anna:secret@id.example/keys",
        ] {
            let problem = trusted_url(bad).unwrap_err();
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn metadata_is_below_the_issuer() {
        for (issuer, expected) in [
            (
                "https://id.example",
                "https://id.example/.well-known/openid-configuration",
            ),
            (
                "https://id.example/",
                "https://id.example/.well-known/openid-configuration",
            ),
            (
                "https://id.example/realms/acme",
                "https://id.example/realms/acme/.well-known/openid-configuration",
            ),
        ] {
            assert_eq!(metadata_url(issuer).unwrap().as_str(), expected);
        }
        for bad in ["https://id.example?a=b", "https://id.example/#a", "acme"] {
            assert!(metadata_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metadata_counts_only_if_it_names_exactly_the_issuer() {
        let issuer = "https://id.example/realms/acme";
        let read = |text: &str| {
            keys_url(issuer, text.as_bytes())
                .map(String::from)
                .map_err(|error| error.to_string())
        };
        let of = |issuer: &str, more: &str| format!("{{\"issuer\":{issuer}{more}}}");
        let keys = r#","jwks_uri":"https://keys.example/jwks","grant_types_supported":["x"]"#;
        let same = format!("{issuer:?}");
        let good = read(&of(&same, keys));
        assert_eq!(good.as_deref(), Ok("https://keys.example/jwks"));
        for other in [
            "\"https://id.example/realms/acme/\"",
            "\"https://id.example/realms/Acme\"",
            "\"https://ID.example/realms/acme\"",
            "\"https://id.example/realms/acme2\"",
            "\"\"",
            "null",
            "[\"https://id.example/realms/acme\"]",
        ] {
            let refused = read(&of(other, keys)).unwrap_err();
            assert!(refused.contains("is of the issuer"), "{other}: {refused}");
        }
        for (text, expected) in [
            (of(&same, ""), "no jwks_uri"),
            (of(&same, r#","jwks_uri":7"#), "no jwks_uri"),
            (
                of(&same, r#","jwks_uri":"http://keys.example/jwks""#),
                "must begin with https://",
            ),
            (
                of(&same, &format!(",\"issuer\":{same}{keys}")),
                "appears twice",
            ),
            ("[]".to_owned(), "is of the issuer"),
            ("<html>".to_owned(), "the metadata is invalid"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
