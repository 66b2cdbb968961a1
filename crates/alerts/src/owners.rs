//! Notifies owners: the people whose contacts the request of an operation named.
//!
//! E-mail and SMS each have their own follower, and therefore their own consumer group and position
//! in the topic: an unreachable mail server delays no text message. A notice can name several
//! contacts. Each gets its own message with its own retries, so that no contact waits for another.
//!
//! What must hold:
//!
//! * **It is no relay**: only configured channels, only allowed domains, and only a limited number
//!   of messages to a contact in an hour, wherever the request came from.
//! * **Nothing is dropped silently**: every message is sent, or given up with a log line and a
//!   count.
//! * **No log line or metric names a contact.**
//! * **Memory is bounded**: by `alerts.queueMax` notices and `alerts.owners.contactsMax` contacts.
//!
//! A message can be sent twice, after a crash or a stop between sending and committing; it then has
//! the same id, which an e-mail carries as its `Message-ID`.

mod limit;
mod message;
mod outbound;

use std::sync::mpsc as std_mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use waybill_contacts::{ContactChannel, ContactRules};
use waybill_engine::{Contact, OwnerNotice, Timestamp};
use waybill_messages::{DecodeError, Framing};

use self::limit::Limit;
use self::message::OwnerMessage;
use self::outbound::Outbound;
use super::ReceiverError;
use super::follow::{AlertSource, Followed, Read, Reading, Source, read_with, unless_too_late};
use super::metrics::{FollowerMetrics, OwnerMetrics};
use super::notifier::Undeliverable;
use super::retries::Retries;
use crate::config::AlertsConfig;

/// How many messages one channel sends at the same time; others wait.
const SENDING_MAX: usize = 8;

/// Notifies owners on one channel, once it [runs](OwnersFollower::run).
#[must_use = "owners are notified only while the follower runs"]
pub struct OwnersFollower {
    reading: Reading,
    notifier: OwnerNotifier,
}

/// Creates a follower for each configured channel to owners.
///
/// # Errors
///
/// If the configuration of a channel is invalid.
pub fn owners_followers(
    config: &AlertsConfig,
    source: &AlertSource,
) -> Result<Vec<OwnersFollower>, ReceiverError> {
    let follower = |(nth, notifier): (usize, OwnerNotifier)| {
        let channel = notifier.channel.as_str();
        OwnersFollower {
            reading: Reading {
                name: format!("owners-{channel}"),
                group: format!("{}.owners.{channel}", source.topics.prefix()),
                topic: source.topics.owner_notices().to_owned(),
                source: source.clone(),
                max_age: config.max_age,
                ahead_max: config.queue_max,
                publishes_dead_letters: nth == 0,
                metrics: FollowerMetrics::of_owners(channel),
            },
            notifier,
        }
    };
    let notifiers = notifiers(config)?.into_iter().enumerate();
    Ok(notifiers.map(follower).collect())
}

/// Checks the channels to owners.
///
/// # Errors
///
/// If the configuration of a channel is invalid.
pub fn check_owners(config: &AlertsConfig) -> Result<(), ReceiverError> {
    notifiers(config).map(drop)
}

fn notifiers(config: &AlertsConfig) -> Result<Vec<OwnerNotifier>, ReceiverError> {
    let owners = &config.owners;
    let email = owners.email.as_ref().map(|email| {
        let outbound = Outbound::email(email, config.timeout);
        outbound.map_err(|error| error.below("alerts.owners.email"))
    });
    let sms = owners.sms.as_ref().map(|sms| {
        let outbound = Outbound::sms(sms, config.timeout);
        outbound.map_err(|error| error.below("alerts.owners.sms"))
    });
    [(ContactChannel::Email, email), (ContactChannel::Sms, sms)]
        .into_iter()
        .filter_map(|(channel, outbound)| Some((channel, outbound?)))
        .map(|(channel, outbound)| Ok(OwnerNotifier::new(channel, outbound?, config)))
        .collect()
}

impl OwnersFollower {
    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.reading.name
    }

    /// Notifies owners until it is stopped.
    ///
    /// # Errors
    ///
    /// If the topic cannot be read. An unreachable server is no error.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { reading, notifier } = self;
        let stop_within = reading.source.stop_within;
        let may_go_on = stop.clone();
        read_with(reading, stop, |read, settled| async move {
            let sending = notifier.run(read, &settled, &may_go_on);
            unless_too_late(sending, &may_go_on, stop_within, notifier.channel.as_str()).await;
        })
        .await
    }
}

