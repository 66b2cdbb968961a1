//! The tasks that make attempts.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// A worker panicked outside of a handler. The requests that it had taken get no answer from this
/// process, so its agents must end: others read the requests again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a worker of the agents panicked")]
pub struct WorkerPanicked;

/// Running workers. Dropped, they stop.
#[derive(Debug)]
pub(super) struct Workers {
    tasks: Vec<AbortHandle>,
    panicked: Arc<AtomicBool>,
}

impl Workers {
    /// Starts as many workers of each agent as `counts` has at the agent's place. Calls `on_panic`
    /// after a worker has panicked.
    pub(super) fn start<W: Future<Output = ()> + Send + 'static>(
        runtime: &Handle,
        counts: impl IntoIterator<Item = usize>,
        work: impl Fn(usize) -> W,
        on_panic: impl Fn() + Clone + Send + 'static,
    ) -> Self {
        let panicked = Arc::new(AtomicBool::new(false));
        let agents = counts
            .into_iter()
            .enumerate()
            .flat_map(|(agent, count)| std::iter::repeat_n(agent, count));
        let tasks = agents
            .map(|agent| {
                let work = AssertUnwindSafe(work(agent)).catch_unwind();
                let (panicked, on_panic) = (Arc::clone(&panicked), on_panic.clone());
                let task = runtime.spawn(async move {
                    if work.await.is_err() {
                        panicked.store(true, Ordering::Release);
                        on_panic();
                    }
                });
                task.abort_handle()
            })
            .collect();
        Self { tasks, panicked }
    }

    /// Checks that no worker has panicked.
    ///
    /// # Errors
    ///
    /// If one has.
    pub(super) fn check(&self) -> Result<(), WorkerPanicked> {
        match self.panicked.load(Ordering::Acquire) {
            true => Err(WorkerPanicked),
            false => Ok(()),
        }
    }

    /// Stops all workers where they are.
    pub(super) fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_panic_of_one_worker_is_reported_and_the_others_continue() {
        let panicked = Arc::new(Notify::new());
        let (go_on, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = |agent| {
            let (go_on, ended) = (Arc::clone(&go_on), Arc::clone(&ended));
            async move {
                assert_eq!(agent, 1, "a bug");
                go_on.notified().await;
                ended.notify_one();
            }
        };
        let on_panic = {
            let panicked = Arc::clone(&panicked);
            move || panicked.notify_one()
        };
        let workers = Workers::start(&Handle::current(), [1, 1], work, on_panic);
        assert_eq!(workers.check(), Ok(()), "none has run yet");
        panicked.notified().await;
        assert_eq!(workers.check(), Err(WorkerPanicked));
        go_on.notify_one();
        ended.notified().await;
    }
}
