//! Who is told of alerts, how often, and the secrets that this takes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::owners::OwnersConfig;
use super::{ConfigError, units};

/// What is shown in place of a secret.
const REDACTED: &str = "(redacted)";

/// A name of a receiver is at most this long: it is a label of metrics.
const NAME_BYTES_MAX: usize = 64;

/// The `alerts` section. Every bound is one receiver's: receivers share nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AlertsConfig {
    /// How long repeats of an alert are gathered before one message tells of all of them.
    #[serde(with = "units::duration")]
    pub fold_for: Duration,
    /// Repeats that are gathered at once; beyond it they are told of earlier.
    pub folded_max: usize,
    /// Different alerts that wait at once; beyond it no further ones are taken in. Together with
    /// `folded_max` also how far the topic is read ahead of what the receiver had.
    pub queue_max: usize,
    /// How often a message is tried before it is given up.
    pub attempts_max: u32,
    /// The wait before the second attempt, doubled for each further one, with jitter.
    #[serde(with = "units::duration")]
    pub backoff: Duration,
    /// The longest such wait.
    #[serde(with = "units::duration")]
    pub backoff_max: Duration,
    /// The longest wait that a receiver's `Retry-After` is heeded for.
    #[serde(with = "units::duration")]
    pub retry_after_max: Duration,
    /// How long one attempt may take; by e-mail, for each address.
    #[serde(with = "units::duration")]
    pub timeout: Duration,
    /// Older alerts are counted and not told of. A receiver that is new, or was away for long, is
    /// told of no older ones.
    #[serde(with = "units::duration")]
    pub max_age: Duration,
    /// Who is told, by name.
    pub receivers: BTreeMap<String, ReceiverConfig>,
    /// How those are told who asked to be told of an operation.
    pub owners: OwnersConfig,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            fold_for: Duration::from_secs(60),
            folded_max: 10_000,
            queue_max: 1_000,
            attempts_max: 10,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(5 * 60),
            retry_after_max: Duration::from_secs(15 * 60),
            timeout: Duration::from_secs(10),
            max_age: Duration::from_secs(24 * 60 * 60),
            receivers: BTreeMap::new(),
            owners: OwnersConfig::default(),
        }
    }
}

impl AlertsConfig {
    /// Moves what stands in files to where it would stand in the configuration.
    pub(super) fn read_files(&mut self) -> Result<(), ConfigError> {
        for (name, receiver) in &mut self.receivers {
            let key = |key: &str| format!("alerts.receivers.{name}.{key}");
            match receiver {
                ReceiverConfig::Webhook(webhook) => webhook.read_files(&key("webhook"))?,
                ReceiverConfig::Email(email) => {
                    let password = key("email.password");
                    read_secret(&mut email.password, &mut email.password_file, &password)?;
                }
            }
        }
        self.owners.read_files()
    }

    /// Reports the first thing that cannot work.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let rules = [
            (!self.fold_for.is_zero(), "alerts.foldFor"),
            (self.folded_max > 0, "alerts.foldedMax"),
            (self.queue_max > 0, "alerts.queueMax"),
            (self.attempts_max > 0, "alerts.attemptsMax"),
            (!self.backoff.is_zero(), "alerts.backoff"),
            (!self.timeout.is_zero(), "alerts.timeout"),
            (!self.max_age.is_zero(), "alerts.maxAge"),
        ];
        if let Some((_, key)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(invalid(key, "must be more than 0"));
        }
        if self.backoff > self.backoff_max {
            return Err(invalid(
                "alerts.backoff",
                "must not be more than alerts.backoffMax",
            ));
        }
        if let Some(name) = self.receivers.keys().find(|name| !is_name(name)) {
            return Err(invalid(
                "alerts.receivers",
                &format!(
                    "has the name {name:?}, and names must be 1 to {NAME_BYTES_MAX} letters, \
                     digits, dots, hyphens or underscores"
                ),
            ));
        }
        self.owners.check()?;
        let receivers = crate::alerts::receivers(self).map(drop);
        receivers
            .and_then(|()| crate::alerts::check_owners(self))
            .map_err(|error| ConfigError::Invalid {
                key: error.key,
                problem: error.problem,
            })
    }
}

/// One receiver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReceiverConfig {
    /// A signed HTTP request.
    Webhook(WebhookConfig),
    /// An e-mail.
    Email(EmailConfig),
}

/// A receiver that is called over HTTP.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WebhookConfig {
    /// Where to POST to. What follows the authority is a secret: many services take whoever knows
    /// it for a friend.
    pub url: Option<SecretUrl>,
    /// A file that holds `url`.
    pub url_file: Option<PathBuf>,
    /// What requests are signed with: `whsec_` and the base64 of 24 to 64 random bytes. Needed
    /// unless there is a `template`.
    pub secret: Option<Secret>,
    /// A file that holds `secret`.
    pub secret_file: Option<PathBuf>,
    /// Further headers.
    pub headers: BTreeMap<String, Secret>,
    /// Further headers whose values stand in files.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Certificates (PEM) that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// The body, with placeholders; `None` for Waybill's own.
    pub template: Option<String>,
    /// What the template is, which says how values are escaped in it; `None` for JSON.
    pub content_type: Option<String>,
}

