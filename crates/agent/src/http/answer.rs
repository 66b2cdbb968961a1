//! The meaning of a service's answer.

mod config;
mod rules;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use hyper::http::response::Parts;
use serde_json::Value;
use serde_json::value::RawValue;
use waybill_engine::{Action, Outcome, Outputs};

pub use config::{AnswerOutcome, AnswerRuleConfig, Expected};
pub(super) use rules::{AnswerRule, RulesOf};

use super::LoadError;
use super::config::{HttpConfig, StatusesConfig};
use crate::handler::{permanent, success, transient, unknown};
use crate::raw;

/// The longest error message in a reply, in bytes.
const MESSAGE_BYTES_MAX: usize = 300;
/// The media type of problem details.
const PROBLEM: &[u8] = b"application/problem+json";
/// The longest error code that is taken from a service, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// The meaning of a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Success,
    Transient,
    Permanent,
    Unknown,
    /// For an undo or a probe: no effect exists.
    Absent,
    /// The service has accepted the request, and may perform it later.
    Accepted,
}

/// What an answer means, and which values the agent takes from it.
pub(super) struct Meaning<'a> {
    pub(super) verdict: Verdict,
    /// The code of a failure.
    pub(super) code: Option<&'a str>,
    /// The values of a success.
    pub(super) keep: &'a Keep,
    /// Whether a rule of the file matched.
    pub(super) is_by_rule: bool,
}

/// Maps answers to outcomes.
#[derive(Debug)]
pub(super) struct StatusRules {
    statuses: StatusesConfig,
    answers: Vec<AnswerRule>,
    error_code: String,
}

impl StatusRules {
    pub(super) fn compile(config: &HttpConfig) -> Result<Self, LoadError> {
        check_pointer("errorCode", &config.error_code)?;
        Ok(Self {
            statuses: config.statuses.clone(),
            answers: RulesOf {
                key: "answers",
                keep: &BTreeMap::new(),
                may_be_absent: true,
            }
            .compile(&config.answers)?,
            error_code: config.error_code.clone(),
        })
    }

    /// What an answer means. The first matching rule decides, of the request or else of the agent;
    /// without one, the status.
    pub(super) fn meaning<'a>(
        &'a self,
        action: Action,
        (rules, keep): (&'a [AnswerRule], &'a Keep),
        head: &Parts,
        body: Option<&[u8]>,
    ) -> Meaning<'a> {
        let json = std::cell::OnceCell::new();
        let parsed = || *json.get_or_init(|| serde_json::from_slice::<&RawValue>(body?).ok());
        let mut rules = rules.iter().chain(&self.answers);
        match rules.find(|rule| rule.matches(action, head.status, &head.headers, parsed)) {
            Some(rule) => Meaning {
                verdict: rule.verdict,
                code: rule.code.as_deref(),
                keep: rule.keep.as_ref().unwrap_or(keep),
                is_by_rule: true,
            },
            None => Meaning {
                verdict: self.verdict(head.status, action),
                code: None,
                keep,
                is_by_rule: false,
            },
        }
    }

    fn verdict(&self, status: StatusCode, action: Action) -> Verdict {
        let code = status.as_u16();
        let statuses = &self.statuses;
        if action != Action::Run && statuses.absent.contains(code) {
            Verdict::Absent
        } else if statuses.transient.contains(code) {
            Verdict::Transient
        } else if statuses.unknown.contains(code) {
            Verdict::Unknown
        } else if statuses.permanent.contains(code) {
            Verdict::Permanent
        } else if statuses.success.contains(code) {
            Verdict::Success
        } else if status == StatusCode::ACCEPTED {
            Verdict::Accepted
        } else if status.is_success() {
            Verdict::Success
        } else if status.is_server_error() {
            Verdict::Unknown
        } else {
            Verdict::Permanent
        }
    }

    /// The outcome of an answer. `body` is `None` if it could not be read: then the head alone
    /// decides.
    pub(super) fn outcome(
        &self,
        meaning: &Meaning<'_>,
        action: Action,
        head: &Parts,
        body: Option<&[u8]>,
    ) -> Outcome {
        match (meaning.verdict, body) {
            (Verdict::Absent, _) if action == Action::Probe => Outcome::NotPerformed,
            (Verdict::Success, Some(body)) if !meaning.keep.is_empty() => {
                meaning.keep.outcome(body)
            }
            (Verdict::Absent | Verdict::Success, _) => success(Outputs::new()),
            _ => self.failure(meaning, head, body),
        }
    }

    /// The outcome of an answer that is not a success. `body` is `None` if it could not be read.
    fn failure(&self, meaning: &Meaning<'_>, head: &Parts, body: Option<&[u8]>) -> Outcome {
        let status = head.status;
        if meaning.verdict == Verdict::Accepted {
            return unknown(
                "answer-accepted",
                "the service answered 202 Accepted, which does not say that the request was \
                 performed: say under `answers` or `statuses` of the agent what it means",
            );
        }
        let json = body.and_then(|body| serde_json::from_slice::<Value>(body).ok());
        let of_body = || {
            let code = json.as_ref()?.pointer(&self.error_code)?.as_str()?;
            is_code(code).then_some(code)
        };
        let code = meaning.code.or_else(of_body);
        let code = code.map_or_else(|| format!("http-{}", status.as_u16()), str::to_owned);
        let message = message(head, json.as_ref(), body.unwrap_or_default());
        match meaning.verdict {
            Verdict::Transient => transient(code, message),
            Verdict::Permanent => permanent(code, message),
            Verdict::Success | Verdict::Absent | Verdict::Unknown | Verdict::Accepted => {
                unknown(code, message)
            }
        }
    }
}

