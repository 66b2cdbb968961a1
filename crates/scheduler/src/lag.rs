//! How far a shard is behind the end of its requests: in records, and in time.

use std::collections::VecDeque;

use waybill_engine::{Offset, Timestamp};

/// Maximum number of instants to keep. Beyond it every other one is dropped, and the minimum
/// distance doubles until no request waits any more.
const REMEMBERED_MAX: usize = 512;
/// Initial minimum distance between instants, in microseconds.
const APART: i64 = 100_000;

/// How far a shard is behind.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Lag {
    /// Requests that the shard has not consumed.
    pub records: i64,
    /// For how long the oldest of them has been known to exist, in seconds.
    pub seconds: f64,
}

/// Remembers when the log had which end.
#[derive(Debug)]
pub(super) struct LagClock {
    /// Ends in ascending order, each with the instant at which it was first seen, or shortly after.
    ends: VecDeque<(Offset, Timestamp)>,
    /// Minimum distance between the next instants, in microseconds.
    apart: i64,
}

impl Default for LagClock {
    fn default() -> Self {
        Self {
            ends: VecDeque::new(),
            apart: APART,
        }
    }
}

impl LagClock {
    /// The lag at `now`, with the log ending at `end` and everything below `consumed` consumed.
    pub(super) fn lag(&mut self, end: Offset, consumed: Offset, now: Timestamp) -> Lag {
        if self.ends.back().is_some_and(|(_, at)| *at > now) {
            // The clock was ahead, and was set back.
            for (_, at) in &mut self.ends {
                *at = (*at).min(now);
            }
        }
        let is_due = |(seen, at): &(Offset, Timestamp)| {
            *seen < end && now.as_micros() - at.as_micros() >= self.apart
        };
        if end > consumed && self.ends.back().is_none_or(is_due) {
            self.ends.push_back((end, now));
        }
        while self.ends.front().is_some_and(|(seen, _)| *seen <= consumed) {
            self.ends.pop_front();
        }
        if self.ends.is_empty() {
            self.apart = APART;
        } else if self.ends.len() > REMEMBERED_MAX {
            let span = now.as_micros() - self.ends[0].1.as_micros();
            self.apart = span / (REMEMBERED_MAX as i64 / 2);
            let mut is_kept = false;
            // The first entry stays: it determines the lag in seconds.
            self.ends.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        let since = self.ends.front().map_or(now, |(_, at)| *at);
        Lag {
            records: (end.0 - consumed.0).max(0),
            seconds: (now.as_micros() - since.as_micros()).max(0) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn lag(clock: &mut LagClock, second: i64, end: i64, consumed: i64) -> (i64, f64) {
        let now = Timestamp(second * SECOND);
        let lag = clock.lag(Offset(end), Offset(consumed), now);
        (lag.records, lag.seconds)
    }

    #[test]
    fn time_counts_from_when_the_oldest_record_was_first_seen() {
        let mut clock = LagClock::default();
        assert_eq!(lag(&mut clock, 0, 10, 10), (0, 0.0));
        assert_eq!(lag(&mut clock, 1, 20, 10), (10, 0.0));
        assert_eq!(lag(&mut clock, 2, 30, 10), (20, 1.0));
        assert_eq!(lag(&mut clock, 3, 30, 19), (11, 2.0));
        // The records of second 1 are consumed; those of second 2 are not.
        assert_eq!(lag(&mut clock, 4, 30, 20), (10, 2.0));
        assert_eq!(lag(&mut clock, 5, 30, 30), (0, 0.0));
        assert_eq!(lag(&mut clock, 6, 31, 30), (1, 0.0));
    }

    #[test]
    fn a_late_end_offset_is_not_lag() {
        // The end is from the last fetch and may be behind the consumed offset.
        assert_eq!(lag(&mut LagClock::default(), 1, 10, 15), (0, 0.0));
    }

    #[test]
    fn a_clock_that_is_set_back_hides_no_lag() {
        let mut clock = LagClock::default();
        assert_eq!(lag(&mut clock, 3_600, 10, 0), (10, 0.0));
        assert_eq!(lag(&mut clock, 10, 20, 0), (20, 0.0));
        assert_eq!(lag(&mut clock, 15, 20, 0), (20, 5.0));
    }

    #[test]
    fn a_long_backlog_is_remembered_from_its_beginning() {
        let mut clock = LagClock::default();
        for second in 0..10_000 {
            lag(&mut clock, second, second + 1, 0);
        }
        assert!(clock.ends.len() <= REMEMBERED_MAX);
        assert_eq!(lag(&mut clock, 10_000, 10_000, 0), (10_000, 10_000.0));
        let (_, seconds) = lag(&mut clock, 10_000, 10_000, 5_000);
        assert!((4_900.0..=5_000.0).contains(&seconds), "{seconds}");
    }
}
