//! The verbs of `POST /v1/operations/{id}:verb`.

/// A verb on one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Undo the completed steps and end `Cancelled`. The caller's verb.
    Cancel,
    /// Continue at the step that failed, or run it again as a new operation.
    Resubmit,
    /// Undo the completed steps.
    Compensate,
    /// End the operation in its current state.
    Abandon,
    /// Retry the undo that failed.
    RetryCompensation,
    /// Record that an operator undid a step.
    Undone,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 6] = [
        Self::Cancel,
        Self::Resubmit,
        Self::Compensate,
        Self::Abandon,
        Self::RetryCompensation,
        Self::Undone,
    ];

    /// The name of the verb: in paths, answers and the history.
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

    /// Splits the last part of a path into the id and the verb, both as they are in the path.
    /// `None` if the part has no verb.
    pub fn split(part: &str) -> Option<(&str, &str)> {
        part.rsplit_once(':').filter(|(id, _)| !id.is_empty())
    }

    /// Whether a part of a path ends with a known verb.
    pub fn is_asked(part: &str) -> bool {
        Self::split(part).is_some_and(|(_, verb)| Self::named(verb).is_some())
    }

    /// The verb with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }

    /// The fields that the body of the verb may have.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Cancel => &["reason", "by", "workflow"],
            Self::Resubmit => &["reason", "by", "asNew"],
            Self::Compensate | Self::Abandon | Self::RetryCompensation => &["reason", "by"],
            Self::Undone => &["reason", "by", "step"],
        }
    }

    /// The fields that the body of the verb must have.
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
    fn the_verb_follows_the_last_colon_of_an_id() {
        assert_eq!(Verb::split("a:b:cancel"), Some(("a:b", "cancel")));
        assert_eq!(Verb::split("a%3Ab:cancel"), Some(("a%3Ab", "cancel")));
        assert_eq!(Verb::split("cancel"), None);
        assert_eq!(Verb::split(":cancel"), None);
    }

    #[test]
    fn every_verb_is_found_by_its_name_and_requires_only_its_own_fields() {
        for verb in Verb::ALL {
            assert_eq!(Verb::named(verb.as_str()), Some(verb));
            for field in verb.required() {
                assert!(verb.fields().contains(field), "{verb:?}: {field}");
            }
        }
        assert_eq!(Verb::named("Cancel"), None);
    }
}
