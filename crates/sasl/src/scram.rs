//! The messages of SCRAM-SHA-256 (RFC 5802, section 7).
//!
//! ```text
//! client  n,,n=<user>,r=<client nonce>
//! server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
//! client  c=<header of the first message>,r=<both nonces>,p=<proof>
//! server  v=<signature>
//! ```

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::Verifier;
use crate::verifier::{ITERATIONS, Key, keyed_hash};

/// Why a login is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The message does not follow its mechanism, or requires an extension or a channel binding.
    #[error("the message of the login is malformed")]
    Malformed,
    /// The proof is wrong, or there is no such user.
    #[error("the user name or the password is wrong")]
    Wrong,
}

/// A login after the client's first message.
pub struct Exchange {
    verifier: Verifier,
    /// The header of the client's first message, which its second one repeats.
    header: Box<str>,
    /// The nonces of the client and of the server.
    nonce: Box<str>,
    /// The messages so far, as both proofs cover them.
    messages: String,
}

impl Exchange {
    /// Answers the client's first message. The answer is the second element.
    ///
    /// `verifier` finds what is stored for a user. `nonce` is unguessable, new for each login, and
    /// of visible ASCII characters without commas. `secret` is unguessable and never changes: it
    /// conceals whether a user exists.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn begin(
        message: &[u8],
        nonce: &str,
        secret: &[u8; 32],
        verifier: impl FnOnce(&str) -> Option<Verifier>,
    ) -> Result<(Self, String), Refused> {
        let First { header, user, bare } = First::read(message).ok_or(Refused::Malformed)?;
        let (user, of_client) = user;
        let verifier = verifier(&user).unwrap_or_else(|| Verifier::decoy(&user, secret));
        let nonce = format!("{of_client}{nonce}");
        let salt = STANDARD.encode(verifier.salt);
        let answer = format!("r={nonce},s={salt},i={ITERATIONS}");
        let exchange = Self {
            verifier,
            header: header.into(),
            nonce: nonce.into(),
            messages: format!("{bare},{answer}"),
        };
        Ok((exchange, answer))
    }

    /// Checks the client's second message, and returns the answer to one that is right.
    ///
    /// # Errors
    ///
    /// If the message is malformed, or its proof is wrong.
    pub fn finish(self, message: &[u8]) -> Result<String, Refused> {
        let (without_proof, proof) = self.read_final(message).ok_or(Refused::Malformed)?;
        let covered: [&[u8]; 3] = [self.messages.as_bytes(), b",", without_proof.as_bytes()];
        let mut client_key = keyed_hash(&self.verifier.stored_key, &covered);
        for (byte, other) in client_key.iter_mut().zip(proof) {
            *byte ^= other;
        }
        // The time of the comparison may leak something about a hash, but nothing about the
        // password.
        if Key::from(Sha256::digest(client_key)) != self.verifier.stored_key {
            return Err(Refused::Wrong);
        }
        let signature = keyed_hash(&self.verifier.server_key, &covered);
        Ok(format!("v={}", STANDARD.encode(signature)))
    }

    /// The client's second message up to its proof, and the proof. `None` if it is malformed or
    /// does not continue this login.
    fn read_final<'a>(&self, message: &'a [u8]) -> Option<(&'a str, Key)> {
        let (without_proof, proof) = std::str::from_utf8(message).ok()?.rsplit_once(",p=")?;
        let proof = STANDARD.decode(proof).ok()?.try_into().ok()?;
        let mut attributes = without_proof.split(',');
        let header = attributes.next()?.strip_prefix("c=")?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        let continues = STANDARD.decode(header).ok()? == self.header.as_bytes()
            // librdkafka before 2.6.1 repeats its own nonce before both. Kafka accepts that, and
            // the proof covers it.
            && nonce.ends_with(&*self.nonce)
            && attributes.all(is_extension);
        continues.then_some((without_proof, proof))
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

/// The client's first message.
struct First<'a> {
    /// Everything before `bare`.
    header: &'a str,
    /// The user and the client's nonce.
    user: (String, &'a str),
    /// The message without the header.
    bare: &'a str,
}

impl<'a> First<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        // `y` is a client that could bind to a channel, but not without TLS.
        let rest = text
            .strip_prefix("n,")
            .or_else(|| text.strip_prefix("y,"))?;
        let (acts_as, bare) = rest.split_once(',')?;
        let mut attributes = bare.split(',');
        let user = name(attributes.next()?.strip_prefix("n=")?)?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        let acts_as_user = match acts_as.strip_prefix("a=") {
            Some(acts_as) => name(acts_as)? == user,
            None => acts_as.is_empty(),
        };
        let is_visible = !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic());
        let is_valid = acts_as_user && is_visible && attributes.all(is_extension);
        is_valid.then_some(Self {
            header: &text[..text.len() - bare.len()],
            user: (user, nonce),
            bare,
        })
    }
}

/// Whether a part of a message is an extension that the server may ignore. `m=` is one that it must
/// understand.
fn is_extension(attribute: &str) -> bool {
    let mut characters = attribute.chars();
    let name = characters.next();
    name.is_some_and(|name| name.is_ascii_alphabetic() && name != 'm')
        && characters.next() == Some('=')
}

