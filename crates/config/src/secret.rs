//! Secret texts of the configuration.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

thread_local! {
    /// Whether this thread serializes secrets unredacted.
    static REVEALS: Cell<bool> = const { Cell::new(false) };
}

/// A configuration as a value with its secrets, from which it can be read again.
pub(crate) fn to_value_with_secrets(config: &impl Serialize) -> Result<Value, serde_json::Error> {
    struct Hide;
    impl Drop for Hide {
        fn drop(&mut self) {
            REVEALS.set(false);
        }
    }
    let _hide = Hide;
    REVEALS.set(true);
    serde_json::to_value(config)
}

/// The text that a type with a secret should serialize: `shown`, or the secret while a layer is
/// applied.
#[must_use]
pub fn secret_to_serialize<'a>(secret: &'a str, shown: &'a str) -> &'a str {
    match REVEALS.get() {
        true => secret,
        false => shown,
    }
}

/// The replacement for a secret.
pub const REDACTED: &str = "(redacted)";

/// A text that `Debug` and serialization redact.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(secret_to_serialize(&self.0, REDACTED))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// A URL that `Debug` and serialization reduce to scheme and authority.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// The whole URL.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn shown(&self) -> String {
        let after_scheme = self.0.find("://").map(|at| at + 3);
        let authority = after_scheme.map(|start| {
            let length = self.0[start..].find(['/', '?', '#']);
            (start, length.map_or(self.0.len(), |length| start + length))
        });
        match authority {
            // Credentials before the host are refused later, and must not be shown before.
            Some((start, end)) if !self.0[start..end].contains('@') => match &self.0[end..] {
                "" | "/" => self.0.clone(),
                _ => format!("{}/{REDACTED}", &self.0[..end]),
            },
            _ => REDACTED.to_owned(),
        }
    }
}

impl<T: Into<String>> From<T> for SecretUrl {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(secret_to_serialize(&self.0, &self.shown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_serialized_only_for_configuration_layers() {
        let secrets = (Secret::from("a"), SecretUrl::from("https://host/b"));
        let redacted = serde_json::json!(["(redacted)", "https://host/(redacted)"]);
        assert_eq!(serde_json::to_value(&secrets).unwrap(), redacted);
        let whole = to_value_with_secrets(&secrets).unwrap();
        assert_eq!(whole, serde_json::json!(["a", "https://host/b"]));
        assert_eq!(serde_json::to_value(&secrets).unwrap(), redacted);
    }

    #[test]
    fn a_redacted_url_shows_only_scheme_and_authority() {
        for (url, shown) in [
            ("http://10.0.0.1:80", "http://10.0.0.1:80"),
            ("https://a.example/", "https://a.example/"),
            ("https://a.example/T0/x", "https://a.example/(redacted)"),
            ("https://a.example?key=x", "https://a.example/(redacted)"),
            ("https://user:x@a.example/", "(redacted)"),
            ("hunter2", "(redacted)"),
        ] {
            assert_eq!(format!("{:?}", SecretUrl::from(url)), shown);
        }
    }
}
