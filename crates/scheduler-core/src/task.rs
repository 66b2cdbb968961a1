//! The kinds of tasks of the driver, and how a task fails.

use std::any::Any;

use waybill_engine::panic_message;

/// A task of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Acquires the lease of a shard.
    Acquire,
    /// Writes the rows of a commit.
    Commit,
    /// Polls a consumer.
    Consume,
    /// Reads the end of the inbox.
    InboxEnd,
    /// Reads the layout of shards.
    Layout,
    /// Loads rows.
    Load,
    /// Releases a lease.
    Release,
    /// Renews a lease, or reads those of the other shards of its partition.
    Renew,
}

impl Task {
    /// All of them.
    pub const ALL: [Self; 8] = [
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
    #[must_use]
    pub fn name(self) -> &'static str {
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
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("task {} panicked: {message}", .task.name())]
pub struct Panicked {
    /// The task.
    pub task: Task,
    /// The panic's message.
    pub message: String,
}

impl Panicked {
    /// The panic of a task, from what it panicked with.
    #[must_use]
    pub fn new(task: Task, payload: &(dyn Any + Send)) -> Self {
        let message = panic_message(payload).to_owned();
        Self { task, message }
    }
}

/// Why a task on the store failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TaskError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// The task panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// A failure of the store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreFailure {
    /// What it means for the same call later.
    pub kind: StoreFailureKind,
    /// The error with its causes.
    pub message: String,
}

/// What a failure of the store means for the same call later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreFailureKind {
    /// The store of this process works again once its disk has room, or once it has reopened its
    /// files.
    Interrupted,
    /// The store did not do its work, or did not report that it did. A database may work again; an
    /// I/O error of a write to the store of this process is not retried, because it is unknown
    /// whether the write took effect, and the next start finds out.
    Unknown,
    /// The store rejects the call.
    Rejected,
}

impl StoreFailure {
    /// Whether the same call may succeed later.
    pub(crate) fn may_be_repeated(&self, store_is_exclusive: bool) -> bool {
        match self.kind {
            StoreFailureKind::Interrupted => true,
            StoreFailureKind::Unknown => !store_is_exclusive,
            StoreFailureKind::Rejected => false,
        }
    }
}
