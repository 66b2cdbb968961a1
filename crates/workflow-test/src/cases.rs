//! The YAML of cases.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use waybill_engine::{Action, ProcessState};
use waybill_units::{DurationText, optional_duration};

use crate::place::Placed;

/// A file of cases for one workflow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CasesFile {
    /// The input of every case. A case replaces or adds single fields.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// The answers to requests to perform a step, for every case that has no other answers for the
    /// step.
    #[serde(default)]
    pub answers: ByStep<Vec<Placed<Answer>>>,
    /// The same for requests to undo a step.
    #[serde(default)]
    pub undo_answers: ByStep<Vec<Placed<Answer>>>,
    /// The same for requests to probe a step.
    #[serde(default)]
    pub probe_answers: ByStep<Vec<Placed<Answer>>>,
    /// The cases, at most 1000.
    #[schemars(length(min = 1, max = 1000))]
    pub cases: Vec<Case>,
}

/// One operation, with its answers and its expected course.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    /// Its name, unique in the file.
    pub name: Placed<String>,
    /// Fields that replace those of the file's input, or are added to it.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// The deadline of the operation, from its creation; by default that of the workflow.
    #[serde(default, deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub deadline: Option<Duration>,
    /// By step, the answers to requests to perform it, in order.
    #[serde(default)]
    pub answers: ByStep<Vec<Placed<Answer>>>,
    /// By step, the answers to requests to undo it, in order. A step without an entry is undone at
    /// the first request.
    #[serde(default)]
    pub undo_answers: ByStep<Vec<Placed<Answer>>>,
    /// By step, the answers to requests to probe it, in order.
    #[serde(default)]
    pub probe_answers: ByStep<Vec<Placed<Answer>>>,
    /// What the caller and operators request, and when.
    #[serde(default)]
    pub verbs: Vec<Verb>,
    /// The expected course.
    pub expect: Expectation,
}

/// An answer of an agent. Without any key: an immediate success without outputs.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Answer {
    /// How the attempt ends; by default `success`.
    pub outcome: Option<AnswerOutcome>,
    /// The outputs of a success.
    pub outputs: Texts,
    /// The error code of a failure; by default the name of its outcome.
    pub code: Option<String>,
    /// The error message of a failure.
    pub message: Option<String>,
    /// Instead of an outcome: the HTTP status of the service of a declared agent, which the agent
    /// interprets.
    #[schemars(range(min = 100, max = 599))]
    pub status: Option<Placed<u16>>,
    /// The JSON body of that response.
    pub body: Option<Value>,
    /// With `notAttempted`: how long the agent asks for no attempts.
    #[serde(deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub retry_after: Option<Duration>,
    /// How long after its request the answer arrives.
    #[serde(with = "DurationText")]
    pub after: Duration,
    /// How many attempts in a row are answered like this; by default 1.
    #[schemars(range(min = 1, max = 1000))]
    pub times: Option<u32>,
}

/// How an attempt ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AnswerOutcome {
    /// The step is done.
    Success,
    /// It failed without effect, and a retry may succeed.
    Transient,
    /// It was refused, and a retry would be, too.
    Permanent,
    /// It may or may not have taken effect.
    Unknown,
    /// For a probe: the step was not performed.
    NotPerformed,
    /// The agent did not try.
    NotAttempted,
    /// No answer ever arrives: the attempt times out.
    NoAnswer,
}

impl AnswerOutcome {
    /// The error code of a failure without one.
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
            Self::NotPerformed => "not-performed",
            Self::NotAttempted => "not-attempted",
            Self::NoAnswer => "no-answer",
        }
    }
}

/// A request of the caller or an operator about the operation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verb {
    /// When, from the creation of the operation.
    #[serde(with = "DurationText")]
    pub at: Duration,
    /// What.
    pub verb: Placed<VerbName>,
    /// With `undone`: the step that a person has undone.
    #[serde(default)]
    pub step: Option<Placed<String>>,
    /// With `reschedule`: the fields of the input with their new values.
    #[serde(default)]
    pub fields: Option<Map<String, Value>>,
    /// The code with which it is refused, for example `final`. Absent: it must be applied.
    #[serde(default)]
    pub refused: Option<String>,
}

/// What the caller or an operator requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VerbName {
    /// The caller cancels the operation.
    Cancel,
    /// The caller replaces fields of the input.
    Reschedule,
    /// An operator continues a parked operation at the step that failed.
    Resubmit,
    /// An operator has the completed steps undone.
    Compensate,
    /// An operator ends a parked operation as it is.
    Abandon,
    /// An operator retries the undos that failed.
    RetryCompensation,
    /// An operator records that a person has undone a step.
    Undone,
}

