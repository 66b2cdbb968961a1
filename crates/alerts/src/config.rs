//! The `alerts` section of the configuration.

mod owners;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{
    check_not_zero, check_range, check_range_because, check_request_timeout, require,
};
use waybill_config::{ConfigError, Secret, SecretFiles, SecretUrl};
use waybill_units::DurationText;

pub use owners::{OwnerEmailConfig, OwnersConfig};

/// The longest name of a receiver, in bytes: it is a label of metrics.
const NAME_BYTES_MAX: usize = 64;
/// Alerts that wait: with more, the process would run out of memory later.
const ALERTS_MAX: usize = 10_000_000;
/// The lowest age limit for alerts.
const AGE_MIN: Duration = Duration::from_secs(60);

/// The `alerts` section. Every limit applies to one receiver: receivers share nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AlertsConfig {
    /// How long repeats of an alert are gathered before one message reports all of them.
    #[serde(with = "DurationText")]
    pub dedup_window: Duration,
    /// The number of repeats that are gathered for a receiver; beyond it they are reported earlier.
    pub folded_max: usize,
    /// The number of different alerts that may wait for a receiver; beyond it no further ones are
    /// read. The topic is read ahead of the receiver by at most this number and `foldedMax`
    /// together.
    pub queue_max: usize,
    /// The number of attempts before a message is given up.
    pub attempts_max: u32,
    /// The wait before the second attempt, doubled for each further one, with jitter.
    #[serde(with = "DurationText")]
    pub backoff: Duration,
    /// The longest such wait.
    #[serde(with = "DurationText")]
    pub backoff_max: Duration,
    /// The longest `Retry-After` of a receiver that is respected.
    #[serde(with = "DurationText")]
    pub retry_after_max: Duration,
    /// The time limit of one attempt; by e-mail, for each address.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
    /// Older alerts are counted and not sent. This also applies to a new receiver, and to one that
    /// was unavailable for a long time.
    #[serde(with = "DurationText")]
    pub max_age: Duration,
    /// The receivers, by name.
    pub receivers: BTreeMap<String, ReceiverConfig>,
    /// How owners are notified of their operations.
    pub owners: OwnersConfig,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            dedup_window: Duration::from_secs(60),
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
    /// Reads the values that the configuration keeps in files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or a value is set both in a file and directly.
    pub fn read_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        for (name, receiver) in &mut self.receivers {
            let key = |key: &str| format!("alerts.receivers.{name}.{key}");
            match receiver {
                ReceiverConfig::Webhook(webhook) => webhook.read_files(files, &key("webhook"))?,
                ReceiverConfig::Email(email) => email.smtp.read_files(files, &key("email.smtp"))?,
            }
        }
        self.owners.read_files(files)
    }

    /// Reports the first invalid value, apart from the settings of single receivers.
    pub(crate) fn check_values(&self) -> Result<(), ConfigError> {
        check_range("alerts.foldedMax", self.folded_max, 1..=ALERTS_MAX)?;
        check_range("alerts.queueMax", self.queue_max, 1..=ALERTS_MAX)?;
        check_request_timeout("alerts.timeout", self.timeout)?;
        check_range_because(
            "alerts.maxAge",
            self.max_age,
            AGE_MIN..,
            "an alert reaches its receiver some seconds after its event",
        )?;
        check_not_zero("alerts.dedupWindow", self.dedup_window)?;
        check_not_zero("alerts.attemptsMax", self.attempts_max)?;
        check_not_zero("alerts.backoff", self.backoff)?;
        require(
            self.backoff <= self.backoff_max,
            "alerts.backoff",
            "must not be more than alerts.backoffMax",
        )?;
        if let Some(name) = self.receivers.keys().find(|name| !is_name(name)) {
            return Err(ConfigError::invalid(
                "alerts.receivers",
                format!(
                    "has the name {name:?}: a name must have 1 to {NAME_BYTES_MAX} \
                     characters, only a-z, A-Z, 0-9, '.', '_' and '-'"
                ),
            ));
        }
        self.owners.check()
    }
}

/// One receiver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ReceiverConfig {
    /// Signed HTTP requests.
    Webhook(WebhookConfig),
    /// E-mails.
    Email(EmailConfig),
}

/// A receiver that gets HTTP requests.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WebhookConfig {
    /// The URL to POST to. The part after the authority is a secret: many services accept requests
    /// from everyone who knows it.
    pub url: Option<SecretUrl>,
    /// A file that holds `url`.
    pub url_file: Option<PathBuf>,
    /// The signing secret: `whsec_` and the base64 of 24 to 64 random bytes. Required without a
    /// `template`.
    pub secret: Option<Secret>,
    /// A file that holds `secret`.
    pub secret_file: Option<PathBuf>,
    /// Further headers.
    pub headers: BTreeMap<String, Secret>,
    /// Further headers whose values are in files.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Certificates (PEM) that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The body, with placeholders; `null` for Waybill's own.
    pub template: Option<String>,
    /// The content type of the template, which determines how values are escaped; `null` for JSON.
    pub content_type: Option<String>,
}

impl WebhookConfig {
    /// Reads the values that the configuration keeps in files, for the receiver at `place`.
    pub(super) fn read_files(
        &mut self,
        files: &mut SecretFiles,
        place: &str,
    ) -> Result<(), ConfigError> {
        let key = |key: &str| format!("{place}.{key}");
        files.read_secret(&mut self.url, &mut self.url_file, &key("url"))?;
        files.read_secret(&mut self.secret, &mut self.secret_file, &key("secret"))?;
        for (header, path) in std::mem::take(&mut self.header_files) {
            let key = key(&format!("headers.{header}"));
            let mut value = self.headers.remove(&header);
            files.read_secret(&mut value, &mut Some(path), &key)?;
            self.headers.extend(value.map(|value| (header, value)));
        }
        Ok(())
    }
}

/// A receiver that gets e-mails.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EmailConfig {
    /// How they are sent.
    pub smtp: SmtpConfig,
    /// The addresses.
    pub to: Vec<String>,
}

// Not flattened into the sections around it: serde does not support this with
// `deny_unknown_fields`, and buffers flattened values, so that errors would not name their lines.
/// An SMTP server, the login there, and the sender of the e-mails.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SmtpConfig {
    /// The SMTP server.
    pub host: String,
    /// Its port; `null` for the default: 587 with STARTTLS, 465 with TLS, 25 without.
    #[serde(default)]
    pub port: Option<u16>,
    /// How the connection is protected.
    #[serde(default)]
    pub tls: EmailTls,
    /// Certificates (PEM) that are trusted in addition to the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The user to log in as; `null` for no login.
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
}

impl SmtpConfig {
    /// Reads the password from its file, for the section at `place`.
    fn read_files(&mut self, files: &mut SecretFiles, place: &str) -> Result<(), ConfigError> {
        let key = format!("{place}.password");
        files.read_secret(&mut self.password, &mut self.password_file, &key)
    }
}

/// How a connection to an SMTP server is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EmailTls {
    /// It begins unencrypted and must change to TLS before anything else is sent.
    #[default]
    Starttls,
    /// It is TLS from the start.
    Tls,
    /// Unencrypted: for a relay on the same machine or in a closed network.
    None,
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests;
