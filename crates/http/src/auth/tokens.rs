//! Tokens that are listed by their hashes in a file.
//!
//! A token is a prefix and 32 random bytes, and only text in this form is looked up. A plain
//! SHA-256 is therefore safe: slow hashes protect against dictionaries, and random bytes are in
//! none. The look-up costs a request almost nothing.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use waybill_config::{Secret, parse};
use waybill_messages::is_topic_name;
use waybill_sasl::{InvalidVerifier, SALT_BYTES, Verifier};
use waybill_telemetry::visible::is_word;

use super::{Principal, Reread, Scope, Scopes, Tenants, TokenHash, hash_of};

/// The prefix of tokens, by which secret scanners find a leaked one.
const PREFIX: &str = "wb_";
/// The number of random bytes in a token.
const RANDOM_BYTES: usize = 32;
/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A new token, and the hash that the file lists.
#[derive(Debug)]
pub struct NewToken {
    /// The token.
    pub token: Secret,
    /// Its SHA-256.
    pub hash: [u8; 32],
}

impl NewToken {
    /// Whether this text is the token. Compares hashes, so that the time it takes says nothing
    /// about the token.
    pub fn is(&self, text: &str) -> bool {
        hash_of(text) == self.hash
    }

    /// What a server stores to verify logins with SCRAM-SHA-256, in which this token is the
    /// password.
    ///
    /// # Panics
    ///
    /// If the system's random number generator fails.
    #[must_use]
    pub fn verifier(&self) -> Verifier {
        let mut salt = [0; SALT_BYTES];
        openssl::rand::rand_bytes(&mut salt).expect("the system has randomness");
        Verifier::new(self.token.reveal(), &salt)
    }

    /// Creates a token.
    ///
    /// # Panics
    ///
    /// If the system's random number generator fails.
    #[must_use]
    pub fn make() -> Self {
        let mut bytes = [0; RANDOM_BYTES];
        openssl::rand::rand_bytes(&mut bytes).expect("the system has randomness");
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let hash = hash_of(&token);
        Self {
            token: token.into(),
            hash,
        }
    }
}

/// Whether a text has the form of a token.
pub(super) fn is_token(text: &str) -> bool {
    let random = text
        .strip_prefix(PREFIX)
        .map(|rest| URL_SAFE_NO_PAD.decode(rest));
    matches!(random, Some(Ok(bytes)) if bytes.len() == RANDOM_BYTES)
}

/// The tokens of a file.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    holders: HashMap<TokenHash, Arc<Principal>>,
    /// The tokens that can log in with SCRAM, by their names.
    verifiers: HashMap<Arc<str>, (ListedToken, Verifier)>,
}

/// A token of the file, by its hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListedToken(pub(super) TokenHash);

impl fmt::Debug for ListedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListedToken").finish_non_exhaustive()
    }
}

/// An entry of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    name: String,
    sha256: String,
    scram: Option<String>,
    #[serde(default)]
    scopes: Vec<Scope>,
    tenant: String,
    #[serde(default)]
    agents: Vec<Box<str>>,
}

impl Tokens {
    /// Follows the tokens of this file, and reloads them when the file changes.
    pub(super) fn follow(path: PathBuf) -> Result<Reread<Self>, crate::FileRefused> {
        let name = path.display().to_string();
        Reread::open("auth.tokensFile", vec![path], move |texts| {
            let text = String::from_utf8_lossy(&texts[0]);
            Self::read(&name, &text)
        })
    }

    /// The principal whose token has this hash.
    pub(super) fn principal(&self, hash: &TokenHash) -> Option<Arc<Principal>> {
        self.holders.get(hash).map(Arc::clone)
    }

    /// Whether any token can log in with SCRAM.
    pub(super) fn has_verifiers(&self) -> bool {
        !self.verifiers.is_empty()
    }

    /// The token of this name, and what verifies a login with SCRAM.
    pub(super) fn verifier(&self, name: &str) -> Option<(ListedToken, Verifier)> {
        self.verifiers.get(name).cloned()
    }

