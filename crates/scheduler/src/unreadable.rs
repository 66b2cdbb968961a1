//! Counts the rows of the state store that cannot be read, and logs them. The log of the process
//! limits how many lines it writes.

use metrics::Counter;
use waybill_state::CorruptRow;

use super::metrics::{ROWS_REPLACED, ROWS_UNREADABLE};

/// Counts and logs unreadable rows.
pub(super) struct UnreadableRows {
    counter: Counter,
    message: &'static str,
}

impl UnreadableRows {
    /// For rows that an engine requested.
    pub(super) fn loaded() -> Self {
        Self {
            counter: ROWS_UNREADABLE.of([]),
            message: "unreadable row; its operation needs operator action",
        }
    }

    /// For rows that a commit replaced.
    pub(super) fn replaced() -> Self {
        Self {
            counter: ROWS_REPLACED.of([]),
            message: "unreadable row; replaced it with the current state",
        }
    }

    /// Reports an unreadable row.
    pub(super) fn report(&self, row: &CorruptRow) {
        self.counter.increment(1);
        let error = row as &dyn std::error::Error;
        tracing::error!(operation = %row.id, error, "{}", self.message);
    }
}
