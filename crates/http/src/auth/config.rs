//! The `auth` section: who may use the API and the admin port.

mod jwt;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;

pub use jwt::{GroupConfig, JwtConfig};

/// The `auth` section. Authentication is on if it names a token file or keys of JSON
/// web tokens.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthConfig {
    /// The file with the hashes of tokens.
    pub tokens_file: Option<PathBuf>,
    /// JSON web tokens.
    pub jwt: JwtConfig,
}

impl AuthConfig {
    /// Whether authentication is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.tokens_file.is_some() || self.jwt.is_on()
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.jwt.validate()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use waybill_config::testing::{Changes, assert_refused};

    use super::*;
    use crate::auth::Scope;

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
            ("auth.jwt.tenantClaim, ", |auth| {
                auth.jwt.scope_claim.clear()
            }),
            ("auth.jwt.tenantClaim, ", |auth| {
                auth.jwt.groups_claim.clear()
            }),
            ("auth.jwt.clockSkew", |auth| {
                auth.jwt.clock_skew = Duration::from_secs(601)
            }),
        ];
        assert_refused(&good, AuthConfig::validate, changes);
    }

    #[test]
    fn invalid_sources_of_keys_are_refused_with_their_key() {
        let good = AuthConfig {
            jwt: JwtConfig {
                discovery: true,
                issuer: Some("https://id.example".to_owned()),
                audience: Some("waybill".to_owned()),
                ..JwtConfig::default()
            },
            ..AuthConfig::default()
        };
        assert!(good.is_on());
        let mut by_url = good.clone();
        by_url.jwt.discovery = false;
        by_url.jwt.jwks_url = Some("http://127.0.0.1:8080/keys".to_owned());
        by_url.validate().unwrap();
        let changes: Changes<'_, AuthConfig> = &[
            ("auth.jwt.jwksFile, auth.jwt.jwksUrl and", |auth| {
                auth.jwt.jwks_file = Some("keys.json".into());
            }),
            ("auth.jwt.jwksFile, auth.jwt.jwksUrl and", |auth| {
                auth.jwt.jwks_url = Some("https://id.example/keys".to_owned());
            }),
            ("auth.jwt.issuer is required", |auth| auth.jwt.issuer = None),
            ("auth.jwt.audience is required", |auth| {
                auth.jwt.audience = None
            }),
            ("auth.jwt.issuer must begin with https://", |auth| {
                auth.jwt.issuer = Some("http://id.example".to_owned());
            }),
            ("auth.jwt.jwksUrl must begin with https://", |auth| {
                auth.jwt.discovery = false;
                auth.jwt.jwks_url = Some("http://id.example/keys".to_owned());
            }),
            ("auth.jwt.caFile requires", |auth| {
                auth.jwt.discovery = false;
                auth.jwt.jwks_file = Some("keys.json".into());
                auth.jwt.ca_file = Some("ca.pem".into());
            }),
            ("auth.jwt.refreshInterval is 0s", |auth| {
                auth.jwt.refresh_interval = Duration::ZERO;
            }),
            ("auth.jwt.refreshIntervalMin is 0s", |auth| {
                auth.jwt.refresh_interval_min = Duration::ZERO;
            }),
            ("auth.jwt.refreshIntervalMin is 10m", |auth| {
                auth.jwt.refresh_interval_min = Duration::from_secs(600);
            }),
            ("auth.jwt.keysMaxAge is 1m", |auth| {
                auth.jwt.keys_max_age = Duration::from_secs(60);
            }),
            ("auth.jwt.requestTimeout is 1ms", |auth| {
                auth.jwt.request_timeout = Duration::from_millis(1);
            }),
        ];
        assert_refused(&good, AuthConfig::validate, changes);
    }

    #[test]
    fn invalid_groups_are_refused_with_their_name() {
        let group = |scopes: &[Scope], tenant: Option<&str>| GroupConfig {
            scopes: scopes.to_vec(),
            tenant: tenant.map(str::to_owned),
        };
        let refused = |group: GroupConfig| {
            let mut auth = AuthConfig::default();
            auth.jwt.jwks_file = Some("keys.json".into());
            auth.jwt.issuer = Some("https://id.example".to_owned());
            auth.jwt.audience = Some("waybill".to_owned());
            auth.jwt.groups.insert("operators".to_owned(), group);
            auth.validate().map_err(|error| error.to_string())
        };
        for good in [
            group(&[Scope::Read], None),
            group(&[Scope::Read], Some("acme")),
            group(&Scope::ALL, Some("*")),
        ] {
            assert_eq!(refused(good), Ok(()));
        }
        for (bad, expected) in [
            (group(&[], Some("*")), "scopes must not be empty"),
            (group(&[Scope::Read], Some("")), "tenant must name a tenant"),
            (group(&[Scope::Read], Some(" a")), "tenant must be"),
            (group(&[Scope::Admin], Some("acme")), "for all tenants"),
        ] {
            let refused = refused(bad).unwrap_err();
            assert!(
                refused.starts_with("auth.jwt.groups.operators: "),
                "{refused}"
            );
            assert!(refused.contains(expected), "{refused}");
        }
        let mut without_keys = AuthConfig::default();
        let readers = group(&[Scope::Read], None);
        without_keys
            .jwt
            .groups
            .insert("readers".to_owned(), readers);
        let refused = without_keys.validate().unwrap_err().to_string();
        assert!(refused.starts_with("auth.jwt.groups require"), "{refused}");
    }
}
