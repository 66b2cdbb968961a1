//! Errors of the store.

use std::error::Error;

use waybill_disk::{CheckError, DamagedFile};
use waybill_engine::OperationId;

use crate::WriteFailure;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk or the database failed.
    #[error("{action} failed in the state store")]
    Unavailable {
        /// What was attempted.
        action: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The disk of the embedded store is full. Nothing is lost, and the action may be repeated: the
    /// store resumes on its own once there is room. Whether a change was made is unknown.
    #[error(
        "{action} failed in the state store: its disk is full; writes resume once there is free space"
    )]
    Full {
        /// What was attempted.
        action: &'static str,
        /// The cause, where this attempt met it first.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The embedded store could not write for a reason other than a full disk, and opens its files
    /// again. Nothing was written. The action may be repeated.
    #[error("{action} failed in the state store, which is reopening its files")]
    Reopening {
        /// What was attempted.
        action: &'static str,
        /// What failed first.
        #[source]
        source: WriteFailure,
    },
    /// The database did not report the outcome of a change in time: it may have been made, in whole
    /// or in part, or may still be.
    #[error("the outcome of {action} in the state store is unknown")]
    Unknown {
        /// What was attempted.
        action: &'static str,
        /// The last cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A row exceeds the store's limit. Nothing of its batch was written.
    #[error("the row of operation {id} has {bytes} bytes, more than the limit of {bytes_max}")]
    RowTooLong {
        /// The operation.
        id: OperationId,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
    /// The lease or the layout is held where this process cannot change it.
    #[error(transparent)]
    OutOfReach(Box<dyn Error + Send + Sync>),
    /// The store's place on its servers is missing or unsuitable.
    #[error("the state store cannot be used")]
    Unusable {
        /// Whether nothing is missing but the store itself: it was not prepared yet.
        is_unprepared: bool,
        /// What is wrong, and what to do about it.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A stored value other than a row cannot be decoded.
    #[error("the stored {what} of {key} cannot be read: {cause}")]
    Corrupt {
        /// What kind of value it is.
        what: &'static str,
        /// Its key, for people.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A file of the embedded store is damaged, and opening the store would lose acknowledged rows.
    #[error(transparent)]
    Damaged(DamagedFile),
    /// The embedded store is already open, usually in another process.
    #[error("the data directory {path} is in use by another process")]
    Locked {
        /// The directory.
        path: String,
    },
}

impl StoreError {
    /// `action` failed because of `source`.
    pub(crate) fn unavailable(
        action: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unavailable {
            action,
            source: source.into(),
        }
    }

    /// `action` fails until there is room.
    pub(crate) fn full(action: &'static str) -> Self {
        Self::Full {
            action,
            source: None,
        }
    }
}

impl From<CheckError> for StoreError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Damaged(file) => Self::Damaged(file),
            error @ CheckError::Io { .. } => Self::unavailable("opening", error),
        }
    }
}
