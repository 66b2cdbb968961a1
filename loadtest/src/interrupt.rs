//! Ctrl-C and SIGTERM: what was changed outside is changed back before the end.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells whether a person wants this to end.
#[derive(Clone)]
pub struct Interrupt {
    asked: watch::Receiver<bool>,
}

/// A person wanted this to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// Listens from now on. From now on, too, a signal alone ends nothing.
    ///
    /// # Errors
    ///
    /// If signals cannot be listened to.
    pub fn listen() -> std::io::Result<Self> {
        let mut ctrl_c = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = ctrl_c.recv() => {}
                _ = terminate.recv() => {}
            }
            // Nobody may be left who wants to know.
            let _ = ask.send(true);
            std::future::pending::<()>().await;
        });
        Ok(Self { asked })
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Does the work, or breaks off.
    ///
    /// # Errors
    ///
    /// That of the work, or [`Interrupted`].
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
