//! The channels to a receiver.

use std::time::Duration;

use super::ReceiverError;
use super::alert::Message;
use super::email::{Email, EmailDelivery};
use super::failure::Failure;
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
