//! Runs the parts of the process, and stops them together.
//!
//! Every long-lived task is a part with a name, a stage and a result. What must hold: the first
//! part that fails, or ends without being stopped, ends the process. Stages stop one after the
//! other, so that parts which accept work stop before parts which do it. A stop has a time limit,
//! and a second signal cuts it short. A part that is cut off leaves the same state as `kill -9`,
//! and the next start resumes from it.
//!
//! Deliberately absent: restarts of failed parts. The supervisor of the process, such as
//! Kubernetes, restarts it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use waybill_telemetry::chain;

/// The order in which parts stop, first to last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Internal sources of work: the samples.
    Samples,
    /// Parts that accept work.
    Ingestion,
    /// Parts that decide.
    Scheduler,
    /// Parts that perform steps, and those that send notifications.
    Agents,
    /// The services that steps call.
    Services,
    /// The embedded broker, which carries all messages.
    Broker,
    /// The admin listener, which stays to the end.
    Admin,
}

/// Why a process did not shut down cleanly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It did not start.
    #[error("start failed")]
    Start(#[source] anyhow::Error),
    /// A part failed.
    #[error("{part} failed")]
    Failed {
        /// The part.
        part: String,
        /// Why.
        #[source]
        source: anyhow::Error,
    },
    /// A part panicked; the log has its message.
    #[error("{part} panicked")]
    Panicked {
        /// The part.
        part: String,
    },
    /// A part that should keep running ended on its own.
    #[error("{part} ended unexpectedly")]
    EndedEarly {
        /// The part.
        part: String,
    },
    /// A stop took too long.
    #[error("the stop exceeded shutdownTimeout; aborted: {}", .parts.join(", "))]
    TooSlow {
        /// The parts that were still running.
        parts: Vec<String>,
    },
    /// A second signal cut the stop short.
    #[error("a second signal ended the stop; aborted: {}", .parts.join(", "))]
    CutShort {
        /// The parts that were still running.
        parts: Vec<String>,
    },
}

/// The signals that end the process: SIGTERM and SIGINT (Ctrl-C).
#[derive(Debug)]
pub struct Signals {
    received: mpsc::Receiver<&'static str>,
}

impl Signals {
    /// Takes over the signals of this process.
    ///
    /// # Errors
    ///
    /// If the operating system refuses.
    pub fn of_process() -> std::io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (sender, signals) = Self::made_up();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    Some(()) = terminate.recv() => "SIGTERM",
                    Some(()) = interrupt.recv() => "SIGINT",
                    else => return,
                };
                // Further signals change nothing: two are enough to end immediately.
                let _ = sender.try_send(name);
            }
        });
        Ok(signals)
    }

    /// Signals for a test, which sends them.
    #[must_use]
    pub fn made_up() -> (mpsc::Sender<&'static str>, Self) {
        let (sender, received) = mpsc::channel(2);
        (sender, Self { received })
    }

    async fn next(&mut self) -> &'static str {
        match self.received.recv().await {
            Some(name) => name,
            None => std::future::pending().await,
        }
    }
}

/// The running parts of the process.
pub struct Running {
    parts: Mutex<Vec<Part>>,
    // At most one message per part.
    ended: mpsc::UnboundedSender<Ended>,
    endings: tokio::sync::Mutex<mpsc::UnboundedReceiver<Ended>>,
}

struct Part {
    name: String,
    stage: Stage,
    /// Whether it may end on its own.
    is_job: bool,
    /// Asks it to stop; `None` once it was asked.
    stop: Option<Box<dyn FnOnce() + Send>>,
    abort: AbortHandle,
}

struct Ended {
    id: tokio::task::Id,
    result: Result<anyhow::Result<()>, JoinError>,
}

impl Default for Running {
    fn default() -> Self {
        Self::new()
    }
}

impl Running {
    /// Creates an empty set of parts.
    #[must_use]
    pub fn new() -> Self {
        let (ended, endings) = mpsc::unbounded_channel();
        Self {
            parts: Mutex::default(),
            ended,
            endings: tokio::sync::Mutex::new(endings),
        }
    }

    /// Starts a part that runs until its token is cancelled.
    pub fn spawn<F>(
        &self,
        stage: Stage,
        name: impl Into<String>,
        part: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.spawn_watched(stage, name.into(), false, part);
    }

    /// Starts a part that may end on its own, when its work is done.
    pub fn spawn_job<F>(
        &self,
        stage: Stage,
        name: impl Into<String>,
        part: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.spawn_watched(stage, name.into(), true, part);
    }

    /// Adds a part that was started elsewhere. It runs until `stop` is called, and then ends
    /// `task`.
    pub fn push(
        &self,
        stage: Stage,
        name: impl Into<String>,
        stop: impl FnOnce() + Send + 'static,
        task: JoinHandle<anyhow::Result<()>>,
    ) {
        self.watch(stage, name.into(), false, Box::new(stop), task);
    }