impl WebhookConfig {
    /// Moves what stands in files to where it would stand in the configuration, at `place`.
    pub(super) fn read_files(&mut self, place: &str) -> Result<(), ConfigError> {
        let key = |key: &str| format!("{place}.{key}");
        if let Some(url) = take_file(&mut self.url_file, &key("url"))? {
            refuse_second(self.url.is_some(), &key("url"))?;
            self.url = Some(url.into());
        }
        read_secret(&mut self.secret, &mut self.secret_file, &key("secret"))?;
        for (header, path) in std::mem::take(&mut self.header_files) {
            let key = key(&format!("headers.{header}"));
            refuse_second(self.headers.contains_key(&header), &key)?;
            let value = read(&path, &key)?.into();
            self.headers.insert(header, value);
        }
        Ok(())
    }
}

/// A receiver that is written to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EmailConfig {
    /// The SMTP server.
    pub host: String,
    /// Its port; `None` for the usual one: 587 with STARTTLS, 465 with TLS, 25 without.
    #[serde(default)]
    pub port: Option<u16>,
    /// How the connection is protected.
    #[serde(default)]
    pub tls: EmailTls,
    /// Certificates (PEM) that are trusted beside the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Who logs in; `None` for nobody.
    #[serde(default)]
    pub user: Option<String>,
    /// The password of `user`.
    #[serde(default)]
    pub password: Option<Secret>,
    /// A file that holds `password`.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// The sender: `waybill@example.com`, or `Waybill <waybill@example.com>`.
    pub from: String,
    /// Who is written to.
    pub to: Vec<String>,
}

/// How a connection to an SMTP server is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EmailTls {
    /// It begins in the clear and must change to TLS before anything is said.
    #[default]
    Starttls,
    /// It is TLS from the start.
    Tls,
    /// Not at all: for a relay on the same machine or in a closed network.
    None,
}

/// A text that is shown neither by `Debug` nor when it is serialized.
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
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// A URL of which only scheme and authority are shown.
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
            // Names and passwords before the host are refused later; they must not be shown first.
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
        serializer.serialize_str(&self.shown())
    }
}

pub(super) fn read_secret(
    value: &mut Option<Secret>,
    file: &mut Option<PathBuf>,
    key: &str,
) -> Result<(), ConfigError> {
    if let Some(text) = take_file(file, key)? {
        refuse_second(value.is_some(), key)?;
        *value = Some(Secret(text));
    }
    Ok(())
}

fn take_file(file: &mut Option<PathBuf>, key: &str) -> Result<Option<String>, ConfigError> {
    file.take().map(|path| read(&path, key)).transpose()
}

/// The text of a file; a line end at its end does not count.
fn read(path: &std::path::Path, key: &str) -> Result<String, ConfigError> {
    fs::read_to_string(path)
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
        .map_err(|source| ConfigError::SecretFile {
            key: key.to_owned(),
            path: path.display().to_string(),
            source,
        })
}

fn refuse_second(is_set: bool, key: &str) -> Result<(), ConfigError> {
    if is_set {
        return Err(invalid(key, "is set, and a file for it, too; keep one"));
    }
    Ok(())
}

