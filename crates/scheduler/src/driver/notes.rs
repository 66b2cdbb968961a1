//! Counts what the loop notes, and logs it at a limited rate.

use waybill_scheduler_core::Note;

use crate::metrics::{CommitMetrics, LEASES_LOST, STUCK};
use crate::unreadable::UnreadableRows;

/// The counters of the loop.
pub(super) struct Notes {
    commits: CommitMetrics,
    unloadable: UnreadableRows,
    replaced: UnreadableRows,
}

impl Notes {
    pub(super) fn new() -> Self {
        Self {
            commits: CommitMetrics::new(),
            unloadable: UnreadableRows::loaded(),
            replaced: UnreadableRows::replaced(),
        }
    }

    pub(super) fn take(&mut self, note: Note) {
        match note {
            Note::CommitBegan(rows) => self.commits.rows.record(rows as f64),
            Note::CommitDurable(after) => self.commits.duration.record(after.as_secs_f64()),
            Note::CommitFailed => self.commits.failed.increment(1),
            Note::Withheld => self.commits.fenced.increment(1),
            Note::Stuck(task) => STUCK.of([task.name()]).increment(1),
            Note::LeaseLost => LEASES_LOST.of([]).increment(1),
            Note::RowUnreadable(row) => self.unloadable.report(&row),
            Note::RowReplaced(row) => self.replaced.report(&row),
        }
    }
}
