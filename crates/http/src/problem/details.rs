//! The JSON of a problem, which servers write and clients read.
//!
//! Other servers may leave members out, or describe a problem in another form: a client reads what
//! is missing as empty.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::FieldProblem;

/// Problem details (RFC 9457), with the invalid fields as `errors`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDetails<'a> {
    /// The type of the problem: stable, and the path of a page about it.
    #[serde(rename = "type")]
    #[schema(required, value_type = String, format = "uri-reference", example = "/problems/invalid-values")]
    pub kind: Cow<'a, str>,
    /// A summary of the type.
    #[schema(required, value_type = String, example = "Invalid values")]
    pub title: Cow<'a, str>,
    /// The HTTP status code.
    #[schema(required, example = 422)]
    pub status: u16,
    /// What is wrong with this request.
    #[schema(required, value_type = String, example = "1 value is invalid.")]
    pub detail: Cow<'a, str>,
    /// The invalid fields and headers, and up to 20 invalid query parameters: all, or the first 16
    /// KiB.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<FieldProblem>)]
    pub errors: Cow<'a, [FieldProblem]>,
    /// If the outcome is unknown, the id to repeat the request with; otherwise the id that the
    /// problem is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id: Option<Cow<'a, str>>,
    /// A stable code for the reason, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "partly-undone")]
    pub code: Option<Cow<'a, str>>,
    /// The `X-Request-Id` of the refused request, which its log lines have, too. Absent in the
    /// lines of a batch.
    #[serde(rename = "requestId", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "5d9c1f0a7be24e63000000000000001f")]
    pub request_id: Option<Cow<'a, str>>,
}

impl ProblemDetails<'static> {
    /// Reads the body of a refusal.
    pub fn read(body: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| value[name].as_str().map(|text| Cow::Owned(text.to_owned()));
        let status = value["status"].as_u64();
        let errors: Option<Vec<FieldProblem>> =
            serde_json::from_value(value["errors"].clone()).ok();
        Self {
            kind: text("type").unwrap_or_default(),
            title: text("title").unwrap_or_default(),
            status: status
                .and_then(|status| u16::try_from(status).ok())
                .unwrap_or_default(),
            detail: text("detail").unwrap_or_default(),
            errors: errors.unwrap_or_default().into(),
            id: text("id"),
            code: text("code"),
            request_id: text("requestId"),
        }
    }
}

impl ProblemDetails<'_> {
    /// What is wrong: the detail, else the title; `None` if the body says neither.
    pub fn explanation(&self) -> Option<&str> {
        let texts = [&self.detail, &self.title];
        texts
            .into_iter()
            .map(|text| &**text)
            .find(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Kind, Problem};

    #[test]
    fn a_client_reads_what_a_server_writes() {
        let invalid = Problem::invalid(vec![
            FieldProblem::new("/a", "must be a string"),
            FieldProblem::of_header("Idempotency-Key", "must appear once"),
        ]);
        let refused = Problem::new(Kind::OutcomeUnknown, "Nobody knows.")
            .with_id("order-1")
            .with_code("timeout");
        for problem in [invalid, refused] {
            let answer = problem.to_response();
            assert_eq!(ProblemDetails::read(answer.body()), problem.details());
        }
    }

    #[test]
    fn missing_members_and_other_bodies_are_read_as_empty() {
        let read = ProblemDetails::read(br#"{"title": "Gone", "errors": [{}], "more": 1}"#);
        assert_eq!(read.explanation(), Some("Gone"));
        assert_eq!(read.errors[0].place(), "");
        let other =
            br#"{"title": "Gone", "status": "410", "detail": null, "errors": {}, "code": 4}"#;
        let read = ProblemDetails::read(other);
        assert_eq!((read.explanation(), read.status), (Some("Gone"), 0));
        for body in ["", "<html>", "[]", r#"{"title": 1}"#] {
            let read = ProblemDetails::read(body.as_bytes());
            assert_eq!((read.explanation(), &*read.kind), (None, ""), "{body}");
        }
    }
}