    fn read(path: &str, text: &str) -> Result<Self, String> {
        // An editor that rewrites the file leaves it empty for a moment.
        if text
            .lines()
            .all(|line| matches!(line.trim_start().as_bytes(), [] | [b'#', ..]))
        {
            return Err(format!(
                "{path}: is empty; write [] for a list without tokens"
            ));
        }
        let entries: Vec<Entry> = parse(path, text).map_err(|error| error.to_string())?;
        let mut tokens = Self::default();
        let mut names = std::collections::HashSet::new();
        for (place, entry) in entries.into_iter().enumerate() {
            let refused = |entry: &str, problem: String| {
                let number = place + 1;
                format!("{path}: entry {number} ({entry}): {problem}")
            };
            let name = entry.name.clone();
            let (hash, principal, verifier) =
                entry.read().map_err(|problem| refused(&name, problem))?;
            if !names.insert(name.clone()) {
                return Err(refused(&name, "another entry has this name".to_owned()));
            }
            if let Some(verifier) = verifier {
                let key = Arc::clone(&principal.name);
                tokens.verifiers.insert(key, (ListedToken(hash), verifier));
            }
            if tokens.holders.insert(hash, Arc::new(principal)).is_some() {
                return Err(refused(&name, "another entry has this sha256".to_owned()));
            }
        }
        Ok(tokens)
    }
}

impl Entry {
    fn read(self) -> Result<(TokenHash, Principal, Option<Verifier>), String> {
        check_name(&self.name)?;
        let hash = from_hex(&self.sha256)
            .ok_or_else(|| "sha256 must be 64 hexadecimal digits".to_owned())?;
        let verifier = self.scram.as_deref().map(str::parse).transpose();
        let verifier = verifier.map_err(|error: InvalidVerifier| format!("scram {error}"))?;
        let tenants = Tenants::named(&self.tenant).map_err(|error| format!("tenant {error}"))?;
        let scopes: Scopes = self.scopes.iter().copied().collect();
        check_rights(scopes, &self.agents, &tenants)?;
        let principal = Principal {
            name: self.name.into(),
            scopes,
            tenants,
            agents: self.agents.into(),
        };
        Ok((hash, principal, verifier))
    }
}

/// Checks the name of a token. The error says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && is_word(name) {
        true => Ok(()),
        false => Err(format!(
            "name must be 1 to {NAME_BYTES_MAX} bytes of visible characters, without white space, and must not begin with a \
             combining mark"
        )),
    }
}

/// Checks the rights of a token. The error says what is wrong with them.
pub fn check_rights(scopes: Scopes, agents: &[Box<str>], tenants: &Tenants) -> Result<(), String> {
    if scopes == Scopes::default() && agents.is_empty() {
        return Err("scopes must not be empty, unless agents are named".to_owned());
    }
    for agent in agents {
        if !is_topic_name(agent) {
            return Err(format!("agents: {agent:?} is not the name of an agent"));
        }
    }
    if !agents.is_empty() && tenants.only().is_some() {
        return Err("a token that names agents must be for all tenants (tenant: '*')".to_owned());
    }
    if scopes.contains(Scope::Admin) && tenants.only().is_some() {
        return Err(
            "a token with the scope admin must be for all tenants (tenant: '*')".to_owned(),
        );
    }
    Ok(())
}

