//! The history of a run, for people: kept only when a failed seed is replayed.

use std::fmt::Write as _;

use waybill_engine::{OperationId, Timestamp};

/// A rule that was broken. The design's section 3 states the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Lost,
    EffectTwice,
    WrongEffects,
    EffectStands,
    CheckpointAhead,
    RequestPassedOver,
    LateStart,
    LateAnswer,
    EntryPassedOver,
    FailurePassedOver,
    MessageBeforeRow,
    OneOwner,
    NotAskedFor,
    TwoVersions,
    AttemptCutShort,
    ReplyPassedOver,
    AppliedTwice,
    Order,
    NoReason,
    NoAlert,
    OwnerNotNotified,
    NoFailedRecord,
    NotVisible,
    NotAnnounced,
    NotAnswered,
    CancelForgotten,
    Stamps,
    Bounds,
    Contract,
}

impl Rule {
    /// The rule, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Lost => "what was accepted ends, or is parked",
            Self::EffectTwice => "a step has one effect",
            Self::WrongEffects => "a processed operation has the effects of its steps",
            Self::EffectStands => "an undone operation has no effect left",
            Self::CheckpointAhead => "a checkpoint never passes unfinished work",
            Self::RequestPassedOver => "no commit passes a step request that is not done",
            Self::LateStart => "no attempt starts past complete-by",
            Self::LateAnswer => "nothing is answered past complete-by",
            Self::EntryPassedOver => "a cursor never passes an entry without its recovery",
            Self::FailurePassedOver => "no permanent failure is passed without its decision",
            Self::MessageBeforeRow => "no message before its row",
            Self::OneOwner => "no message once another owner has the lease",
            Self::NotAskedFor => "every intent of a row is requested",
            Self::TwoVersions => "an event has one version",
            Self::AttemptCutShort => "an attempt ends by its reply or its time",
            Self::ReplyPassedOver => "no time-out while the reply waits",
            Self::AppliedTwice => "a recovery is applied once",
            Self::Order => "steps begin, and are undone, in their order",
            Self::NoReason => "every parked operation has a reason",
            Self::NoAlert => "every parked operation raised an alert",
            Self::OwnerNotNotified => "every owner who asked is notified of the end",
            Self::NoFailedRecord => "every permanent failure is on failed-operations",
            Self::NotVisible => "lingering and parked operations are in the attention table",
            Self::NotAnnounced => "every end is announced",
            Self::NotAnswered => "every request is answered or noted",
            Self::CancelForgotten => "a cancel wins, or is refused",
            Self::Stamps => "stamps grow within their lease's limits",
            Self::Bounds => "no more is admitted than there is room for",
            Self::Contract => "the engine keeps its contract",
        }
    }
}

/// A broken rule, and the operation that it concerns.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub operation: Option<OperationId>,
    pub what: String,
}

#[derive(Debug, Default)]
pub struct History {
    pub is_kept: bool,
    lines: Vec<(Timestamp, Option<OperationId>, String)>,
}

impl History {
    /// Adds a line about one operation, or about all of them.
    pub fn note(
        &mut self,
        now: Timestamp,
        operation: Option<OperationId>,
        line: impl FnOnce() -> String,
    ) {
        if self.is_kept {
            self.lines.push((now, operation, line()));
        }
    }

    /// The history of an operation and its surroundings.
    pub fn of(&self, operation: Option<OperationId>, start: Timestamp) -> String {
        let mut text = String::new();
        for (at, about, line) in &self.lines {
            if about.is_none() || operation.is_none() || *about == operation {
                let since = at.since(start);
                let mark = if about.is_none() { '*' } else { ' ' };
                writeln!(text, "{:>12.6}s {mark} {line}", since.as_secs_f64()).unwrap();
            }
        }
        text
    }
}
