//! JSON web tokens (RFC 7519), verified by the keys of a file.
//!
//! What must hold: no claim is used before the signature is verified; the key determines the
//! algorithm, never the token alone; and issuer, audience and times are checked as RFC 8725
//! requires.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::json;
use crate::reread::{FileRefused, Reread};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use waybill_engine::Timestamp;
use waybill_telemetry::visible::is_visible;

use super::JwtConfig;
use super::jwks::Keys;
use super::signatures::{self, ALGORITHMS};
use super::verified::Good;
use super::{Denied, Principal, Scope, Tenants, TokenHash};

/// The deepest nesting of claims.
const DEPTH_MAX: usize = 16;
/// The longest subject that is used as a name, in characters; the rest is cut off.
const NAME_CHARS_MAX: usize = 64;

/// Authenticates callers by their JWTs.
#[derive(Debug)]
pub(super) struct Jwt {
    keys: Reread<Keys>,
    rules: Rules,
}

/// The requirements for a token.
#[derive(Debug)]
struct Rules {
    issuer: String,
    audience: String,
    tenant_claim: String,
    scope_claim: String,
    clock_skew: Duration,
}

impl Jwt {
    /// Follows the keys of this file, and reloads them when the file changes.
    pub(super) fn follow(path: PathBuf, config: &JwtConfig) -> Result<Self, FileRefused> {
        signatures::install();
        let name = path.display().to_string();
        let keys = Reread::open("auth.jwt.jwksFile", vec![path], move |texts| {
            Keys::read(&name, &texts[0])
        })?;
        let rules = Rules {
            issuer: config.issuer.clone().unwrap_or_default(),
            audience: config.audience.clone().unwrap_or_default(),
            tenant_claim: config.tenant_claim.clone(),
            scope_claim: config.scope_claim.clone(),
            clock_skew: config.clock_skew,
        };
        Ok(Self { keys, rules })
    }

    /// Reloads the keys if the file has changed. Blocks.
    pub(super) fn reload(&self) {
        self.keys.reload();
    }

    /// The principal that this token identifies at that time.
    pub(super) fn principal(
        &self,
        token: &str,
        hash: TokenHash,
        now: Timestamp,
    ) -> Result<Arc<Principal>, Denied> {
        let keys = self.keys.get();
        let verified = || keys.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let before = verified().get(&hash);
        let good = match before {
            Some(good) => good,
            None => {
                let good = self.rules.read(token, &keys)?;
                verified().insert(hash, good.clone());
                good
            }
        };
        if now >= good.until {
            return Err(Denied::Expired);
        }
        if now < good.from {
            return Err(Denied::BadToken("The token is not valid yet."));
        }
        Ok(good.principal)
    }
}

/// A token that is not in the form of a JWT.
const MALFORMED: Denied = Denied::BadToken("The token is not a JWT.");

/// No key of the set verifies the token.
const NOT_SIGNED: Denied =
    Denied::BadToken("No key in auth.jwt.jwksFile verifies the token's signature.");
const NOT_FROM_ISSUER: Denied = Denied::BadToken("The token is from another issuer.");
const NOT_FOR_US: Denied = Denied::BadToken("The token is for another audience.");
const NO_TIME: Denied = Denied::BadToken("The token's times (exp, nbf) are missing or invalid.");

