//! Errors of the store.

use std::error::Error;

use waybill_disk::{CheckError, DamagedFile};
use waybill_engine::OperationId;

use crate::WriteFailure;
use crate::cql::{CqlProblem, CqlServer};

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
    /// The lease or the layout is held in another datacentre, whose lightweight transactions are
    /// not visible here.
    #[error("{what} is held in datacentre {holder}, but this process is in {local}")]
    ElsewhereHeld {
        /// The lease, or the layout of shards.
        what: String,
        /// The holder's datacentre.
        holder: String,
        /// The datacentre of this process.
        local: String,
    },
    /// The store's place in the database is missing or unsuitable.
    #[error("the state store cannot be used")]
    Schema(#[from] SchemaError),
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

/// Why a database cannot hold the store as it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SchemaError {
    /// The configuration cannot work.
    #[error("its configuration is invalid: {why}")]
    Config {
        /// Why not.
        why: &'static str,
    },
    /// A keyspace created like this could not be used.
    #[error(
        "each row would be stored {factor} times in datacentre {datacenter}, which has {nodes} nodes: \
         set the replication factor (store.scylla.replicationFactor)"
    )]
    FewNodes {
        /// How often a row would be stored.
        factor: u8,
        /// The datacentre.
        datacenter: String,
        /// How many nodes it has.
        nodes: usize,
    },
    /// There are several datacentres, and none is configured, or the configured one does not exist.
    #[error("the configured datacentre must be one of {}", known.join(", "))]
    Datacenter {
        /// The existing datacentres.
        known: Vec<String>,
    },
    /// The servers or the keyspace are unsuitable.
    #[error("keyspace {keyspace} on {server}: {problem}")]
    Incompatible {
        /// The keyspace.
        keyspace: String,
        /// The servers.
        server: CqlServer,
        /// What is wrong.
        problem: CqlProblem,
    },
}
