//! The progress of a verb for many operations: a count for each outcome.

use std::fmt;

use crate::operations::line::Outcome;

/// The number of operations by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub(super) asked: u64,
    done: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    pub(super) open: u64,
    skipped: u64,
}

impl Tally {
    /// Counts one operation.
    pub(super) fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Asked => self.asked += 1,
            Outcome::Done => self.done += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Refused => self.refused += 1,
            Outcome::Open => self.open += 1,
            Outcome::Skipped => self.skipped += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            done,
            failed,
            refused,
            open,
            skipped,
        } = self;
        write!(
            f,
            "{asked} requested: {done} done, {failed} failed again, {open} still open; {refused} \
             refused, {skipped} skipped"
        )
    }
}
