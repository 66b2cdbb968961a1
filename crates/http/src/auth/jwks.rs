//! The keys that verify JWTs: a JWK set (RFC 7517).
//!
//! What must hold: the key determines which algorithms it verifies, so that a token cannot choose;
//! and a set with a secret (a symmetric or a private key) is refused, because a process that
//! verifies tokens must not be able to create them.

use std::fmt;
use std::sync::Mutex;

use crate::json;
use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::{Map, Value};

use super::signatures::{ALGORITHMS, public_key};
use super::verified::Verified;

/// The weakest RSA key, in bits (RFC 7518, section 3.3).
const RSA_BITS_MIN: u32 = 2_048;
/// The deepest nesting of a set.
const DEPTH_MAX: usize = 8;

/// A key that verifies signatures.
struct Key {
    id: Option<String>,
    /// The only algorithm that the key may be used with, if the set names one.
    only: Option<Algorithm>,
    key: DecodingKey,
}

/// The keys of a set, and the tokens that they verified lately.
pub(super) struct Keys {
    keys: Vec<Key>,
    /// Replaced together with the keys: a token that a removed key verified is no longer valid.
    pub(super) verified: Mutex<Verified>,
}

/// Why a set has no key for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoKey {
    /// No key has the ID that the token names.
    UnknownId,
    /// The key does not verify this algorithm; or the token names no ID, and not exactly one key
    /// verifies it.
    NotForAlgorithm,
}

impl Keys {
    /// Reads a set. `source` is where it is from, for the errors.
    pub(super) fn read(source: &str, text: &[u8]) -> Result<Self, String> {
        let value = json::parse(text, DEPTH_MAX).map_err(|error| format!("{source}: {error}"))?;
        let entries = value.get("keys").and_then(Value::as_array);
        let entries = entries.ok_or_else(|| format!("{source}: must be {{\"keys\": [...]}}"))?;
        let mut keys: Vec<Key> = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            let refused = |problem: &str| format!("{source}: key {}: {problem}", place + 1);
            let entry = entry.as_object();
            let entry = entry.ok_or_else(|| refused("must be an object"))?;
            let Some(key) = Key::read(entry).map_err(|problem| refused(&problem))? else {
                continue;
            };
            if key.id.is_some() && keys.iter().any(|other| other.id == key.id) {
                return Err(refused("another key has this kid"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(format!(
                "{source}: contains no usable signature key (RSA, EC with P-256, or OKP with \
                 Ed25519)"
            ));
        }
        Ok(Self {
            keys,
            verified: Mutex::default(),
        })
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key with this ID, for a signature by this algorithm. Without an ID, there is one only if
    /// exactly one key qualifies.
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<&DecodingKey, NoKey> {
        let is_meant = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        if id.is_some() && !self.keys.iter().any(|key| is_meant(&key)) {
            return Err(NoKey::UnknownId);
        }
        let meant = self.keys.iter().filter(is_meant);
        let mut meant = meant.filter(|key| key.verifies(algorithm));
        match (meant.next(), meant.next()) {
            (Some(key), None) => Ok(&key.key),
            _ => Err(NoKey::NotForAlgorithm),
        }
    }
}

impl Key {
    /// Reads a key; `None` if it has another use, or a type that is not supported.
    fn read(entry: &Map<String, Value>) -> Result<Option<Self>, String> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let kind = text("kty").ok_or("kty is missing")?;
        if kind == "oct" {
            return Err("is a symmetric key: anyone who can read it can issue tokens".to_owned());
        }
        if entry.contains_key("d") {
            return Err("is a private key: anyone who can read it can issue tokens".to_owned());
        }
        if !matches!(
            (kind, text("crv")),
            ("RSA", _) | ("EC", Some("P-256")) | ("OKP", Some("Ed25519"))
        ) {
            return Ok(None);
        }
        let jwk: Jwk = serde_json::from_value(Value::Object(entry.clone()))
            .map_err(|error| format!("is invalid: {error}"))?;
        let common = &jwk.common;
        let used = common.public_key_use.as_ref();
        let is_for_others = used.is_some_and(|used| *used != PublicKeyUse::Signature)
            || common
                .key_operations
                .as_ref()
                .is_some_and(|operations| !operations.contains(&KeyOperations::Verify));
        // Of an unknown or unwanted algorithm.
        let only = common.key_algorithm.map(|named| {
            let algorithm = Algorithm::try_from(named).ok();
            algorithm.filter(|algorithm| ALGORITHMS.contains(algorithm))
        });
        if is_for_others || only == Some(None) {
            return Ok(None);
        }
        let unusable = |error| format!("cannot be used: {error}");
        let decoding = DecodingKey::from_jwk(&jwk).map_err(unusable)?;
        let public = public_key(&decoding).map_err(unusable)?;
        if decoding.family() == AlgorithmFamily::Rsa && public.bits() < RSA_BITS_MIN {
            return Err(format!(
                "has {} bits; at least {RSA_BITS_MIN} are required",
                public.bits()
            ));
        }
        let key = Self {
            id: common.key_id.clone(),
            only: only.flatten(),
            key: decoding,
        };
        match key.only.is_none_or(|only| key.verifies(only)) {
            true => Ok(Some(key)),
            false => Err("alg does not match the type of the key".to_owned()),
        }
    }

    /// Whether the key verifies signatures by this algorithm.
    fn verifies(&self, algorithm: Algorithm) -> bool {
        self.only.is_none_or(|only| only == algorithm) && algorithm.family() == self.key.family()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| key.id.as_deref());
        f.debug_list().entries(ids).finish()
    }
}
