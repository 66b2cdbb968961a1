//! How an agent authenticates itself to its service.
//!
//! What must hold: secrets come from files, and appear in no log line, error, span or `Debug`
//! output, nor in the parts of a response that the agent passes on. A call waits for a new access
//! token for a bounded time, and at most one request for a token is in progress.

mod config;
mod oauth2;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request};
use tokio::time::Instant;
use waybill_config::{REDACTED, Secret};
use waybill_tls::{ClientTls, ClientTlsConfig, SecretFile};

pub use config::{
    ApiKeyConfig, AuthConfig, BasicConfig, BearerConfig, ClientAuth, Oauth2Config, ServiceTlsConfig,
};
pub(super) use oauth2::TokenError;

use self::oauth2::{Endpoint, Token, TokenSource};
use super::LoadError;
use super::config::HttpConfig;

/// The shortest secret that is redacted, in bytes.
const REDACTED_BYTES_MIN: usize = 6;

/// The checked `auth` of an agent, before its files are read.
#[derive(Debug)]
pub(super) struct AuthPlan(Option<SchemePlan>);

#[derive(Debug)]
enum SchemePlan {
    File {
        header: HeaderName,
        form: Form,
        key: &'static str,
        path: PathBuf,
    },
    Oauth2 {
        endpoint: Endpoint,
        secret_file: PathBuf,
        tls: ClientTlsConfig,
        /// The key of the authorities in `tls`.
        key_of_tls: &'static str,
    },
}

/// How an agent authenticates itself; empty if it does not.
#[derive(Debug)]
pub(super) struct Auth(Option<Scheme>);

#[derive(Debug)]
enum Scheme {
    File {
        header: HeaderName,
        form: Form,
        secret: SecretFile,
    },
    Oauth2(TokenSource),
}

/// The form of a header's value with a secret.
#[derive(Clone, Debug)]
enum Form {
    Bearer,
    Basic { user: String },
    Plain,
}

/// The credential of one call.
#[derive(Clone, Debug)]
pub(super) struct Credential {
    header: HeaderName,
    value: HeaderValue,
    /// The texts to redact.
    secrets: Vec<Secret>,
    /// The access token, with OAuth 2.0.
    token: Option<Arc<Token>>,
}

impl AuthPlan {
    pub(super) fn compile(config: &HttpConfig) -> Result<Self, LoadError> {
        let Some(auth) = &config.auth else {
            return Ok(Self(None));
        };
        let file = |header, form, key, path: &PathBuf| SchemePlan::File {
            header,
            form,
            key,
            path: path.clone(),
        };
        Ok(Self(Some(match auth {
            AuthConfig::Bearer(bearer) => file(
                AUTHORIZATION,
                Form::Bearer,
                "auth.bearer.tokenFile",
                &bearer.token_file,
            ),
            AuthConfig::Basic(basic) => {
                let user = &basic.user;
                let fits = user.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                if user.is_empty() || user.contains(':') || !fits {
                    return Err(LoadError::invalid(
                        "auth.basic.user",
                        "must be visible ASCII without a colon",
                    ));
                }
                let user = user.clone();
                let form = Form::Basic { user };
                let key = "auth.basic.passwordFile";
                file(AUTHORIZATION, form, key, &basic.password_file)
            }
            AuthConfig::ApiKey(api_key) => file(
                super::plan::header_name("auth.apiKey.header", &api_key.header)?,
                Form::Plain,
                "auth.apiKey.keyFile",
                &api_key.key_file,
            ),
            AuthConfig::Oauth2(oauth2) => SchemePlan::Oauth2 {
                key_of_tls: match oauth2.ca_file {
                    Some(_) => "auth.oauth2.caFile",
                    None => "tls.caFile",
                },
                endpoint: Endpoint::compile(oauth2)?,
                secret_file: oauth2.client_secret_file.clone(),
                tls: ClientTlsConfig {
                    ca_file: oauth2
                        .ca_file
                        .clone()
                        .or_else(|| config.tls.ca_file.clone()),
                    identity: None,
                },
            },
        })))
    }

    /// The header that carries the credential.
    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self.0.as_ref()? {
            SchemePlan::File { header, .. } => Some(header),
            SchemePlan::Oauth2 { .. } => Some(&AUTHORIZATION),
        }
    }

    /// Reads the files.
    pub(super) fn open(self, agent: &str) -> Result<Auth, LoadError> {
        let named = |key: &str| format!("agent {agent}: {key}");
        Ok(Auth(match self.0 {
            None => None,
            Some(SchemePlan::File {
                header,
                form,
                key,
                path,
            }) => {
                let secret = SecretFile::open(named(key), path);
                let secret = secret.map_err(|refused| LoadError::invalid(key, refused.problem))?;
                Some(Scheme::File {
                    header,
                    form,
                    secret,
                })
            }
            Some(SchemePlan::Oauth2 {
                endpoint,
                secret_file,
                tls,
                key_of_tls: key_of_authorities,
            }) => {
                let key = "auth.oauth2.clientSecretFile";
                let secret = SecretFile::open(named(key), secret_file);
                let secret = secret.map_err(|refused| LoadError::invalid(key, refused.problem))?;
                let key = key_of_authorities;
                let tls = ClientTls::open(named(key), &tls);
                let tls = tls.map_err(|refused| LoadError::invalid(key, refused.problem))?;
                Some(Scheme::Oauth2(TokenSource::new(
                    agent, endpoint, secret, tls,
                )))
            }
        }))
    }
}