impl Rules {
    fn read(&self, token: &str, keys: &Keys) -> Result<Good, Denied> {
        let header = token.split('.').next().ok_or(MALFORMED)?;
        let (algorithm, id) = choose(&object(&decoded(header)?)?)?;
        let key = keys.find(id.as_deref(), algorithm);
        let key = key.map_err(|_| NOT_SIGNED)?;
        let token = jsonwebtoken::decode::<Box<RawValue>>(token, key, &self.validation(algorithm));
        let token = token.map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => NOT_SIGNED,
            ErrorKind::InvalidIssuer => NOT_FROM_ISSUER,
            ErrorKind::InvalidAudience => NOT_FOR_US,
            ErrorKind::MissingRequiredClaim(name) | ErrorKind::InvalidClaimFormat(name) => {
                match name.as_str() {
                    "iss" => NOT_FROM_ISSUER,
                    "aud" => NOT_FOR_US,
                    _ => NO_TIME,
                }
            }
            _ => MALFORMED,
        })?;
        self.good(&object(token.claims.get().as_bytes())?)
    }

    /// What `jsonwebtoken` checks. The times are compared here, at each use of the token.
    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.validate_exp = false;
        validation
    }

    fn good(&self, claims: &Map<String, Value>) -> Result<Good, Denied> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        // A list of issuers is no issuer (RFC 7519, section 4.1.1).
        if text("iss") != Some(&self.issuer) {
            return Err(NOT_FROM_ISSUER);
        }
        let skew = i64::try_from(self.clock_skew.as_micros()).unwrap_or(i64::MAX);
        let expires = claims.get("exp").and_then(time).ok_or(NO_TIME)?;
        let from = match claims.get("nbf") {
            None => Timestamp(i64::MIN),
            Some(begins) => time(begins).ok_or(NO_TIME)?,
        };
        let scopes = match claims.get(&self.scope_claim) {
            Some(Value::String(scopes)) => scopes.split(' ').filter_map(Scope::named).collect(),
            Some(Value::Array(scopes)) => scopes
                .iter()
                .filter_map(|scope| Scope::named(scope.as_str()?))
                .collect(),
            // A token without scopes is valid. The error for the missing scope is clearer.
            _ => [].into_iter().collect(),
        };
        let tenants = text(&self.tenant_claim).and_then(|tenant| Tenants::named(tenant).ok());
        let tenants = tenants.ok_or(Denied::BadToken("The token names no tenant."))?;
        let subject = text("sub").or(text("client_id")).unwrap_or_default();
        let subject = subject
            .chars()
            .filter(|c| is_visible(*c))
            .take(NAME_CHARS_MAX);
        Ok(Good {
            principal: Arc::new(Principal {
                name: format!("jwt:{}", subject.collect::<String>()).into(),
                scopes,
                tenants,
                agents: Arc::default(),
            }),
            from: Timestamp(from.0.saturating_sub(skew)),
            until: Timestamp(expires.0.saturating_add(skew)),
        })
    }
}

/// The algorithm and the key ID that a header names. `none` and all algorithms with shared secrets
/// are refused here.
fn choose(header: &Map<String, Value>) -> Result<(Algorithm, Option<String>), Denied> {
    let algorithm = header.get("alg").map(Algorithm::deserialize);
    let algorithm = algorithm.and_then(Result::ok);
    let algorithm = algorithm.filter(|algorithm| ALGORITHMS.contains(algorithm));
    let algorithm = algorithm.ok_or(Denied::BadToken(
        "The token is not signed with RS256, PS256, ES256 or EdDSA.",
    ))?;
    // The header names critical extensions, and none is supported (RFC 7515, section 4.1.11).
    if header.contains_key("crit") {
        return Err(MALFORMED);
    }
    match header.get("kid") {
        None => Ok((algorithm, None)),
        Some(Value::String(id)) => Ok((algorithm, Some(id.clone()))),
        Some(_) => Err(MALFORMED),
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, Denied> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| MALFORMED)
}

/// A part of a token, which must be a JSON object that all parsers read alike.
fn object(text: &[u8]) -> Result<Map<String, Value>, Denied> {
    match json::parse(text, DEPTH_MAX) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(MALFORMED),
    }
}

/// Seconds since the Unix epoch, possibly with a fraction.
fn time(value: &Value) -> Option<Timestamp> {
    const MICROS: f64 = 1_000_000.0;
    let seconds = value.as_f64()?;
    let is_time = (0.0..1e12).contains(&seconds);
    is_time.then_some(Timestamp((seconds * MICROS) as i64))
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
