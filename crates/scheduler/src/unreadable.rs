//! Rows of the state store that cannot be read: each is counted, and the log tells of them without
//! being flooded when many are damaged at once.

use std::time::{Duration, Instant};

use metrics::Counter;
use waybill_store::CorruptRow;

use super::metrics::{ROWS_REPLACED, ROWS_UNREADABLE};

/// How many lines are written in each period at most.
const LINES_MAX: u32 = 10;
/// How long a period lasts.
const PERIOD: Duration = Duration::from_secs(60);

/// Counts unreadable rows and tells of them.
pub(super) struct UnreadableRows {
    counter: Counter,
    what_came_of_it: &'static str,
    pace: Pace,
}

impl UnreadableRows {
    /// For rows that an engine asked for.
    pub(super) fn loaded() -> Self {
        Self {
            counter: ROWS_UNREADABLE.of([]),
            what_came_of_it: "a row cannot be read; its operation waits for a person",
            pace: Pace::default(),
        }
    }

    /// For rows that a commit took the place of.
    pub(super) fn replaced() -> Self {
        Self {
            counter: ROWS_REPLACED.of([]),
            what_came_of_it: "a row could not be read; what is known now was written over it",
            pace: Pace::default(),
        }
    }

    /// Such a row was met.
    pub(super) fn met(&mut self, row: &CorruptRow) {
        self.counter.increment(1);
        if let Some(untold) = self.pace.line(Instant::now()) {
            tracing::error!(
                operation = %row.id,
                error = row as &dyn std::error::Error,
                untold,
                "{}",
                self.what_came_of_it
            );
        }
    }
}

/// How many lines the log gets.
#[derive(Default)]
struct Pace {
    /// When the current period began.
    began: Option<Instant>,
    /// How many lines it has.
    lines: u32,
    /// How often no line was written since the last one.
    untold: u64,
}

impl Pace {
    /// Whether a line is to be written now; with it, how many there were none for before it.
    fn line(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now >= began + PERIOD) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES_MAX {
            self.untold += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_ten_lines_and_the_first_of_the_next_says_how_many_were_left_out() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let lines = |pace: &mut Pace, now, times: usize| -> Vec<u64> {
            (0..times).filter_map(|_| pace.line(now)).collect()
        };
        assert_eq!(lines(&mut pace, start, 9), [0; 9]);
        let end = start + PERIOD - Duration::from_millis(1);
        assert_eq!(lines(&mut pace, end, 26), [0]);
        assert_eq!(lines(&mut pace, start + PERIOD, 3), [25, 0, 0]);
    }
}
