//! Retries one message until it is delivered or the attempts are used up.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_units::backoff;

use super::alert::Message;
use super::channel::{Attempt, Channel};
use super::failure::Failure;
use super::notifier::Undeliverable;
use crate::config::AlertsConfig;

/// How often and how soon to retry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    attempts_max: u32,
    backoff: Duration,
    backoff_max: Duration,
    retry_after_max: Duration,
}

impl Retries {
    pub(super) fn new(config: &AlertsConfig) -> Self {
        Self {
            attempts_max: config.attempts_max,
            backoff: config.backoff,
            backoff_max: config.backoff_max,
            retry_after_max: config.retry_after_max,
        }
    }

    /// Sends a message. Once `stop` is cancelled, the attempt in progress is the last.
    pub(super) async fn deliver(
        &self,
        receiver: &str,
        channel: &Channel,
        message: &Message,
        stop: &CancellationToken,
    ) -> Result<(), Undeliverable> {
        let id = message.alert.event_id;
        match channel.prepare(message) {
            Ok(mut delivery) => self.repeat(receiver, id, &mut delivery, stop).await,
            Err(failure) => Err(self.verdict(failure, 1)),
        }
    }

    /// Delivers a prepared message with the id `id`.
    pub(super) async fn repeat(
        &self,
        receiver: &str,
        id: Uuid,
        delivery: &mut impl Attempt,
        stop: &CancellationToken,
    ) -> Result<(), Undeliverable> {
        let mut attempt = 1;
        loop {
            let failure = match delivery.attempt().await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let Failure::Passing { cause, retry_after } = &failure else {
                return Err(self.verdict(failure, attempt));
            };
            if attempt >= self.attempts_max {
                return Err(self.verdict(failure, attempt));
            }
            let wait = self.wait(attempt, *retry_after, id);
            tracing::warn!(
                receiver,
                event = %id,
                attempt,
                cause,
                retry_in_seconds = wait.as_secs_f64(),
                "could not deliver a message; retrying"
            );
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Undeliverable::Stopped),
                () = sleep(wait) => attempt += 1,
            }
        }
    }

    pub(super) fn verdict(&self, failure: Failure, attempts: u32) -> Undeliverable {
        match failure {
            Failure::Passing { cause, .. } => Undeliverable::GivenUp { attempts, cause },
            Failure::Refused { cause } => Undeliverable::Refused { cause },
            Failure::Gone => Undeliverable::Gone,
        }
    }

    /// The wait after an attempt: the backoff, doubled each time, with jitter between half and all
    /// of it; at least what the receiver asks for, within its own limit.
    fn wait(&self, attempt: u32, asked: Option<Duration>, id: Uuid) -> Duration {
        // The ids of events, whose last bits are random, spread processes that alert at the same
        // time; no other source of randomness is needed.
        let [.., high, low] = *id.as_bytes();
        let spread = f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX);
        let asked = asked.unwrap_or_default().min(self.retry_after_max);
        backoff(self.backoff, self.backoff_max, attempt - 1, spread).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRIES: Retries = Retries {
        attempts_max: 5,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(30),
        retry_after_max: Duration::from_secs(600),
    };

    #[test]
    fn waits_double_up_to_a_limit_and_spread_over_their_second_half() {
        let (least, most) = (Uuid::nil(), Uuid::max());
        for (attempt, seconds) in [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (u32::MAX, 30.0)] {
            let waits = [least, most].map(|id| RETRIES.wait(attempt, None, id).as_secs_f64());
            assert_eq!(waits, [seconds / 2.0, seconds], "{attempt}");
        }
        let between = RETRIES.wait(1, None, Uuid::from_u128(0x8000));
        assert!(between > Duration::from_millis(700) && between < Duration::from_millis(800));
    }

    #[test]
    fn retry_after_of_a_receiver_is_honoured_up_to_a_limit() {
        for (asked_seconds, seconds) in [(0, 1), (1, 1), (120, 120), (86_400, 600)] {
            let asked = Some(Duration::from_secs(asked_seconds));
            assert_eq!(
                RETRIES.wait(1, asked, Uuid::max()),
                Duration::from_secs(seconds)
            );
        }
    }
}
