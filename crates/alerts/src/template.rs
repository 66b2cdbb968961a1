//! A body in the receiver's own format: a text with placeholders such as `{{alert.kind}}`.
//!
//! What must hold: no value can escape from its place in the template. Values are escaped for the
//! body's content type, and a JSON template that could become invalid JSON is refused when it is
//! loaded.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::alert::{Alert, AlertError, Message};

/// The values of a template.
pub(super) trait Fill: Sized + 'static {
    /// The placeholders and their values. A missing value becomes an empty text.
    const FIELDS: &'static [Field<Self>];

    /// A sample in which every text is `text`.
    fn sample(text: &str) -> Self;
}

type Field<M> = (&'static str, fn(&M) -> String);

const MESSAGE_FIELDS: &[Field<Message>] = &[
    ("alert.eventId", |m| m.alert.event_id.to_string()),
    ("alert.kind", |m| m.alert.kind.clone()),
    ("alert.operation", |m| m.alert.operation.clone()),
    ("alert.callerId", |m| {
        m.alert.caller_id.clone().unwrap_or_default()
    }),
    ("alert.workflow", |m| m.alert.workflow.clone()),
    ("alert.tenant", |m| m.alert.tenant.clone()),
    ("alert.step", |m| m.alert.step.clone().unwrap_or_default()),
    ("alert.error.code", |m| of_error(m, |error| &error.code)),
    ("alert.error.message", |m| {
        of_error(m, |error| &error.message)
    }),
    ("alert.advice", |m| m.alert.advice.clone()),
    ("alert.at", |m| m.alert.at.to_string()),
    ("alert.repeats", |m| m.repeats.to_string()),
    ("alert.summary", Message::summary),
];

fn of_error(message: &Message, part: fn(&AlertError) -> &String) -> String {
    let error = message.alert.error.as_ref();
    error.map(|error| part(error).clone()).unwrap_or_default()
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct Template<M> {
    parts: Vec<Part<M>>,
    escape: Escape,
}

#[derive(Debug)]
enum Part<M> {
    Literal(String),
    Field(fn(&M) -> String),
}

impl<M: Fill> Template<M> {
    /// Compiles a template for a body of that content type. The error says what is wrong with it.
    pub(super) fn compile(text: &str, escape: Escape) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").ok_or("has a {{ without a }}")?;
            let name = name.trim();
            let (_, value) = M::FIELDS
                .iter()
                .find(|(known, _)| *known == name)
                .ok_or_else(|| {
                    let known: Vec<_> = M::FIELDS.iter().map(|(known, _)| *known).collect();
                    let known = known.join(", ");
                    format!("has the unknown placeholder {name:?}; expected one of {known}")
                })?;
            parts.push(Part::Literal(literal.to_owned()));
            parts.push(Part::Field(*value));
            rest = after;
        }
        parts.push(Part::Literal(rest.to_owned()));
        let template = Self { parts, escape };
        template.check()?;
        Ok(template)
    }

    /// Renders the body of a message.
    pub(super) fn render(&self, message: &M) -> String {
        let mut body = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => body.push_str(text),
                Part::Field(value) => self.escape.push(&value(message), &mut body),
            }
        }
        body
    }

    /// Detects placeholders outside of JSON strings, with sample values that are not valid JSON
    /// alone, and with empty values.
    fn check(&self) -> Result<(), String> {
        if self.escape != Escape::Json {
            return Ok(());
        }
        for text in ["\"}, {\\ x", ""] {
            let body = self.render(&M::sample(text));
            if let Err(error) = serde_json::from_str::<Value>(&body) {
                return Err(format!(
                    "is not valid JSON: put every placeholder in double quotes ({error})"
                ));
            }
        }
        Ok(())
    }
}

impl Fill for Message {
    const FIELDS: &'static [Field<Self>] = MESSAGE_FIELDS;

    fn sample(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            alert: Alert {
                event_id: Uuid::nil(),
                kind: text.clone(),
                operation: text.clone(),
                caller_id: Some(text.clone()),
                workflow: text.clone(),
                tenant: text.clone(),
                step: Some(text.clone()),
                error: Some(AlertError {
                    code: text.clone(),
                    message: text.clone(),
                }),
                advice: text,
                at: Timestamp::UNIX_EPOCH,
            },
            repeats: 0,
        }
    }
}

/// How values are escaped in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Escape {
    /// As the inside of a JSON string.
    Json,
    /// Percent-encoded, as in an HTML form.
    Form,
    /// Unchanged: no value can break plain text.
    Plain,
}

