//! Payloads of operations, as the API shows them: the input, and the outputs of the steps.
//!
//! What must hold: no caller sees a field of a payload that the workflow marks as sensitive,
//! whatever its scopes; and the payload of an unknown workflow is withheld, because its sensitive
//! fields are unknown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;
use waybill_engine::{Outputs, Step, Workflow};

/// What replaces a sensitive value.
pub const MASK: &str = "***";

/// Why a payload is withheld from a caller without the scope for it.
pub const NO_SCOPE: &str = "The token lacks the scope payload.";

/// Why a payload that may have unknown sensitive fields is withheld.
pub const NO_WORKFLOW: &str = "This server does not have this version of the workflow, so it cannot tell which fields are sensitive.";

/// How payloads of a workflow are shown.
#[derive(Clone, Copy, Debug)]
pub enum Payloads<'a> {
    /// With the sensitive fields of this workflow masked.
    Masked(&'a Workflow),
    /// Not at all, for this reason.
    Withheld(&'static str),
}

impl<'a> Payloads<'a> {
    /// How payloads of this workflow are shown to a caller with or without the scope for them.
    #[must_use]
    pub fn of(workflow: Option<&'a Workflow>, has_scope: bool) -> Self {
        match workflow {
            _ if !has_scope => Self::Withheld(NO_SCOPE),
            None => Self::Withheld(NO_WORKFLOW),
            Some(workflow) => Self::Masked(workflow),
        }
    }

    /// Why they are withheld; `None` if they are shown.
    #[must_use]
    pub fn withheld(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Masked(_) => None,
            Self::Withheld(why) => Some(why.into()),
        }
    }

    /// The input, if it is shown.
    #[must_use]
    pub fn input(self, input: &[u8]) -> Option<Value> {
        let Self::Masked(workflow) = self else {
            return None;
        };
        let mut value: Value = serde_json::from_slice(input).ok()?;
        for pointer in workflow.sensitive() {
            if let Some(field) = value.pointer_mut(pointer) {
                *field = MASK.into();
            }
        }
        Some(value)
    }

    /// The input as stored, if it is shown and nothing in it is sensitive; otherwise as
    /// [`input`](Self::input) shows it.
    #[must_use]
    pub fn raw_input(self, input: &[u8]) -> Option<Box<RawValue>> {
        match self {
            Self::Masked(workflow) if workflow.sensitive().is_empty() => {
                serde_json::from_slice(input).ok()
            }
            _ => serde_json::value::to_raw_value(&self.input(input)?).ok(),
        }
    }

    /// The outputs of the step with this index, if they are shown and there are any.
    #[must_use]
    pub fn outputs(self, step: usize, outputs: &Outputs) -> Option<BTreeMap<String, String>> {
        let step = match self {
            Self::Masked(workflow) => workflow.steps().get(step)?,
            Self::Withheld(_) => return None,
        };
        let shown = outputs.iter().map(|(name, value)| {
            let is_sensitive = is_sensitive(step, name);
            let value = if is_sensitive { MASK } else { value };
            (name.clone(), value.to_owned())
        });
        Some(shown.collect()).filter(|shown: &BTreeMap<_, _>| !shown.is_empty())
    }
}

/// Whether a sensitive pointer names this output, or a part of it.
fn is_sensitive(step: &Step, output: &str) -> bool {
    let mut pointers = step.sensitive.iter();
    pointers.any(|pointer| {
        let mut segments = pointer.split('/').skip(1);
        let first = segments.next().unwrap_or_default();
        first.replace("~1", "/").replace("~0", "~") == output
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waybill_engine::{StepDefinition, WorkflowDefinition};

    use super::*;

    fn workflow() -> Workflow {
        let pay = StepDefinition {
            sensitive: vec!["/token".to_owned(), "/a~1b/c".to_owned()],
            ..StepDefinition::new("pay", "payment")
        };
        let steps = vec![pay, StepDefinition::new("ship", "shipping")];
        let definition = WorkflowDefinition {
            sensitive: vec!["/card".to_owned(), "/people/1/name".to_owned()],
            ..WorkflowDefinition::new("order", 1, steps)
        };
        definition.try_into().unwrap()
    }

    #[test]
    fn sensitive_fields_are_masked_and_the_others_are_shown() {
        let workflow = workflow();
        let shown = Payloads::of(Some(&workflow), true);
        let input =
            br#"{"card": {"number": "4111"}, "people": [{"name": "a"}, {"name": "b"}], "n": 7}"#;
        let masked = json!({"card": "***", "people": [{"name": "a"}, {"name": "***"}], "n": 7});
        assert_eq!(shown.input(input), Some(masked.clone()));
        let raw = shown.raw_input(input).unwrap();
        assert_eq!(serde_json::from_str::<Value>(raw.get()).unwrap(), masked);
        assert_eq!(shown.input(b"{}"), Some(json!({})));

        let outputs = ["token", "a/b", "receipt"].map(|name| (name.to_owned(), "7".to_owned()));
        let of_pay = shown.outputs(0, &outputs.to_vec()).unwrap();
        assert_eq!(
            json!(of_pay),
            json!({"token": "***", "a/b": "***", "receipt": "7"})
        );
        let of_ship = shown.outputs(1, &outputs.to_vec()).unwrap();
        assert_eq!(
            json!(of_ship),
            json!({"token": "7", "a/b": "7", "receipt": "7"})
        );
        assert_eq!(shown.outputs(0, &Vec::new()), None);
        assert_eq!(shown.withheld(), None);
    }

    #[test]
    fn a_payload_without_its_scope_or_its_workflow_is_withheld() {
        let workflow = workflow();
        for (payloads, reason) in [
            (Payloads::of(Some(&workflow), false), NO_SCOPE),
            (Payloads::of(None, false), NO_SCOPE),
            (Payloads::of(None, true), NO_WORKFLOW),
        ] {
            assert_eq!(payloads.withheld().as_deref(), Some(reason));
            assert_eq!(payloads.input(b"{}"), None);
            assert!(payloads.raw_input(b"{}").is_none());
            let outputs = vec![("a".to_owned(), "1".to_owned())];
            assert_eq!(payloads.outputs(0, &outputs), None);
        }
    }
}
