//! The rules whose violation is visible from outside.

use std::fmt;
use std::str::FromStr;

/// A rule of the topic contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// A request is answered with a readable reply.
    Answer,
    /// The reply is in the partition that the request names, under the operation's ID.
    Address,
    /// The reply repeats operation, step, attempt, epoch and action.
    Echo,
    /// An attempt that is delivered more than once is answered each time, with the same outputs.
    Repeat,
    /// Overlapping attempts at one step have one effect: their outputs are equal.
    Overlap,
    /// A request of an older epoch after a newer one is answered correctly, too.
    OldEpoch,
    /// A request whose complete-by has passed is neither started nor answered.
    Late,
    /// No reply arrives after its complete-by.
    Deadline,
    /// A probe changes nothing, and reports whether the effect exists.
    Probe,
    /// An undo leaves no effect.
    Undo,
    /// Undoing an undone step succeeds.
    UndoRepeated,
    /// Undoing a step that was never performed succeeds.
    UndoFirst,
    /// An undone step stays undone: the step is refused for good under that key.
    Tombstone,
    /// The same if the undo and the step arrive concurrently.
    UndoRace,
    /// A step that the agent does not know is answered, and has no effect.
    UnknownStep,
    /// A poison record does not stop the records after it.
    Poison,
    /// The poison record is on the dead-letter topic, unchanged, with its position and the reason.
    DeadLetter,
    /// The agent does not guess at a record whose schema it cannot know.
    UnknownSchema,
    /// An unsuccessful outcome gives its reason, with a stable code and a message.
    Errors,
    /// If a reply carries a trace context, it is the request's.
    Trace,
    /// In a burst of requests, each is answered by its complete-by.
    Burst,
    /// The agent commits offsets, and only after answered requests.
    Commit,
    /// The service's own counts agree: at most one effect per key, and none that was undone.
    Effects,
}

impl Rule {
    /// All rules, in the order of the report.
    pub const ALL: [Self; 23] = [
        Self::Answer,
        Self::Address,
        Self::Echo,
        Self::Repeat,
        Self::Overlap,
        Self::OldEpoch,
        Self::Late,
        Self::Deadline,
        Self::Probe,
        Self::Undo,
        Self::UndoRepeated,
        Self::UndoFirst,
        Self::Tombstone,
        Self::UndoRace,
        Self::UnknownStep,
        Self::Poison,
        Self::DeadLetter,
        Self::UnknownSchema,
        Self::Errors,
        Self::Trace,
        Self::Burst,
        Self::Commit,
        Self::Effects,
    ];

    /// Its name, for programs and flags: kebab-case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Address => "address",
            Self::Echo => "echo",
            Self::Repeat => "repeat",
            Self::Overlap => "overlap",
            Self::OldEpoch => "old-epoch",
            Self::Late => "late",
            Self::Deadline => "deadline",
            Self::Probe => "probe",
            Self::Undo => "undo",
            Self::UndoRepeated => "undo-repeated",
            Self::UndoFirst => "undo-first",
            Self::Tombstone => "tombstone",
            Self::UndoRace => "undo-race",
            Self::UnknownStep => "unknown-step",
            Self::Poison => "poison",
            Self::DeadLetter => "dead-letter",
            Self::UnknownSchema => "unknown-schema",
            Self::Errors => "errors",
            Self::Trace => "trace",
            Self::Burst => "burst",
            Self::Commit => "commit",
            Self::Effects => "effects",
        }
    }

    /// The requirement, for people.
    #[must_use]
    pub const fn demand(self) -> &'static str {
        match self {
            Self::Answer => "each request gets a reply that can be decoded",
            Self::Address => {
                "the reply is in the requested partition, with the operation's id as its key"
            }
            Self::Echo => "the reply repeats operation, step, attempt, epoch, action and nonce",
            Self::Repeat => "a redelivered attempt is answered again, with the same outputs",
            Self::Overlap => "overlapping attempts make one effect, and have the same outputs",
            Self::OldEpoch => "a request of an older epoch after a newer one is answered correctly",
            Self::Late => "a request past its complete-by is neither started nor answered",
            Self::Deadline => "no reply arrives after its complete-by",
            Self::Probe => "a probe changes nothing, and reports whether the effect exists",
            Self::Undo => "an undo leaves no effect",
            Self::UndoRepeated => "undoing an undone step succeeds",
            Self::UndoFirst => "undoing a step that was never performed succeeds",
            Self::Tombstone => "an undone step is refused permanently",
            Self::UndoRace => {
                "a step that races with its undo leaves no effect, and is refused afterwards"
            }
            Self::UnknownStep => "an unknown step is answered, and does no harm",
            Self::Poison => "an unreadable record does not block the records after it",
            Self::DeadLetter => "an unreadable record is copied unchanged to the dead-letter topic",
            Self::UnknownSchema => "a record of an unknown schema is not decoded by guessing",
            Self::Errors => "a failure has a stable code and a message",
            Self::Trace => "a trace context in a reply is that of its request",
            Self::Burst => "each of many concurrent requests is answered in time",
            Self::Commit => "offsets are committed, and only after the replies",
            Self::Effects => "the service has one effect per key, and none after an undo",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No rule has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown rule {name:?}; the rules are {}", names())]
pub struct RuleUnknown {
    /// The name.
    pub name: String,
}

fn names() -> String {
    Rule::ALL.map(Rule::name).join(", ")
}

impl FromStr for Rule {
    type Err = RuleUnknown;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut rules = Self::ALL.into_iter();
        rules
            .find(|rule| rule.name() == name)
            .ok_or_else(|| RuleUnknown {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name() {
        for rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
        }
        let error = "commits".parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains("burst, commit, effects"), "{error}");
    }
}