impl Auth {
    /// The credential of the next call; `None` if the agent does not authenticate itself.
    ///
    /// # Errors
    ///
    /// If there is no access token.
    pub(super) async fn credential(
        &self,
        until: Instant,
    ) -> Result<Option<Credential>, TokenError> {
        Ok(match &self.0 {
            None => None,
            Some(Scheme::File {
                header,
                form,
                secret,
            }) => Some(form.credential(header, &*secret.get().await)),
            Some(Scheme::Oauth2(source)) => Some(Credential::of_token(source.token(until).await?)),
        })
    }

    /// The replacement of a credential that the service has refused; `None` if there is no other.
    ///
    /// # Errors
    ///
    /// If there is no access token.
    pub(super) async fn replacement(
        &self,
        refused: &Credential,
        until: Instant,
    ) -> Result<Option<Credential>, TokenError> {
        Ok(match (&self.0, &refused.token) {
            (
                Some(Scheme::File {
                    header,
                    form,
                    secret,
                }),
                _,
            ) => {
                let credential = form.credential(header, &*secret.get_anew().await);
                Some(credential).filter(|credential| credential.value != refused.value)
            }
            (Some(Scheme::Oauth2(source)), Some(token)) => {
                source.renew(token, until).await?.map(Credential::of_token)
            }
            (Some(Scheme::Oauth2(_)), None) | (None, _) => None,
        })
    }
}

impl Form {
    fn credential(&self, header: &HeaderName, secret: &Secret) -> Credential {
        let text = secret.reveal();
        let (value, encoded) = match self {
            Self::Bearer => (format!("Bearer {text}"), None),
            Self::Basic { user } => {
                let encoded = BASE64_STANDARD.encode(format!("{user}:{text}"));
                (format!("Basic {encoded}"), Some(Secret::from(encoded)))
            }
            Self::Plain => (text.to_owned(), None),
        };
        let mut secrets = forms_of(secret);
        secrets.extend(encoded);
        Credential {
            header: header.clone(),
            value: sensitive(value),
            secrets,
            token: None,
        }
    }
}

/// A header value that `Debug` does not show, and that HTTP/2 does not compress.
fn sensitive(text: String) -> HeaderValue {
    let mut value = HeaderValue::try_from(text).expect("secrets are checked to be visible ASCII");
    value.set_sensitive(true);
    value
}

impl Credential {
    fn of_token(token: Arc<Token>) -> Self {
        Self {
            header: AUTHORIZATION,
            value: sensitive(format!("Bearer {}", token.secret().reveal())),
            secrets: forms_of(token.secret()),
            token: Some(token),
        }
    }

    pub(super) fn add_to(&self, request: &mut Request<Bytes>) {
        let headers: &mut HeaderMap = request.headers_mut();
        headers.insert(self.header.clone(), self.value.clone());
    }

    pub(super) fn remove_from(&self, request: &mut Request<Bytes>) {
        request.headers_mut().remove(&self.header);
    }

    /// Redacts the secrets in the body of a response: a service may repeat them.
    pub(super) fn redact(&self, body: Bytes) -> Bytes {
        let text = String::from_utf8_lossy(&body);
        match redact(&self.secrets, &text) {
            Cow::Borrowed(_) => body,
            Cow::Owned(redacted) => redacted.into(),
        }
    }

    /// Redacts the secrets in the headers of a response.
    pub(super) fn redact_headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            let text = String::from_utf8_lossy(value.as_bytes());
            if let Cow::Owned(redacted) = redact(&self.secrets, &text) {
                let redacted = HeaderValue::try_from(redacted);
                *value = redacted.unwrap_or_else(|_| HeaderValue::from_static(REDACTED));
            }
        }
    }
}

/// The texts in which a service may repeat a secret: as it is, and as JSON escapes it.
fn forms_of(secret: &Secret) -> Vec<Secret> {
    let quoted = serde_json::to_string(secret.reveal()).unwrap_or_default();
    let inner = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let escaped = inner.filter(|escaped| *escaped != secret.reveal());
    let mut forms = vec![secret.clone()];
    forms.extend(escaped.map(Secret::from));
    forms
}

/// Redacts the secrets in a text, except very short ones, which occur in other values as well.
fn redact<'a>(secrets: &[Secret], text: &'a str) -> Cow<'a, str> {
    let mut redacted = Cow::Borrowed(text);
    for secret in secrets {
        if secret.reveal().len() >= REDACTED_BYTES_MIN && redacted.contains(secret.reveal()) {
            redacted = Cow::Owned(redacted.replace(secret.reveal(), REDACTED));
        }
    }
    redacted
}
