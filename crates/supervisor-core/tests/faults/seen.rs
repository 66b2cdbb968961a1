//! What happened in runs: faults that never happen test nothing.

/// Something that runs count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    TakeOvers,
    LostLeases,
    FailedOwnerships,
    FailedPasses,
    FailedAudits,
    FailuresThatApplied,
    UnreadableRows,
    Crashes,
    Pauses,
    Stops,
    WaitsForTurns,
    EntriesWrittenAgain,
    CursorMoves,
    Audits,
    Woken,
}

impl Sight {
    const ALL: [Self; 15] = [
        Self::TakeOvers,
        Self::LostLeases,
        Self::FailedOwnerships,
        Self::FailedPasses,
        Self::FailedAudits,
        Self::FailuresThatApplied,
        Self::UnreadableRows,
        Self::Crashes,
        Self::Pauses,
        Self::Stops,
        Self::WaitsForTurns,
        Self::EntriesWrittenAgain,
        Self::CursorMoves,
        Self::Audits,
        Self::Woken,
    ];
}

/// How often each thing happened.
#[derive(PartialEq, Eq, Default, Debug)]
pub struct Seen([u64; Sight::ALL.len()]);

impl Seen {
    pub fn count(&mut self, sight: Sight) {
        self.0[sight as usize] += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    pub fn assert_all_happened(&self) {
        for sight in Sight::ALL {
            assert!(self.0[sight as usize] > 50, "{sight:?} hardly happens");
        }
    }
}
