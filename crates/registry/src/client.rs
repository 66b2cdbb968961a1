//! Requests to the registry, one at a time.

use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use waybill_messages::SchemaId;

/// The content type of the API.
const MEDIA_TYPE: &str = "application/vnd.schemaregistry.v1+json";
/// The largest accepted answer, in bytes: a schema must fit.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest reason of the registry to pass on, in bytes: reasons often contain whole schemas.
const REASON_BYTES_MAX: usize = 1_000;
/// The end of a certificate in a PEM file.
const CERTIFICATE_END: &str = "-----END CERTIFICATE-----";

/// The API's error codes for missing resources.
const SUBJECT_NOT_FOUND: u32 = 40_401;
const VERSION_NOT_FOUND: u32 = 40_402;
const SCHEMA_NOT_FOUND: u32 = 40_403;

/// How to reach a registry.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// Its URL, such as `https://registry.example:8081`; a path may follow.
    pub url: String,
    /// The credentials; `None` for anonymous requests.
    pub login: Option<Login>,
    /// Trusted certificates (PEM) in addition to those of the system.
    pub ca_pem: Option<String>,
    /// How long one request may take.
    pub timeout: Duration,
}

/// Credentials for HTTP basic authentication.
#[derive(Clone)]
pub struct Login {
    /// The user.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Why a client cannot be created with these settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The URL is not a valid registry URL.
    #[error(
        "{url:?} is not a valid URL: expected one such as https://registry.example:8081, without a \
         user or a query"
    )]
    Url {
        /// The URL, without any part that may be a password.
        url: String,
    },
    /// The certificates are invalid.
    #[error("cannot read the trusted certificates")]
    Certificates(#[source] reqwest::Error),
    /// The PEM text contains no certificate.
    #[error("the trusted certificates contain no certificate (PEM)")]
    NoCertificate,
    /// The HTTP client cannot be created.
    #[error("cannot create the client of the schema registry")]
    Client(#[source] reqwest::Error),
}

/// Why the registry gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It was unreachable, or did not answer in time. Retry.
    #[error("the schema registry at {url} did not answer")]
    Unreachable {
        /// The registry.
        url: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// It cannot answer at the moment. Retry.
    #[error("the schema registry at {url} is unavailable: {reason}")]
    Unavailable {
        /// The registry.
        url: String,
        /// Its reason.
        reason: String,
    },
    /// It refuses this request permanently.
    #[error("the schema registry at {url} refused {what}: {reason}")]
    Refused {
        /// The registry.
        url: String,
        /// The request.
        what: String,
        /// Its reason.
        reason: String,
    },
    /// This user has no permission to access it.
    #[error("the schema registry at {url} does not permit this user {what}: {reason}")]
    Forbidden {
        /// The registry.
        url: String,
        /// The request.
        what: String,
        /// Its reason.
        reason: String,
    },
    /// A schema is incompatible with earlier versions of its subject.
    #[error("the schema is incompatible with earlier versions of subject {subject}: {reason}")]
    Incompatible {
        /// The subject.
        subject: String,
        /// The registry's reason.
        reason: String,
    },
    /// The server is not a schema registry.
    #[error("the server at {url} is not a schema registry: {reason}")]
    NotARegistry {
        /// Its URL.
        url: String,
        /// Its answer.
        reason: String,
    },
}

impl RegistryError {
    /// Whether a retry may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unavailable { .. } => true,
            Self::Refused { .. }
            | Self::Forbidden { .. }
            | Self::Incompatible { .. }
            | Self::NotARegistry { .. } => false,
        }
    }
}

/// A schema as the registry stores it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredSchema {
    /// The schema's text.
    pub schema: String,
    /// Its type.
    #[serde(default = "avro")]
    pub schema_type: String,
}

/// The API's default type.
fn avro() -> String {
    StoredSchema::AVRO.to_owned()
}

impl StoredSchema {
    /// The type of Avro schemas.
    pub const AVRO: &str = "AVRO";
}

/// Whether a schema is compatible with a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compatibility {
    /// The subject has no version yet.
    First,
    /// It is compatible with the existing versions.
    Compatible,
    /// It is not compatible.
    Incompatible {
        /// The registry's reasons.
        reasons: Vec<String>,
    },
}

/// A registry. Clones share its connections.
#[derive(Clone)]
pub struct Registry {
    client: Client,
    url: Url,
    login: Option<Login>,
}

