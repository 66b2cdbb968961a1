//! The entries of an operation's path: one for each request to an agent.

use std::fmt;

use waybill_engine::{Action, StepRequest};

/// A request: `STEP`, `undo STEP` or `probe STEP`, with `#N` for the attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PathEntry {
    pub(crate) action: Action,
    pub(crate) step: String,
    /// `None` in an expectation: any.
    pub(crate) attempt: Option<u32>,
}

impl PathEntry {
    /// The entry of an expectation; `None` if it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (step, attempt) = match text.split_once('#') {
            Some((step, attempt)) => (step, Some(attempt.parse().ok()?)),
            None => (text, None),
        };
        let words: Vec<&str> = step.split(' ').collect();
        let (action, step) = match words.as_slice() {
            [step] => (Action::Run, step),
            ["undo", step] => (Action::Compensate, step),
            ["probe", step] => (Action::Probe, step),
            _ => return None,
        };
        Some(Self {
            action,
            step: (*step).to_owned(),
            attempt,
        })
    }

    /// The entry of a request.
    pub(crate) fn of(request: &StepRequest) -> Self {
        Self {
            action: request.action,
            step: request.step.to_string(),
            attempt: Some(request.attempt.0),
        }
    }

    /// Whether a request fits this expectation.
    pub(crate) fn allows(&self, actual: &Self) -> bool {
        let is_attempt = self.attempt.is_none() || self.attempt == actual.attempt;
        is_attempt && self.action == actual.action && self.step == actual.step
    }
}

impl fmt::Display for PathEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            Action::Run => "",
            Action::Compensate => "undo ",
            Action::Probe => "probe ",
        })?;
        f.write_str(&self.step)?;
        match self.attempt {
            Some(attempt) => write!(f, "#{attempt}"),
            None => Ok(()),
        }
    }
}
