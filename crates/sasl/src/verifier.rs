//! What a server stores for a user of SCRAM-SHA-256.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The number of iterations, the least that RFC 7677 allows.
///
/// More iterations make it harder to guess a password from a stolen verifier. A token has 32 random
/// bytes, which nobody can guess.
pub(crate) const ITERATIONS: u32 = 4096;
/// The length of a salt in bytes.
pub const SALT_BYTES: usize = 16;
/// The name of the mechanism at the beginning of a stored verifier.
const MECHANISM: &str = "SCRAM-SHA-256";

/// A key or hash.
pub(crate) type Key = [u8; 32];

/// What a server stores for a user, to verify logins.
///
/// It does not contain the password. But with a verifier and a recorded login, or with the attempt
/// of a client to log in at a false server that has the verifier, anybody can log in as that user
/// (RFC 5802, section 9): keep it secret.
///
/// As text it has the form that PostgreSQL uses:
/// `SCRAM-SHA-256$4096:<salt>$<stored key>:<server key>`, with salt and keys in Base64. Other
/// numbers of iterations and lengths of salts are refused: clients could tell such users from those
/// who do not exist.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(crate) salt: [u8; SALT_BYTES],
    pub(crate) stored_key: Key,
    pub(crate) server_key: Key,
}

/// The text is not a verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "must be SCRAM-SHA-256$4096:<salt>$<stored key>:<server key>, with a salt of 16 bytes and keys of 32, in Base64"
)]
pub struct InvalidVerifier;

impl Verifier {
    /// The verifier for a password of ASCII characters.
    #[must_use]
    pub fn new(password: &str, salt: &[u8; SALT_BYTES]) -> Self {
        let salted_password = iterated(password.as_bytes(), salt, ITERATIONS);
        Self {
            salt: *salt,
            stored_key: Sha256::digest(keyed_hash(&salted_password, &[b"Client Key"])).into(),
            server_key: keyed_hash(&salted_password, &[b"Server Key"]),
        }
    }

    /// A verifier that accepts no password, for a user who does not exist. It is the same each
    /// time, so that clients cannot tell such users from others.
    pub(crate) fn decoy(user: &str, key: &Key) -> Self {
        let hash = keyed_hash(key, &[b"salt", user.as_bytes()]);
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&hash[..SALT_BYTES]);
        Self {
            salt,
            stored_key: keyed_hash(key, &[b"stored key", user.as_bytes()]),
            server_key: keyed_hash(key, &[b"server key", user.as_bytes()]),
        }
    }
}

/// HMAC-SHA-256 of these parts, one after the other.
pub(crate) fn keyed_hash(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut keyed = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        keyed.update(part);
    }
    keyed.finalize().into_bytes().into()
}

/// What a client proves that it has.
#[cfg(test)]
pub(crate) fn client_key(password: &str, salt: &[u8; SALT_BYTES]) -> Key {
    let salted_password = iterated(password.as_bytes(), salt, ITERATIONS);
    keyed_hash(&salted_password, &[b"Client Key"])
}

/// `Hi` of RFC 5802, which is one block of PBKDF2 with HMAC-SHA-256.
fn iterated(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let mut hash = keyed_hash(password, &[salt, &1_u32.to_be_bytes()]);
    let mut folded = hash;
    for _ in 1..iterations {
        hash = keyed_hash(password, &[&hash]);
        for (byte, other) in folded.iter_mut().zip(hash) {
            *byte ^= other;
        }
    }
    folded
}

impl FromStr for Verifier {
    type Err = InvalidVerifier;

    fn from_str(text: &str) -> Result<Self, InvalidVerifier> {
        let parsed = || {
            let (mechanism, rest) = text.split_once('$')?;
            let (head, keys) = rest.split_once('$')?;
            let (iterations, salt) = head.split_once(':')?;
            let (stored_key, server_key) = keys.split_once(':')?;
            let is_known = mechanism == MECHANISM && iterations == ITERATIONS.to_string();
            let key = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
            let verifier = Self {
                salt: STANDARD.decode(salt).ok()?.try_into().ok()?,
                stored_key: key(stored_key)?,
                server_key: key(server_key)?,
            };
            is_known.then_some(verifier)
        };
        parsed().ok_or(InvalidVerifier)
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            salt,
            stored_key,
            server_key,
        } = self;
        let [salt, stored_key, server_key] =
            [&salt[..], stored_key, server_key].map(|bytes| STANDARD.encode(bytes));
        write!(
            f,
            "{MECHANISM}${ITERATIONS}:{salt}${stored_key}:{server_key}"
        )
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; SALT_BYTES] = *b"0123456789abcdef";

    #[test]
    fn a_verifier_is_written_and_read_back_and_never_shown() {
        let verifier = Verifier::new("pencil", &SALT);
        let text = verifier.to_string();
        assert_eq!(text.parse(), Ok(verifier.clone()));
        let start = "SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$";
        assert!(text.starts_with(start), "{text}");
        let shown = format!("{verifier:?}");
        assert_eq!(shown, "Verifier { .. }");
    }

    #[test]
    fn other_texts_are_refused() {
        let good = Verifier::new("pencil", &SALT).to_string();
        let long_salt = STANDARD.encode([7; SALT_BYTES + 1]);
        for bad in [
            String::new(),
            "SCRAM-SHA-256".to_owned(),
            good.replace("SHA-256", "SHA-512"),
            good.replace("$4096", "$4095"),
            good.replace("$4096", "$16384"),
            good.replace("$4096", "$04096"),
            good.replace("MDEyMzQ1Njc4OWFiY2RlZg==", ""),
            good.replace("MDEyMzQ1Njc4OWFiY2RlZg==", &long_salt),
            good.replace("MDEy", "M*Ey"),
            good[..good.len() - 4].to_owned(),
            format!("{good}AAAA"),
        ] {
            assert_eq!(bad.parse::<Verifier>(), Err(InvalidVerifier), "{bad}");
        }
    }

    #[test]
    fn a_decoy_is_the_same_each_time() {
        let decoy = Verifier::decoy("ada", &[1; 32]);
        assert_eq!(decoy, Verifier::decoy("ada", &[1; 32]));
        let others = [
            Verifier::decoy("bob", &[1; 32]),
            Verifier::decoy("ada", &[2; 32]),
        ];
        for other in others {
            assert_ne!(other.salt, decoy.salt);
        }
    }
}
