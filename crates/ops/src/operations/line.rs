//! The line that reports the outcome of a verb for one operation.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use waybill_api::verb::{Verb, as_typed};
use waybill_api::view::{ErrorView, OperationView};
use waybill_telemetry::visible::{escaped, to_json};
use waybill_terminal::Output;

/// The outcome of a verb.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// The verb was sent; its result is not awaited.
    Asked,
    /// The verb succeeded.
    Done,
    /// The operation failed again, or was undone instead of continued.
    Failed,
    /// The operation's state forbids the verb.
    Refused,
    /// The operation is unfinished after the given time.
    Open,
    /// The verb was not sent.
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

/// The report for one operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) id: String,
    pub(super) verb: &'static str,
    pub(super) outcome: Outcome,
    /// The last seen state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    /// Whether a person ended the operation in that state.
    #[serde(skip)]
    pub(super) abandoned: bool,
    /// Why the verb did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ErrorView>,
    /// The operation that runs it again. The state is that of the new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resubmitted_as: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

impl Report {
    pub(super) fn new(id: &str, verb: Verb, outcome: Outcome) -> Self {
        Self {
            id: id.to_owned(),
            verb: verb.as_str(),
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

    pub(super) fn with_state(self, operation: &OperationView) -> Self {
        // After a success, the operation's error is only the reason for the verb.
        let error = operation.error.clone();
        let error = error.filter(|_| self.outcome != Outcome::Done);
        Self {
            state: Some(operation.state.to_string()),
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

/// A single line.
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
        if let Some(ErrorView { code, message, .. }) = &self.error {
            write!(f, "  {}: {}", escaped(code), escaped(message))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_omits_missing_values_and_control_characters() {
        let report = Report::new("a", Verb::ResubmitAsNew, Outcome::Failed);
        assert_eq!(report.to_string(), "failed      a  resubmit --as-new");
        let operation = OperationView {
            state: "Error".into(),
            error: Some(ErrorView {
                code: "no-drone".to_owned(),
                message: "none\nfree".to_owned(),
                step: None,
            }),
            ..OperationView::default()
        };
        let report = report.with_new("b").with_state(&operation);
        let done = Report::new("a", Verb::Compensate, Outcome::Done).with_state(&operation);
        assert_eq!(done.to_string(), "done        a  compensate  Error");
        let abandoned = OperationView {
            abandoned: true,
            ..operation.clone()
        };
        let done = Report::new("a", Verb::Abandon, Outcome::Done).with_state(&abandoned);
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
