//! When each operation needs attention.
//!
//! A heap with usually one entry per operation. An operation gets another entry only for an earlier
//! instant; a later due time is found when the entry comes up. An entry is valid if its operation
//! is still armed for its instant.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::OperationId;
use crate::time::Timestamp;

/// The entries.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, OperationId)>>,
}

impl Timers {
    /// Adds an entry.
    pub(super) fn push(&mut self, at: Timestamp, operation: OperationId) {
        self.heap.push(Reverse((at, operation)));
    }

    /// The first entry's instant. The entry may be invalid.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the first entry if its instant has come.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, OperationId)> {
        if self.first()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Drops the invalid entries if there are far more entries than operations, so that the size of
    /// the heap stays proportional to the number of operations.
    pub(super) fn prune(
        &mut self,
        operations: usize,
        is_valid: impl Fn(Timestamp, OperationId) -> bool,
    ) {
        const SLACK: usize = 4096;
        if self.heap.len() > SLACK + 4 * operations {
            self.heap.retain(|Reverse((at, id))| is_valid(*at, *id));
        }
    }
}