impl VerbName {
    /// Its name in the file.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Reschedule => "reschedule",
            Self::Resubmit => "resubmit",
            Self::Compensate => "compensate",
            Self::Abandon => "abandon",
            Self::RetryCompensation => "retry-compensation",
            Self::Undone => "undone",
        }
    }
}

/// The expected course of an operation. Only what is given is compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// The state in which it ends, or is parked.
    pub state: Placed<EndState>,
    /// The code of the error that ended it.
    #[serde(default)]
    pub error: Option<Placed<String>>,
    /// The step of that error.
    #[serde(default)]
    pub failing_step: Option<Placed<String>>,
    /// All requests to agents in order: `STEP`, `undo STEP` or `probe STEP`, with `#N` for the
    /// number of the attempt, which counts all requests for the step.
    #[serde(default)]
    pub path: Option<Vec<Placed<String>>>,
    /// The steps that were undone, in any order.
    #[serde(default)]
    pub undone: Option<Vec<Placed<String>>>,
    /// The steps that were skipped, in any order.
    #[serde(default)]
    pub skipped: Option<Vec<Placed<String>>>,
    /// By step, all its outputs.
    #[serde(default)]
    pub outputs: ByStep<Texts>,
    /// What single requests carried.
    #[serde(default)]
    pub requests: Vec<Placed<ExpectedRequest>>,
    /// How long the operation took, from its creation to its last state.
    #[serde(default)]
    pub duration: Option<Placed<Bounds>>,
}

/// A state in which an operation ends or is parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
pub enum EndState {
    /// Every step is completed or skipped.
    Processed,
    /// It failed for good and all its effects were undone.
    Compensated,
    /// Its caller cancelled it and all its effects were undone.
    Cancelled,
    /// It failed for good and waits for a person.
    Error,
    /// It could not be undone and waits for a person.
    CompensationFailed,
}

impl EndState {
    /// The state of the engine.
    pub(crate) const fn of_engine(self) -> ProcessState {
        match self {
            Self::Processed => ProcessState::Processed,
            Self::Compensated => ProcessState::Compensated,
            Self::Cancelled => ProcessState::Cancelled,
            Self::Error => ProcessState::Error,
            Self::CompensationFailed => ProcessState::CompensationFailed,
        }
    }
}

/// What a request to an agent carried. Only what is given is compared. In texts, `{{operation}}` is
/// the id of the operation.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectedRequest {
    /// The step.
    pub step: Placed<String>,
    /// Its action; by default `run`.
    #[serde(default)]
    pub action: AttemptKind,
    /// The number of the attempt; by default the first request of this action.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// The whole input of the operation.
    #[serde(default)]
    pub input: Option<Value>,
    /// Outputs of earlier steps, as `step.output`; there may be others.
    #[serde(default)]
    pub results: Texts,
    /// The method of a declared agent's HTTP request.
    #[serde(default)]
    pub method: Option<String>,
    /// Its path with the query, which begins with the path of `baseUrl`.
    #[serde(default)]
    pub path: Option<String>,
    /// Its headers; there may be others.
    #[serde(default)]
    pub headers: Texts,
    /// Its whole JSON body.
    #[serde(default)]
    pub body: Option<Value>,
}

/// The action of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AttemptKind {
    /// Perform the step.
    #[default]
    Run,
    /// Undo it.
    Undo,
    /// Ask whether it was performed.
    Probe,
}

impl AttemptKind {
    /// The action of the engine.
    pub(crate) const fn of_engine(self) -> Action {
        match self {
            Self::Run => Action::Run,
            Self::Undo => Action::Compensate,
            Self::Probe => Action::Probe,
        }
    }
}

/// Bounds of a duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Bounds {
    /// At least this long.
    #[serde(deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub min: Option<Duration>,
    /// At most this long.
    #[serde(deserialize_with = "optional_duration")]
    #[schemars(with = "DurationText")]
    pub max: Option<Duration>,
}

/// Texts by name. Numbers and booleans are read as text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Texts(pub BTreeMap<String, String>);

impl JsonSchema for Texts {
    fn schema_name() -> Cow<'static, str> {
        "Texts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Texts by name. Numbers and booleans are read as text.",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        })
    }
}

/// Values by the names of steps, with the positions of the names.
#[derive(Clone, PartialEq, Debug)]
pub struct ByStep<T>(pub Vec<(Placed<String>, T)>);

impl<T> ByStep<T> {
    /// The value of a step.
    pub(crate) fn get(&self, step: &str) -> Option<&T> {
        let mut entries = self.0.iter();
        entries.find_map(|(name, value)| (name.value == step).then_some(value))
    }
}

impl<T> Default for ByStep<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByStep<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = ByStep<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping from steps")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(ByStep(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for ByStep<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("ByStep_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}
