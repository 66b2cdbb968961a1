//! JSON Schemas of files that people write, for completion and checks in editors.
//!
//! What must hold: a schema refuses no file that the documents describe as valid. It need not
//! refuse all others: maximums of units and rules that span several keys are only in the program.
//!
//! Deliberately absent: other forms that the YAML parser accepts, such as a section without keys,
//! or a number instead of a text. An editor marks these. If such a value is usual, the field's
//! schema allows it.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use crate::{Secret, SecretUrl};

/// The schema of files that are read as a `T`: pretty JSON with sorted keys and a final line end.
#[must_use]
pub fn schema_of_file<T: JsonSchema>(title: &str, description: &str) -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema.insert("description".to_owned(), description.into());
    let mut schema = schema.to_value();
    tidy(&mut schema);
    schema.sort_all_objects();
    let text = serde_json::to_string_pretty(&schema).expect("a JSON value can be written");
    format!("{text}\n")
}

/// Removes the parts that no editor uses: formats of numbers, defaults that are null, and defaults
/// of whole sections, whose keys have their own. Joins the lines of each paragraph of a
/// description.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            if keywords.get("type").is_some_and(is_number) {
                keywords.remove("format");
            }
            if let Some(Value::Null | Value::Object(_)) = keywords.get("default") {
                keywords.remove("default");
            }
            if let Some(Value::String(description)) = keywords.get_mut("description") {
                let paragraphs = description
                    .split("\n\n")
                    .map(|text| text.replace('\n', " "));
                *description = paragraphs.collect::<Vec<_>>().join("\n\n");
            }
            for (keyword, value) in keywords {
                match value {
                    // Its keys are names, not keywords.
                    Value::Object(named) if matches!(keyword.as_str(), "properties" | "$defs") => {
                        named.values_mut().for_each(tidy);
                    }
                    value => tidy(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether a `type` is that of numbers, optional or not.
fn is_number(kind: &Value) -> bool {
    let is_one = |kind: &Value| kind == "integer" || kind == "number";
    is_one(kind)
        || kind
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(is_one))
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

impl JsonSchema for SecretUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SecretUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "examples": ["https://hooks.example/T0/x"]})
    }
}

/// The schema of an address to listen on; for `#[schemars(with = "…")]`.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddress;

impl JsonSchema for ListenAddress {
    fn schema_name() -> Cow<'static, str> {
        "ListenAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An IP address and a port; port 0 picks a free one.",
            "pattern": r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]{1,5}$",
            "examples": ["127.0.0.1:8080", "0.0.0.0:8080", "[::1]:8080"],
        })
    }
}
