//! The kinds of tasks, and how a task fails.

use std::any::Any;

use waybill_store::StoreError;

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
    pub task: Task,
    pub message: String,
}

impl Panicked {
    /// The panic of a task, from what it panicked with.
    pub(super) fn new(task: Task, payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("no message").to_owned();
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
