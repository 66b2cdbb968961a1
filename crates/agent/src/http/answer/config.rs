//! The YAML of rules for answers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::http::config::StatusSet;

/// What an answer means. All conditions must hold, and a rule has at least one.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AnswerRuleConfig {
    /// The answer has one of these statuses.
    #[serde(default)]
    pub status: StatusSet,
    /// The answer has these headers, each with this value, or one of a list.
    #[serde(default)]
    pub headers: BTreeMap<String, Expected>,
    /// The body has these values, by JSON pointer, or one of a list.
    #[serde(default)]
    pub body: BTreeMap<String, Expected>,
    /// The body has values other than null at these JSON pointers.
    #[serde(default)]
    pub exists: Vec<String>,
    /// What the answer means.
    pub outcome: AnswerOutcome,
    /// The stable code of a failure. Default: as without the rule.
    #[serde(default)]
    pub code: Option<String>,
    /// Where values of `keep` of the request are in this answer, if they are elsewhere. For a
    /// success only.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
}

/// The meaning of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AnswerOutcome {
    /// The step is performed, or undone.
    Success,
    /// It failed without effect, and may succeed later.
    Transient,
    /// It was refused without effect, and would be again.
    Permanent,
    /// It may have taken effect.
    Unknown,
    /// For an undo or a probe: no effect exists.
    Absent,
}

/// A text, number or boolean, or a list of them of which one is expected.
#[derive(Clone, PartialEq, Debug)]
pub struct Expected(pub(super) Vec<Value>);

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = match Value::deserialize(deserializer)? {
            Value::Array(values) => values,
            value => vec![value],
        };
        let is_scalar =
            |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        match !values.is_empty() && values.iter().all(is_scalar) {
            true => Ok(Self(values)),
            false => Err(D::Error::custom(
                "invalid value: expected a text, a number, a boolean, or a list of them",
            )),
        }
    }
}

impl JsonSchema for Expected {
    fn schema_name() -> Cow<'static, str> {
        "Expected".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let scalar = ["string", "number", "boolean"];
        json_schema!({
            "description": "A value, or a list of values of which one is expected.",
            "anyOf": [
                {"type": scalar},
                {"type": "array", "minItems": 1, "items": {"type": scalar}},
            ],
        })
    }
}