pub(super) fn invalid(key: &str, problem: &str) -> ConfigError {
    ConfigError::Invalid {
        key: key.to_owned(),
        problem: problem.to_owned(),
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::super::Environment;
    use super::super::file::parse_config;
    use super::*;

    const BOTH: &str = "
alerts:
  foldFor: 30s
  receivers:
    pager:
      webhook:
        url: https://pager.example/hooks/capability
        secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0
        headers: {Authorization: Bearer hunter2}
    on-call:
      email:
        host: mail.example
        user: waybill
        password: hunter3
        from: Waybill <waybill@example.com>
        to: [ops@example.com, Ada <ada@example.com>]
";

    #[test]
    fn both_kinds_of_receivers_are_read_and_fit_together() {
        let config = parse_config("w.yaml", BOTH).unwrap().finish().unwrap();
        let names: Vec<_> = config.alerts.receivers.keys().collect();
        assert_eq!(names, ["on-call", "pager"]);
    }

    #[test]
    fn no_secret_is_shown() {
        let config = parse_config("w.yaml", BOTH).unwrap();
        for text in [format!("{config:?}"), config.to_yaml().unwrap()] {
            assert!(text.contains("https://pager.example/(redacted)"), "{text}");
            for secret in ["capability", "hunter", "MTIz"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }

    #[test]
    fn of_a_url_only_scheme_and_authority_are_shown() {
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

    #[test]
    fn what_stands_in_files_is_read_from_them_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let url = write("url", "https://pager.example/x\n");
        let secret = write("secret", "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0\n");
        let token = write("token", "Bearer hunter2\r\n");
        let text = format!(
            "alerts: {{receivers: {{pager: {{webhook: {{urlFile: {url}, secretFile: {secret}, \
             headerFiles: {{Authorization: {token}}}}}}}}}}}"
        );
        let config = parse_config("w.yaml", &text).unwrap().finish().unwrap();
        let Some(ReceiverConfig::Webhook(webhook)) = config.alerts.receivers.get("pager") else {
            panic!("{config:?}");
        };
        assert_eq!(webhook.url, Some("https://pager.example/x".into()));
        let secret = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0";
        assert_eq!(webhook.secret, Some(secret.into()));
        assert_eq!(webhook.headers["Authorization"].reveal(), "Bearer hunter2");

        let missing = text.replace(&token, "/nonexistent/token");
        let error = parse_config("w.yaml", &missing).unwrap().finish();
        assert_eq!(
            error.unwrap_err().to_string(),
            "alerts.receivers.pager.webhook.headers.Authorization: /nonexistent/token cannot be \
             read"
        );
    }

    #[test]
    fn a_value_that_stands_in_a_file_and_in_the_configuration_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().display();
        for (line, with_file) in [
            ("password: hunter3", "passwordFile"),
            (
                "secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0",
                "secretFile",
            ),
            ("url: https://pager.example/hooks/capability", "urlFile"),
        ] {
            let text = BOTH.replace(line, &format!("{line}\n        {with_file}: {file}"));
            let error = parse_config("w.yaml", &text).unwrap().finish();
            let error = error.unwrap_err().to_string();
            assert!(error.ends_with("keep one"), "{error}");
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let cases = [
            ("foldFor: 30s", "foldFor: 0s", "alerts.foldFor"),
            ("foldFor: 30s", "queueMax: 0", "alerts.queueMax"),
            ("foldFor: 30s", "foldedMax: 0", "alerts.foldedMax"),
            ("foldFor: 30s", "attemptsMax: 0", "alerts.attemptsMax"),
            ("foldFor: 30s", "timeout: 0s", "alerts.timeout"),
            ("foldFor: 30s", "backoff: 6m", "alerts.backoff"),
            ("pager:", "the pager:", "alerts.receivers has the name"),
            (
                "https://pager.example/hooks",
                "ftp://pager.example/hooks",
                "alerts.receivers.pager.webhook.url",
            ),
            (
                "MTIzNDU2",
                "hunter4",
                "alerts.receivers.pager.webhook.secret",
            ),
            (
                "Authorization: ",
                "Webhook-Id: ",
                "alerts.receivers.pager.webhook.headers.Webhook-Id",
            ),
            (
                "ops@example.com",
                "ops",
                "alerts.receivers.on-call.email.to",
            ),
            (
                "waybill@example.com",
                "nobody",
                "alerts.receivers.on-call.email.from",
            ),
            (
                "host: mail.example",
                "host: mail.example\n        tls: none",
                "alerts.receivers.on-call.email.password",
            ),
            (
                "user: waybill",
                "port: 25",
                "alerts.receivers.on-call.email.user",
            ),
        ];
        for (from, to, key) in cases {
            let text = BOTH.replace(from, to);
            let error = parse_config("w.yaml", &text).unwrap().finish();
            let error = error.expect_err(to).to_string();
            assert!(error.starts_with(key), "{key}: {error}");
            assert!(!error.contains("hunter"), "{error}");
        }
    }

    #[test]
    fn a_variable_beside_the_receivers_leaves_their_secrets_as_they_are() {
        let mut config = parse_config("w.yaml", BOTH).unwrap();
        let receivers = config.alerts.receivers.clone();
        let environment: Environment = [("WAYBILL_ALERTS__FOLD_FOR", "5s")].into_iter().collect();
        environment.apply(&mut config).unwrap();
        assert_eq!(config.alerts.fold_for, Duration::from_secs(5));
        assert_eq!(config.alerts.receivers, receivers);

        let name = "WAYBILL_ALERTS__RECEIVERS";
        let environment: Environment = [(name, "hunter2")].into_iter().collect();
        let error = environment.apply(&mut config).unwrap_err().to_string();
        assert!(error.contains(&format!("{name} is not known")), "{error}");
        assert!(!error.contains("hunter"), "{error}");
    }

    #[test]
    fn an_unknown_key_of_a_receiver_is_refused_with_its_place() {
        let text = BOTH.replace("user: waybill", "usr: waybill");
        let error = parse_config("w.yaml", &text).unwrap_err().to_string();
        assert_eq!(
            error,
            "w.yaml:13:9: the key usr is not known; did you mean user?"
        );
    }
}
