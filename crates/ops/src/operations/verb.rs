//! The verbs, and how an operation shows that a verb was applied.

use std::fmt;

use serde_json::{Map, Value};
use waybill_api::view::{HistoryView, OperationView};
use waybill_engine::{ProcessState, StepState};

/// A change that a person requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    /// Continue at the failed step.
    Resubmit,
    /// Run it again as a new operation.
    ResubmitAsNew,
    /// Undo the completed steps.
    Compensate,
    /// End it in its current state.
    Abandon,
    /// Undo again the steps whose undo failed.
    RetryCompensation,
    /// A person undid this step by hand.
    Undone { step: String },
    /// The caller's own verb: undo the completed steps, and end as cancelled.
    Cancel,
}

/// A verb, with who requests it and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asking {
    pub(super) verb: Verb,
    /// The reason.
    pub(super) reason: Option<String>,
    /// Who requests it; `None` if not given.
    pub(super) by: Option<String>,
}

impl Verb {
    /// Its name in the API's paths.
    pub(super) const fn in_path(&self) -> &'static str {
        match self {
            Self::Resubmit | Self::ResubmitAsNew => "resubmit",
            Self::Compensate => "compensate",
            Self::Abandon => "abandon",
            Self::RetryCompensation => "retry-compensation",
            Self::Undone { .. } => "undone",
            Self::Cancel => "cancel",
        }
    }

    /// Its name among the verbs that an operation offers.
    pub(super) const fn as_offered(&self) -> &'static str {
        match self {
            Self::ResubmitAsNew => "resubmit-as-new",
            other => other.in_path(),
        }
    }

    /// The states for which the verb is usually meant. A run without a state filter selects these.
    /// Empty if a person must name the states.
    pub(super) const fn usual_states(&self) -> &'static [ProcessState] {
        match self {
            Self::Resubmit | Self::Compensate => &[ProcessState::Error],
            Self::Abandon => &[ProcessState::Error, ProcessState::CompensationFailed],
            Self::RetryCompensation | Self::Undone { .. } => &[ProcessState::CompensationFailed],
            Self::Cancel => &[ProcessState::Processing, ProcessState::Error],
            Self::ResubmitAsNew => &[],
        }
    }

    /// Whether the operation is in the state that the verb leads to.
    pub(super) fn is_achieved(&self, operation: &OperationView) -> bool {
        let state = operation.process_state();
        match self {
            Self::Resubmit | Self::ResubmitAsNew => state == Some(ProcessState::Processed),
            Self::Compensate | Self::RetryCompensation => matches!(
                state,
                Some(ProcessState::Compensated | ProcessState::Cancelled)
            ),
            Self::Abandon => operation.abandoned,
            Self::Undone { step } => is_undone(operation, step),
            Self::Cancel => state == Some(ProcessState::Cancelled),
        }
    }

    /// Whether the operation is already on the way to that state before the verb is sent, so that
    /// its history gets no entry for it.
    pub(super) fn is_under_way(&self, operation: &OperationView) -> bool {
        match self {
            Self::Compensate => operation.process_state() == Some(ProcessState::Compensating),
            Self::Abandon => operation.abandoned,
            Self::Undone { step } => is_undone(operation, step),
            Self::Resubmit | Self::ResubmitAsNew | Self::RetryCompensation | Self::Cancel => false,
        }
    }

    /// Whether a history entry records this verb.
    pub(super) fn matches(&self, entry: &HistoryView) -> bool {
        match self {
            Self::Undone { step } => entry.verb.strip_prefix("undone ") == Some(step),
            other => entry.verb == other.in_path(),
        }
    }
}

fn is_undone(operation: &OperationView, step: &str) -> bool {
    let mut steps = operation.steps.iter();
    steps.any(|found| *found.name == *step && found.state == StepState::Compensated.as_str())
}

/// The verb in words.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResubmitAsNew => f.write_str("resubmit as new"),
            Self::Undone { step } => write!(f, "undone {step}"),
            other => f.write_str(other.in_path()),
        }
    }
}

