//! What one round of an audit remembers for the next.

use std::collections::BTreeMap;

use waybill_engine::{Offset, OperationId, OperationRow, PartitionId, Timestamp};

/// How many suspects, and how many unreadable rows, an index shard remembers from one round to the
/// next. Further suspects are found later. Further unreadable rows are reported in each round.
pub(super) const SUSPECTS_MAX: usize = 10_000;
/// How many woken operations, and how many unreadable rows, one round names in the log.
pub(super) const NAMED_MAX: usize = 20;

/// Operations that the last round found to have nothing that would wake them in time.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// The due time of each, from its row.
    pub(super) due: BTreeMap<OperationId, Timestamp>,
    /// The end of the recovery topic after that round, by partition.
    pub(super) ends: BTreeMap<PartitionId, Offset>,
}

/// Unreadable rows, as met by the last complete round and the rounds after it.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    rows: BTreeMap<OperationId, UnreadableRow>,
    /// How many more rows this round logs.
    logs_left: usize,
}

#[derive(Clone, Copy, Debug)]
struct UnreadableRow {
    is_logged: bool,
    /// The current round has met this row.
    is_noted: bool,
}

/// What to report about an unreadable row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Report {
    pub(super) count: bool,
    pub(super) log: bool,
}

impl Suspects {
    /// The partitions of the suspects.
    pub(super) fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.ends.keys().copied()
    }

    /// The partitions in which every recovery of the last round is done, according to `done`.
    pub(super) fn settled(&self, done: &BTreeMap<PartitionId, Offset>) -> Vec<PartitionId> {
        let ends = self.ends.iter();
        let is_done = |partition, end: &Offset| done.get(partition).is_some_and(|done| done >= end);
        let settled = ends.filter(|(partition, end)| is_done(*partition, end));
        settled.map(|(partition, _)| *partition).collect()
    }

    /// Whether the last round found the operation with the same due time.
    pub(super) fn had(&self, row: &OperationRow, due: Timestamp) -> bool {
        self.due.get(&row.id) == Some(&due)
    }
}

impl Unreadable {
    /// Begins a round. Rows that a round met before it ended early stay marked.
    pub(super) fn begin_round(&mut self) {
        self.logs_left = NAMED_MAX;
        for row in self.rows.values_mut() {
            row.is_noted = false;
        }
    }

    /// Records that this round met an unreadable row. One operation may have several entries.
    pub(super) fn note(&mut self, operation: OperationId) -> Report {
        let known = self.rows.get(&operation);
        let count = known.is_none();
        let was_logged = known.is_some_and(|row| row.is_logged);
        let log = !was_logged && self.logs_left > 0;
        if log {
            self.logs_left -= 1;
        }
        if !count || self.rows.len() < SUSPECTS_MAX {
            let row = UnreadableRow {
                is_logged: was_logged || log,
                is_noted: true,
            };
            self.rows.insert(operation, row);
        }
        Report { count, log }
    }

    /// Ends a complete round. Rows that it did not meet can be read again, or were deleted.
    pub(super) fn end_round(&mut self) {
        self.rows.retain(|_, row| row.is_noted);
    }
}
