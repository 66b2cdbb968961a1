//! The layer of environment variables: `WAYBILL_`, then the path of the key in capitals, its
//! levels separated by two underscores and its words by one. `scheduler.handOffAfter` is
//! `WAYBILL_SCHEDULER__HAND_OFF_AFTER`; the librdkafka setting `sasl.password` is
//! `WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD`.
//!
//! Every variable with the prefix must mean something: a misspelt one is refused, not ignored.
//! Kubernetes, though, puts variables into every container for each service beside it, and a
//! service named `waybill` makes them look like ours; those are told apart by their endings.

use std::collections::BTreeMap;

use serde_json::Value;
use strsim::jaro_winkler;

use super::words::in_our_words;
use super::{Config, ConfigError};

const PREFIX: &str = "WAYBILL_";

/// Variables with the prefix that are not keys of the configuration.
const NOT_KEYS: [&str; 3] = ["WAYBILL_CONFIG", "WAYBILL_TOKEN_FILE", "WAYBILL_CA_FILE"];

/// Keys below which any name may stand.
const OPEN: [&str; 2] = ["kafka.properties", "kafka.propertyFiles"];

/// Keys that no variable sets: they have a structure that belongs into a file.
const FILE_ONLY: [&str; 4] = [
    "http.tenantLimits.tenants",
    "alerts.receivers",
    "alerts.owners.email",
    "alerts.owners.sms",
];

/// The environment variables of a process, or those that a test makes up.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// That of this process. What is not UTF-8 is replaced, which its reader will refuse.
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

    /// Sets every key that a variable names.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        let keys: Vec<Key> = keys();
        let ours = self.0.iter().filter(|(name, text)| {
            name.starts_with(PREFIX)
                && !NOT_KEYS.contains(&name.as_str())
                && !is_service_link(name, text)
        });
        for (name, text) in ours {
            match keys.iter().find_map(|key| key.named_by(name)) {
                Some(target) => {
                    target
                        .set(config, text)
                        .map_err(|cause| ConfigError::Variable {
                            name: name.clone(),
                            key: target.path(),
                            cause,
                        })?
                }
                None => {
                    return Err(ConfigError::UnknownVariable {
                        name: name.clone(),
                        nearest: nearest_variable(name, &keys),
                    });
                }
            }
        }
        Ok(())
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

/// Names only: any value may be a secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The paths of all keys that hold a value, as in `scheduler.lease`.
pub(super) fn key_paths() -> Vec<String> {
    keys().iter().map(Key::path).collect()
}

/// The variable that sets each key, by the key's path.
pub fn variables() -> BTreeMap<String, String> {
    let keys = keys().into_iter();
    keys.map(|key| (key.path(), key.shown())).collect()
}

/// A key of the configuration that holds a value.
struct Key {
    levels: Vec<String>,
    variable: String,
}

/// What a variable sets.
enum Target<'a> {
    Value(&'a Key),
    /// An entry of an open map.
    Entry(&'a Key, String),
}

impl Key {
    fn new(levels: &[&str]) -> Self {
        let names: Vec<String> = levels.iter().map(|level| in_capitals(level)).collect();
        Self {
            levels: levels.iter().map(|&level| level.to_owned()).collect(),
            variable: format!("{PREFIX}{}", names.join("__")),
        }
    }

    fn path(&self) -> String {
        self.levels.join(".")
    }

    fn is_open(&self) -> bool {
        OPEN.contains(&self.path().as_str())
    }

    fn named_by(&self, variable: &str) -> Option<Target<'_>> {
        if !self.is_open() {
            return (self.variable == variable).then_some(Target::Value(self));
        }
        let entry = variable.strip_prefix(&self.variable)?.strip_prefix("__")?;
        (!entry.is_empty())
            .then(|| Target::Entry(self, entry.to_ascii_lowercase().replace('_', ".")))
    }

    /// The variable as it is shown in a suggestion.
    fn shown(&self) -> String {
        if self.is_open() {
            format!("{}__SASL_PASSWORD", self.variable)
        } else {
            self.variable.clone()
        }
    }
}

