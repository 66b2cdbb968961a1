//! Bugs that can be planted, one at a time, to test whether the judge detects them. Each corrupts an
//! input or the execution of an effect; the loop itself has no switch.

use crate::judge::Rule;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    SendBeforeDurable,
    UnknownCountsAsDurable,
    SettleBeforeAcknowledged,
    CheckpointEarly,
    SendAfterLease,
    ClockStandsStill,
    RenewalAssumed,
    TakeWithoutWaiting,
    ForgetStampFloor,
    SkipLogCheck,
}

impl Bug {
    pub const ALL: [Self; 10] = [
        Self::SendBeforeDurable,
        Self::UnknownCountsAsDurable,
        Self::SettleBeforeAcknowledged,
        Self::CheckpointEarly,
        Self::SendAfterLease,
        Self::ClockStandsStill,
        Self::RenewalAssumed,
        Self::TakeWithoutWaiting,
        Self::ForgetStampFloor,
        Self::SkipLogCheck,
    ];

    /// Describes the fault for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::SendBeforeDurable => "A commit is reported as durable before it is written",
            Self::UnknownCountsAsDurable => "A commit of unknown outcome is reported as durable",
            Self::SettleBeforeAcknowledged => {
                "Messages are reported as acknowledged when they are sent"
            }
            Self::CheckpointEarly => "The checkpoint moves over everything that was read",
            Self::SendAfterLease => "Messages are sent although the lease has ended meanwhile",
            Self::ClockStandsStill => "The clock of leases stands still during a pause",
            Self::RenewalAssumed => "A renewal of unknown outcome is reported as written",
            Self::TakeWithoutWaiting => {
                "A lease is taken without waiting for its owner to be silent"
            }
            Self::ForgetStampFloor => "A new owner's stamps may be below its predecessor's",
            Self::SkipLogCheck => "A log that begins behind its checkpoint is accepted",
        }
    }

    /// The rules by which it may be caught.
    pub fn breaks(self) -> &'static [Rule] {
        match self {
            Self::SendBeforeDurable | Self::UnknownCountsAsDurable => &[Rule::RowsFirst],
            Self::SettleBeforeAcknowledged => &[Rule::NothingPassed, Rule::AllEnd],
            Self::CheckpointEarly => &[Rule::NothingPassed],
            Self::SkipLogCheck => &[Rule::NothingPassed, Rule::AllEnd],
            Self::SendAfterLease
            | Self::ClockStandsStill
            | Self::RenewalAssumed
            | Self::TakeWithoutWaiting => &[Rule::OneOwner],
            Self::ForgetStampFloor => &[Rule::RowsFirst, Rule::NothingPassed],
        }
    }
}
