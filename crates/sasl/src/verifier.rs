//! What a server stores for a user of SCRAM-SHA-256.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The number of iterations of new verifiers, the least that RFC 7677 allows.
///
/// More iterations make it harder to guess a password from a stolen verifier. A token has 32 random
/// bytes, which nobody can guess.
pub const ITERATIONS: u32 = 4096;
/// The most iterations of a verifier; Kafka accepts no more either.
const ITERATIONS_MAX: u32 = 16_384;
/// The length of the salt of new verifiers, in bytes.
pub const SALT_BYTES: usize = 16;
/// The longest salt, in bytes.
const SALT_BYTES_MAX: usize = 64;
/// The name of the mechanism at the beginning of a stored verifier.
const MECHANISM: &str = "SCRAM-SHA-256";

/// A key or hash.
pub(crate) type Key = [u8; 32];

/// What a server stores for a user: it can verify a login, but nobody can log in with it.
///
/// As text it has the form that PostgreSQL uses:
/// `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, with salt and keys in Base64.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(crate) iterations: u32,
    pub(crate) salt: Box<[u8]>,
    pub(crate) stored_key: Key,
    pub(crate) server_key: Key,
}

/// The text is not a verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "must be SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>, with 4096 to 16384 iterations, a salt of 1 to \
     64 bytes and keys of 32, in Base64"
)]
pub struct InvalidVerifier;

impl Verifier {
    /// The verifier for a password of ASCII characters.
    #[must_use]
    pub fn new(password: &str, salt: &[u8; SALT_BYTES]) -> Self {
        let salted_password = iterated(password.as_bytes(), salt, ITERATIONS);
        Self {
            iterations: ITERATIONS,
            salt: (*salt).into(),
            stored_key: Sha256::digest(keyed_hash(&salted_password, &[b"Client Key"])).into(),
            server_key: keyed_hash(&salted_password, &[b"Server Key"]),
        }
    }

    /// A verifier that accepts no password, for a user who does not exist. It is the same each time,
    /// so that clients cannot tell such users from others.
    pub(crate) fn of_nobody(user: &str, key: &Key) -> Self {
        let salt = keyed_hash(key, &[b"salt", user.as_bytes()]);
        Self {
            iterations: ITERATIONS,
            salt: salt[..SALT_BYTES].into(),
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
            let key = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
            let verifier = Self {
                iterations: iterations.parse().ok()?,
                salt: STANDARD.decode(salt).ok()?.into(),
                stored_key: key(stored_key)?,
                server_key: key(server_key)?,
            };
            let is_valid = mechanism == MECHANISM
                && (ITERATIONS..=ITERATIONS_MAX).contains(&verifier.iterations)
                && (1..=SALT_BYTES_MAX).contains(&verifier.salt.len());
            is_valid.then_some(verifier)
        };
        parsed().ok_or(InvalidVerifier)
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            iterations,
            salt,
            stored_key,
            server_key,
        } = self;
        let [salt, stored_key, server_key] =
            [&**salt, stored_key, server_key].map(|bytes| STANDARD.encode(bytes));
        write!(
            f,
            "{MECHANISM}${iterations}:{salt}${stored_key}:{server_key}"
        )
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
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
        assert_eq!(shown, "Verifier { iterations: 4096, .. }");
    }

    #[test]
    fn other_texts_are_refused() {
        let good = Verifier::new("pencil", &SALT).to_string();
        let long_salt = STANDARD.encode([7; SALT_BYTES_MAX + 1]);
        for bad in [
            String::new(),
            "SCRAM-SHA-256".to_owned(),
            good.replace("SHA-256", "SHA-512"),
            good.replace("$4096", "$4095"),
            good.replace("$4096", "$16385"),
            good.replace("$4096", "$-1"),
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
    fn nobody_has_the_same_salt_each_time() {
        let nobody = Verifier::of_nobody("ada", &[1; 32]);
        assert_eq!(nobody, Verifier::of_nobody("ada", &[1; 32]));
        let others = [
            Verifier::of_nobody("bob", &[1; 32]),
            Verifier::of_nobody("ada", &[2; 32]),
        ];
        for other in others {
            assert_ne!(other.salt, nobody.salt);
        }
    }
}