impl Target<'_> {
    fn path(&self) -> String {
        match self {
            Self::Value(key) => key.path(),
            Self::Entry(key, entry) => format!("{}.{entry}", key.path()),
        }
    }

    fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Self::Value(key) => set(config, &key.levels, text),
            Self::Entry(key, entry) if key.levels.last().is_some_and(|l| l == "properties") => {
                config
                    .kafka
                    .properties
                    .0
                    .insert(entry.clone(), text.to_owned());
                Ok(())
            }
            Self::Entry(_, entry) => {
                config
                    .kafka
                    .property_files
                    .insert(entry.clone(), text.into());
                Ok(())
            }
        }
    }
}

/// Sets one value: as the YAML that the text would be in the file, else as the text itself, else
/// as a list of what stands between its commas. The first that fits the key's type counts.
fn set(config: &mut Config, levels: &[String], text: &str) -> Result<(), String> {
    // Serializing redacts secrets; they take no part.
    let properties = std::mem::take(&mut config.kafka.properties);
    let receivers = std::mem::take(&mut config.alerts.receivers);
    let password = config.store.scylla.password.take();
    let registry_password = config.schema_registry.password.take();
    let owners_email = config.alerts.owners.email.take();
    let owners_sms = config.alerts.owners.sms.take();
    let list = || {
        text.split(',')
            .map(|item| Value::from(item.trim()))
            .collect()
    };
    // A password is what it is, whatever YAML would make of it.
    let is_password = levels.last().is_some_and(|level| level == "password");
    let read = (!is_password).then(|| serde_saphyr::from_str::<Value>(text).ok());
    let readings = read
        .flatten()
        .into_iter()
        .chain(std::iter::once_with(|| Value::from(text)))
        .chain(std::iter::once_with(list));
    let mut refusal = None;
    let mut fitting = None;
    for reading in readings {
        match with_value(config, levels, reading) {
            Ok(changed) => {
                fitting = Some(changed);
                break;
            }
            Err(error) => {
                refusal.get_or_insert(in_our_words(&error.to_string()).to_owned());
            }
        }
    }
    let outcome = match fitting {
        Some(changed) => {
            *config = changed;
            Ok(())
        }
        None => Err(refusal.unwrap_or_default()),
    };
    config.kafka.properties = properties;
    config.alerts.receivers = receivers;
    if config.store.scylla.password.is_none() {
        config.store.scylla.password = password;
    }
    if config.schema_registry.password.is_none() {
        config.schema_registry.password = registry_password;
    }
    config.alerts.owners.email = owners_email;
    config.alerts.owners.sms = owners_sms;
    outcome
}

fn with_value(
    config: &Config,
    levels: &[String],
    value: Value,
) -> Result<Config, serde_json::Error> {
    let mut whole = serde_json::to_value(config)?;
    let mut place = &mut whole;
    for level in levels {
        place = &mut place[level.as_str()];
    }
    *place = value;
    serde_json::from_value(whole)
}

fn keys() -> Vec<Key> {
    let defaults = serde_json::to_value(Config::default())
        .expect("the defaults are plain values with text for keys");
    let mut keys = Vec::new();
    collect(&defaults, &mut Vec::new(), &mut keys);
    keys.retain(|key| !FILE_ONLY.contains(&key.path().as_str()));
    keys
}

fn collect<'a>(value: &'a Value, levels: &mut Vec<&'a str>, keys: &mut Vec<Key>) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (name, value) in entries {
                levels.push(name);
                collect(value, levels, keys);
                levels.pop();
            }
        }
        _ => keys.push(Key::new(levels)),
    }
}

/// `handOffAfter` and `third-party` as `HAND_OFF_AFTER` and `THIRD_PARTY`.
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

/// The known variable that is most like `name`, as a whole or in its last part: `WAYBILL_LEASE`
/// lacks its section, but clearly means `WAYBILL_SCHEDULER__LEASE`.
fn nearest_variable(name: &str, keys: &[Key]) -> Option<String> {
    const LIKENESS_MIN: f64 = 0.7;
    let wanted = name.strip_prefix(PREFIX).unwrap_or(name);
    let likeness = |variable: &str| {
        let variable = variable.strip_prefix(PREFIX).unwrap_or(variable);
        let whole = jaro_winkler(wanted, variable);
        let last = jaro_winkler(last_part(wanted), last_part(variable));
        // Of variables with the same last part the one that is more like it as a whole.
        whole.max(last * 0.9 + whole * 0.1)
    };
    keys.iter()
        .map(|key| (likeness(&key.variable), key.shown()))
        .chain(NOT_KEYS.map(|name| (likeness(name), name.to_owned())))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, shown)| shown)
}

