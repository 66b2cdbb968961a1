//! JSON web tokens (RFC 7519), verified by the keys of a file or of an issuer.
//!
//! What must hold: no claim is used before the signature is verified; the key determines the
//! algorithm, never the token alone; and issuer, audience and times are checked as RFC 8725
//! requires.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::json;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use waybill_engine::Timestamp;
use waybill_telemetry::visible::is_visible;
use waybill_tls::reread::{FileRefused, Reread};

use super::JwtConfig;
use super::issuer::Issuer;
use super::jwks::{Keys, NoKey};
use super::rights::RightsRules;
use super::signatures::{self, ALGORITHMS};
use super::verified::Good;
use super::{Denied, Principal, TokenHash};

/// The deepest nesting of claims.
const DEPTH_MAX: usize = 16;
/// The longest subject that is used as a name, in characters; the rest is cut off.
const NAME_CHARS_MAX: usize = 64;

/// Authenticates callers by their JWTs.
#[derive(Debug)]
pub(super) struct Jwt {
    source: Source,
    rules: Rules,
}

/// Where the keys are from.
#[derive(Debug)]
enum Source {
    File(Reread<Keys>),
    Issuer(Arc<Issuer>),
}

/// The requirements for a token.
#[derive(Debug)]
struct Rules {
    issuer: String,
    audience: String,
    rights: RightsRules,
    clock_skew: Duration,
}

impl Jwt {
    /// Reads the keys of the configured file, or prepares to fetch those of the issuer. `None` if
    /// no tokens are accepted.
    pub(super) fn load(config: &JwtConfig) -> Result<Option<Self>, FileRefused> {
        signatures::install();
        let source = match (&config.jwks_file, Issuer::new(config)?) {
            (Some(path), _) => {
                let name = path.display().to_string();
                let read = move |texts: &[Vec<u8>]| Keys::read(&name, &texts[0]);
                let keys = Reread::open("auth.jwt.jwksFile", vec![path.clone()], read)?;
                Source::File(keys)
            }
            (None, Some(issuer)) => Source::Issuer(Arc::new(issuer)),
            (None, None) => return Ok(None),
        };
        let rules = Rules {
            issuer: config.issuer.clone().unwrap_or_default(),
            audience: config.audience.clone().unwrap_or_default(),
            rights: RightsRules::new(config)?,
            clock_skew: config.clock_skew,
        };
        Ok(Some(Self { source, rules }))
    }

    /// Reads the files again that have changed. Blocks.
    pub(super) fn reload(&self) {
        match &self.source {
            Source::File(keys) => keys.reload(),
            Source::Issuer(issuer) => issuer.reload(),
        }
    }

    /// The issuer whose keys are fetched, if they are.
    pub(super) fn issuer(&self) -> Option<&Arc<Issuer>> {
        match &self.source {
            Source::File(_) => None,
            Source::Issuer(issuer) => Some(issuer),
        }
    }

    /// The principal that this token identifies at that time.
    pub(super) fn principal(
        &self,
        token: &str,
        hash: TokenHash,
        now: Timestamp,
    ) -> Result<Arc<Principal>, Denied> {
        let keys = match &self.source {
            Source::File(keys) => Arc::clone(&keys.get()),
            Source::Issuer(issuer) => issuer.keys().ok_or(Denied::NoKeys)?,
        };
        let verified = || keys.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let before = verified().get(&hash);
        let good = match before {
            Some(good) => good,
            None => {
                let good = self.read(token, &keys)?;
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
        good.principal
    }

    fn read(&self, token: &str, keys: &Keys) -> Result<Good, Denied> {
        let (algorithm, id) = choose(&header_of(token)?)?;
        let key = keys.find(id.as_deref(), algorithm);
        let key = key.map_err(|no_key| match (&self.source, no_key) {
            (Source::Issuer(issuer), NoKey::UnknownId) => {
                issuer.note_unknown_key();
                UNKNOWN_KEY
            }
            _ => self.not_signed(),
        })?;
        let token =
            jsonwebtoken::decode::<Box<RawValue>>(token, key, &self.rules.validation(algorithm));
        let token = token.map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => self.not_signed(),
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
        self.rules.good(&object(token.claims.get().as_bytes())?)
    }

    /// No key verifies the token.
    fn not_signed(&self) -> Denied {
        Denied::BadToken(match self.source {
            Source::File(_) => "No key in auth.jwt.jwksFile verifies the token's signature.",
            Source::Issuer(_) => "No key of the issuer verifies the token's signature.",
        })
    }
}

/// A token that is not in the form of a JWT.
const MALFORMED: Denied = Denied::BadToken("The token is not a JWT.");

const UNKNOWN_KEY: Denied = Denied::BadToken(
    "The issuer has no key with the token's kid. If the key is new, send the request again in a \
     moment.",
);
const NOT_FROM_ISSUER: Denied = Denied::BadToken("The token is from another issuer.");
const NOT_FOR_US: Denied = Denied::BadToken("The token is for another audience.");
const NO_TIME: Denied = Denied::BadToken("The token's times (exp, nbf) are missing or invalid.");

impl Rules {
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
        let subject = text("sub").or(text("client_id")).unwrap_or_default();
        let subject = subject
            .chars()
            .filter(|c| is_visible(*c))
            .take(NAME_CHARS_MAX);
        let principal = self.rights.of(claims).map(|(scopes, tenants)| {
            Arc::new(Principal {
                name: format!("jwt:{}", subject.collect::<String>()).into(),
                scopes,
                tenants,
                agents: Arc::default(),
            })
        });
        Ok(Good {
            principal,
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

fn header_of(token: &str) -> Result<Map<String, Value>, Denied> {
    let header = token.split('.').next().ok_or(MALFORMED)?;
    object(&URL_SAFE_NO_PAD.decode(header).map_err(|_| MALFORMED)?)
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
