//! The input side of a receiver.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use super::alert::Alert;

/// Accepts alerts for one receiver. Clones serve the same receiver.
#[derive(Clone, Debug)]
pub struct Notifier {
    name: Arc<str>,
    inbox: mpsc::Sender<Submitted>,
}

/// An alert, and the callback for its outcome.
#[derive(Debug)]
pub(super) struct Submitted {
    pub alert: Alert,
    pub callback: DeliveryCallback,
}

/// A dropped callback reports [`Undeliverable::Stopped`].
pub(super) type DeliveryCallback = oneshot::Sender<Result<(), Undeliverable>>;

impl Notifier {
    /// How many alerts may wait between a notifier and its worker. Further alerts wait in the
    /// worker, whose limit is configured.
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

    /// Passes on an alert as soon as there is room for it. Repeats are reported together only if
    /// they are submitted without waiting for the receipts of earlier ones.
    ///
    /// If the future is dropped before it is ready, nothing was passed on.
    pub async fn submit(&self, alert: Alert) -> Receipt {
        let (callback, receipt) = oneshot::channel();
        let submitted = Submitted {
            alert: alert.clipped(),
            callback,
        };
        // If the worker has ended, the callback is dropped, and the receipt reports that.
        let _ = self.inbox.send(submitted).await;
        Receipt(receipt)
    }

    /// Passes on an alert and waits for its outcome.
    ///
    /// # Errors
    ///
    /// If the receiver did not get it.
    pub async fn deliver(&self, alert: &Alert) -> Result<(), Undeliverable> {
        self.submit(alert.clone()).await.await
    }
}

/// The outcome of a submitted alert, once it is known. It can take as long as `dedupWindow` and all
/// attempts together. Dropping it cancels nothing.
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

/// Why a receiver did not get an alert. All but [`Undeliverable::Stopped`] are final.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Undeliverable {
    /// Every attempt failed.
    #[error("given up after {attempts} attempts: {cause}")]
    GivenUp {
        /// How many attempts there were.
        attempts: u32,
        /// Why the last one failed.
        cause: String,
    },
    /// The receiver refused it.
    #[error("refused: {cause}")]
    Refused {
        /// The receiver's answer.
        cause: String,
    },
    /// The receiver does not want any more alerts (HTTP 410).
    #[error("the receiver answered 410 Gone and gets no further alerts")]
    Gone,
    /// A stop came first: the alert must be submitted again after the next start.
    #[error("stopped before it was delivered")]
    Stopped,
}