/// A user name as the client meant it: it writes a comma as `=2C` and an equals sign as `=3D`.
fn name(written: &str) -> Option<String> {
    let mut parts = written.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(2)? {
            ("2C", rest) => (',', rest),
            ("3D", rest) => ('=', rest),
            _ => return None,
        };
        name.push(character);
        name.push_str(rest);
    }
    (!name.is_empty() && !name.contains('\0')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verifier::{SALT_BYTES, client_key};

    /// The server's part of the nonce in the example of RFC 7677, section 3.
    const NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    fn stored(user: &str) -> Option<Verifier> {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salt: [u8; SALT_BYTES] = salt.try_into().unwrap();
        (user == "user").then(|| Verifier::new("pencil", &salt))
    }

    fn begin(first: &str) -> Result<(Exchange, String), Refused> {
        Exchange::begin(first.as_bytes(), NONCE, &[9; 32], stored)
    }

    #[test]
    fn the_example_of_rfc_7677_logs_in() {
        let (exchange, answer) = begin(FIRST).unwrap();
        let expected = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                        s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(answer, expected);
        let shown = format!("{exchange:?}");
        assert_eq!(shown, "Exchange { .. }");
        let signature = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(exchange.finish(FINAL.as_bytes()).unwrap(), signature);
    }

    #[test]
    fn a_client_that_repeats_its_nonce_logs_in() {
        let (exchange, _) = begin(FIRST).unwrap();
        let first = ["rOprNGfwEbeRWgbNEkqO"; 2].concat();
        let without_proof = format!("c=biws,r={first}{NONCE}");
        let covered = format!("{},{without_proof}", exchange.messages);
        let client_key = client_key("pencil", &exchange.verifier.salt);
        let signature = keyed_hash(&exchange.verifier.stored_key, &[covered.as_bytes()]);
        let proof = std::array::from_fn::<u8, 32, _>(|index| client_key[index] ^ signature[index]);
        let message = format!("{without_proof},p={}", STANDARD.encode(proof));
        assert!(exchange.finish(message.as_bytes()).is_ok());
    }

    #[test]
    fn a_wrong_password_and_an_unknown_user_look_alike() {
        let proof = STANDARD.encode([1; 32]);
        for user in ["user", "nobody"] {
            let first = FIRST.replace("n=user", &format!("n={user}"));
            let (exchange, answer) = begin(&first).unwrap();
            assert!(answer.ends_with("==,i=4096"), "{answer}");
            let (without_proof, _) = FINAL.rsplit_once(",p=").unwrap();
            let message = format!("{without_proof},p={proof}");
            assert_eq!(exchange.finish(message.as_bytes()), Err(Refused::Wrong));
        }
    }

    #[test]
    fn names_and_extensions_are_read_as_rfc_5802_writes_them() {
        let user = |first: &str| First::read(first.as_bytes()).map(|first| first.user.0);
        for (first, expected) in [
            ("n,,n=ada,r=x", "ada"),
            ("y,,n=ada,r=x", "ada"),
            ("n,a=ada,n=ada,r=x", "ada"),
            ("n,,n=a=2Cd=3Da,r=x", "a,d=a"),
            ("n,,n=ada,r=x,t=true", "ada"),
        ] {
            assert_eq!(user(first).as_deref(), Some(expected), "{first}");
        }
    }

    #[test]
    fn other_first_messages_are_malformed() {
        for first in [
            "",
            "n",
            "n,,",
            "n,,n=ada",
            "n,,r=x,n=ada",
            "n,,n=,r=x",
            "n,,n=ada,r=",
            "n,,n=ada,r=a b",
            "n,,n=a=2,r=x",
            "n,,n=a=2c,r=x",
            "n,,n=a=é,r=x",
            "n,,n=a\0,r=x",
            "n,,m=must,n=ada,r=x",
            "n,,n=ada,r=x,m=must",
            "n,,n=ada,r=x,",
            "n,,n=ada,r=x,tokenauth=true",
            "n,a=bob,n=ada,r=x",
            "n,bob,n=ada,r=x",
            "p=tls-unique,,n=ada,r=x",
        ] {
            let refused = begin(first).map(|(_, answer)| answer);
            assert_eq!(refused, Err(Refused::Malformed), "{first}");
        }
        let refused = Exchange::begin(b"n,,n=\xff,r=x", NONCE, &[9; 32], stored);
        assert_eq!(refused.map(|(_, answer)| answer), Err(Refused::Malformed));
    }

    #[test]
    fn a_second_message_must_continue_the_first() {
        for (from, to) in [
            ("c=biws", "c=eSws"),
            ("c=biws", "c=bi ws"),
            ("c=biws,", ""),
            ("k0,p=", "k1,p="),
            ("k0,p=", "k0,m=must,p="),
            ("k0,p=", "k0,p=AAAA"),
            (",p=dHzb", ",p=dH*b"),
            (",p=", ",q="),
        ] {
            let (exchange, _) = begin(FIRST).unwrap();
            let message = FINAL.replace(from, to);
            let refused = exchange.finish(message.as_bytes());
            assert_eq!(refused, Err(Refused::Malformed), "{message}");
        }
        // The proof covers extensions, and what precedes the nonces.
        for (from, to) in [("k0,p=", "k0,t=x,p="), ("r=rOpr", "r=rOprrOpr")] {
            let (exchange, _) = begin(FIRST).unwrap();
            let message = FINAL.replace(from, to);
            let refused = exchange.finish(message.as_bytes());
            assert_eq!(refused, Err(Refused::Wrong), "{message}");
        }
    }
}
