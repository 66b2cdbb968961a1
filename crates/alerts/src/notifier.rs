//! The side of a receiver that alerts are handed to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use super::alert::Alert;

/// Takes alerts for one receiver. Clones take them for the same one.
#[derive(Clone, Debug)]
pub struct Notifier {
    name: Arc<str>,
    inbox: mpsc::Sender<Submitted>,
}

/// An alert, and where to say what became of it.
#[derive(Debug)]
pub(super) struct Submitted {
    pub alert: Alert,
    pub ticket: Ticket,
}

/// Dropped, it says [`Undeliverable::Stopped`].
pub(super) type Ticket = oneshot::Sender<Result<(), Undeliverable>>;

impl Notifier {
    /// How many alerts may lie between a notifier and its worker. What waits longer waits in the
    /// worker, which has a setting for it.
    const INBOX_MAX: usize = 1;

    pub(super) fn new(name: &str) -> (Self, mpsc::Receiver<Submitted>) {
        let (inbox, submitted) = mpsc::channel(Self::INBOX_MAX);
        let name = name.into();
        (Self { name, inbox }, submitted)
    }

    /// The receiver's name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hands an alert over as soon as there is room for it. Repeats are told of together only if
    /// they are handed over without waiting for the receipts of those before.
    ///
    /// Dropped before it is ready, it has handed over nothing.
    pub async fn submit(&self, alert: Alert) -> Receipt {
        let (ticket, receipt) = oneshot::channel();
        let submitted = Submitted {
            alert: alert.clipped(),
            ticket,
        };
        // Where the worker has ended, the ticket is dropped, and the receipt says so.
        let _ = self.inbox.send(submitted).await;
        Receipt(receipt)
    }

    /// Hands an alert over and waits for what becomes of it.
    ///
    /// # Errors
    ///
    /// If the receiver did not have it.
    pub async fn deliver(&self, alert: &Alert) -> Result<(), Undeliverable> {
        self.submit(alert.clone()).await.await
    }
}

/// What becomes of an alert that was handed over, once it is known. It can take as long as
/// `dedupWindow` and all attempts together. To drop it takes nothing back.
#[derive(Debug)]
#[must_use = "an alert whose receipt nobody reads may be lost by a stop"]
pub struct Receipt(oneshot::Receiver<Result<(), Undeliverable>>);

impl Future for Receipt {
    type Output = Result<(), Undeliverable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = Pin::new(&mut self.0).poll(context);
        received.map(|result| result.unwrap_or(Err(Undeliverable::Stopped)))
    }
}

/// Why a receiver did not have an alert. All but [`Undeliverable::Stopped`] are for good.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Undeliverable {
    /// Every attempt failed.
    #[error("given up after {attempts} attempts: {cause}")]
    GivenUp {
        /// How many there were.
        attempts: u32,
        /// Why the last one failed.
        cause: String,
    },
    /// The receiver will not take it.
    #[error("refused: {cause}")]
    Refused {
        /// What it said.
        cause: String,
    },
    /// The receiver wants no alerts any more (HTTP 410).
    #[error("the receiver wants no alerts any more")]
    Gone,
    /// A stop came first: the alert is to be handed over again after the next start.
    #[error("stopped before it was delivered")]
    Stopped,
}
