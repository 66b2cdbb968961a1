//! The layer of environment variables: `WAYBILL_` and the path of the key in capitals, its levels
//! separated by two underscores and its words by one. `scheduler.handOffAfter` is
//! `WAYBILL_SCHEDULER__HAND_OFF_AFTER`; the librdkafka setting `sasl.password` is
//! `WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD`.
//!
//! Unknown variables with the prefix are refused, because they may be misspelt. Kubernetes,
//! however, sets variables in every container for each service of the namespace, and those of a
//! service named `waybill` have the same prefix. They are recognised by their endings.

use std::collections::BTreeMap;

use serde_json::Value;
use strsim::jaro_winkler;

use crate::secret::to_value_with_secrets;
use crate::words::in_our_words;
use crate::{ConfigError, Configuration, OpenKey, OpenNames};

const PREFIX: &str = "WAYBILL_";

/// The environment variables of a process, or of a test.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process. Values that are not UTF-8 get replacement characters, which
    /// later checks refuse.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .collect()
    }

    /// The value of one variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets every key of `config` that a variable names.
    ///
    /// # Errors
    ///
    /// If a variable is unknown, or its value does not fit.
    pub fn apply<C: Configuration>(&self, mut config: C) -> Result<C, ConfigError> {
        let keys = keys::<C>();
        let ours = self.0.iter().filter(|(name, text)| {
            name.starts_with(PREFIX)
                && !C::OTHER_VARIABLES.contains(&name.as_str())
                && !is_service_link(name, text)
        });
        for (name, text) in ours {
            let target = keys.iter().find_map(|key| key.target_of(name));
            let target = target.ok_or_else(|| ConfigError::UnknownVariable {
                name: name.clone(),
                nearest: nearest_variable(name, &keys, C::OTHER_VARIABLES),
            })?;
            config = target
                .set(&config, text)
                .map_err(|cause| ConfigError::Variable {
                    name: name.clone(),
                    key: target.levels.join("."),
                    cause,
                })?;
        }
        Ok(config)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// Shows names only: any value may be a secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The YAML dialect of files and variables: `yes` and `on`, true in YAML 1.1, are text as in YAML
/// 1.2.
pub(crate) fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true }
}

/// The paths of all keys that hold a value, as in `scheduler.lease`.
pub(crate) fn key_paths<C: Configuration>() -> Vec<String> {
    keys::<C>().iter().map(Key::path).collect()
}

/// The variable for each key, by the key's path.
#[must_use]
pub fn variables<C: Configuration>() -> BTreeMap<String, String> {
    let keys = keys::<C>().into_iter();
    keys.map(|key| (key.path(), key.shown())).collect()
}

/// A key of the configuration that holds a value.
struct Key {
    levels: Vec<String>,
    variable: String,
    /// How names below the key are written, if it accepts any name.
    entry: Option<&'static OpenKey>,
}

impl Key {
    fn new<C: Configuration>(levels: &[&str]) -> Self {
        let names: Vec<String> = levels.iter().map(|level| in_capitals(level)).collect();
        let path = levels.join(".");
        let entry = C::OPEN_KEYS.iter().find(|open| open.key == path);
        Self {
            levels: levels.iter().map(|&level| level.to_owned()).collect(),
            variable: format!("{PREFIX}{}", names.join("__")),
            entry,
        }
    }

    fn path(&self) -> String {
        self.levels.join(".")
    }

    /// The target of a variable, if it is this key or an entry below it.
    fn target_of(&self, variable: &str) -> Option<Target> {
        let mut levels = self.levels.clone();
        let Some(open) = self.entry else {
            // A password is always text, even if it is valid YAML.
            let is_text = levels.last().is_some_and(|level| level == "password");
            return (self.variable == variable).then_some(Target { levels, is_text });
        };
        let entry = variable.strip_prefix(&self.variable)?.strip_prefix("__")?;
        if entry.is_empty() {
            return None;
        }
        levels.push(match open.names {
            OpenNames::Dotted => entry.to_ascii_lowercase().replace('_', "."),
            OpenNames::CamelCase => in_camel_case(entry),
        });
        let is_text = true;
        Some(Target { levels, is_text })
    }

    /// The variable as a suggestion shows it.
    fn shown(&self) -> String {
        match self.entry {
            Some(open) => format!("{}__{}", self.variable, open.example),
            None => self.variable.clone(),
        }
    }
}

/// The key that a variable sets.
struct Target {
    levels: Vec<String>,
    /// Whether the value is always text.
    is_text: bool,
}

