//! What one group commit writes.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{Created, OperationId, OperationState, PartitionId, Stamp};

use crate::due::{AttentionEntry, DueEntry};

/// One write of one operation's row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowWrite {
    /// The operation.
    pub id: OperationId,
    /// The immutable columns: given at create and once more with the final state.
    pub created: Option<Arc<Created>>,
    /// The mutable state.
    pub state: OperationState,
    /// The write's stamp.
    pub stamp: Stamp,
    /// For a final state: how long the whole row is kept from now. A later write without it keeps
    /// the row for good again.
    pub keep_for: Option<Duration>,
}

/// Everything that one group commit writes. All of it is durable, or the outcome is an error.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WriteBatch {
    /// Deadline index entries by shard, durable before any row of the batch is visible.
    pub due: Vec<(PartitionId, DueEntry)>,
    /// Attention entries by shard.
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
