//! The `auth.jwt` section: whose JSON web tokens are accepted, and what rights they give.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_config::checks::{check_range, check_request_timeout, require};
use waybill_units::DurationText;

use crate::auth::issuer::KeysAddress;
use crate::auth::tokens::check_rights;
use crate::auth::{Scope, Tenants};

const SKEW_MAX: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The requirements for a JSON web token. Tokens are accepted if one of `jwksFile`, `jwksUrl` and
/// `discovery` is set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct JwtConfig {
    /// The file with the public keys that sign them (a JWK set).
    pub jwks_file: Option<PathBuf>,
    /// The URL of the public keys that sign them.
    pub jwks_url: Option<String>,
    /// Whether the URL of the public keys is taken from the metadata of the issuer (OpenID Connect
    /// Discovery).
    pub discovery: bool,
    /// Certificates (PEM) that are trusted in addition to the system's when keys are fetched.
    pub ca_file: Option<PathBuf>,
    /// How often the keys are fetched.
    #[serde(with = "DurationText")]
    pub refresh_interval: Duration,
    /// The shortest time between two fetches: after a failure, and when a token names an unknown
    /// key.
    #[serde(with = "DurationText")]
    pub refresh_interval_min: Duration,
    /// How long fetched keys stay in use while fetches fail.
    #[serde(with = "DurationText")]
    pub keys_max_age: Duration,
    /// The time limit of one request to the issuer.
    #[serde(with = "DurationText")]
    pub request_timeout: Duration,
    /// The required issuer (`iss`).
    pub issuer: Option<String>,
    /// The required audience (`aud`).
    pub audience: Option<String>,
    /// The claim that names the tenant; `*` in it means all.
    pub tenant_claim: String,
    /// The claim with the scopes: a list, or a text with spaces between them. Not used if `groups`
    /// has an entry.
    pub scope_claim: String,
    /// The claim with the groups: its name, or a JSON pointer to it.
    pub groups_claim: String,
    /// The rights of groups, by their names in the claim.
    pub groups: BTreeMap<String, GroupConfig>,
    /// How far the issuer's clock may differ from this machine's.
    #[serde(with = "DurationText")]
    pub clock_skew: Duration,
}

/// The rights of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GroupConfig {
    /// What the members may do.
    pub scopes: Vec<Scope>,
    /// The tenant that they may do it for, or `*` for all; `null` for the one that the token names.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl GroupConfig {
    /// The tenants of the members; `None` if each token names its own.
    ///
    /// # Errors
    ///
    /// If the tenant is invalid.
    pub(in crate::auth) fn tenants(&self) -> Result<Option<Tenants>, String> {
        let tenants = self.tenant.as_deref().map(Tenants::named).transpose();
        tenants.map_err(|error| format!("tenant {error}"))
    }
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            jwks_file: None,
            jwks_url: None,
            discovery: false,
            ca_file: None,
            refresh_interval: Duration::from_secs(300),
            refresh_interval_min: Duration::from_secs(30),
            keys_max_age: DAY,
            request_timeout: Duration::from_secs(5),
            issuer: None,
            audience: None,
            tenant_claim: "tenant".to_owned(),
            scope_claim: "scope".to_owned(),
            groups_claim: "groups".to_owned(),
            groups: BTreeMap::new(),
            clock_skew: Duration::from_secs(60),
        }
    }
}

impl JwtConfig {
    /// Whether tokens are accepted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.jwks_file.is_some() || self.fetches()
    }

    /// Whether the keys are fetched.
    #[must_use]
    pub fn fetches(&self) -> bool {
        self.jwks_url.is_some() || self.discovery
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.validate_source()?;
        let is_on = self.is_on();
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let (issuer, audience) = (is_set(&self.issuer), is_set(&self.audience));
        let needed = "is required with auth.jwt.jwksFile, jwksUrl or discovery: without it, \
                      tokens for other services would be accepted";
        let needs_keys = "require auth.jwt.jwksFile, jwksUrl or discovery";
        for (holds, key, problem) in [
            (!is_on || issuer, "auth.jwt.issuer", needed),
            (!is_on || audience, "auth.jwt.audience", needed),
            (
                is_on || (!issuer && !audience),
                "auth.jwt.issuer and auth.jwt.audience",
                needs_keys,
            ),
            (
                is_on || self.groups.is_empty(),
                "auth.jwt.groups",
                needs_keys,
            ),
            (
                ![&self.tenant_claim, &self.scope_claim, &self.groups_claim]
                    .into_iter()
                    .any(String::is_empty),
                "auth.jwt.tenantClaim, auth.jwt.scopeClaim and auth.jwt.groupsClaim",
                "must not be empty",
            ),
            (
                self.clock_skew <= SKEW_MAX,
                "auth.jwt.clockSkew",
                "must be at most 10m: expired tokens stay valid for this long",
            ),
        ] {
            require(holds, key, problem)?;
        }
        self.validate_groups()
    }

    fn validate_source(&self) -> Result<(), ConfigError> {
        let sources = [
            self.jwks_file.is_some(),
            self.jwks_url.is_some(),
            self.discovery,
        ];
        require(
            sources.into_iter().filter(|is_set| *is_set).count() <= 1,
            "auth.jwt.jwksFile, auth.jwt.jwksUrl and auth.jwt.discovery",
            "exclude each other: the keys come from one source",
        )?;
        require(
            self.fetches() || self.ca_file.is_none(),
            "auth.jwt.caFile",
            "requires auth.jwt.jwksUrl or discovery",
        )?;
        let (least, most) = (self.refresh_interval_min, self.refresh_interval);
        check_range("auth.jwt.refreshInterval", most, SECOND..=DAY)?;
        check_range("auth.jwt.refreshIntervalMin", least, SECOND..=most)?;
        check_range("auth.jwt.keysMaxAge", self.keys_max_age, most..=30 * DAY)?;
        check_request_timeout("auth.jwt.requestTimeout", self.request_timeout)?;
        KeysAddress::of(self).map(drop)
    }

    fn validate_groups(&self) -> Result<(), ConfigError> {
        for (name, group) in &self.groups {
            let check = || {
                let tenants = group.tenants()?.unwrap_or_default();
                if group.scopes.is_empty() {
                    return Err("scopes must not be empty".to_owned());
                }
                check_rights(group.scopes.iter().copied().collect(), &[], &tenants)
            };
            let key = || format!("auth.jwt.groups.{name}:");
            check().map_err(|problem| ConfigError::invalid(key(), problem))?;
        }
        Ok(())
    }
}
