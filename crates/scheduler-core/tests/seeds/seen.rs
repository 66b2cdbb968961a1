//! What happened in the runs: a run without faults proves nothing.

use std::collections::BTreeMap;

/// Something that must happen in some of the runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sight {
    Crash,
    Pause,
    CutOff,
    GracefulStop,
    TakeOver,
    /// A read of a candidate failed.
    AcquisitionFailed,
    /// Another candidate took the lease first.
    RaceLost,
    LeaseExpired,
    /// The loop withheld messages after their rows were durable.
    Withheld,
    /// The driver withheld messages because the lease had ended since they were handed to it.
    WithheldLate,
    WrittenAgain,
    LateChange,
    MessageLost,
    QueueFull,
    Stuck,
    PauseNoticed,
    LogEmptied,
    Refused,
}

const ALL: [Sight; 18] = [
    Sight::Crash,
    Sight::Pause,
    Sight::CutOff,
    Sight::GracefulStop,
    Sight::TakeOver,
    Sight::AcquisitionFailed,
    Sight::RaceLost,
    Sight::LeaseExpired,
    Sight::Withheld,
    Sight::WithheldLate,
    Sight::WrittenAgain,
    Sight::LateChange,
    Sight::MessageLost,
    Sight::QueueFull,
    Sight::Stuck,
    Sight::PauseNoticed,
    Sight::LogEmptied,
    Sight::Refused,
];

/// How often each happened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen(BTreeMap<Sight, u64>);

impl Seen {
    pub fn saw(&mut self, sight: Sight) {
        *self.0.entry(sight).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (&sight, count) in &other.0 {
            *self.0.entry(sight).or_default() += count;
        }
    }

    pub fn assert_all_happened(&self) {
        let missing: Vec<Sight> = ALL
            .into_iter()
            .filter(|sight| !self.0.contains_key(sight))
            .collect();
        assert!(
            missing.is_empty(),
            "never seen: {missing:?}; seen: {self:?}"
        );
    }
}
