//! Tasks whose results the loop waits for.
//!
//! What must hold: **every task answers**. The loop sets a flag while a task is in flight, and
//! starts no other of its kind until the task has answered. So a panic in a task is an answer, too.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use waybill_store::StoreError;

use super::input::{Input, Inputs};
use super::metrics::TASK_PANICS;

/// A task of the scheduler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Acquire,
    Commit,
    /// Polls a consumer.
    Consume,
    /// Reads the end of the inbox.
    InboxEnd,
    /// Reads the layout of shards.
    Layout,
    /// Loads rows.
    Load,
    Release,
    Renew,
}

impl Task {
    /// All of them.
    pub(super) const ALL: [Self; 8] = [
        Self::Acquire,
        Self::Commit,
        Self::Consume,
        Self::InboxEnd,
        Self::Layout,
        Self::Load,
        Self::Release,
        Self::Renew,
    ];

    /// The name in logs and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Commit => "commit",
            Self::Consume => "consume",
            Self::InboxEnd => "inbox-end",
            Self::Layout => "layout",
            Self::Load => "load",
            Self::Release => "release",
            Self::Renew => "renew",
        }
    }
}

/// A task panicked. Its effects may have taken place.
#[derive(Debug, thiserror::Error)]
#[error("task {} panicked: {message}", .task.name())]
pub(super) struct Panicked {
    task: Task,
    message: String,
}

impl Panicked {
    /// Counts the panic of a task.
    pub(super) fn of(task: Task, payload: &(dyn Any + Send)) -> Self {
        TASK_PANICS.of([task.name()]).increment(1);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("no message").to_owned();
        tracing::error!(task = task.name(), message, "a task panicked");
        Self { task, message }
    }
}

/// Why a task on the store failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The task panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// Runs `work` and sends its result, converted by `input`, to the loop.
pub(super) fn spawn<T, E: From<Panicked>>(
    runtime: &Handle,
    sender: &Inputs,
    task: Task,
    work: impl Future<Output = Result<T, E>> + Send + 'static,
    input: impl FnOnce(Result<T, E>) -> Input + Send + 'static,
) {
    let sender = sender.clone();
    runtime.spawn(async move {
        let ended = AssertUnwindSafe(work).catch_unwind().await;
        let result = ended.unwrap_or_else(|payload| Err(E::from(Panicked::of(task, &*payload))));
        // The send fails only after the loop has ended.
        let _ = sender.send(input(result));
    });
}

/// Runs `work` without waiting for its result. A panic in it is counted and logged.
pub(super) fn spawn_unawaited(
    runtime: &Handle,
    task: Task,
    work: impl Future<Output = ()> + Send + 'static,
) {
    runtime.spawn(async move {
        if let Err(payload) = AssertUnwindSafe(work).catch_unwind().await {
            Panicked::of(task, &*payload);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use waybill_store::Layout;

    use super::*;

    #[test]
    fn a_task_that_panics_returns_its_panic_message() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (sender, inputs) = mpsc::channel();
        let answer = |work: fn() -> Result<Option<Layout>, TaskError>| {
            let work = async move { work() };
            spawn(runtime.handle(), &sender, Task::Layout, work, Input::Layout);
            match inputs.recv().unwrap() {
                Input::Layout(Err(error)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let said = answer(|| panic!("a row"));
        assert_eq!(said, "task layout panicked: a row");
        let said = answer(|| panic!("row {}", 7));
        assert_eq!(said, "the task layout panicked: row 7");
    }
}