fn last_part(variable: &str) -> &str {
    variable.rsplit("__").next().unwrap_or(variable)
}

/// Whether Kubernetes made the variable for a service whose name begins with `waybill`:
/// `WAYBILL_SERVICE_HOST`, `WAYBILL_PORT_8080_TCP_ADDR` and their like. `WAYBILL_PORT` is one only
/// with the value that Kubernetes gives it, as in `tcp://10.0.0.1:8080`.
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
    use std::time::Duration;

    use super::super::{ByteSize, LogFormat, PartitionChoice};
    use super::*;

    #[test]
    fn variables_reach_every_kind_of_value() {
        let environment = [
            ("WAYBILL_DATA_DIR", "/var/lib/waybill"),
            ("WAYBILL_PARTITIONS", "8"),
            ("WAYBILL_KAFKA__BROKERS", "a:9092, b:9092"),
            ("WAYBILL_KAFKA__TOPIC_PREFIX", "007"),
            ("WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD", "0123"),
            (
                "WAYBILL_KAFKA__PROPERTY_FILES__SSL_KEY_PASSWORD",
                "/run/secrets/key",
            ),
            ("WAYBILL_HTTP__LISTEN", "0.0.0.0:80"),
            ("WAYBILL_HTTP__REQUEST_BYTES_MAX", "1MiB"),
            ("WAYBILL_SCHEDULER__HAND_OFF_AFTER", "7s"),
            ("WAYBILL_SCHEDULER__PARTITIONS", "2"),
            ("WAYBILL_WORKFLOWS__BUILT_IN", "false"),
            ("WAYBILL_WORKFLOWS__FILES", "[a.yaml, b.yaml]"),
            ("WAYBILL_AGENTS__FILES", "one.yaml"),
            ("WAYBILL_SERVICES__FAULTS__THIRD_PARTY__ERROR_RATE", "0.25"),
            ("WAYBILL_TELEMETRY__LOG_FORMAT", "json"),
        ];
        let mut expected = Config {
            data_dir: "/var/lib/waybill".into(),
            ..Config::default()
        };
        expected.partitions = 8;
        expected.kafka.brokers = Some(vec!["a:9092".to_owned(), "b:9092".to_owned()]);
        expected.kafka.topic_prefix = "007".to_owned();
        expected
            .kafka
            .properties
            .0
            .insert("sasl.password".to_owned(), "0123".to_owned());
        let key_file = ("ssl.key.password".to_owned(), "/run/secrets/key".into());
        expected.kafka.property_files.extend([key_file]);
        expected.http.listen = "0.0.0.0:80".parse().unwrap();
        expected.http.request_bytes_max = ByteSize::mib(1);
        expected.scheduler.hand_off_after = Duration::from_secs(7);
        expected.scheduler.partitions = PartitionChoice::Range { first: 2, last: 2 };
        expected.workflows.built_in = false;
        expected.workflows.files = vec!["a.yaml".into(), "b.yaml".into()];
        expected.agents.files = vec!["one.yaml".into()];
        expected.services.faults.third_party.error_rate = 0.25;
        expected.telemetry.log_format = LogFormat::Json;
        assert_eq!(applied(&environment).unwrap(), expected);
    }

    #[test]
    fn a_password_is_taken_as_it_is_written() {
        for password in ["abc #1", "'quoted'", "~", "!tag", "a, b", "007"] {
            let environment = [
                ("WAYBILL_STORE__SCYLLA__PASSWORD", password),
                ("WAYBILL_SCHEMA_REGISTRY__PASSWORD", password),
            ];
            let config = applied(&environment).unwrap();
            let passwords = [
                config.store.scylla.password,
                config.schema_registry.password,
            ];
            for taken in passwords {
                assert_eq!(taken.unwrap().reveal(), password);
            }
        }
    }

    #[test]
    fn a_variable_that_unsets_an_optional_key_gives_back_its_default() {
        let mut config = Config::default();
        config.kafka.brokers = Some(vec!["a:9092".to_owned()]);
        let environment: Environment = [("WAYBILL_KAFKA__BROKERS", "")].into_iter().collect();
        environment.apply(&mut config).unwrap();
        assert_eq!(config.kafka.brokers, None);
    }

    #[test]
    fn unknown_variables_are_refused_with_the_nearest_known_one() {
        let cases = [
            ("WAYBILL_HTTP__LISTN", Some("WAYBILL_HTTP__LISTEN")),
            ("WAYBILL_SCHEDULER_LEASE", Some("WAYBILL_SCHEDULER__LEASE")),
            ("WAYBILL_HTPP__LISTEN", Some("WAYBILL_HTTP__LISTEN")),
            ("WAYBILL_LOG_FILTR", Some("WAYBILL_TELEMETRY__LOG_FILTER")),
            ("WAYBILL_LEASE", Some("WAYBILL_SCHEDULER__LEASE")),
            ("WAYBILL_LOG_FILTER", Some("WAYBILL_TELEMETRY__LOG_FILTER")),
            ("WAYBILL_CONFIGS", Some("WAYBILL_CONFIG")),
            (
                "WAYBILL_KAFKA__PROPERTIES",
                Some("WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD"),
            ),
        ];
        for (name, nearest) in cases {
            match applied(&[(name, "1")]) {
                Err(ConfigError::UnknownVariable {
                    name: refused,
                    nearest: found,
                }) => {
                    assert_eq!((refused.as_str(), found.as_deref()), (name, nearest));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_with_variable_and_key() {
        let cases = [
            (
                "WAYBILL_PARTITIONS",
                "many",
                "partitions",
                "must be a whole number from 0",
            ),
            (
                "WAYBILL_SCHEDULER__LEASE",
                "10",
                "scheduler.lease",
                "a duration with its unit",
            ),
            (
                "WAYBILL_HTTP__LISTEN",
                "here",
                "http.listen",
                "must be an IP address and a port",
            ),
            (
                "WAYBILL_HTTP__LISTEN",
                "8080",
                "http.listen",
                "must be an IP address and a port",
            ),
            (
                "WAYBILL_PARTITIONS",
                "5000000000",
                "partitions",
                "must be a whole number from 0 to 4294967295",
            ),
            (
                "WAYBILL_SCHEDULER__IN_FLIGHT_MAX",
                "20000000000000000000",
                "scheduler.inFlightMax",
                "must be a whole number from 0 to 18446744073709551615",
            ),
            (
                "WAYBILL_HTTP__TENANT_LIMITS__PER_SECOND",
                "0",
                "http.tenantLimits.perSecond",
                "must be a whole number of at least 1",
            ),
            (
                "WAYBILL_WORKFLOWS__BUILT_IN",
                "perhaps",
                "workflows.builtIn",
                "boolean",
            ),
        ];
        for (name, value, key, cause) in cases {
            let error = applied(&[(name, value)]).unwrap_err().to_string();
            let start = format!("the environment variable {name} does not fit {key}: ");
            assert!(
                error.starts_with(&start) && error.contains(cause),
                "{error}"
            );
        }
    }

    #[test]
    fn variables_that_kubernetes_makes_for_services_are_left_alone() {
        let links = [
            "WAYBILL_SERVICE_HOST",
            "WAYBILL_SERVICE_PORT",
            "WAYBILL_SERVICE_PORT_HTTP",
            "WAYBILL_PORT",
            "WAYBILL_PORT_8080_TCP",
            "WAYBILL_PORT_8080_TCP_PROTO",
            "WAYBILL_PORT_8080_TCP_PORT",
            "WAYBILL_PORT_8080_TCP_ADDR",
            "WAYBILL_SCHEDULER_SERVICE_HOST",
        ];
        for name in links {
            let applied = applied(&[(name, "tcp://10.0.0.1:8080")]);
            assert_eq!(applied.unwrap(), Config::default(), "{name}");
        }
        applied(&[("WAYBILL_PORT", "8080")]).expect_err("that is a person's");
    }

    #[test]
    fn no_key_of_ours_looks_like_a_variable_of_kubernetes() {
        for key in keys() {
            assert!(
                !is_service_link(&key.variable, "tcp://a:1"),
                "{}",
                key.variable
            );
        }
    }

    #[test]
    fn debug_shows_no_values() {
        let environment: Environment = [("SECRET", "hunter2")].into_iter().collect();
        assert_eq!(format!("{environment:?}"), r#"{"SECRET"}"#);
    }

    fn applied(environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        environment
            .iter()
            .copied()
            .collect::<Environment>()
            .apply(&mut config)?;
        Ok(config)
    }
}
