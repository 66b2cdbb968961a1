//! Counts the rows of the state store that cannot be read, and logs them at a limited rate.

use std::time::{Duration, Instant};

use metrics::Counter;
use waybill_store::CorruptRow;

use super::metrics::{ROWS_REPLACED, ROWS_UNREADABLE};

/// Maximum number of lines in each period.
const LINES_MAX: u32 = 10;
/// The length of a period.
const PERIOD: Duration = Duration::from_secs(60);

/// Counts and logs unreadable rows.
pub(super) struct UnreadableRows {
    counter: Counter,
    message: &'static str,
    pace: Pace,
}

impl UnreadableRows {
    /// For rows that an engine requested.
    pub(super) fn loaded() -> Self {
        Self {
            counter: ROWS_UNREADABLE.of([]),
            message: "unreadable row; its operation needs operator action",
            pace: Pace::default(),
        }
    }

    /// For rows that a commit replaced.
    pub(super) fn replaced() -> Self {
        Self {
            counter: ROWS_REPLACED.of([]),
            message: "unreadable row; replaced it with the current state",
            pace: Pace::default(),
        }
    }

    /// Reports an unreadable row.
    pub(super) fn report(&mut self, row: &CorruptRow) {
        self.counter.increment(1);
        if let Some(untold) = self.pace.line(Instant::now()) {
            tracing::error!(
                operation = %row.id,
                error = row as &dyn std::error::Error,
                untold,
                "{}",
                self.message
            );
        }
    }
}

/// Limits the number of log lines.
#[derive(Default)]
struct Pace {
    /// When the current period began.
    began: Option<Instant>,
    /// The number of lines in the current period.
    lines: u32,
    /// The number of rows without a line since the last line.
    untold: u64,
}

impl Pace {
    /// Whether to write a line now; if so, the number of rows without a line before it.
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
