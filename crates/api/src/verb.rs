//! The verbs of `POST /v1/operations/{id}:verb`, declared once: for the server, the operator
//! commands and the OpenAPI document.
//!
//! A verb is a variant of [`Verb`] and a row of its table. Besides, it needs a [`RecoveryVerb`]
//! with its transition in the engine, a symbol in the Avro schema `recovery`, a description in the
//! OpenAPI document, and a subcommand of `waybill ops`.
//!
//! Deliberately absent: whether an operation accepts a verb. Its scheduler decides that.

use serde::Serialize;
use utoipa::ToSchema;
use waybill_engine::{ProcessState, RecoveryVerb};

/// A verb on one operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// Undo the completed steps and end `Cancelled`. The caller's verb.
    Cancel,
    /// Continue at the step that failed.
    Resubmit,
    /// Undo the completed steps.
    Compensate,
    /// Retry the undo that failed.
    RetryCompensation,
    /// Record that an operator undid a step.
    Undone,
    /// End the operation in its current state.
    Abandon,
    /// Run the operation again as a new one: [`Resubmit`](Self::Resubmit) with the field `asNew`.
    ResubmitAsNew,
}

/// The body of a verb. Each verb has the [fields](Verb::fields) of its row in the table.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VerbRequest {
    /// The reason, for people; at most 1,024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The operator's name, for the history. Defaults to the header Waybill-Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The step that an operator undid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The workflow, if the operation does not exist yet and the cancel reserves its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// Run the operation again as a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_new: Option<bool>,
}

/// What is known about a verb.
struct Facts {
    name: &'static str,
    fields: &'static [&'static str],
    required: &'static [&'static str],
    states: &'static [ProcessState],
    usual_states: &'static [ProcessState],
    leads_to: &'static [ProcessState],
}

impl Verb {
    /// All verbs, in the order in which an operation offers them.
    pub const ALL: [Self; 7] = [
        Self::Cancel,
        Self::Resubmit,
        Self::Compensate,
        Self::RetryCompensation,
        Self::Undone,
        Self::Abandon,
        Self::ResubmitAsNew,
    ];

    const fn facts(self) -> Facts {
        use ProcessState::{
            Cancelled, Compensated, Compensating, CompensationFailed, Error, Processed, Processing,
        };
        match self {
            Self::Cancel => Facts {
                name: "cancel",
                fields: &["reason", "by", "workflow"],
                required: &[],
                states: &[Processing, Processed, Compensating, Error],
                usual_states: &[Processing, Error],
                leads_to: &[Cancelled],
            },
            Self::Resubmit => Facts {
                name: "resubmit",
                fields: &["reason", "by", "asNew"],
                required: &[],
                states: &[Error],
                usual_states: &[Error],
                leads_to: &[Processed],
            },
            Self::Compensate => Facts {
                name: "compensate",
                fields: &["reason", "by"],
                required: &[],
                states: &[Processing, Error],
                usual_states: &[Error],
                leads_to: &[Compensated, Cancelled],
            },
            Self::RetryCompensation => Facts {
                name: "retry-compensation",
                fields: &["reason", "by"],
                required: &[],
                states: &[CompensationFailed],
                usual_states: &[CompensationFailed],
                leads_to: &[Compensated, Cancelled],
            },
            Self::Undone => Facts {
                name: "undone",
                fields: &["reason", "by", "step"],
                required: &["reason", "step"],
                states: &[Compensating, CompensationFailed],
                usual_states: &[CompensationFailed],
                leads_to: &[],
            },
            Self::Abandon => Facts {
                name: "abandon",
                fields: &["reason", "by"],
                required: &["reason"],
                states: &[Error, CompensationFailed],
                usual_states: &[Error, CompensationFailed],
                leads_to: &[],
            },
            Self::ResubmitAsNew => Facts {
                name: "resubmit-as-new",
                states: &[Error, Compensated, Cancelled, CompensationFailed],
                usual_states: &[],
                ..Self::Resubmit.facts()
            },
        }
    }

