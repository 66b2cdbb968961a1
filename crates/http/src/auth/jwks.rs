//! The keys that verify JWTs: a JWK set (RFC 7517) in a file.
//!
//! What must hold: the key determines which algorithms it verifies, so that a token cannot choose;
//! and a file with a secret (a symmetric or a private key) is refused, because a process that
//! verifies tokens must not be able to create them.

use std::fmt;
use std::sync::Mutex;

use crate::json;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Verifier};
use serde_json::{Map, Value};

use super::verified::Verified;

/// The weakest RSA key, in bits (RFC 7518, section 3.3).
const RSA_BITS_MIN: u32 = 2_048;
/// The deepest nesting of a set.
const DEPTH_MAX: usize = 8;

/// A signature algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    EdDsa,
}

impl Algorithm {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Rs256, "RS256"),
        (Self::Ps256, "PS256"),
        (Self::Es256, "ES256"),
        (Self::EdDsa, "EdDSA"),
    ];

    /// The algorithm of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, known)| *known == name).map(|(it, _)| it)
    }

    fn fits(self, key: &PKey<Public>) -> bool {
        match self {
            Self::Rs256 | Self::Ps256 => key.id() == Id::RSA,
            Self::Es256 => key.id() == Id::EC,
            Self::EdDsa => key.id() == Id::ED25519,
        }
    }
}

/// A key that verifies signatures.
struct Key {
    id: Option<String>,
    /// The only algorithm that the key may be used with, if the set names one.
    only: Option<Algorithm>,
    key: PKey<Public>,
}

/// The keys of a set, and the tokens that they verified lately.
pub(super) struct Keys {
    keys: Vec<Key>,
    /// Replaced together with the keys: a token that a removed key verified is no longer valid.
    pub(super) verified: Mutex<Verified>,
}

impl Keys {
    /// Reads the set in the file at `path`.
    pub(super) fn read(path: &str, text: &[u8]) -> Result<Self, String> {
        let value = json::parse(text, DEPTH_MAX).map_err(|error| format!("{path}: {error}"))?;
        let entries = value.get("keys").and_then(Value::as_array);
        let entries = entries.ok_or_else(|| format!("{path}: must be {{\"keys\": [...]}}"))?;
        let mut keys: Vec<Key> = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            let refused = |problem: &str| format!("{path}: key {}: {problem}", place + 1);
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
                "{path}: contains no usable signature key (RSA, EC with P-256, or OKP with Ed25519)"
            ));
        }
        Ok(Self {
            keys,
            verified: Mutex::default(),
        })
    }

    /// Whether the key with this id made this signature by this algorithm. Without an id, the
    /// signature is accepted only if exactly one key qualifies.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        signed: &[u8],
        signature: &[u8],
    ) -> bool {
        let mut meant = self.keys.iter().filter(|key| {
            let is_it = id.is_none() || key.id.as_deref() == id;
            is_it && key.only.is_none_or(|only| only == algorithm) && algorithm.fits(&key.key)
        });
        match (meant.next(), meant.next()) {
            (Some(key), None) => key
                .verify(algorithm, signed, signature)
                // A malformed signature verifies nothing.
                .unwrap_or(false),
            _ => false,
        }
    }
}

impl Key {
    /// Reads a key; `None` if it has another use, or a type that is not supported.
    fn read(entry: &Map<String, Value>) -> Result<Option<Self>, String> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let bytes = |name: &str| {
            let decoded = text(name).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
            decoded.ok_or_else(|| format!("{name} must be base64url without padding"))
        };
        let kind = text("kty").ok_or("kty is missing")?;
        if kind == "oct" {
            return Err("is a symmetric key: anyone who can read it can issue tokens".to_owned());
        }
        if entry.contains_key("d") {
            return Err("is a private key: anyone who can read it can issue tokens".to_owned());
        }
        let is_for_others = text("use").is_some_and(|used| used != "sig")
            || entry
                .get("key_ops")
                .and_then(Value::as_array)
                .is_some_and(|ops| !ops.iter().any(|op| op == "verify"));
        let only = text("alg").map(Algorithm::named);
        if is_for_others || only == Some(None) {
            return Ok(None);
        }
        let unusable = |error: ErrorStack| format!("cannot be used: {error}");
        let key = match (kind, text("crv")) {
            ("RSA", _) => rsa(&bytes("n")?, &bytes("e")?).map_err(unusable)?,
            ("EC", Some("P-256")) => p256(&bytes("x")?, &bytes("y")?).map_err(unusable)?,
            ("OKP", Some("Ed25519")) => {
                PKey::public_key_from_raw_bytes(&bytes("x")?, Id::ED25519).map_err(unusable)?
            }
            _ => return Ok(None),
        };
        if key.id() == Id::RSA && key.bits() < RSA_BITS_MIN {
            return Err(format!(
                "has {} bits; at least {RSA_BITS_MIN} are required",
                key.bits()
            ));
        }
        let key = Self {
            id: text("kid").map(str::to_owned),
            only: only.flatten(),
            key,
        };
        match key.only.is_none_or(|only| only.fits(&key.key)) {
            true => Ok(Some(key)),
            false => Err("alg does not match the type of the key".to_owned()),
        }
    }

    fn verify(
        &self,
        algorithm: Algorithm,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<bool, ErrorStack> {
        let sha256 = MessageDigest::sha256();
        match algorithm {
            Algorithm::Rs256 => {
                let mut verifier = Verifier::new(sha256, &self.key)?;
                verifier.set_rsa_padding(Padding::PKCS1)?;
                verifier.verify_oneshot(signature, signed)
            }
            Algorithm::Ps256 => {
                let mut verifier = Verifier::new(sha256, &self.key)?;
                verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
                verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
                verifier.set_rsa_mgf1_md(sha256)?;
                verifier.verify_oneshot(signature, signed)
            }
            Algorithm::Es256 => {
                // Two numbers of 32 bytes (RFC 7518, section 3.4), which OpenSSL wants in DER.
                let Some((r, s)) = signature
                    .split_at_checked(32)
                    .filter(|(_, s)| s.len() == 32)
                else {
                    return Ok(false);
                };
                let signature = EcdsaSig::from_private_components(
                    BigNum::from_slice(r)?,
                    BigNum::from_slice(s)?,
                )?;
                Verifier::new(sha256, &self.key)?.verify_oneshot(&signature.to_der()?, signed)
            }
            Algorithm::EdDsa => {
                Verifier::new_without_digest(&self.key)?.verify_oneshot(signature, signed)
            }
        }
    }
}

fn rsa(n: &[u8], e: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    let key = Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?;
    PKey::from_rsa(key)
}

fn p256(x: &[u8], y: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let (x, y) = (BigNum::from_slice(x)?, BigNum::from_slice(y)?);
    let key = EcKey::from_public_key_affine_coordinates(&group, &x, &y)?;
    key.check_key()?;
    PKey::from_ec_key(key)
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| key.id.as_deref());
        f.debug_list().entries(ids).finish()
    }
}
