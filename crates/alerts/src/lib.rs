//! Alerts that reach people, by signed webhook or by e-mail.
//!
//! A parked operation waits for a person, who must be notified. [`receivers`] creates a
//! [`Notifier`] for every configured receiver, and the [`Worker`] that serves it. A [`Follower`]
//! reads the alerts' topic for one receiver and passes each alert to its notifier. It may forget
//! the alert once the [`Receipt`] reports that the receiver got it, or will not get it.
//!
//! What must hold:
//!
//! * **Nothing is dropped silently**: every alert is delivered, reported as one of "N more like
//!   this", or given up with a log line and a count. An alert that a stop left undone is reported
//!   as [`Undeliverable::Stopped`], and must be read again.
//! * **An unreachable receiver delays no other**: each has its own queue, worker and follower.
//! * **A storm becomes a few messages**: repeats of an alert within `dedupWindow` become one.
//! * **Memory is bounded**: by `queueMax` alerts and `foldedMax` receipts per receiver, and the
//!   texts of an alert are clipped.
//!
//! An alert can arrive twice, after a crash between delivery and commit; it then has the same id.
//!
//! [`OwnersFollower`]s notify owners of their own operations, from their own topic and with the
//! same machinery.
//!
//! Deliberately absent: any storage. The topic is the storage.

mod alert;
mod backlog;
mod channel;
mod config;
mod email;
mod failure;
mod follow;
mod metrics;
mod notifier;
mod owners;
mod retries;
mod template;
mod trust;
mod webhook;
mod worker;

pub use alert::{Alert, AlertError};
pub use config::{
    AlertsConfig, EmailConfig, EmailTls, OwnerEmailConfig, OwnersConfig, ReceiverConfig,
    SmtpConfig, WebhookConfig,
};
pub use follow::{AlertSource, Follower, followers};
pub use metrics::METRICS;
pub use notifier::{Notifier, Receipt, Undeliverable};
pub use owners::{OwnersFollower, owners_followers};
pub use worker::Worker;

use channel::Channel;
use waybill_config::ConfigError;

/// Why the configuration of a receiver is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key} {problem}")]
pub struct ReceiverError {
    /// The key at fault.
    pub key: String,
    /// What is wrong with its value; never a secret.
    pub problem: String,
}

impl ReceiverError {
    fn new(key: &str, problem: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    /// Prepends `place` to the key.
    fn below(self, place: &str) -> Self {
        Self {
            key: format!("{place}.{}", self.key),
            ..self
        }
    }
}

/// Creates every receiver of the configuration, in the order of their names. Nothing is sent before
/// a worker runs.
///
/// # Errors
///
/// If a receiver is invalid: its address, URL, template or secret.
pub fn receivers(config: &AlertsConfig) -> Result<Vec<(Notifier, Worker)>, ReceiverError> {
    let receiver = |(name, receiver): (&String, _)| {
        let channel = Channel::new(receiver, config.timeout)
            .map_err(|error| error.below(&format!("alerts.receivers.{name}")))?;
        Ok(Worker::new(name, channel, config))
    };
    config.receivers.iter().map(receiver).collect()
}

impl AlertsConfig {
    /// Checks the section, once its files are read.
    ///
    /// # Errors
    ///
    /// If a value, or the configuration of a receiver, is invalid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_values()?;
        receivers(self)
            .map(drop)
            .and_then(|()| owners::check_owners(self))
            .map_err(|error| ConfigError::invalid(error.key, error.problem))
    }
}
