//! The `auth` and `tls` keys of an agent.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_units::DurationText;

/// How an agent authenticates itself: one of these. Secrets are in files, which are read again when
/// they change.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AuthConfig {
    /// `Authorization: Bearer`, with a token from a file.
    Bearer(BearerConfig),
    /// `Authorization: Basic`, with a password from a file.
    Basic(BasicConfig),
    /// A header with a key from a file.
    ApiKey(ApiKeyConfig),
    /// `Authorization: Bearer`, with access tokens of an OAuth 2.0 server (client credentials).
    Oauth2(Oauth2Config),
}

/// A bearer token.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BearerConfig {
    /// The file that holds the token.
    pub token_file: PathBuf,
}

/// A user and a password.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BasicConfig {
    /// The user.
    pub user: String,
    /// The file that holds the password.
    pub password_file: PathBuf,
}

/// A header with a key.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ApiKeyConfig {
    /// The header, for example `X-Api-Key`.
    pub header: String,
    /// The file that holds the whole value of the header.
    pub key_file: PathBuf,
}

/// The OAuth 2.0 client credentials grant (RFC 6749, section 4.4).
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Oauth2Config {
    /// The token endpoint: `https://`, or `http://` on this machine.
    pub token_url: String,
    /// The client's id.
    pub client_id: String,
    /// The file that holds the client's secret.
    pub client_secret_file: PathBuf,
    /// How the client authenticates itself at the token endpoint. Default: basic.
    #[serde(default)]
    pub client_auth: ClientAuth,
    /// The scopes to request. Default: none, which lets the server choose.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The `audience` parameter, which some servers require. Default: none.
    #[serde(default)]
    pub audience: Option<String>,
    /// Certificates (PEM) to trust at the token endpoint, in addition to the system's. Default:
    /// `tls.caFile`.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How long to wait for a token. Default: 5s.
    #[serde(default = "default_token_timeout", with = "DurationText")]
    pub timeout: Duration,
}

/// How a client authenticates itself at the token endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClientAuth {
    /// In the `Authorization` header (RFC 6749, section 2.3.1).
    #[default]
    Basic,
    /// In the body of the request.
    Body,
}

/// TLS between an agent and its service. The files are read again when they change.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ServiceTlsConfig {
    /// Certificates (PEM) to trust, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show to the service, followed by those of its issuers (PEM). Requires
    /// `keyFile`.
    pub cert_file: Option<PathBuf>,
    /// The private key of the certificate (PEM), without a passphrase.
    pub key_file: Option<PathBuf>,
    /// The name that the service's certificate must have. Default: the host of `baseUrl`.
    pub server_name: Option<String>,
}

fn default_token_timeout() -> Duration {
    Duration::from_secs(5)
}