impl Target {
    /// Sets the key: to the YAML value of the text, otherwise to the text itself, otherwise to a
    /// list of its comma-separated parts. The first that fits the key's type counts.
    fn set<C: Configuration>(&self, config: &C, text: &str) -> Result<C, String> {
        let list = || {
            text.split(',')
                .map(|item| Value::from(item.trim()))
                .collect()
        };
        let read = (!self.is_text)
            .then(|| serde_saphyr::from_str_with_options::<Value>(text, yaml_options()).ok());
        let readings = read
            .flatten()
            .into_iter()
            .chain(std::iter::once_with(|| Value::from(text)))
            .chain(std::iter::once_with(list));
        let mut refusal = None;
        for reading in readings {
            match with_value(config, &self.levels, reading) {
                Ok(changed) => return Ok(changed),
                Err(error) => {
                    refusal.get_or_insert(in_our_words(&error.to_string()).to_owned());
                }
            }
        }
        Err(refusal.unwrap_or_default())
    }
}

fn with_value<C: Configuration>(
    config: &C,
    levels: &[String],
    value: Value,
) -> Result<C, serde_json::Error> {
    let mut whole = to_value_with_secrets(config)?;
    let mut place = &mut whole;
    for level in levels {
        place = &mut place[level.as_str()];
    }
    *place = value;
    serde_json::from_value(whole)
}

fn keys<C: Configuration>() -> Vec<Key> {
    let defaults = serde_json::to_value(C::default())
        .expect("the defaults are plain values with text for keys");
    let mut keys = Vec::new();
    collect::<C>(&defaults, &mut Vec::new(), &mut keys);
    keys.retain(|key| !C::FILE_KEYS.contains(&key.path().as_str()));
    keys
}

fn collect<'a, C: Configuration>(value: &'a Value, levels: &mut Vec<&'a str>, keys: &mut Vec<Key>) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (name, value) in entries {
                levels.push(name);
                collect::<C>(value, levels, keys);
                levels.pop();
            }
        }
        _ => keys.push(Key::new::<C>(levels)),
    }
}

/// Turns `handOffAfter` and `third-party` into `HAND_OFF_AFTER` and `THIRD_PARTY`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            capitals.push('_');
        }
        capitals.push(if letter == '-' {
            '_'
        } else {
            letter.to_ascii_uppercase()
        });
    }
    capitals
}

/// `PAYMENTS_URL` as `paymentsUrl`.
fn in_camel_case(capitals: &str) -> String {
    let mut name = String::with_capacity(capitals.len());
    let mut begins_word = false;
    for letter in capitals.chars() {
        match letter {
            '_' => begins_word = !name.is_empty(),
            letter if begins_word => {
                name.push(letter.to_ascii_uppercase());
                begins_word = false;
            }
            letter => name.push(letter.to_ascii_lowercase()),
        }
    }
    name
}

/// The known variable that is most similar to `name`, as a whole or in its last part:
/// `WAYBILL_LEASE` lacks its section, but clearly means `WAYBILL_SCHEDULER__LEASE`. A section, if
/// `name` is most similar to one and has no key.
fn nearest_variable(name: &str, keys: &[Key], others: &[&str]) -> Option<String> {
    const LIKENESS_MIN: f64 = 0.7;
    let wanted = name.strip_prefix(PREFIX).unwrap_or(name);
    let likeness = |variable: &str| {
        let variable = variable.strip_prefix(PREFIX).unwrap_or(variable);
        let whole = jaro_winkler(wanted, variable);
        let last = jaro_winkler(last_part(wanted), last_part(variable));
        // Of variables with the same last part, the one that is more similar as a whole wins.
        whole.max(last * 0.9 + whole * 0.1)
    };
    let sections = keys.iter().filter(|_| !wanted.contains("__"));
    let sections = sections.filter_map(|key| {
        let (section, _) = key.variable.strip_prefix(PREFIX)?.split_once("__")?;
        let shown = format!("{PREFIX}{section}__...");
        Some((jaro_winkler(wanted, section), shown))
    });
    keys.iter()
        .map(|key| (likeness(&key.variable), key.shown()))
        .chain(sections)
        .chain(others.iter().map(|&name| (likeness(name), name.to_owned())))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, shown)| shown)
}

fn last_part(variable: &str) -> &str {
    variable.rsplit("__").next().unwrap_or(variable)
}

/// Whether Kubernetes set the variable for a service whose name begins with `waybill`, such as
/// `WAYBILL_SERVICE_HOST` and `WAYBILL_PORT_8080_TCP_ADDR`. `WAYBILL_PORT` counts only with a value
/// as Kubernetes sets it, such as `tcp://10.0.0.1:8080`.
fn is_service_link(name: &str, value: &str) -> bool {
    if name.contains("__") {
        return false;
    }
    let words: Vec<&str> = name.split('_').collect();
    let number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let protocol = |word: &str| ["TCP", "UDP", "SCTP"].contains(&word);
    match words.as_slice() {
        [.., "SERVICE", "HOST" | "PORT"] => true,
        [.., "PORT", port, last] if number(port) && protocol(last) => true,
        [.., "PORT", port, last, "PROTO" | "PORT" | "ADDR"] if number(port) && protocol(last) => {
            true
        }
        [.., "PORT"] => value.contains("://"),
        words => words.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_values() {
        let environment: Environment = [("SECRET", "hunter2")].into_iter().collect();
        assert_eq!(format!("{environment:?}"), r#"{"SECRET"}"#);
    }
}
