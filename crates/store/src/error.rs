//! Why the store could not do what it was asked.

use std::error::Error;

use waybill_engine::OperationId;

/// Why the store could not do what it was asked.
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
    /// A stored value that is no row cannot be decoded.
    #[error("the stored {what} of {key} cannot be read: {cause}")]
    Corrupt {
        /// What kind of value it is.
        what: &'static str,
        /// Its key, for people.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Someone else has the embedded store open: usually another process.
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
}

/// A stored row that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stored {what} of operation {id} cannot be read: {cause}")]
pub struct CorruptRow {
    /// The operation.
    pub id: OperationId,
    /// Which part of the row it is.
    pub what: &'static str,
    /// What is wrong with it.
    pub cause: String,
}
