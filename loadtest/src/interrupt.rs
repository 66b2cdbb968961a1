//! Handles Ctrl-C and SIGTERM, so that changes to other processes are undone before the end.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether the user has interrupted the program.
#[derive(Clone)]
pub struct Interrupt {
    asked: watch::Receiver<bool>,
}

/// The user interrupted the program.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// Starts to handle signals. From then on a signal does not end the process on its own.
    ///
    /// # Errors
    ///
    /// If the signal handlers cannot be installed.
    pub fn listen() -> std::io::Result<Self> {
        let mut ctrl_c = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = ctrl_c.recv() => {}
                _ = terminate.recv() => {}
            }
            // The receivers may already be gone.
            let _ = ask.send(true);
            std::future::pending::<()>().await;
        });
        Ok(Self { asked })
    }

    /// Whether the program was interrupted.
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Runs the work until it ends or the program is interrupted.
    ///
    /// # Errors
    ///
    /// The error of the work, or [`Interrupted`].
    pub async fn unless<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut asked = self.asked.clone();
        tokio::select! {
            done = work => done,
            _ = asked.wait_for(|asked| *asked) => Err(Interrupted.into()),
        }
    }
}
