//! What is wrong with one part of a request, in the form of the `errors` of RFC 9457.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Names and details are cut off at this length.
const TEXT_BYTES_MAX: usize = 512;

/// An invalid part of a request: a field of its body, a query parameter or a header.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FieldProblem {
    /// A JSON pointer (RFC 6901) to the field of the body; empty for the whole body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/input/lines")]
    pub pointer: Option<String>,
    /// The name of the query parameter, instead of `pointer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The name of the header, instead of `pointer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub header: Option<Cow<'static, str>>,
    /// What was expected.
    #[serde(default)]
    #[schema(required, example = "is required")]
    pub detail: String,
}

impl FieldProblem {
    /// A wrong field of the body and what was expected of it.
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: Some(pointer.into()),
            parameter: None,
            header: None,
            detail: detail.into(),
        }
    }

    /// The approximate size in bytes, in memory and in an answer.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.place().len() + self.detail.len()
    }

    /// The field, parameter or header; empty for the whole body.
    pub fn place(&self) -> &str {
        let names = [
            self.pointer.as_deref(),
            self.parameter.as_deref(),
            self.header.as_deref(),
        ];
        names.into_iter().flatten().next().unwrap_or_default()
    }

    /// Cuts off long texts: a name may be as long as the request.
    pub fn shorten(&mut self) {
        let names = self.pointer.iter_mut().chain(&mut self.parameter);
        for text in names.chain([&mut self.detail]) {
            if text.len() > TEXT_BYTES_MAX {
                text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
                text.push('…');
                text.shrink_to_fit();
            }
        }
    }

    /// A wrong query parameter and what was expected of it.
    pub fn of_parameter(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: None,
            parameter: Some(name.into()),
            header: None,
            detail: detail.into(),
        }
    }

    /// A wrong header and what was expected of it.
    pub fn of_header(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            pointer: None,
            parameter: None,
            header: Some(name.into()),
            detail: detail.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_long_name_is_cut_off_between_two_characters() {
        let mut problem = FieldProblem::new(format!("/{}", "ä".repeat(1_000)), "is not known");
        problem.shorten();
        let shown = problem.pointer.unwrap();
        assert!(
            shown.ends_with("ä…") && shown.len() <= TEXT_BYTES_MAX + 3,
            "{}",
            shown.len()
        );
        assert_eq!(problem.detail, "is not known");
    }

    #[test]
    fn a_parameter_and_a_header_are_named_instead_of_a_pointer() {
        let shown = |problem: FieldProblem| to_value(problem).unwrap();
        assert_eq!(
            shown(FieldProblem::new("/a", "is b")),
            json!({"pointer": "/a", "detail": "is b"})
        );
        assert_eq!(
            shown(FieldProblem::of_parameter("at", "is b")),
            json!({"parameter": "at", "detail": "is b"})
        );
        assert_eq!(
            shown(FieldProblem::of_header("Idempotency-Key", "is b")),
            json!({"header": "Idempotency-Key", "detail": "is b"})
        );
    }
}
