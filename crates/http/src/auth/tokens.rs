//! Tokens that are listed by their hashes in a file.
//!
//! A token is a prefix and 32 random bytes, and only text in this form is looked up. A plain
//! SHA-256 is therefore safe: slow hashes protect against dictionaries, and random bytes are in
//! none. The look-up costs a request almost nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use waybill_config::{Secret, parse};
use waybill_messages::is_topic_name;
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
#[derive(Debug)]
pub(super) struct Tokens(HashMap<TokenHash, Arc<Principal>>);

/// An entry of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    name: String,
    sha256: String,
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
        self.0.get(hash).map(Arc::clone)
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
        let mut tokens = HashMap::with_capacity(entries.len());
        let mut names = std::collections::HashSet::new();
        for (place, entry) in entries.into_iter().enumerate() {
            let refused = |entry: &str, problem: String| {
                let number = place + 1;
                format!("{path}: entry {number} ({entry}): {problem}")
            };
            let name = entry.name.clone();
            let (hash, principal) = entry.read().map_err(|problem| refused(&name, problem))?;
            if !names.insert(name.clone()) {
                return Err(refused(&name, "another entry has this name".to_owned()));
            }
            if tokens.insert(hash, Arc::new(principal)).is_some() {
                return Err(refused(&name, "another entry has this sha256".to_owned()));
            }
        }
        Ok(Self(tokens))
    }
}

impl Entry {
    fn read(self) -> Result<(TokenHash, Principal), String> {
        check_name(&self.name)?;
        let hash = from_hex(&self.sha256)
            .ok_or_else(|| "sha256 must be 64 hexadecimal digits".to_owned())?;
        let tenants = Tenants::named(&self.tenant).map_err(|error| format!("tenant {error}"))?;
        let scopes: Scopes = self.scopes.iter().copied().collect();
        check_rights(scopes, &self.agents, &tenants)?;
        let principal = Principal {
            name: self.name.into(),
            scopes,
            tenants,
            agents: self.agents.into(),
        };
        Ok((hash, principal))
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
        assert!(read("[]").unwrap().0.is_empty());
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
                &good.replace("read", "reed"),
                "reed is not one of submit, read, repair, admin",
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
