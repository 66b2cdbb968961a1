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
use serde_json::{Map, Value};
use waybill_engine::Timestamp;
use waybill_telemetry::visible::is_visible;

use super::JwtConfig;
use super::jwks::{Algorithm, Keys};
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

impl Rules {
    fn read(&self, token: &str, keys: &Keys) -> Result<Good, Denied> {
        let (signed, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, claims) = signed.split_once('.').ok_or(MALFORMED)?;
        let header = object(header)?;
        let algorithm = algorithm_of(&header)?;
        let id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err(MALFORMED),
        };
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| MALFORMED)?;
        if !keys.verify(id, algorithm, signed.as_bytes(), &signature) {
            let detail = "No key in auth.jwt.jwksFile verifies the token's signature.";
            return Err(Denied::BadToken(detail));
        }
        self.good(&object(claims)?)
    }

    fn good(&self, claims: &Map<String, Value>) -> Result<Good, Denied> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(&self.issuer) {
            return Err(Denied::BadToken("The token is from another issuer."));
        }
        let is_for_us = match claims.get("aud") {
            Some(Value::String(audience)) => *audience == self.audience,
            Some(Value::Array(audiences)) => audiences
                .iter()
                .any(|audience| audience.as_str() == Some(&self.audience)),
            _ => false,
        };
        if !is_for_us {
            return Err(Denied::BadToken("The token is for another audience."));
        }
        let no_time = Denied::BadToken("The token's times (exp, nbf) are missing or invalid.");
        let skew = i64::try_from(self.clock_skew.as_micros()).unwrap_or(i64::MAX);
        let expires = claims.get("exp").and_then(time).ok_or(no_time)?;
        let from = match claims.get("nbf") {
            None => Timestamp(i64::MIN),
            Some(begins) => time(begins).ok_or(no_time)?,
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

/// The signature algorithm that a header names. `none` and all algorithms with shared secrets are
/// unknown here.
fn algorithm_of(header: &Map<String, Value>) -> Result<Algorithm, Denied> {
    let name = header.get("alg").and_then(Value::as_str);
    let algorithm = name.and_then(Algorithm::named);
    let algorithm = algorithm.ok_or(Denied::BadToken(
        "The token is not signed with RS256, PS256, ES256 or EdDSA.",
    ))?;
    // The header names critical extensions, and none is supported (RFC 7515, section 4.1.11).
    match header.contains_key("crit") {
        true => Err(MALFORMED),
        false => Ok(algorithm),
    }
}

/// A part of a token that is a JSON object.
fn object(part: &str) -> Result<Map<String, Value>, Denied> {
    let text = URL_SAFE_NO_PAD.decode(part).map_err(|_| MALFORMED)?;
    match json::parse(&text, DEPTH_MAX) {
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
