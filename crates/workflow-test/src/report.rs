//! The results of cases: as lines for people, as JSON, and as JUnit XML.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use waybill_engine::ProcessState;
use waybill_telemetry::visible::{counted, escaped};

use crate::compare::{Difference, in_seconds};
use crate::place::Placed;

/// The results of the cases of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The workflow.
    pub workflow: String,
    /// Its version.
    pub version: u32,
    /// The file of the cases.
    pub file: String,
    /// The results, in the order of the file.
    pub cases: Vec<CaseReport>,
}

/// The result of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// The line of its name.
    pub line: u64,
    /// Whether the operation took the expected course.
    pub passed: bool,
    /// The last state of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// The error with which it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The number of requests to agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<usize>,
    /// The virtual time from its creation to its last state, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Why the case could not be run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<String>,
    /// The differences from the expectation.
    pub differences: Vec<FoundDifference>,
}

/// A difference from an expectation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FoundDifference {
    /// The line of the expectation.
    pub line: u64,
    /// Its column.
    pub column: u64,
    /// Its key, below the case.
    pub key: String,
    /// Expected lines begin with `- `, actual ones with `+ `, common ones with spaces.
    pub lines: Vec<String>,
}

impl CaseReport {
    pub(crate) fn unfinished(name: Placed<String>, why: String) -> Self {
        Self {
            name: name.value,
            line: name.position.0,
            passed: false,
            state: None,
            error: None,
            requests: None,
            duration_ms: None,
            unfinished: Some(why),
            differences: Vec::new(),
        }
    }

    pub(crate) fn finished(
        name: Placed<String>,
        state: ProcessState,
        error: Option<String>,
        requests: usize,
        took: Duration,
        differences: Vec<Difference>,
    ) -> Self {
        let differences: Vec<FoundDifference> = differences
            .into_iter()
            .map(|found| FoundDifference {
                line: found.position.0,
                column: found.position.1,
                key: found.key,
                lines: found.lines,
            })
            .collect();
        Self {
            name: name.value,
            line: name.position.0,
            passed: differences.is_empty(),
            state: Some(state.as_str()),
            error,
            requests: Some(requests),
            duration_ms: u64::try_from(took.as_millis()).ok(),
            unfinished: None,
            differences,
        }
    }
}

impl Report {
    /// Whether every case passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.cases.iter().all(|case| case.passed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let name = escaped(&case.name);
            match case.passed {
                true => writeln!(f, "ok    {name}{}", case.course())?,
                false => writeln!(f, "FAIL  {name}{}", case.course())?,
            }
            for line in case.details(&self.file) {
                writeln!(f, "      {line}")?;
            }
        }
        let failed = self.cases.iter().filter(|case| !case.passed).count();
        let cases = counted(self.cases.len(), "case");
        match failed {
            0 => write!(f, "{cases} passed"),
            failed => write!(f, "{failed} of {cases} failed"),
        }
    }
}

impl CaseReport {
    /// How the operation went, on the line of its case.
    fn course(&self) -> String {
        let Some(state) = self.state else {
            return String::new();
        };
        let error = self
            .error
            .as_ref()
            .map(|error| format!(" ({})", escaped(error)));
        let requests = counted(self.requests.unwrap_or_default(), "request");
        let took = in_seconds(Duration::from_millis(self.duration_ms.unwrap_or_default()));
        let error = error.unwrap_or_default();
        format!(": {state}{error} after {took}, {requests}")
    }

    /// What is wrong, line by line.
    pub(crate) fn details(&self, file: &str) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(why) = &self.unfinished {
            lines.push(format!("{file}:{}: {}", self.line, escaped(why)));
        }
        for found in &self.differences {
            let FoundDifference {
                line, column, key, ..
            } = found;
            lines.push(format!("{file}:{line}:{column}: {}", escaped(key)));
            let shown = found
                .lines
                .iter()
                .map(|line| format!("  {}", escaped(line)));
            lines.extend(shown);
        }
        lines
    }
}