    /// Runs `start`, which starts parts, and then the parts, until a part fails or a signal
    /// arrives. Then stops all of them in order within `stop_limit`.
    ///
    /// # Errors
    ///
    /// The first failure. It is logged with its causes when it happens, and so are all later ones.
    pub async fn run(
        &self,
        start: impl Future<Output = anyhow::Result<()>>,
        signals: &mut Signals,
        stop_limit: Duration,
    ) -> Result<(), RunError> {
        let first = self.until_something_ends_it(start, signals).await;
        match &first {
            Ok(signal) => tracing::info!(signal, "stopping"),
            Err(error) => tracing::error!(error = chain(error), "stopping"),
        }
        let stopped = self.stop(signals, Instant::now() + stop_limit).await;
        first.and(stopped)
    }

    /// Waits for a signal, or for the first failure.
    async fn until_something_ends_it(
        &self,
        start: impl Future<Output = anyhow::Result<()>>,
        signals: &mut Signals,
    ) -> Result<&'static str, RunError> {
        let mut endings = self.endings.lock().await;
        let mut start = pin!(start);
        let mut starting = true;
        loop {
            tokio::select! {
                started = &mut start, if starting => {
                    started.map_err(RunError::Start)?;
                    starting = false;
                }
                Some(ended) = endings.recv() => self.settle(ended)?,
                signal = signals.next() => return Ok(signal),
            }
        }
    }

    /// Stops every stage in order.
    async fn stop(&self, signals: &mut Signals, deadline: Instant) -> Result<(), RunError> {
        let mut endings = self.endings.lock().await;
        let mut first = Ok(());
        while let Some(stage) = self.next_stage() {
            for (name, stop) in self.take_stops(stage) {
                tracing::debug!(part = name, "stopping");
                stop();
            }
            while self.next_stage() == Some(stage) {
                let settled = tokio::select! {
                    Some(ended) = endings.recv() => self.settle(ended),
                    () = sleep_until(deadline) => {
                        Err(RunError::TooSlow { parts: self.cut_off() })
                    }
                    _ = signals.next() => Err(RunError::CutShort { parts: self.cut_off() }),
                };
                if let Err(error) = &settled {
                    tracing::error!(error = chain(error), "failure during the stop");
                }
                first = first.and(settled);
            }
        }
        first
    }

    fn spawn_watched<F>(
        &self,
        stage: Stage,
        name: String,
        is_job: bool,
        part: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        // Boxed: tokio's side of a task is then compiled once, not for each part.
        let part: BoxFuture<'static, anyhow::Result<()>> = Box::pin(part(stop.clone()));
        let task = tokio::spawn(part);
        self.watch(stage, name, is_job, Box::new(move || stop.cancel()), task);
    }

    fn watch(
        &self,
        stage: Stage,
        name: String,
        is_job: bool,
        stop: Box<dyn FnOnce() + Send>,
        task: JoinHandle<anyhow::Result<()>>,
    ) {
        let id = task.id();
        let abort = task.abort_handle();
        self.parts().push(Part {
            name,
            stage,
            is_job,
            stop: Some(stop),
            abort,
        });
        let ended = self.ended.clone();
        tokio::spawn(async move {
            // The receiver exists as long as its owner needs it.
            let _ = ended.send(Ended {
                id,
                result: task.await,
            });
        });
    }

    /// Removes a part that ended. An error if it should not have ended.
    fn settle(&self, ended: Ended) -> Result<(), RunError> {
        let part = {
            let mut parts = self.parts();
            let Some(place) = parts.iter().position(|part| part.abort.id() == ended.id) else {
                return Ok(());
            };
            parts.remove(place)
        };
        let name = part.name;
        match ended.result {
            Ok(Ok(())) if part.is_job || part.stop.is_none() => {
                tracing::debug!(part = name, "ended");
                Ok(())
            }
            Ok(Ok(())) => Err(RunError::EndedEarly { part: name }),
            Ok(Err(source)) => Err(RunError::Failed { part: name, source }),
            Err(_) => Err(RunError::Panicked { part: name }),
        }
    }

    /// The first stage that still has a part.
    fn next_stage(&self) -> Option<Stage> {
        self.parts().iter().map(|part| part.stage).min()
    }

    fn take_stops(&self, stage: Stage) -> Vec<(String, Box<dyn FnOnce() + Send>)> {
        let mut parts = self.parts();
        let stopped = parts.iter_mut().filter(|part| part.stage == stage);
        stopped
            .filter_map(|part| Some((part.name.clone(), part.stop.take()?)))
            .collect()
    }

    /// Aborts the remaining parts, and names them.
    fn cut_off(&self) -> Vec<String> {
        let parts = std::mem::take(&mut *self.parts());
        parts.iter().for_each(|part| part.abort.abort());
        parts.into_iter().map(|part| part.name).collect()
    }

    fn parts(&self) -> std::sync::MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.parts().iter().map(|part| &part.name))
            .finish()
    }
}

#[cfg(test)]
mod tests;
