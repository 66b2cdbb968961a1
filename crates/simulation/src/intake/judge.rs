//! The rules of the intake, and what runs have to see.

use super::World;

/// A rule that was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntakeRule {
    AcceptedIsInLog,
    RefusedIsNotInLog,
    RepeatHasRow,
    ConflictHasOther,
    OneInFlight,
    OneWaitsForASilentBroker,
    NoNeedlessRefusal,
    ClaimsEnd,
    EveryClientIsAnswered,
}

impl IntakeRule {
    /// The rule, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::AcceptedIsInLog => "an accepted request is in the log",
            Self::RefusedIsNotInLog => "a refused request never gets into the log",
            Self::RepeatHasRow => "a repeat has the row of an equal request",
            Self::ConflictHasOther => "a conflict is with another request",
            Self::OneInFlight => "a process has one request with an id in flight",
            Self::OneWaitsForASilentBroker => "no new request waits for a silent broker",
            Self::NoNeedlessRefusal => "no request is refused while the broker answers",
            Self::ClaimsEnd => "every claim ends with its record",
            Self::EveryClientIsAnswered => "every client gets an answer",
        }
    }
}

/// A situation that must occur now and then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum IntakeSight {
    Shared,
    AcceptedBefore,
    Conflict,
    NotNow,
    Unavailable,
    BackAgain,
    QueueFull,
    GivenUp,
    Left,
    Abandoned,
    CrashInFlight,
    AppendedLate,
    UnknownAndAppended,
    UnknownAndLost,
    OffsetUnknown,
    RefusedByBroker,
    SecondRecord,
    Tombstone,
}

impl IntakeSight {
    pub const ALL: [Self; 18] = [
        Self::Shared,
        Self::AcceptedBefore,
        Self::Conflict,
        Self::NotNow,
        Self::Unavailable,
        Self::BackAgain,
        Self::QueueFull,
        Self::GivenUp,
        Self::Left,
        Self::Abandoned,
        Self::CrashInFlight,
        Self::AppendedLate,
        Self::UnknownAndAppended,
        Self::UnknownAndLost,
        Self::OffsetUnknown,
        Self::RefusedByBroker,
        Self::SecondRecord,
        Self::Tombstone,
    ];
}

impl World {
    pub(super) fn judge_the_end(&mut self) {
        let records: Vec<_> = self.log.values().flatten().copied().collect();
        for (attempt, of) in self.attempts.iter().enumerate() {
            let Some(answer) = &of.answer else {
                let what = format!("attempt {attempt} has no answer");
                return self.fail(IntakeRule::EveryClientIsAnswered, what);
            };
            let decides = of.shares.unwrap_or(attempt);
            let is_there = records.iter().any(|record| record.attempt == decides);
            if answer.is_certain_refusal() && is_there {
                let what = format!("attempt {attempt} got {answer:?}, and {decides} is in the log");
                return self.fail(IntakeRule::RefusedIsNotInLog, what);
            }
        }
        let waits = |of: &super::Client| !of.is_content;
        if let Some(client) = self.clients.iter().position(waits) {
            let what = format!("client {client} never got what it wants");
            return self.fail(IntakeRule::EveryClientIsAnswered, what);
        }
        for (index, process) in self.processes.iter().enumerate() {
            let (open, claims) = process.open();
            if claims > open {
                let what = format!("process {index} has {claims} claims and {open} records");
                return self.fail(IntakeRule::ClaimsEnd, what);
            }
        }
    }
}
