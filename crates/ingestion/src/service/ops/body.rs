//! The bodies of verbs.

use hyper::HeaderMap;
use serde_json::{Map, Value};
use waybill_api::request::check_asked_by;
use waybill_api::verb::Verb;
use waybill_engine::NAME_LENGTH_MAX;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::json;
use waybill_http::problem::{FieldProblem, Problem};
use waybill_messages::{ASKED_BY_BYTES_MAX, REASON_BYTES_MAX};

/// The header that names the operator, if the body does not.
pub const OPERATOR: &str = "Waybill-Operator";

/// The name of an operator who gave none.
const UNNAMED_OPERATOR: &str = "operator";

/// The content of a verb's body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerbBody {
    /// The reason; may be empty.
    pub reason: String,
    /// Who sent the verb; empty for the operation's caller.
    pub by: String,
    /// The step that the verb applies to.
    pub step: String,
    /// The workflow of an operation that does not exist yet.
    pub workflow: String,
    /// Whether to run the operation again as a new one.
    pub as_new: bool,
}

impl VerbBody {
    /// Reads a verb's body, and the header that may name the operator. Reports every wrong field.
    pub fn read(
        verb: Verb,
        headers: &HeaderMap,
        body: Option<&[u8]>,
        depth_max: usize,
    ) -> Result<Self, Problem> {
        let value = match body {
            Some(body) => json::parse(body, depth_max)?,
            None => Value::Object(Map::new()),
        };
        let Value::Object(fields) = value else {
            return Err(Problem::invalid(vec![FieldProblem::new(
                "",
                "must be an object",
            )]));
        };
        let mut reader = Reader {
            fields: &fields,
            errors: Vec::new(),
        };
        let mut verb_body = Self {
            reason: reader.text("reason", REASON_BYTES_MAX),
            step: reader.name("step"),
            workflow: reader.name("workflow"),
            as_new: reader.flag("asNew"),
            by: String::new(),
        };
        let in_body = reader.text("by", ASKED_BY_BYTES_MAX);
        verb_body.by = reader.operator_name(headers, in_body);
        // A cancel counts as the caller's, even if an operator sends it.
        if verb_body.by.is_empty() && verb != Verb::Cancel {
            UNNAMED_OPERATOR.clone_into(&mut verb_body.by);
        }
        reader.check(verb);
        match reader.errors {
            errors if errors.is_empty() => Ok(verb_body),
            errors => Err(Problem::invalid(errors)),
        }
    }
}

/// Who sent a verb, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requester {
    /// Who sent the verb; empty for the operation's caller.
    pub by: String,
    /// The tenants that the sender may act for.
    pub tenants: Tenants,
    /// The reason; may be empty.
    pub reason: String,
}

impl VerbBody {
    /// Who sent the verb: the name in the body and the name of the token, so that the history shows
    /// which token was used.
    pub fn requester(self, caller: &Caller) -> Result<Requester, Problem> {
        let by = match (caller.name(), self.by.as_str()) {
            (None, _) => self.by,
            (Some(token), "" | UNNAMED_OPERATOR) => token.to_owned(),
            (Some(token), by) => format!("{by} ({token})"),
        };
        if by.len() > ASKED_BY_BYTES_MAX {
            let detail = format!(
                "must be at most {ASKED_BY_BYTES_MAX} bytes, including the appended name of the \
                 token"
            );
            return Err(Problem::invalid(vec![FieldProblem::new("/by", detail)]));
        }
        Ok(Requester {
            by,
            tenants: caller.tenants().clone(),
            reason: self.reason,
        })
    }
}

/// The reason in a query.
pub fn reason(text: &str) -> Result<String, Problem> {
    if text.len() <= REASON_BYTES_MAX {
        return Ok(text.trim().to_owned());
    }
    let detail = format!("must be at most {REASON_BYTES_MAX} bytes");
    let wrong = FieldProblem::of_parameter("reason", detail);
    Err(Problem::invalid(vec![wrong]))
}

struct Reader<'a> {
    fields: &'a Map<String, Value>,
    errors: Vec<FieldProblem>,
}