    /// The name under which an operation offers the verb.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// The name in paths, answers and the history.
    #[must_use]
    pub const fn in_path(self) -> &'static str {
        match self {
            Self::ResubmitAsNew => Self::Resubmit.as_str(),
            other => other.as_str(),
        }
    }

    /// The verbs that have a path of their own.
    pub fn with_path() -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(|verb| verb.as_str() == verb.in_path())
    }

    /// The verb with this name in a path.
    #[must_use]
    pub fn of_path(name: &str) -> Option<Self> {
        Self::with_path().find(|verb| verb.in_path() == name)
    }

    /// Splits the last part of a path into the ID and the name of the verb, both as they are in the
    /// path. `None` if the part has no verb.
    #[must_use]
    pub fn split(part: &str) -> Option<(&str, &str)> {
        part.rsplit_once(':').filter(|(id, _)| !id.is_empty())
    }

    /// The verb at the end of the last part of a path.
    #[must_use]
    pub fn of_part(part: &str) -> Option<Self> {
        let (_, name) = Self::split(part)?;
        Self::of_path(name)
    }

    /// The fields that the body of the verb may have.
    #[must_use]
    pub const fn fields(self) -> &'static [&'static str] {
        self.facts().fields
    }

    /// The fields that the body of the verb must have.
    #[must_use]
    pub const fn required(self) -> &'static [&'static str] {
        self.facts().required
    }

    /// The states for which the verb is meant. An operation in another state does not offer it.
    #[must_use]
    pub const fn states(self) -> &'static [ProcessState] {
        self.facts().states
    }

    /// The states that a run over many operations selects by default. Empty if a person must name
    /// the states.
    #[must_use]
    pub const fn usual_states(self) -> &'static [ProcessState] {
        self.facts().usual_states
    }

    /// The states in which an operation ends if the verb succeeds. Empty if the verb ends nothing,
    /// or ends the operation in its current state.
    #[must_use]
    pub const fn leads_to(self) -> &'static [ProcessState] {
        self.facts().leads_to
    }

    /// The request to the operation's scheduler; `step` is that of [`Undone`](Self::Undone). `None`
    /// for a cancel and a resubmission as new, which are requests of other kinds.
    #[must_use]
    pub fn recovery(self, step: &str) -> Option<RecoveryVerb> {
        match self {
            Self::Cancel | Self::ResubmitAsNew => None,
            Self::Resubmit => Some(RecoveryVerb::Resubmit),
            Self::Compensate => Some(RecoveryVerb::Compensate { seen: None }),
            Self::RetryCompensation => Some(RecoveryVerb::RetryCompensation),
            Self::Undone => Some(RecoveryVerb::Undone {
                step: step.to_owned(),
            }),
            Self::Abandon => Some(RecoveryVerb::Abandon),
        }
    }
}

/// The form of an offered verb after `waybill ops`, as a person types it. The name may be that of a
/// verb of a newer server.
#[must_use]
pub fn as_typed(offered: &str) -> &str {
    const AS_NEW: &str = Verb::ResubmitAsNew.as_str();
    match offered {
        AS_NEW => "resubmit --as-new",
        other => other,
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
        assert_eq!(Verb::of_part("a:b:cancel"), Some(Verb::Cancel));
        assert_eq!(Verb::of_part(":cancel"), None);
    }

    #[test]
    fn every_verb_is_found_by_its_path_and_requires_only_its_own_fields() {
        for verb in Verb::ALL {
            for field in verb.required() {
                assert!(verb.fields().contains(field), "{verb:?}: {field}");
            }
        }
        for verb in Verb::with_path() {
            assert_eq!(Verb::of_path(verb.in_path()), Some(verb));
        }
        assert_eq!(Verb::with_path().count(), Verb::ALL.len() - 1);
        assert_eq!(Verb::of_path("Cancel"), None);
        assert_eq!(Verb::of_path("resubmit-as-new"), None);
    }

    #[test]
    fn a_verb_has_the_name_of_its_record() {
        for verb in Verb::ALL {
            if let Some(recovery) = verb.recovery("drone") {
                assert_eq!(verb.in_path(), recovery.as_str());
            }
        }
    }

    #[test]
    fn a_run_selects_by_default_only_states_for_which_the_verb_is_meant() {
        for verb in Verb::ALL {
            for state in verb.usual_states() {
                assert!(verb.states().contains(state), "{verb:?}: {state:?}");
            }
        }
    }

    #[test]
    fn a_person_types_a_resubmission_as_new_as_a_flag() {
        assert_eq!(as_typed("resubmit-as-new"), "resubmit --as-new");
        assert_eq!(as_typed("abandon"), "abandon");
        assert_eq!(as_typed("of-a-newer-server"), "of-a-newer-server");
    }
}
