//! The line that reports the outcome of a verb for one operation.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use waybill_ingestion::as_typed;
use waybill_telemetry::visible::{escaped, to_json};

use super::verb::Verb;
use super::wire::{Failure, Operation};
use crate::shown::Output;

/// What became of an asking.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// It is on its way; what becomes of it is not waited for.
    Asked,
    /// It came to what was asked.
    Done,
    /// It came to something else: it failed again, or was undone where it was to go on.
    Failed,
    /// Its state forbade it.
    Refused,
    /// It is still under way after the time that was given.
    Open,
    /// It was not asked.
    Skipped,
}

impl Outcome {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Open => "still open",
            Self::Skipped => "skipped",
        }
    }
}

/// What is said of one operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) id: String,
    pub(super) verb: &'static str,
    pub(super) outcome: Outcome,
    /// Its state when it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    /// A person ended it in that state.
    #[serde(skip)]
    pub(super) abandoned: bool,
    /// Why it is not as it was to become.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Failure>,
    /// The operation that runs it again; the state is that one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resubmitted_as: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

impl Report {
    pub(super) fn new(id: &str, verb: &Verb, outcome: Outcome) -> Self {
        Self {
            id: id.to_owned(),
            verb: verb.as_offered(),
            outcome,
            state: None,
            abandoned: false,
            error: None,
            resubmitted_as: None,
            note: None,
        }
    }

    pub(super) fn with_note(self, note: &str) -> Self {
        Self {
            note: Some(note.to_owned()),
            ..self
        }
    }

    pub(super) fn with_state(self, operation: &Operation) -> Self {
        // Of one that came to what was asked it is why it had to be asked.
        let error = operation.error.clone();
        let error = error.filter(|_| self.outcome != Outcome::Done);
        Self {
            state: Some(operation.state.clone()),
            abandoned: operation.abandoned,
            error,
            ..self
        }
    }

    pub(super) fn with_new(self, id: &str) -> Self {
        Self {
            resubmitted_as: Some(id.to_owned()),
            ..self
        }
    }

    pub(super) fn write(&self, output: Output, out: &mut impl Write) -> io::Result<()> {
        match output {
            Output::Json => writeln!(out, "{}", to_json(self)?),
            Output::Table => writeln!(out, "{self}"),
        }
    }
}

/// On one line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, verb, .. } = self;
        let verb = as_typed(verb);
        write!(
            f,
            "{:<10}  {}  {verb}",
            self.outcome.in_words(),
            escaped(id)
        )?;
        if let Some(new) = &self.resubmitted_as {
            write!(f, " {}", escaped(new))?;
        }
        if let Some(state) = &self.state {
            write!(f, "  {}", escaped(state))?;
        }
        if self.abandoned {
            f.write_str(" (abandoned)")?;
        }
        if let Some(note) = &self.note {
            write!(f, "  {}", escaped(note))?;
        }
        if let Some(Failure { code, message, .. }) = &self.error {
            write!(f, "  {}: {}", escaped(code), escaped(message))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known_and_no_control_characters() {
        let report = Report::new("a", &Verb::ResubmitAsNew, Outcome::Failed);
        assert_eq!(report.to_string(), "failed      a  resubmit --as-new");
        let operation = Operation {
            state: "Error".to_owned(),
            error: Some(Failure {
                code: "no-drone".to_owned(),
                message: "none\nfree".to_owned(),
                step: None,
            }),
            ..Operation::default()
        };
        let report = report.with_new("b").with_state(&operation);
        let done = Report::new("a", &Verb::Compensate, Outcome::Done).with_state(&operation);
        assert_eq!(done.to_string(), "done        a  compensate  Error");
        let abandoned = Operation {
            abandoned: true,
            ..operation.clone()
        };
        let done = Report::new("a", &Verb::Abandon, Outcome::Done).with_state(&abandoned);
        assert_eq!(
            done.to_string(),
            "done        a  abandon  Error (abandoned)"
        );
        assert_eq!(
            report.to_string(),
            "failed      a  resubmit --as-new b  Error  no-drone: none\\nfree"
        );
        let mut json = Vec::new();
        report.write(Output::Json, &mut json).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            "{\"id\":\"a\",\"verb\":\"resubmit-as-new\",\"outcome\":\"failed\",\"state\":\"Error\",\
             \"error\":{\"code\":\"no-drone\",\"message\":\"none\\nfree\"},\
             \"resubmittedAs\":\"b\"}\n"
        );
    }
}
