//! Compares the course of an operation with the expectation of its case.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use waybill_engine::{OperationError, Outputs, StepState};
use waybill_units::duration_to_text;

use crate::cases::{AttemptKind, Bounds, Case, Expectation, ExpectedRequest, VerbName};
use crate::diff::{Line, diff};
use crate::path::PathEntry;
use crate::place::Placed;
use crate::run::{Course, Sent, Setting, verb_id};

/// A difference between an expectation and the course.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// Line and column of the expectation.
    pub(crate) position: (u64, u64),
    /// The key, below the case.
    pub(crate) key: String,
    /// The lines: expected ones begin with `- `, actual ones with `+ `, common ones with spaces.
    pub(crate) lines: Vec<String>,
}

/// The differences, in the order of the expectation's keys.
pub(crate) fn compare(setting: &Setting, case: &Case, course: &Course) -> Vec<Difference> {
    let mut compare = Compare {
        setting,
        course,
        found: Vec::new(),
    };
    compare.verbs(case);
    compare.expectation(&case.expect);
    compare.found
}

struct Compare<'a> {
    setting: &'a Setting,
    course: &'a Course,
    found: Vec<Difference>,
}

impl Compare<'_> {
    fn expectation(&mut self, expect: &Expectation) {
        let state = &self.course.row.state;
        let failure = state.failure();
        let wanted = expect.state.value.of_engine();
        if state.state != wanted {
            let actual = match failure {
                Some(failure) => format!("{} ({})", state.state.as_str(), shown(failure)),
                None => state.state.as_str().to_owned(),
            };
            let expected = wanted.as_str().to_owned();
            self.differs(expect.state.position, "expect.state", expected, actual);
        }
        if let Some(code) = &expect.error {
            let actual = failure.map_or("", |failure| &failure.error.code);
            self.text("expect.error", code, actual);
        }
        if let Some(step) = &expect.failing_step {
            let actual = failure.and_then(|failure| failure.step.as_deref());
            self.text("expect.failingStep", step, actual.unwrap_or_default());
        }
        if let Some(path) = &expect.path {
            self.path(path, expect.state.position);
        }
        let position = expect.state.position;
        if let Some(steps) = &expect.undone {
            self.steps("expect.undone", steps, StepState::Compensated, position);
        }
        if let Some(steps) = &expect.skipped {
            self.steps("expect.skipped", steps, StepState::Skipped, position);
        }
        for (step, expected) in &expect.outputs.0 {
            let index = self.setting.workflow.step_index(&step.value);
            let progress = index.and_then(|index| self.course.row.state.steps.get(index));
            let actual = progress.map_or(&[][..], |progress| &progress.outputs);
            let key = format!("expect.outputs.{}", step.value);
            self.outputs(step.position, key, &expected.0, actual);
        }
        for request in &expect.requests {
            self.request(request);
        }
        if let Some(bounds) = &expect.duration {
            self.duration(bounds);
        }
    }

    fn verbs(&mut self, case: &Case) {
        let course = self.course;
        for (index, verb) in case.verbs.iter().enumerate() {
            let id = verb_id(index);
            let mut history = course.row.state.history.iter();
            let actual = match history.find(|entry| entry.id == id) {
                Some(entry) => match &entry.refused {
                    Some(code) => format!("refused: {code}"),
                    None => "applied".to_owned(),
                },
                None => "without effect".to_owned(),
            };
            let expected = match &verb.refused {
                Some(code) => format!("refused: {code}"),
                None => "applied".to_owned(),
            };
            if actual != expected {
                let name: VerbName = verb.verb.value;
                let at = duration_to_text(verb.at);
                let key = format!("verbs: {} at {at}", name.as_str());
                self.differs(verb.verb.position, &key, expected, actual);
            }
        }
    }

    fn path(&mut self, expected: &[Placed<String>], position: (u64, u64)) {
        let entries = expected.iter();
        let entries: Vec<PathEntry> = entries
            .filter_map(|entry| PathEntry::parse(&entry.value))
            .collect();
        let actual = self.course.requests.iter();
        let actual: Vec<PathEntry> = actual.map(|sent| PathEntry::of(&sent.request)).collect();
        let position = expected.first().map_or(position, |first| first.position);
        self.lists(
            position,
            "expect.path",
            &entries,
            &actual,
            PathEntry::allows,
        );
    }

    fn steps(
        &mut self,
        key: &str,
        expected: &[Placed<String>],
        state: StepState,
        position: (u64, u64),
    ) {
        let names = self.setting.workflow.step_names();
        let position = expected.first().map_or(position, |first| first.position);
        let in_order = |is_in: &dyn Fn(usize, &str) -> bool| -> Vec<String> {
            let steps = names.iter().enumerate();
            let steps = steps.filter(|(index, name)| is_in(*index, name));
            steps.map(|(_, name)| name.to_string()).collect()
        };
        let wanted = in_order(&|_, name| expected.iter().any(|step| step.value == name));
        let states = &self.course.row.state.steps;
        let actual = in_order(&|index, _| states[index].state == state);
        self.lists(position, key, &wanted, &actual, |a, b| a == b);
    }

    fn outputs(
        &mut self,
        position: (u64, u64),
        key: String,
        expected: &BTreeMap<String, String>,
        actual: &[(String, String)],
    ) {
        let line = |(name, value): (&String, &String)| format!("{name}: {value}");
        let expected: Vec<String> = expected.iter().map(line).collect();
        let mut actual: Vec<String> = actual.iter().map(|(a, b)| line((a, b))).collect();
        actual.sort_unstable();
        self.lists(position, &key, &expected, &actual, |a, b| a == b);
    }

    fn request(&mut self, placed: &Placed<ExpectedRequest>) {
        let Placed {
            value: expected,
            position,
        } = placed;
        let action = expected.action.of_engine();
        let step = &expected.step.value;
        let mut sent = self.course.requests.iter();
        let found = sent.find(|sent| {
            let request = &sent.request;
            let attempt = expected.attempt;
            *request.step == **step
                && request.action == action
                && attempt.is_none_or(|attempt| attempt == request.attempt.0)
        });
        let entry = PathEntry {
            action,
            step: step.clone(),
            attempt: expected.attempt,
        };
        let key = format!("expect.requests: {entry}");
        let Some(sent) = found else {
            let kind = match expected.action {
                AttemptKind::Run => "a request to perform the step",
                AttemptKind::Undo => "a request to undo the step",
                AttemptKind::Probe => "a request to probe the step",
            };
            self.differs(
                *position,
                &key,
                kind.to_owned(),
                "no such request".to_owned(),
            );
            return;
        };
        let operation = sent.request.operation.to_string();
        let fill = |text: &str| text.replace("{{operation}}", &operation);
        if let Some(input) = &expected.input {
            let actual = serde_json::from_slice(&sent.request.input).unwrap_or_default();
            self.json(
                *position,
                format!("{key}, input"),
                filled(input, &fill),
                actual,
            );
        }
        self.subset(
            *position,
            &format!("{key}, results"),
            expected
                .results
                .0
                .iter()
                .map(|(name, value)| (name.clone(), fill(value))),
            &sent.request.results,
        );
        self.http(*position, &key, expected, sent, &fill);
    }

    fn http(
        &mut self,
        position: (u64, u64),
        key: &str,
        expected: &ExpectedRequest,
        sent: &Sent,
        fill: &dyn Fn(&str) -> String,
    ) {
        let is_expected = expected.method.is_some()
            || expected.path.is_some()
            || expected.body.is_some()
            || !expected.headers.0.is_empty();
        let Some(http) = &sent.http else {
            if is_expected {
                let actual = "none: the agent could not make one".to_owned();
                self.differs(position, key, "an HTTP request".to_owned(), actual);
            }
            return;
        };
        let texts = [
            ("method", &expected.method, &http.method),
            ("path", &expected.path, &http.path),
        ];
        for (name, wanted, actual) in texts {
            if let Some(wanted) = wanted.as_deref().map(fill)
                && wanted != *actual
            {
                self.differs(position, &format!("{key}, {name}"), wanted, actual.clone());
            }
        }
        let headers: Outputs = http.headers.clone().into_iter().collect();
        let wanted = expected.headers.0.iter();
        let wanted = wanted.map(|(name, value)| (name.to_ascii_lowercase(), fill(value)));
        self.subset(position, &format!("{key}, headers"), wanted, &headers);
        if let Some(body) = &expected.body {
            let actual = http.body.clone().unwrap_or_default();
            self.json(position, format!("{key}, body"), filled(body, fill), actual);
        }
    }

    fn json(&mut self, position: (u64, u64), key: String, expected: Value, actual: Value) {
        if expected == actual {
            return;
        }
        let lines = |value: &Value| -> Vec<String> {
            let text = serde_json::to_string_pretty(value).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        };
        self.lists(
            position,
            &key,
            &lines(&expected),
            &lines(&actual),
            |a, b| a == b,
        );
    }

    /// Compares single named texts.
    fn subset(
        &mut self,
        position: (u64, u64),
        key: &str,
        expected: impl Iterator<Item = (String, String)>,
        actual: &Outputs,
    ) {
        for (name, value) in expected {
            let found = actual.iter().find(|(other, _)| *other == name);
            let found = found.map_or("(none)", |(_, value)| value);
            if found != value {
                let found = found.to_owned();
                self.differs(position, &format!("{key}, {name}"), value, found);
            }
        }
    }

    fn duration(&mut self, bounds: &Placed<Bounds>) {
        let took = self.course.took;
        let actual = in_seconds(took);
        let Bounds { min, max } = bounds.value;
        if let Some(min) = min.filter(|min| took < *min) {
            let expected = format!("at least {}", duration_to_text(min));
            self.differs(bounds.position, "expect.duration", expected, actual);
        } else if let Some(max) = max.filter(|max| took > *max) {
            let expected = format!("at most {}", duration_to_text(max));
            self.differs(bounds.position, "expect.duration", expected, actual);
        }
    }

    fn text(&mut self, key: &str, expected: &Placed<String>, actual: &str) {
        if expected.value != actual {
            let actual = match actual {
                "" => "(none)".to_owned(),
                actual => actual.to_owned(),
            };
            self.differs(expected.position, key, expected.value.clone(), actual);
        }
    }

    fn differs(&mut self, position: (u64, u64), key: &str, expected: String, actual: String) {
        self.found.push(Difference {
            position,
            key: key.to_owned(),
            lines: vec![format!("- {expected}"), format!("+ {actual}")],
        });
    }

    fn lists<T: ToString>(
        &mut self,
        position: (u64, u64),
        key: &str,
        expected: &[T],
        actual: &[T],
        same: impl Fn(&T, &T) -> bool,
    ) {
        let lines = diff(expected, actual, same);
        if lines.iter().all(|line| matches!(line, Line::Same(_))) {
            return;
        }
        let lines = lines.into_iter().map(|line| match line {
            Line::Same(line) => format!("  {}", line.to_string()),
            Line::Missing(line) => format!("- {}", line.to_string()),
            Line::Unexpected(line) => format!("+ {}", line.to_string()),
        });
        self.found.push(Difference {
            position,
            key: key.to_owned(),
            lines: lines.collect(),
        });
    }
}

/// A virtual time, to the millisecond.
pub(crate) fn in_seconds(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match millis {
        0 => format!("{seconds}s"),
        millis => format!(
            "{}s",
            format!("{seconds}.{millis:03}").trim_end_matches('0')
        ),
    }
}

/// An error on one line.
pub(crate) fn shown(failure: &OperationError) -> String {
    let code = &failure.error.code;
    match &failure.step {
        Some(step) => format!("{code} at step {step}"),
        None => code.clone(),
    }
}

/// A value with its texts filled in.
fn filled(value: &Value, fill: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text)),
        Value::Array(items) => items.iter().map(|item| filled(item, fill)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(name, value)| (name.clone(), filled(value, fill)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