impl Reader<'_> {
    fn wrong_header(&mut self, detail: impl Into<String>) {
        self.errors.push(FieldProblem::of_header(OPERATOR, detail));
    }

    fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        let mut pointer = String::new();
        json::push_segment(&mut pointer, name);
        self.errors.push(FieldProblem::new(pointer, detail));
    }

    /// A text without surrounding white space; empty if it is absent or `null`.
    fn text(&mut self, name: &'static str, bytes_max: usize) -> String {
        match self.fields.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) if text.len() <= bytes_max => text.trim().to_owned(),
            Some(Value::String(_)) => {
                self.wrong(name, format!("must be at most {bytes_max} bytes"));
                String::new()
            }
            Some(_) => {
                self.wrong(name, "must be a string");
                String::new()
            }
        }
    }

    fn name(&mut self, name: &'static str) -> String {
        let text = self.text(name, 4 * NAME_LENGTH_MAX);
        if text.chars().count() > NAME_LENGTH_MAX {
            self.wrong(
                name,
                format!("must be at most {NAME_LENGTH_MAX} characters"),
            );
        }
        text
    }

    fn flag(&mut self, name: &'static str) -> bool {
        match self.fields.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.wrong(name, "must be true or false");
                false
            }
        }
    }

    /// The operator: header and body must agree if both name one.
    fn operator_name(&mut self, headers: &HeaderMap, in_body: String) -> String {
        let mut given = headers.get_all(OPERATOR).iter();
        let in_header = match (given.next(), given.next()) {
            (None, _) => String::new(),
            (Some(value), None) => match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => text.trim().to_owned(),
                Err(_) => {
                    self.wrong_header("must be UTF-8");
                    String::new()
                }
            },
            (Some(_), Some(_)) => {
                self.wrong_header("must be given once");
                String::new()
            }
        };
        if in_header.len() > ASKED_BY_BYTES_MAX {
            self.wrong_header(format!("must be at most {ASKED_BY_BYTES_MAX} bytes"));
        }
        if !in_header.is_empty() && !in_body.is_empty() && in_header != in_body {
            self.wrong("by", "differs from the header Waybill-Operator");
        }
        let operator_name = if in_body.is_empty() {
            in_header
        } else {
            in_body
        };
        if let Err(detail) = check_asked_by(&operator_name) {
            self.wrong("by", detail);
        }
        operator_name
    }

    /// Reports missing and unknown fields.
    fn check(&mut self, verb: Verb) {
        for &name in verb.required() {
            let is_there = match self.fields.get(name) {
                None | Some(Value::Null) => false,
                Some(Value::String(text)) => !text.trim().is_empty(),
                Some(_) => true,
            };
            if !is_there {
                self.wrong(name, format!("is required to {}", verb.in_path()));
            }
        }
        let unknown = |name: &&String| !verb.fields().contains(&name.as_str());
        for name in self.fields.keys().filter(unknown) {
            let known = verb.fields().join(", ");
            self.wrong(name, format!("is unknown; the fields are {known}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn read(verb: Verb, body: &str) -> Result<VerbBody, Vec<String>> {
        VerbBody::read(verb, &HeaderMap::new(), Some(body.as_bytes()), 4).map_err(|problem| {
            let errors = problem.errors.into_iter();
            errors.filter_map(|error| error.pointer).collect()
        })
    }

    #[test]
    fn the_body_names_requester_and_reason() {
        let verb_body = read(
            Verb::Undone,
            r#"{"reason": " by hand ", "by": "kim", "step": "drone"}"#,
        );
        let expected = VerbBody {
            reason: "by hand".to_owned(),
            by: "kim".to_owned(),
            step: "drone".to_owned(),
            ..VerbBody::default()
        };
        assert_eq!(verb_body, Ok(expected));
        let nothing = VerbBody::read(Verb::Compensate, &HeaderMap::new(), None, 4).unwrap();
        assert_eq!(
            (nothing.by.as_str(), nothing.reason.as_str()),
            ("operator", "")
        );
        assert!(read(Verb::Resubmit, r#"{"asNew": true}"#).unwrap().as_new);
        assert_eq!(read(Verb::Cancel, "{}").unwrap().by, "");
        assert_eq!(read(Verb::Cancel, r#"{"by": "kim"}"#).unwrap().by, "kim");
    }

    #[test]
    fn the_history_names_the_token_of_a_request() {
        let caller = Caller::of(std::sync::Arc::new(waybill_http::auth::Principal {
            name: "ops".into(),
            scopes: waybill_http::auth::Scopes::default(),
            tenants: waybill_http::auth::Tenants::All,
            agents: std::sync::Arc::default(),
        }));
        let by = |body: &str, caller: &Caller| {
            let verb_body = read(Verb::Compensate, body).unwrap();
            verb_body
                .requester(caller)
                .map(|requester| requester.by)
                .map_err(|problem| problem.kind)
        };
        assert_eq!(by("{}", &caller).unwrap(), "ops");
        assert_eq!(by(r#"{"by": "kim"}"#, &caller).unwrap(), "kim (ops)");
        assert_eq!(by(r#"{"by": "kim"}"#, &Caller::ANYBODY).unwrap(), "kim");
        let longest = format!(r#"{{"by": "{}"}}"#, "x".repeat(ASKED_BY_BYTES_MAX));
        assert!(by(&longest, &caller).is_err());
    }

    #[test]
    fn every_wrong_field_is_named() {
        let long = "x".repeat(REASON_BYTES_MAX + 1);
        for (verb, body, wrong) in [
            (Verb::Abandon, "{}", vec!["/reason"]),
            (Verb::Abandon, r#"{"reason": "  "}"#, vec!["/reason"]),
            (Verb::Undone, "{}", vec!["/reason", "/step"]),
            (
                Verb::Resubmit,
                r#"{"asNew": 1, "by": 2}"#,
                vec!["/asNew", "/by"],
            ),
            (Verb::Cancel, r#"{"step": "drone"}"#, vec!["/step"]),
            (Verb::Compensate, r#"{"by": "a\u0007"}"#, vec!["/by"]),
            (
                Verb::Compensate,
                &format!(r#"{{"reason": "{long}"}}"#),
                vec!["/reason"],
            ),
            (Verb::Compensate, "[]", vec![""]),
        ] {
            let errors = read(verb, body).unwrap_err();
            assert_eq!(errors, wrong, "{verb:?} {body}");
        }
    }

    #[test]
    fn the_header_names_the_requester_and_must_agree_with_the_body() {
        let mut headers = HeaderMap::new();
        headers.insert("waybill-operator", HeaderValue::from_static("kim"));
        let read =
            |body: &str| VerbBody::read(Verb::Compensate, &headers, Some(body.as_bytes()), 4);
        assert_eq!(read("{}").unwrap().by, "kim");
        assert_eq!(read(r#"{"by": "kim"}"#).unwrap().by, "kim");
        assert!(read(r#"{"by": "lee"}"#).is_err());
    }
}