/// A hash in hexadecimal digits.
pub fn to_hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<TokenHash> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
            _ => None,
        })
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tokens, String> {
        Tokens::read("tokens.yaml", text)
    }

    #[test]
    fn a_new_token_is_found_by_its_hash_and_never_shown() {
        let made = NewToken::make();
        let shown = format!("{made:?}");
        assert!(!shown.contains(made.token.reveal()), "{shown}");
        let sha256 = to_hex(&made.hash);
        let text = format!(
            "- name: orders\n  sha256: {sha256}\n  scopes: [submit, read]\n  tenant: acme\n"
        );
        let tokens = read(&text).unwrap();
        let found = tokens.principal(&hash_of(made.token.reveal())).unwrap();
        let expected = Principal {
            name: "orders".into(),
            scopes: [Scope::Submit, Scope::Read].into_iter().collect(),
            tenants: Tenants::One("acme".into()),
            agents: Arc::default(),
        };
        assert_eq!(*found, expected);
        assert!(tokens.principal(&hash_of("wb_other")).is_none());
        assert!(read("[]").unwrap().holders.is_empty());
    }

    #[test]
    fn a_token_with_a_verifier_is_found_by_its_name() {
        let made = NewToken::make();
        let verifier = made.verifier();
        assert_ne!(made.verifier(), verifier, "the salt is random");
        let entry = |name: &str, hash: &str, scram: &str| {
            format!("- {{name: {name}, sha256: '{hash}', {scram}scopes: [read], tenant: '*'}}\n")
        };
        let text = [
            entry(
                "with",
                &to_hex(&made.hash),
                &format!("scram: '{verifier}', "),
            ),
            entry("without", &"ab".repeat(32), ""),
        ];
        let tokens = read(&text.concat()).unwrap();
        let listed = ListedToken(made.hash);
        assert_eq!(tokens.verifier("with"), Some((listed, verifier)));
        for name in ["without", "somebody"] {
            assert_eq!(tokens.verifier(name), None, "{name}");
        }
        assert_eq!(format!("{listed:?}"), "ListedToken { .. }");
    }

    #[test]
    fn only_long_random_texts_look_like_tokens() {
        assert!(is_token(NewToken::make().token.reveal()));
        for other in ["", "wb_", "secret", "wb_c2hvcnQ", "a.b.c"] {
            assert!(!is_token(other), "{other}");
        }
    }

    #[test]
    fn invalid_entries_are_refused_with_their_position() {
        let sha256 = "ab".repeat(32);
        let entry = |fields: &str| format!("- {{name: a, {fields}}}\n");
        let good = entry(&format!("sha256: '{sha256}', scopes: [read], tenant: '*'"));
        let another = good.replace("name: a", "name: b");
        let cases = [
            ("", "tokens.yaml"),
            ("# nothing yet\n", "tokens.yaml"),
            ("a: 1\n", "tokens.yaml:1:1: must be a list"),
            (&entry("scopes: [read], tenant: '*'"), "sha256"),
            (
                &entry("sha256: ab, scopes: [read], tenant: '*'"),
                "tokens.yaml: entry 1 (a): sha256 must be 64",
            ),
            (
                &good.replace("scopes", "scram: abab, scopes"),
                "entry 1 (a): scram must be SCRAM-SHA-256$",
            ),
            (
                &good.replace("read", "reed"),
                "reed is not one of submit, read, repair, payload, admin",
            ),
            (&good.replace("[read]", "[]"), "scopes must not be empty"),
            (
                &good.replace("[read]", "[], agents: ['a b']"),
                "entry 1 (a): agents: \"a b\" is not the name of an agent",
            ),
            (
                &good
                    .replace("[read]", "[], agents: [drone]")
                    .replace("'*'", "acme"),
                "a token that names agents must be for all tenants",
            ),
            (&good.replace("'*'", "''"), "tenant must name a tenant"),
            (&good.replace("tenant: '*'", ""), "tenant"),
            (
                &good.replace("read", "admin").replace("'*'", "acme"),
                "admin must be for all tenants",
            ),
            (&good.replace("name: a", "name: 'a b'"), "name must be"),
            (&good.replace("scopes", "scope"), "unknown key scope"),
            (
                &format!("{good}{good}"),
                "entry 2 (a): another entry has this name",
            ),
            (
                &format!("{good}{another}"),
                "entry 2 (b): another entry has this sha256",
            ),
        ];
        for (text, expected) in cases {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(expected), "{text:?}: {refused}");
            assert!(!refused.contains(&sha256), "{refused}");
        }
    }
}
