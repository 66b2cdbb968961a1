//! The answers of the API that are read in another form than they are written: pages, whose items
//! are shown as they are, and problems. The others are in `waybill_api::view`.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of a list, with its items as JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) items: Vec<Box<RawValue>>,
    pub(super) next: Option<String>,
}

/// A problem (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) detail: String,
    #[serde(default)]
    pub(super) errors: Vec<FieldProblem>,
    pub(super) code: Option<String>,
}

/// A wrong field: exactly one of body field, parameter and header is named.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct FieldProblem {
    pub(super) pointer: Option<String>,
    pub(super) parameter: Option<String>,
    pub(super) header: Option<String>,
    #[serde(default)]
    pub(super) detail: String,
}

impl FieldProblem {
    /// The place of the field; empty for the whole body.
    pub(super) fn place(&self) -> &str {
        let named = [&self.pointer, &self.parameter, &self.header];
        named.into_iter().flatten().next().map_or("", |name| name)
    }
}
