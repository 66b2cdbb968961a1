//! The worker of one receiver: it accepts alerts, folds repeats, and sends one message at a time.

use std::pin::Pin;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Limits, Outgoing, Taken};
use super::channel::Channel;
use super::metrics::ReceiverMetrics;
use super::notifier::{DeliveryCallback, Notifier, Submitted, Undeliverable};
use super::retries::Retries;
use crate::config::AlertsConfig;

/// Serves one receiver, once it [runs](Worker::run).
#[must_use = "without its worker a receiver gets nothing"]
pub struct Worker {
    name: String,
    channel: Channel,
    retries: Retries,
    inbox: mpsc::Receiver<Submitted>,
    backlog: Backlog<DeliveryCallback>,
    metrics: ReceiverMetrics,
    is_gone: bool,
}

/// A message that was sent or given up, with the callbacks of all alerts that it reports.
struct Done {
    callbacks: Vec<DeliveryCallback>,
    result: Result<(), Undeliverable>,
}

impl Worker {
    pub(super) fn new(name: &str, channel: Channel, config: &AlertsConfig) -> (Notifier, Self) {
        let (notifier, inbox) = Notifier::new(name);
        let limits = Limits {
            dedup_window: config.dedup_window,
            queue_max: config.queue_max,
            folded_max: config.folded_max,
        };
        let worker = Self {
            name: name.to_owned(),
            channel,
            retries: Retries::new(config),
            inbox,
            backlog: Backlog::new(limits),
            metrics: ReceiverMetrics::new(name),
            is_gone: false,
        };
        (notifier, worker)
    }

    /// Serves the receiver until `stop` is cancelled, or until all notifiers are dropped and
    /// everything was sent. A stop waits only for the attempt in progress. All other alerts must be
    /// submitted again.
    pub async fn run(mut self, stop: CancellationToken) {
        let name = self.name.as_str();
        let channel = &self.channel;
        let retries = self.retries;
        let stop = &stop;
        let send = |outgoing: Outgoing<DeliveryCallback>| async move {
            let Outgoing { message, callbacks } = outgoing;
            let result = retries.deliver(name, channel, &message, stop).await;
            Done { callbacks, result }
        };
        let mut wire: Option<Pin<Box<_>>> = None;
        let mut is_open = true;
        loop {
            while wire.is_none()
                && let Some(outgoing) = self.backlog.next(Instant::now())
            {
                if self.is_gone {
                    let result = Err(Undeliverable::Gone);
                    let callbacks = outgoing.callbacks;
                    settle(name, &self.metrics, Done { callbacks, result });
                } else {
                    wire = Some(Box::pin(send(outgoing)));
                }
            }
            if wire.is_none() && self.backlog.is_finished() {
                return;
            }
            let wakes = self.backlog.next_at().filter(|_| wire.is_none());
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                done = on_wire(&mut wire) => {
                    wire = None;
                    self.is_gone |= done.result == Err(Undeliverable::Gone);
                    settle(name, &self.metrics, done);
                }
                submitted = self.inbox.recv(), if is_open && self.backlog.has_room() => {
                    match submitted {
                        Some(Submitted { alert, callback }) => {
                            let taken = self.backlog.enqueue(alert, callback, Instant::now());
                            if taken == Taken::Folded {
                                self.metrics.folded.increment(1);
                            }
                        }
                        None => {
                            is_open = false;
                            self.backlog.close();
                        }
                    }
                }
                () = wake_at(wakes) => {}
            }
        }
        if wire.is_some() {
            settle(name, &self.metrics, on_wire(&mut wire).await);
        }
    }
}

/// The outcome of the message being sent. Never resolves if none is.
async fn on_wire<F: Future<Output = Done>>(wire: &mut Option<Pin<Box<F>>>) -> Done {
    match wire {
        Some(sending) => sending.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn wake_at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Counts the outcome of a message, and passes it to all waiting callbacks.
fn settle(receiver: &str, metrics: &ReceiverMetrics, done: Done) {
    let Done { callbacks, result } = done;
    let alerts = callbacks.len();
    match &result {
        Ok(()) => metrics.delivered.increment(alerts as u64),
        Err(Undeliverable::Stopped) => {}
        Err(error) => {
            metrics.failed.increment(alerts as u64);
            tracing::error!(receiver, alerts, cause = %error, "could not deliver alerts");
        }
    }
    for callback in callbacks {
        // The receipt may have been dropped.
        let _ = callback.send(result.clone());
    }
}