impl Asking {
    /// The body of the request.
    pub(super) fn body(&self) -> Value {
        let mut body = Map::new();
        let texts = [("reason", &self.reason), ("by", &self.by)];
        for (name, text) in texts {
            if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
                body.insert(name.to_owned(), text.into());
            }
        }
        match &self.verb {
            Verb::ResubmitAsNew => {
                body.insert("asNew".to_owned(), true.into());
            }
            Verb::Undone { step } => {
                body.insert("step".to_owned(), step.as_str().into());
            }
            Verb::Resubmit
            | Verb::Compensate
            | Verb::Abandon
            | Verb::RetryCompensation
            | Verb::Cancel => {}
        }
        Value::Object(body)
    }
}

/// The idempotency key: equal for equal requests on the same seen state, and different once the
/// operation has changed. The API adds operation and verb. `None` if the operation was not seen.
pub(super) fn key(seen: &OperationView) -> Option<String> {
    Some(format!("seen-{}", seen.updated_at.as_deref()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waybill_api::view::StepView;

    use super::*;

    fn operation(state: &str) -> OperationView {
        OperationView {
            state: state.to_owned().into(),
            ..OperationView::default()
        }
    }

    #[test]
    fn each_verb_has_its_expected_final_states() {
        let ends = |verb: Verb| {
            let all = ProcessState::ALL.map(ProcessState::as_str);
            all.into_iter()
                .filter(|state| verb.is_achieved(&operation(state)))
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(Verb::Resubmit), ["Processed"]);
        assert_eq!(ends(Verb::ResubmitAsNew), ["Processed"]);
        assert_eq!(ends(Verb::Compensate), ["Compensated", "Cancelled"]);
        assert_eq!(ends(Verb::RetryCompensation), ["Compensated", "Cancelled"]);
        assert_eq!(ends(Verb::Cancel), ["Cancelled"]);
        assert_eq!(ends(Verb::Abandon), [""; 0]);
    }

    #[test]
    fn a_verb_without_further_effect_is_already_done() {
        let abandoned = OperationView {
            abandoned: true,
            ..operation("Error")
        };
        assert!(Verb::Abandon.is_achieved(&abandoned) && Verb::Abandon.is_under_way(&abandoned));
        let verb = |step: &str| Verb::Undone {
            step: step.to_owned(),
        };
        let step = |name: &str, state: &str| StepView {
            name: name.into(),
            state: state.to_owned().into(),
            ..StepView::default()
        };
        let partly = OperationView {
            steps: vec![step("a", "Compensated"), step("b", "Failed")],
            ..operation("CompensationFailed")
        };
        assert!(verb("a").is_achieved(&partly) && verb("a").is_under_way(&partly));
        assert!(!verb("b").is_achieved(&partly) && !verb("c").is_achieved(&partly));
        assert!(Verb::Compensate.is_under_way(&operation("Compensating")));
        assert!(!Verb::Compensate.is_under_way(&operation("Error")));
    }

    #[test]
    fn a_history_entry_matches_a_verb_by_name_and_step_only() {
        let entry = |verb: &str| HistoryView {
            verb: verb.to_owned(),
            ..HistoryView::default()
        };
        let undone = Verb::Undone {
            step: "a".to_owned(),
        };
        assert!(undone.matches(&entry("undone a")));
        assert!(!undone.matches(&entry("undone b")) && !undone.matches(&entry("undone")));
        assert!(Verb::Resubmit.matches(&entry("resubmit")));
        assert!(!Verb::Resubmit.matches(&entry("resubmitted 1")));
    }

    #[test]
    fn a_body_has_only_the_given_fields() {
        let asking = |verb, reason: Option<&str>, by: Option<&str>| Asking {
            verb,
            reason: reason.map(str::to_owned),
            by: by.map(str::to_owned),
        };
        let step = "drone".to_owned();
        for (asking, body) in [
            (asking(Verb::Cancel, None, None), json!({})),
            (asking(Verb::Cancel, Some(""), Some("")), json!({})),
            (
                asking(Verb::ResubmitAsNew, None, Some("kim")),
                json!({"by": "kim", "asNew": true}),
            ),
            (
                asking(Verb::Undone { step }, Some("by hand"), None),
                json!({"reason": "by hand", "step": "drone"}),
            ),
        ] {
            assert_eq!(asking.body(), body);
        }
    }

    #[test]
    fn the_idempotency_key_changes_only_with_the_operation() {
        let at = |time: &str| OperationView {
            updated_at: Some(time.to_owned()),
            ..operation("Error")
        };
        assert_eq!(key(&at("1")), key(&at("1")));
        assert_ne!(key(&at("1")), key(&at("2")));
        assert_eq!(key(&operation("Pending")), None);
    }
}
