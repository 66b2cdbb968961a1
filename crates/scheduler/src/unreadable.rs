//! Counts the rows of the state store that cannot be read, and logs them at a limited rate.

use std::time::{Duration, Instant};

use metrics::Counter;
use waybill_state::CorruptRow;

use super::metrics::{ROWS_REPLACED, ROWS_UNREADABLE};

/// Maximum number of lines in each period.
const LINES_MAX: u32 = 10;
/// The length of a period.
const PERIOD: Duration = Duration::from_secs(60);

/// Counts and logs unreadable rows.
pub(super) struct UnreadableRows {
    counter: Counter,
    message: &'static str,
    rate_limit: LogRateLimit,
}

impl UnreadableRows {
    /// For rows that an engine requested.
    pub(super) fn loaded() -> Self {
        Self {
            counter: ROWS_UNREADABLE.of([]),
            message: "unreadable row; its operation needs operator action",
            rate_limit: LogRateLimit::default(),
        }
    }

    /// For rows that a commit replaced.
    pub(super) fn replaced() -> Self {
        Self {
            counter: ROWS_REPLACED.of([]),
            message: "unreadable row; replaced it with the current state",
            rate_limit: LogRateLimit::default(),
        }
    }

    /// Reports an unreadable row.
    pub(super) fn report(&mut self, row: &CorruptRow) {
        self.counter.increment(1);
        if let Some(suppressed) = self.rate_limit.line(Instant::now()) {
            tracing::error!(
                operation = %row.id,
                error = row as &dyn std::error::Error,
                suppressed,
                "{}",
                self.message
            );
        }
    }
}

/// Limits the number of log lines.
#[derive(Default)]
struct LogRateLimit {
    /// When the current period began.
    began: Option<Instant>,
    /// The number of lines in the current period.
    lines: u32,
    /// The number of rows without a line since the last line.
    suppressed: u64,
}

impl LogRateLimit {
    /// Whether to write a line now; if so, the number of rows without a line before it.
    fn line(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now >= began + PERIOD) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_are_written_per_period_and_the_rest_counted() {
        let start = Instant::now();
        let mut rate_limit = LogRateLimit::default();
        let lines = |rate_limit: &mut LogRateLimit, now, times: usize| -> Vec<u64> {
            (0..times).filter_map(|_| rate_limit.line(now)).collect()
        };
        assert_eq!(lines(&mut rate_limit, start, 9), [0; 9]);
        let end = start + PERIOD - Duration::from_millis(1);
        assert_eq!(lines(&mut rate_limit, end, 26), [0]);
        assert_eq!(lines(&mut rate_limit, start + PERIOD, 3), [25, 0, 0]);
    }
}
