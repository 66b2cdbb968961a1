//! The channels to a receiver, and the outcomes of an attempt.

use std::time::Duration;

use super::ReceiverError;
use super::alert::Message;
use super::email::{Email, EmailDelivery};
use super::webhook::{Call, Webhook};
use crate::config::ReceiverConfig;

/// How a receiver is reached.
pub(super) enum Channel {
    Webhook(Box<Webhook>),
    Email(Box<Email>),
}

impl Channel {
    /// Creates a channel. `timeout` bounds one attempt.
    pub(super) fn new(config: &ReceiverConfig, timeout: Duration) -> Result<Self, ReceiverError> {
        Ok(match config {
            ReceiverConfig::Webhook(config) => Webhook::new(config, timeout)
                .map(|webhook| Self::Webhook(Box::new(webhook)))
                .map_err(|error| error.below("webhook"))?,
            ReceiverConfig::Email(config) => Email::new(config, timeout)
                .map(|email| Self::Email(Box::new(email)))
                .map_err(|error| error.below("email"))?,
        })
    }

    /// Renders the message, which is the same for all attempts.
    pub(super) fn prepare(&self, message: &Message) -> Result<Delivery<'_>, Failure> {
        match self {
            Self::Webhook(webhook) => Ok(Delivery::Call(webhook.prepare(message))),
            Self::Email(email) => email.prepare(message).map(Delivery::Email),
        }
    }
}

/// A rendered message.
pub(super) enum Delivery<'a> {
    Call(Call<'a>),
    Email(EmailDelivery<'a>),
}

/// A delivery that can be attempted again, with the same content each time.
pub(super) trait Attempt {
    /// Tries once.
    fn attempt(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl Attempt for Delivery<'_> {
    async fn attempt(&mut self) -> Result<(), Failure> {
        match self {
            Self::Call(call) => call.attempt().await,
            Self::Email(email) => email.attempt().await,
        }
    }
}

/// Why an attempt failed. The causes contain no secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// Temporary: another attempt may succeed.
    Passing {
        cause: String,
        /// How long the receiver asks to wait.
        retry_after: Option<Duration>,
    },
    /// The receiver will never accept this message.
    Refused { cause: String },
    /// The receiver does not want any more messages.
    Gone,
}

impl Failure {
    pub(super) fn passing(cause: impl Into<String>) -> Self {
        Self::Passing {
            cause: cause.into(),
            retry_after: None,
        }
    }
}
