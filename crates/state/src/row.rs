//! The content of a group commit, and of rows that are read.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    Created, OperationId, OperationRow, OperationState, PartitionId, Stamp, Timestamp,
};

use crate::attention::AttentionEntry;
use crate::due::DueEntry;

/// The result of reading one operation: its row, `None` if there is none or its retention has
/// passed, or why it cannot be read.
pub type RowRead = Result<Option<OperationRow>, CorruptRow>;

/// A row, and how long its store keeps it.
#[derive(Clone, PartialEq, Debug)]
pub struct KeptRow {
    /// The row.
    pub row: OperationRow,
    /// When its retention ends; `None` if it is kept for good.
    pub expires_at: Option<Timestamp>,
}

/// One write of one operation's row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowWrite {
    /// The operation.
    pub id: OperationId,
    /// The immutable columns: given at create, once more with the final state, and again by a write
    /// that reopens a row whose retention had begun. Which of them are kept is decided by the last
    /// write that gave them.
    pub created: Option<Arc<Created>>,
    /// The mutable state.
    pub state: OperationState,
    /// The write's stamp.
    pub stamp: Stamp,
    /// For a final state: how long the whole row is kept from now. A write with a higher stamp and
    /// without this keeps the row for good again, if it comes before the retention has passed.
    pub keep_for: Option<Duration>,
}

/// Everything that one group commit writes. All of it is durable, or the outcome is an error.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WriteBatch {
    /// Deadline index entries by index shard, durable before any row of the batch is visible.
    pub due: Vec<(PartitionId, DueEntry)>,
    /// Attention entries by index shard.
    pub attention: Vec<(PartitionId, AttentionEntry)>,
    /// Rows.
    pub rows: Vec<RowWrite>,
}

impl WriteBatch {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.attention.is_empty() && self.rows.is_empty()
    }
}

/// The outcome of a durable [`WriteBatch`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Unreadable rows that the batch replaced. A store that would otherwise lose the old bytes
    /// keeps them aside.
    pub replaced: Vec<CorruptRow>,
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
