//! The pace of a verb for many operations: how many are tried first, and when it halts.
//!
//! Deliberately absent: time and the API. The caller reports each outcome.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// The run halts if a larger share of the operations with a known result failed.
const FAILED_PERCENT_MAX: u64 = 20;
/// The share counts only from this many known results on.
const SETTLED_MIN: u64 = 5;

/// How many operations are tried first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Canary {
    /// A percentage, from 1 to 100.
    Percent(u8),
    /// A number.
    Count(NonZeroU32),
}

impl Canary {
    /// How many of `matching` operations are tried first: at least one, if any match.
    pub(super) fn of(self, matching: usize) -> usize {
        let wanted = match self {
            Self::Percent(percent) => (matching * usize::from(percent)).div_ceil(100).max(1),
            Self::Count(count) => usize::try_from(count.get()).unwrap_or(usize::MAX),
        };
        wanted.min(matching)
    }
}

impl FromStr for Canary {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected a number from 1, or a share from 1% to 100%";
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Count).map_err(|_| expected);
        };
        match percent.parse() {
            Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
            Ok(_) | Err(_) => Err(expected),
        }
    }
}

/// The results of a run so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RunResults {
    canary_failures_max: u64,
    settled: u64,
    failed: u64,
}

/// Why a run halts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Halt {
    /// Too many of the first operations failed again.
    Canaries {
        failed: u64,
        open: u64,
        allowed: u64,
    },
    /// Too many of all operations failed again.
    Share { failed: u64, settled: u64 },
}

impl RunResults {
    pub(super) fn new(canary_failures_max: u64) -> Self {
        Self {
            canary_failures_max,
            settled: 0,
            failed: 0,
        }
    }

    /// Counts an operation that succeeded or failed again.
    pub(super) fn settle(&mut self, has_failed: bool) {
        self.settled += 1;
        self.failed += u64::from(has_failed);
    }

    /// Whether the canaries halt the run. Each of the `open` ones, whose result is unknown after
    /// `--canary-wait`, counts as a failure.
    pub(super) fn canaries_halt(&self, open: u64) -> Option<Halt> {
        (self.failed + open > self.canary_failures_max).then_some(Halt::Canaries {
            failed: self.failed,
            open,
            allowed: self.canary_failures_max,
        })
    }

    /// Whether the results of all operations so far halt the run.
    pub(super) fn share_halts(&self) -> Option<Halt> {
        let is_too_much = self.failed * 100 > self.settled * FAILED_PERCENT_MAX;
        (self.settled >= SETTLED_MIN && is_too_much).then_some(Halt::Share {
            failed: self.failed,
            settled: self.settled,
        })
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Canaries {
                failed,
                open,
                allowed,
            } => {
                write!(f, "failed canaries: {failed}")?;
                if *open > 0 {
                    write!(f, "; unfinished after --canary-wait: {open}")?;
                }
                write!(f, "; --canary-failures allows {allowed}")
            }
            Self::Share { failed, settled } => write!(
                f,
                "{failed} of {settled} operations failed again, more than {FAILED_PERCENT_MAX} %"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canaries(text: &str, matching: usize) -> usize {
        text.parse::<Canary>().unwrap().of(matching)
    }

    #[test]
    fn canaries_are_a_share_or_a_number_up_to_the_total() {
        for (text, matching, expected) in [
            ("1%", 0, 0),
            ("1%", 1, 1),
            ("1%", 100, 1),
            ("1%", 101, 2),
            ("1%", 100_000, 1_000),
            ("100%", 7, 7),
            ("3", 7, 3),
            ("8", 7, 7),
        ] {
            assert_eq!(canaries(text, matching), expected, "{text} of {matching}");
        }
    }

    #[test]
    fn zero_canaries_are_refused() {
        for bad in ["0", "0%", "101%", "-1", "1.5%", "%", "", "one"] {
            assert!(bad.parse::<Canary>().is_err(), "{bad}");
        }
    }

    #[test]
    fn canaries_halt_with_one_failure_more_than_is_allowed() {
        for (allowed, failed, open, halts) in [
            (0, 0, 0, false),
            (0, 1, 0, true),
            (0, 0, 1, true),
            (2, 2, 0, false),
            (2, 1, 2, true),
        ] {
            let mut results = RunResults::new(allowed);
            (0..failed).for_each(|_| results.settle(true));
            results.settle(false);
            let halt = Halt::Canaries {
                failed,
                open,
                allowed,
            };
            assert_eq!(results.canaries_halt(open), halts.then_some(halt));
        }
    }

    #[test]
    fn failures_above_a_fifth_halt_after_five_results() {
        let halt = |failed: u64, settled: u64| {
            let mut results = RunResults::new(0);
            (0..settled).for_each(|number| results.settle(number < failed));
            results.share_halts()
        };
        assert_eq!(halt(4, 4), None);
        assert_eq!(halt(1, 5), None);
        let two_of_five = Halt::Share {
            failed: 2,
            settled: 5,
        };
        assert_eq!(halt(2, 5), Some(two_of_five));
        assert_eq!(halt(20, 100), None);
        assert!(halt(21, 100).is_some());
    }

    #[test]
    fn a_halt_reports_the_failures_and_the_limit() {
        let text = |failed, open| {
            let halt = Halt::Canaries {
                failed,
                open,
                allowed: 0,
            };
            halt.to_string()
        };
        assert_eq!(text(2, 0), "failed canaries: 2; --canary-failures allows 0");
        assert!(text(0, 1).contains("; unfinished after --canary-wait: 1;"));
    }
}
