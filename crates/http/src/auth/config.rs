//! The `auth` section: who may use the API and the admin port.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_units::DurationText;

/// The `auth` section. Authentication is on if it names a token file or a key file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthConfig {
    /// The file with the hashes of tokens.
    pub tokens_file: Option<PathBuf>,
    /// JSON web tokens.
    pub jwt: JwtConfig,
}

/// The requirements for a JSON web token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct JwtConfig {
    /// The file with the public keys that sign them (a JWK set).
    pub jwks_file: Option<PathBuf>,
    /// The required issuer (`iss`).
    pub issuer: Option<String>,
    /// The required audience (`aud`).
    pub audience: Option<String>,
    /// The claim that names the tenant; `*` in it means all.
    pub tenant_claim: String,
    /// The claim with the scopes: a list, or a text with spaces between them.
    pub scope_claim: String,
    /// How far the issuer's clock may differ from this machine's.
    #[serde(with = "DurationText")]
    pub clock_skew: Duration,
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            jwks_file: None,
            issuer: None,
            audience: None,
            tenant_claim: "tenant".to_owned(),
            scope_claim: "scope".to_owned(),
            clock_skew: Duration::from_secs(60),
        }
    }
}

impl AuthConfig {
    /// Whether authentication is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.tokens_file.is_some() || self.jwt.jwks_file.is_some()
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let jwt = &self.jwt;
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let (issuer, audience) = (is_set(&jwt.issuer), is_set(&jwt.audience));
        let needed = "is required with auth.jwt.jwksFile: without it, tokens for other services \
                      would be accepted";
        let rules = [
            (jwt.jwks_file.is_none() || issuer, "auth.jwt.issuer", needed),
            (
                jwt.jwks_file.is_none() || audience,
                "auth.jwt.audience",
                needed,
            ),
            (
                jwt.jwks_file.is_some() || (!issuer && !audience),
                "auth.jwt.issuer and auth.jwt.audience",
                "require auth.jwt.jwksFile",
            ),
            (
                !jwt.tenant_claim.is_empty() && !jwt.scope_claim.is_empty(),
                "auth.jwt.tenantClaim and auth.jwt.scopeClaim",
                "must not be empty",
            ),
            (
                jwt.clock_skew <= SKEW_MAX,
                "auth.jwt.clockSkew",
                "must be at most 10m: expired tokens stay valid for this long",
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            None => Ok(()),
            Some((_, key, problem)) => Err(ConfigError::invalid(key, problem)),
        }
    }
}

const SKEW_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn invalid_settings_are_refused_with_their_key() {
        AuthConfig::default().validate().unwrap();
        let good = AuthConfig {
            jwt: JwtConfig {
                jwks_file: Some("keys.json".into()),
                issuer: Some("https://id.example".to_owned()),
                audience: Some("waybill".to_owned()),
                ..JwtConfig::default()
            },
            ..AuthConfig::default()
        };
        let changes: Changes<'_, AuthConfig> = &[
            ("auth.jwt.issuer is required", |auth| auth.jwt.issuer = None),
            ("auth.jwt.audience is required", |auth| {
                auth.jwt.audience = None
            }),
            ("auth.jwt.audience is required", |auth| {
                auth.jwt.audience = Some(String::new())
            }),
            ("auth.jwt.issuer and", |auth| auth.jwt.jwks_file = None),
            ("auth.jwt.tenantClaim and", |auth| {
                auth.jwt.scope_claim.clear()
            }),
            ("auth.jwt.clockSkew", |auth| {
                auth.jwt.clock_skew = Duration::from_secs(601)
            }),
        ];
        assert_refused(&good, AuthConfig::validate, changes);
    }
}