impl Escape {
    /// The escaping for a content type; `None` if the type is not supported.
    pub(super) fn of_content_type(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default();
        match essence.trim().to_ascii_lowercase().as_str() {
            "application/x-www-form-urlencoded" => Some(Self::Form),
            "text/plain" => Some(Self::Plain),
            "application/json" => Some(Self::Json),
            other if other.starts_with("application/") && other.ends_with("+json") => {
                Some(Self::Json)
            }
            _ => None,
        }
    }

    fn push(self, text: &str, out: &mut String) {
        match self {
            Self::Plain => out.push_str(text),
            Self::Json => {
                let quoted = Value::from(text).to_string();
                out.push_str(&quoted[1..quoted.len() - 1]);
            }
            Self::Form => {
                for byte in text.bytes() {
                    if byte.is_ascii_alphanumeric() || b"-._*".contains(&byte) {
                        out.push(char::from(byte));
                    } else {
                        write!(out, "%{byte:02X}").expect("writing to a String cannot fail");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::alert::tests::alert;
    use super::*;

    fn message() -> Message {
        Message {
            alert: alert(),
            repeats: 3,
        }
    }

    #[test]
    fn every_placeholder_is_filled_in_and_escaped_for_json() {
        let members: Vec<String> = MESSAGE_FIELDS
            .iter()
            .map(|(name, _)| format!("\"{name}\": \"{{{{ {name} }}}}\""))
            .collect();
        let text = format!(
            "{{{}, \"count\": {{{{alert.repeats}}}}}}",
            members.join(",")
        );
        let template = Template::compile(&text, Escape::Json).unwrap();
        let body: Value = serde_json::from_str(&template.render(&message())).unwrap();
        assert_eq!(
            body,
            json!({
                "alert.eventId": "00000000-0000-0000-0000-000000000007",
                "alert.kind": "operation-parked",
                "alert.operation": "op-1",
                "alert.callerId": "",
                "alert.workflow": "drone-delivery",
                "alert.tenant": "acme",
                "alert.step": "drone",
                "alert.error.code": "no-drone",
                "alert.error.message": "no \"drone\" is free\ntoday",
                "alert.advice": "Resubmit it once drones are back.",
                "alert.at": "2026-01-02T03:04:05Z",
                "alert.repeats": "3",
                "alert.summary": message().summary(),
                "count": 3,
            })
        );
    }

    #[test]
    fn forms_are_percent_encoded_and_plain_text_is_left_as_it_is() {
        let render = |escape| {
            let template = Template::compile("x={{alert.error.message}}&y=1", escape).unwrap();
            template.render(&message())
        };
        assert_eq!(
            render(Escape::Form),
            "x=no%20%22drone%22%20is%20free%0Atoday&y=1"
        );
        assert_eq!(render(Escape::Plain), "x=no \"drone\" is free\ntoday&y=1");
    }

    #[test]
    fn a_missing_value_of_an_alert_is_empty() {
        let template =
            Template::compile("<{{alert.step}}|{{alert.error.code}}>", Escape::Plain).unwrap();
        let mut message = message();
        message.alert.step = None;
        message.alert.error = None;
        assert_eq!(template.render(&message), "<|>");
    }

    #[test]
    fn templates_that_cannot_work_are_refused_with_the_reason() {
        for (text, reason) in [
            ("{\"a\": \"{{alert.kind\"}", "without a }}"),
            (
                "{\"a\": \"{{alert.knd}}\"}",
                "expected one of alert.eventId, ",
            ),
            (
                "{\"a\": {{alert.kind}}}",
                "put every placeholder in double quotes",
            ),
            (
                "{\"a\": 1{{alert.step}}}",
                "put every placeholder in double quotes",
            ),
            ("{\"a\": \"{{alert.kind}}\"", "is not valid JSON"),
            ("", "is not valid JSON"),
        ] {
            let refusal = Template::<Message>::compile(text, Escape::Json).unwrap_err();
            assert!(refusal.contains(reason), "{text}: {refusal}");
        }
    }

    #[test]
    fn the_content_type_determines_the_escaping_and_an_unknown_one_is_refused() {
        for (content_type, escape) in [
            ("application/json", Some(Escape::Json)),
            ("Application/JSON; charset=utf-8", Some(Escape::Json)),
            ("application/problem+json", Some(Escape::Json)),
            ("application/x-www-form-urlencoded", Some(Escape::Form)),
            ("text/plain;charset=utf-8", Some(Escape::Plain)),
            ("text/xml", None),
            ("", None),
        ] {
            assert_eq!(Escape::of_content_type(content_type), escape);
        }
    }
}