/// Whether `code` is suitable as a stable code in replies and metrics.
fn is_code(code: &str) -> bool {
    !code.is_empty()
        && code.len() <= CODE_BYTES_MAX
        && code
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte))
}

/// The message for people: the service's, otherwise the start of the body. Problem details (RFC
/// 9457) have a title for the kind of problem, and a detail for this occurrence.
fn message(head: &Parts, json: Option<&Value>, body: &[u8]) -> String {
    let status = head.status;
    let member = |name: &str| json?.get(name)?.as_str();
    let is_problem = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
        let media_type = value.as_bytes().split(|byte| *byte == b';').next();
        media_type.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(PROBLEM))
    });
    let explanation: Cow<'_, str> = match (member("title"), member("detail")) {
        (Some(title), Some(detail)) if is_problem => format!("{title}: {detail}").into(),
        (title, detail) => detail
            .or(title)
            .or_else(|| member("message"))
            .map_or_else(|| String::from_utf8_lossy(body), Into::into),
    };
    let explanation = explanation.trim();
    let mut message = format!("the service answered {status}");
    if !explanation.is_empty() {
        let mut end = explanation.len().min(MESSAGE_BYTES_MAX);
        while !explanation.is_char_boundary(end) {
            end -= 1;
        }
        message.push_str(": ");
        message.push_str(&explanation[..end]);
    }
    message
}

/// The wait that the service asks for: seconds, or a date. A date counts from the answer's own
/// `Date`: the clocks of the service and of this machine may differ.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| Some(jiff::fmt::rfc2822::parse(text).ok()?.timestamp());
    let wait = date(asked)?.duration_since(date(text(DATE)?)?);
    Some(Duration::try_from(wait).unwrap_or_default())
}

/// The values of a successful answer to keep.
#[derive(Debug)]
pub(super) struct Keep(Vec<Kept>);

/// A value to keep under a name.
#[derive(Debug)]
pub(super) struct Kept {
    name: String,
    pointer: String,
    /// The parts of the JSON pointer.
    way: Vec<Box<str>>,
    /// Whether a successful answer may lack it.
    pub(super) optional: bool,
}

impl Keep {
    pub(super) fn compile(key: &str, keep: &BTreeMap<String, String>) -> Result<Self, LoadError> {
        keep.iter()
            .map(|(name, pointer)| {
                let (pointer, optional) = match pointer.strip_suffix('?') {
                    Some(pointer) => (pointer, true),
                    None => (pointer.as_str(), false),
                };
                check_pointer(&format!("{key}.{name}"), pointer)?;
                Ok(Kept {
                    name: name.clone(),
                    pointer: pointer.to_owned(),
                    way: raw::way_of(pointer),
                    optional,
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The value to keep under this name.
    pub(super) fn find(&self, name: &str) -> Option<&Kept> {
        self.0.iter().find(|kept| kept.name == name)
    }

    /// The names of the values to keep.
    pub(super) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|kept| kept.name.as_str()).collect()
    }

    /// Whether no value of the body is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The outcome of a successful answer. The effect exists. So a body without the required values
    /// makes the outcome unknown, never failed without effect.
    pub(super) fn outcome(&self, body: &[u8]) -> Outcome {
        let unreadable = |error: serde_json::Error| {
            let message = format!("the service's response cannot be read: {error}");
            unknown("answer-not-json", message)
        };
        let json: &RawValue = match serde_json::from_slice(body) {
            Ok(json) => json,
            Err(error) => return unreadable(error),
        };
        let mut outputs = Outputs::with_capacity(self.0.len());
        for kept in &self.0 {
            match raw::find(json, &kept.way) {
                None if kept.optional => {}
                None => {
                    return unknown(
                        "answer-value-missing",
                        format!(
                            "the service's response has no value at {:?} for {:?}",
                            kept.pointer, kept.name
                        ),
                    );
                }
                Some(value) => {
                    let text = match raw::string(value) {
                        Ok(text) => text.unwrap_or(Cow::Borrowed(value.get())),
                        Err(error) => return unreadable(error),
                    };
                    outputs.push((kept.name.clone(), text.into_owned()));
                }
            }
        }
        success(outputs)
    }
}

/// RFC 6901: empty, or every part after a slash.
fn check_pointer(key: &str, pointer: &str) -> Result<(), LoadError> {
    if pointer.is_empty() || pointer.starts_with('/') {
        Ok(())
    } else {
        Err(LoadError::invalid(
            key,
            format!("{pointer:?} is not a JSON pointer such as /id"),
        ))
    }
}
