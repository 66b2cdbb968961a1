//! The verbs of `POST /v1/operations/{id}:verb`.

/// What can be asked of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Undo what was done and end `Cancelled`: its caller's word.
    Cancel,
    /// Go on at the step that failed, or run it again as a new operation.
    Resubmit,
    /// Undo what was done.
    Compensate,
    /// Leave it as it stands.
    Abandon,
    /// Undo again what could not be undone.
    RetryCompensation,
    /// A person undid a step.
    Undone,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Cancel,
        Self::Resubmit,
        Self::Compensate,
        Self::Abandon,
        Self::RetryCompensation,
        Self::Undone,
    ];

    /// Its name: in paths, answers and the history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Resubmit => "resubmit",
            Self::Compensate => "compensate",
            Self::Abandon => "abandon",
            Self::RetryCompensation => "retry-compensation",
            Self::Undone => "undone",
        }
    }

    /// Splits the last part of a path into the id and the verb behind it, both as they are in the
    /// path; `None` if no verb is asked for.
    pub fn split(part: &str) -> Option<(&str, &str)> {
        part.rsplit_once(':').filter(|(id, _)| !id.is_empty())
    }

    /// Whether a part of a path ends with a verb.
    pub fn is_asked(part: &str) -> bool {
        Self::split(part).is_some_and(|(_, verb)| Self::named(verb).is_some())
    }

    /// The verb of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }

    /// The fields that its body may have.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Cancel => &["reason", "by", "workflow"],
            Self::Resubmit => &["reason", "by", "asNew"],
            Self::Compensate | Self::Abandon | Self::RetryCompensation => &["reason", "by"],
            Self::Undone => &["reason", "by", "step"],
        }
    }

    /// Those of them that it must have.
    pub const fn required(self) -> &'static [&'static str] {
        match self {
            Self::Cancel | Self::Resubmit | Self::Compensate | Self::RetryCompensation => &[],
            Self::Abandon => &["reason"],
            Self::Undone => &["reason", "step"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_stands_behind_the_last_colon_of_an_id() {
        assert_eq!(Verb::split("a:b:cancel"), Some(("a:b", "cancel")));
        assert_eq!(Verb::split("a%3Ab:cancel"), Some(("a%3Ab", "cancel")));
        assert_eq!(Verb::split("cancel"), None);
        assert_eq!(Verb::split(":cancel"), None);
    }

    #[test]
    fn every_verb_is_found_by_its_name_and_requires_only_what_it_may_have() {
        for verb in Verb::ALL {
            assert_eq!(Verb::named(verb.as_str()), Some(verb));
            for field in verb.required() {
                assert!(verb.fields().contains(field), "{verb:?}: {field}");
            }
        }
        assert_eq!(Verb::named("Cancel"), None);
    }
}
