//! The meaning of a service's answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;
use serde_json::value::RawValue;
use waybill_engine::{Action, Outcome, Outputs};

use super::LoadError;
use super::config::{HttpConfig, StatusesConfig};
use crate::handler::{permanent, success, transient, unknown};
use crate::raw;

/// The longest error message in a reply, in bytes.
const MESSAGE_BYTES_MAX: usize = 300;
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
}

/// Maps answers to outcomes.
#[derive(Debug)]
pub(super) struct StatusRules {
    statuses: StatusesConfig,
    error_code: String,
}

impl StatusRules {
    pub(super) fn compile(config: &HttpConfig) -> Result<Self, LoadError> {
        check_pointer("errorCode", &config.error_code)?;
        Ok(Self {
            statuses: config.statuses.clone(),
            error_code: config.error_code.clone(),
        })
    }

    pub(super) fn verdict(&self, status: StatusCode, action: Action) -> Verdict {
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
        } else if statuses.success.contains(code) || status.is_success() {
            Verdict::Success
        } else if status.is_server_error() {
            Verdict::Unknown
        } else {
            Verdict::Permanent
        }
    }

    /// The outcome of an answer. `body` is `None` if it could not be read: then the status decides
    /// alone.
    pub(super) fn outcome(
        &self,
        verdict: Verdict,
        action: Action,
        status: StatusCode,
        keep: &Keep,
        body: Option<&[u8]>,
    ) -> Outcome {
        match (verdict, body) {
            (Verdict::Absent, _) if action == Action::Probe => Outcome::NotPerformed,
            (Verdict::Success, Some(body)) if !keep.is_empty() => keep.outcome(body),
            (Verdict::Absent | Verdict::Success, _) => success(Outputs::new()),
            (failure, body) => self.failure(failure, status, body),
        }
    }

    /// The outcome of an answer whose status is not a success. `body` is `None` if it could not be
    /// read: then the status decides alone.
    fn failure(&self, verdict: Verdict, status: StatusCode, body: Option<&[u8]>) -> Outcome {
        let json = body.and_then(|body| serde_json::from_slice::<Value>(body).ok());
        let code = json
            .as_ref()
            .and_then(|json| json.pointer(&self.error_code))
            .and_then(Value::as_str)
            .filter(|code| is_code(code))
            .map_or_else(|| format!("http-{}", status.as_u16()), str::to_owned);
        let message = message(status, json.as_ref(), body.unwrap_or_default());
        match verdict {
            Verdict::Transient => transient(code, message),
            Verdict::Permanent => permanent(code, message),
            Verdict::Success | Verdict::Absent | Verdict::Unknown => unknown(code, message),
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

/// The message for people: the service's (RFC 9457's `detail` or `title`, otherwise the start of
/// the body).
fn message(status: StatusCode, json: Option<&Value>, body: &[u8]) -> String {
    let explanation = ["detail", "title", "message"]
        .iter()
        .find_map(|member| json?.get(member)?.as_str())
        .map_or_else(|| String::from_utf8_lossy(body), Into::into);
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

/// The wait that the service asks for. The date form of `Retry-After` is ignored: it would compare
/// the service's clock with this one.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
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