impl Registry {
    /// Creates a client without sending a request.
    ///
    /// # Errors
    ///
    /// If the settings are invalid.
    pub fn new(settings: &RegistrySettings) -> Result<Self, SettingsError> {
        let url = base_url(&settings.url)?;
        let mut certificates = Vec::new();
        if let Some(pem) = &settings.ca_pem {
            for part in pem.split_inclusive(CERTIFICATE_END) {
                if part.ends_with(CERTIFICATE_END) {
                    let certificate = Certificate::from_pem(part.as_bytes());
                    certificates.push(certificate.map_err(SettingsError::Certificates)?);
                }
            }
            if certificates.is_empty() {
                return Err(SettingsError::NoCertificate);
            }
        }
        let client = Client::builder()
            .user_agent(concat!("waybill/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .no_proxy()
            .timeout(settings.timeout)
            .tls_certs_merge(certificates)
            .build()
            .map_err(SettingsError::Client)?;
        Ok(Self {
            client,
            url,
            login: settings.login.clone(),
        })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// The schema of an ID; `None` if the ID does not exist.
    ///
    /// # Errors
    ///
    /// If the registry does not answer, or refuses to.
    pub async fn schema(&self, id: SchemaId) -> Result<Option<StoredSchema>, RegistryError> {
        let number = id.to_string();
        let path = ["schemas", "ids", &number];
        match self.ask(Method::GET, &path, None).await? {
            Answer::Ok(stored) => Ok(Some(stored)),
            Answer::Error(error) if error.code == SCHEMA_NOT_FOUND => Ok(None),
            Answer::Error(error) => Err(self.refused(format!("to show schema {id}"), error)),
        }
    }

    /// The ID of a schema under a subject; `None` if the subject does not have it.
    ///
    /// # Errors
    ///
    /// If the registry does not answer, or refuses to.
    pub async fn look_up(
        &self,
        subject: &str,
        schema: &str,
    ) -> Result<Option<SchemaId>, RegistryError> {
        let path = ["subjects", subject];
        match self.ask(Method::POST, &path, Some(schema)).await? {
            Answer::Ok(Registered { id }) => Ok(Some(SchemaId(id))),
            Answer::Error(error)
                if [SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND]
                    .contains(&error.code) =>
            {
                Ok(None)
            }
            Answer::Error(error) => {
                Err(self.refused(format!("to look up a schema of {subject}"), error))
            }
        }
    }

    /// Registers a schema under a subject, unless the subject has it already. Returns the schema's
    /// ID.
    ///
    /// # Errors
    ///
    /// If the registry does not answer or refuses to, or the schema is incompatible with earlier
    /// versions.
    pub async fn register(&self, subject: &str, schema: &str) -> Result<SchemaId, RegistryError> {
        let path = ["subjects", subject, "versions"];
        match self.ask(Method::POST, &path, Some(schema)).await? {
            Answer::Ok(Registered { id }) => Ok(SchemaId(id)),
            Answer::Error(error) if error.status == StatusCode::CONFLICT => {
                Err(RegistryError::Incompatible {
                    subject: subject.to_owned(),
                    reason: error.message,
                })
            }
            Answer::Error(error) => {
                Err(self.refused(format!("to register a schema of {subject}"), error))
            }
        }
    }

    /// Checks a schema against the newest version of a subject, by the compatibility level that the
    /// registry enforces for the subject.
    ///
    /// # Errors
    ///
    /// If the registry does not answer, or refuses to.
    pub async fn check(&self, subject: &str, schema: &str) -> Result<Compatibility, RegistryError> {
        let path = ["compatibility", "subjects", subject, "versions", "latest"];
        match self.ask(Method::POST, &path, Some(schema)).await? {
            Answer::Ok(Verdict {
                is_compatible: true,
                ..
            }) => Ok(Compatibility::Compatible),
            Answer::Ok(Verdict { messages, .. }) => Ok(Compatibility::Incompatible {
                reasons: messages.into_iter().map(clipped).collect(),
            }),
            Answer::Error(error)
                if [SUBJECT_NOT_FOUND, VERSION_NOT_FOUND].contains(&error.code) =>
            {
                Ok(Compatibility::First)
            }
            Answer::Error(error) => {
                Err(self.refused(format!("to check a schema of {subject}"), error))
            }
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        schema: Option<&str>,
    ) -> Result<Answer<T>, RegistryError> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if path[0] == "compatibility" {
            url.set_query(Some("verbose=true"));
        }
        let mut request = self.client.request(method, url).header(ACCEPT, MEDIA_TYPE);
        if let Some(Login { user, password }) = &self.login {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(schema) = schema {
            request = request
                .header(CONTENT_TYPE, MEDIA_TYPE)
                .json(&Submitted { schema });
        }
        let unreachable = |source: reqwest::Error| RegistryError::Unreachable {
            url: self.url().to_owned(),
            source: source.without_url(),
        };
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(
                    self.no_registry(format!("a response of more than {ANSWER_BYTES_MAX} bytes"))
                );
            }
        }
        self.answer(status, &body)
    }

    fn answer<T: DeserializeOwned>(
        &self,
        status: StatusCode,
        body: &[u8],
    ) -> Result<Answer<T>, RegistryError> {
        if status.is_success() {
            let read = serde_json::from_slice(body).map(Answer::Ok);
            return read.map_err(|error| self.no_registry(error.to_string()));
        }
        let error_body: Option<ErrorBody> = serde_json::from_slice(body).ok();
        let reason = error_body.as_ref().map_or_else(
            || status.to_string(),
            |error_body| format!("{status}: {}", error_body.message),
        );
        let is_overloaded =
            [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        if status.is_server_error() || is_overloaded {
            return Err(RegistryError::Unavailable {
                url: self.url().to_owned(),
                reason: clipped(reason),
            });
        }
        let Some(ErrorBody {
            error_code,
            message,
        }) = error_body
        else {
            // Only the API's own error codes mean that something does not exist.
            return match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(Answer::Error(ApiError {
                    status,
                    code: 0,
                    message: reason,
                })),
                _ => Err(self.no_registry(reason)),
            };
        };
        Ok(Answer::Error(ApiError {
            status,
            code: error_code,
            message: clipped(message),
        }))
    }

    fn refused(&self, what: String, error: ApiError) -> RegistryError {
        let url = self.url().to_owned();
        let reason = format!("{} ({})", error.message, error.status.as_u16());
        match error.status {
            StatusCode::FORBIDDEN => RegistryError::Forbidden { url, what, reason },
            _ => RegistryError::Refused { url, what, reason },
        }
    }

    fn no_registry(&self, reason: String) -> RegistryError {
        RegistryError::NotARegistry {
            url: self.url().to_owned(),
            reason: clipped(reason),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("url", &self.url())
            .field("login", &self.login)
            .finish_non_exhaustive()
    }
}

/// The registry's answer.
enum Answer<T> {
    Ok(T),
    Error(ApiError),
}

struct ApiError {
    status: StatusCode,
    code: u32,
    message: String,
}

#[derive(Serialize)]
struct Submitted<'a> {
    schema: &'a str,
}

#[derive(Deserialize)]
struct Registered {
    id: u32,
}

#[derive(Deserialize)]
struct Verdict {
    is_compatible: bool,
    #[serde(default)]
    messages: Vec<String>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error_code: u32,
    message: String,
}

fn base_url(text: &str) -> Result<Url, SettingsError> {
    let refused = |shown: &str| SettingsError::Url {
        url: shown.to_owned(),
    };
    // An invalid URL may still contain credentials.
    let url = Url::parse(text).map_err(|_| refused("(not shown)"))?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_plain && ["http", "https"].contains(&url.scheme()) && url.has_host() {
        return Ok(url);
    }
    Err(refused(url.host_str().unwrap_or_default()))
}

fn clipped(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> RegistrySettings {
        RegistrySettings {
            url: url.to_owned(),
            login: Some(Login {
                user: "anna".to_owned(),
                password: "open sesame".to_owned(),
            }),
            ca_pem: None,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_url_with_a_password_or_of_another_scheme_is_refused_and_the_password_not_shown() {
        for bad in [
            "registry:8081",
            "ftp://registry",
            "http://anna:sesame@registry",
            "http://anna:sesame@",
            "http://registry/?token=sesame",
            "",
        ] {
            let error = Registry::new(&settings(bad)).unwrap_err().to_string();
            assert!(error.contains("is not a valid URL"), "{bad}: {error}");
            assert!(!error.contains("sesame"), "{bad}: {error}");
        }
        for good in ["http://registry:8081", "https://registry/apis/ccompat/v7/"] {
            let registry = Registry::new(&settings(good)).unwrap();
            assert_eq!(registry.url(), good.trim_end_matches('/'));
            assert!(!format!("{registry:?}").contains("sesame"));
        }
    }

    #[test]
    fn invalid_certificates_are_refused() {
        let with = |pem: &str| {
            Registry::new(&RegistrySettings {
                ca_pem: Some(pem.to_owned()),
                ..settings("https://registry")
            })
        };
        assert!(matches!(with("nothing"), Err(SettingsError::NoCertificate)));
        let broken = format!("-----BEGIN CERTIFICATE-----\nAAAA\n{CERTIFICATE_END}\n");
        assert!(matches!(with(&broken), Err(SettingsError::Certificates(_))));
    }
}