impl Followed for OwnerNotice {
    fn read(value: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        framing.decode(value)
    }

    fn at(&self) -> Timestamp {
        self.at
    }
}

/// Notifies owners on one channel.
struct OwnerNotifier {
    channel: ContactChannel,
    rules: ContactRules,
    outbound: Outbound,
    retries: Retries,
    limit: Mutex<Limit>,
    turns: Semaphore,
    notices_max: usize,
    metrics: OwnerMetrics,
}

impl OwnerNotifier {
    fn new(channel: ContactChannel, outbound: Outbound, config: &AlertsConfig) -> Self {
        let owners = &config.owners;
        Self {
            channel,
            rules: owners.contact_rules(),
            outbound,
            retries: Retries::new(config),
            limit: Mutex::new(Limit::new(
                owners.messages_per_hour_max,
                owners.contacts_max,
            )),
            turns: Semaphore::new(SENDING_MAX),
            notices_max: config.queue_max,
            metrics: OwnerMetrics::new(channel.as_str()),
        }
    }

    /// Sends the notices that were read and reports which are settled, until the input ends and
    /// none is open.
    async fn run(
        &self,
        mut read: mpsc::Receiver<Read<OwnerNotice>>,
        settled: &std_mpsc::Sender<Source>,
        stop: &CancellationToken,
    ) {
        let mut open = FuturesUnordered::new();
        let mut is_over = false;
        loop {
            tokio::select! {
                Some(source) = open.next() => {
                    // An unsettled notice is read again after the next start.
                    if let Some(source) = source && settled.send(source).is_err() {
                        return;
                    }
                }
                next = read.recv(), if !is_over && open.len() < self.notices_max => match next {
                    Some(Read { source, item }) => open.push(async move {
                        self.notify(&item, stop).await.then_some(source)
                    }),
                    None => is_over = true,
                },
                else => return,
            }
        }
    }

    /// Notifies every contact of a notice. Returns whether the notice is settled.
    async fn notify(&self, notice: &OwnerNotice, stop: &CancellationToken) -> bool {
        let contacts = notice.contacts.iter().enumerate();
        let messages = contacts.filter_map(|(at, contact)| self.message(notice, at, contact));
        let settled = join_all(messages.map(|message| self.send(message, stop))).await;
        settled.into_iter().all(|is_settled| is_settled)
    }

    /// The message to a contact, if it is one of this channel and may be notified.
    fn message(
        &self,
        notice: &OwnerNotice,
        place: usize,
        contact: &Contact,
    ) -> Option<OwnerMessage> {
        let (channel, operation) = (self.channel.as_str(), notice.operation);
        if ContactChannel::of_contact(contact) != Some(self.channel) {
            return None;
        }
        let reachable = match self.rules.read(contact.reveal()) {
            Ok(reachable) => reachable,
            Err(error) => {
                self.metrics.refused.increment(1);
                tracing::warn!(channel, %operation, %error, "rejected an owner's contact");
                return None;
            }
        };
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if !limit.take(&reachable.contact, Instant::now()) {
            self.metrics.limited.increment(1);
            tracing::warn!(
                channel,
                %operation,
                "did not notify an owner: an hourly limit of alerts.owners is reached"
            );
            return None;
        }
        Some(OwnerMessage::new(notice, place, reachable.to))
    }

    /// Sends a message until it is delivered or given up. Returns whether it is settled.
    async fn send(&self, message: OwnerMessage, stop: &CancellationToken) -> bool {
        let channel = self.channel.as_str();
        let (id, retries) = (message.id, &self.retries);
        let result = match self.outbound.prepare(&message, &self.turns) {
            Ok(mut outgoing) => retries.repeat(channel, id, &mut outgoing, stop).await,
            Err(failure) => Err(retries.verdict(failure, 1)),
        };
        match result {
            Ok(()) => self.metrics.delivered.increment(1),
            Err(Undeliverable::Stopped) => return false,
            Err(error) => {
                self.metrics.failed.increment(1);
                tracing::error!(channel, event = %id, cause = %error, "could not notify an owner");
            }
        }
        true
    }
}
