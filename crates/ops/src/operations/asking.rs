//! A verb with its arguments, and how an operation shows that it was applied.

use waybill_api::verb::{Verb, VerbRequest};
use waybill_api::view::{HistoryView, OperationView};
use waybill_engine::{ProcessState, StepState};

/// A verb, with its step, who requests it and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asking {
    pub(super) verb: Verb,
    /// The step that a person undid; only for [`Verb::Undone`].
    pub(super) step: Option<String>,
    /// The reason.
    pub(super) reason: Option<String>,
    /// Who requests it; `None` if not given.
    pub(super) by: Option<String>,
}

impl Asking {
    /// The body of the request.
    pub(super) fn body(&self) -> VerbRequest {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        VerbRequest {
            reason: given(&self.reason),
            by: given(&self.by),
            step: given(&self.step),
            as_new: (self.verb == Verb::ResubmitAsNew).then_some(true),
            ..VerbRequest::default()
        }
    }

    /// Whether the operation is in the state that the verb leads to.
    pub(super) fn is_achieved(&self, operation: &OperationView) -> bool {
        match self.verb {
            Verb::Abandon => operation.abandoned,
            Verb::Undone => self.is_step_undone(operation),
            verb => {
                let state = operation.process_state();
                state.is_some_and(|state| verb.leads_to().contains(&state))
            }
        }
    }

    /// Whether the operation is already on the way to that state before the verb is sent, so that
    /// its history gets no entry for it.
    pub(super) fn is_under_way(&self, operation: &OperationView) -> bool {
        match self.verb {
            Verb::Compensate => operation.process_state() == Some(ProcessState::Compensating),
            Verb::Abandon => operation.abandoned,
            Verb::Undone => self.is_step_undone(operation),
            _ => false,
        }
    }

    /// Whether a history entry records this verb.
    pub(super) fn matches(&self, entry: &HistoryView) -> bool {
        let verb = self.verb.in_path();
        match &self.step {
            Some(step) => entry.verb == format!("{verb} {step}"),
            None => entry.verb == verb,
        }
    }

    fn is_step_undone(&self, operation: &OperationView) -> bool {
        let mut steps = operation.steps.iter();
        steps.any(|found| {
            self.step.as_deref() == Some(&*found.name)
                && found.state == StepState::Compensated.as_str()
        })
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

    fn asking(verb: Verb, step: Option<&str>) -> Asking {
        Asking {
            verb,
            step: step.map(str::to_owned),
            reason: None,
            by: None,
        }
    }

    #[test]
    fn each_verb_has_its_expected_final_states() {
        let ends = |verb: Verb| {
            let all = ProcessState::ALL.map(ProcessState::as_str);
            all.into_iter()
                .filter(|state| asking(verb, None).is_achieved(&operation(state)))
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
        let abandon = asking(Verb::Abandon, None);
        let abandoned = OperationView {
            abandoned: true,
            ..operation("Error")
        };
        assert!(abandon.is_achieved(&abandoned) && abandon.is_under_way(&abandoned));
        let undone = |step: &str| asking(Verb::Undone, Some(step));
        let step = |name: &str, state: &str| StepView {
            name: name.into(),
            state: state.to_owned().into(),
            ..StepView::default()
        };
        let partly = OperationView {
            steps: vec![step("a", "Compensated"), step("b", "Failed")],
            ..operation("CompensationFailed")
        };
        assert!(undone("a").is_achieved(&partly) && undone("a").is_under_way(&partly));
        assert!(!undone("b").is_achieved(&partly) && !undone("c").is_achieved(&partly));
        let compensate = asking(Verb::Compensate, None);
        assert!(compensate.is_under_way(&operation("Compensating")));
        assert!(!compensate.is_under_way(&operation("Error")));
    }

    #[test]
    fn a_history_entry_matches_a_verb_by_name_and_step_only() {
        let entry = |verb: &str| HistoryView {
            verb: verb.to_owned(),
            ..HistoryView::default()
        };
        let undone = asking(Verb::Undone, Some("a"));
        assert!(undone.matches(&entry("undone a")));
        assert!(!undone.matches(&entry("undone b")) && !undone.matches(&entry("undone")));
        let resubmit = asking(Verb::Resubmit, None);
        assert!(resubmit.matches(&entry("resubmit")));
        assert!(!resubmit.matches(&entry("resubmitted 1")));
    }

    #[test]
    fn a_body_has_only_the_given_fields() {
        let asking = |verb, step, reason: Option<&str>, by: Option<&str>| Asking {
            reason: reason.map(str::to_owned),
            by: by.map(str::to_owned),
            ..asking(verb, step)
        };
        for (asking, body) in [
            (asking(Verb::Cancel, None, None, None), json!({})),
            (asking(Verb::Cancel, None, Some(""), Some("")), json!({})),
            (
                asking(Verb::ResubmitAsNew, None, None, Some("kim")),
                json!({"by": "kim", "asNew": true}),
            ),
            (
                asking(Verb::Undone, Some("drone"), Some("by hand"), None),
                json!({"reason": "by hand", "step": "drone"}),
            ),
        ] {
            assert_eq!(serde_json::to_value(asking.body()).unwrap(), body);
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
