//! Alerts that reach people: over a signed webhook, or by e-mail.
//!
//! A parked operation waits for a person, who must hear of it. [`receivers`] makes, of the
//! configuration, a [`Notifier`] for every receiver and the [`Worker`] that serves it. A
//! [`Follower`] reads the alerts' topic for one receiver, hands each alert to its notifier, and may
//! forget it once the [`Receipt`] has said that the receiver had it, or will not have it.
//!
//! What must hold:
//!
//! * **Nothing is dropped silently**: every alert is delivered, told of as one of "N more like
//!   this", or given up with a log line and a count; one that a stop left undone says so
//!   ([`Undeliverable::Stopped`]) and is to be read again.
//! * **A receiver that is down holds up nobody else**: each has a queue, a worker and a follower of
//!   its own.
//! * **A storm is a handful of messages**: repeats of an alert within `dedupWindow` become one.
//! * **Memory is bounded**: by `queueMax` alerts and `foldedMax` receipts a receiver, and the texts
//!   of an alert are clipped.
//!
//! An alert can arrive twice, after a crash between delivery and commit; it then has the same id.
//!
//! People who asked to be told of their own operation are told by [`OwnersFollower`]s, from a topic of
//! its own, and by the same machinery.
//!
//! Deliberately absent: any storage. The topic is the storage.

mod alert;
mod backlog;
mod channel;
mod config;
mod contact;
mod email;
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
    WebhookConfig,
};
pub use contact::{ContactChannel, ContactError, ContactRules, Reachable};
pub use follow::{AlertSource, Follower, followers};
pub use metrics::METRICS;
pub use notifier::{Notifier, Receipt, Undeliverable};
pub use owners::{OwnersFollower, owners_followers};
pub use worker::Worker;

use channel::Channel;
use waybill_config::ConfigError;

/// Why a receiver cannot work as it is configured.
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

    /// The same with the place of the key before it.
    fn below(self, place: &str) -> Self {
        Self {
            key: format!("{place}.{}", self.key),
            ..self
        }
    }
}

/// Makes every receiver of the configuration, in the order of their names. Nothing is sent before
/// a worker runs.
///
/// # Errors
///
/// If one cannot work: an address or a URL that is none, a template that cannot be filled in, a
/// secret that nobody could verify.
pub fn receivers(config: &AlertsConfig) -> Result<Vec<(Notifier, Worker)>, ReceiverError> {
    let receiver = |(name, receiver): (&String, _)| {
        let channel = Channel::new(receiver, config.timeout)
            .map_err(|error| error.below(&format!("alerts.receivers.{name}")))?;
        Ok(Worker::new(name, channel, config))
    };
    config.receivers.iter().map(receiver).collect()
}

/// Checks the section of the configuration, once its files were read.
///
/// # Errors
///
/// If a value cannot work, or a receiver as it is configured.
pub fn check(config: &AlertsConfig) -> Result<(), ConfigError> {
    config.check()?;
    receivers(config)
        .map(drop)
        .and_then(|()| owners::check_owners(config))
        .map_err(|error| ConfigError::invalid(error.key, error.problem))
}
