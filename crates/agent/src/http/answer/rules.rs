//! Rules for answers: the first matching rule decides what an answer means.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use hyper::StatusCode;
use hyper::header::HeaderName;
use serde_json::Value;
use serde_json::value::RawValue;
use waybill_engine::Action;

use super::config::{AnswerOutcome, AnswerRuleConfig, Expected};
use super::{Keep, Verdict, check_pointer, is_code};
use crate::http::LoadError;
use crate::http::config::StatusSet;
use crate::raw;

/// The meaning of an answer that meets the conditions.
#[derive(Debug)]
pub(in crate::http) struct AnswerRule {
    status: StatusSet,
    headers: Vec<(HeaderName, Vec<String>)>,
    body: Vec<(Vec<Box<str>>, Vec<Value>)>,
    exists: Vec<Vec<Box<str>>>,
    pub(super) verdict: Verdict,
    pub(super) code: Option<String>,
    /// What to keep instead of the values of the request.
    pub(in crate::http) keep: Option<Keep>,
}

/// The request, or the agent, that rules are for.
pub(in crate::http) struct RulesOf<'a> {
    /// The key of the rules.
    pub(in crate::http) key: &'a str,
    /// The values that the request keeps.
    pub(in crate::http) keep: &'a BTreeMap<String, String>,
    /// Whether an answer may mean that no effect exists.
    pub(in crate::http) may_be_absent: bool,
}

impl RulesOf<'_> {
    pub(in crate::http) fn compile(
        &self,
        rules: &[AnswerRuleConfig],
    ) -> Result<Vec<AnswerRule>, LoadError> {
        let rules = rules.iter().enumerate();
        rules
            .map(|(index, rule)| self.rule(&format!("{}.{index}", self.key), rule))
            .collect()
    }

    fn rule(&self, key: &str, rule: &AnswerRuleConfig) -> Result<AnswerRule, LoadError> {
        let AnswerRuleConfig {
            status,
            headers,
            body,
            exists,
            outcome,
            code,
            keep,
        } = rule;
        if *status == StatusSet::default()
            && headers.is_empty()
            && body.is_empty()
            && exists.is_empty()
        {
            return Err(LoadError::invalid(
                key,
                "has no condition: set status, headers, body or exists",
            ));
        }
        let verdict = match outcome {
            AnswerOutcome::Success => Verdict::Success,
            AnswerOutcome::Transient => Verdict::Transient,
            AnswerOutcome::Permanent => Verdict::Permanent,
            AnswerOutcome::Unknown => Verdict::Unknown,
            AnswerOutcome::Absent if self.may_be_absent => Verdict::Absent,
            AnswerOutcome::Absent => {
                return Err(LoadError::invalid(
                    format!("{key}.outcome"),
                    "absent is for undos and probes",
                ));
            }
        };
        let is_failure = !matches!(verdict, Verdict::Success | Verdict::Absent);
        if let Some(code) = code
            && (!is_failure || !is_code(code))
        {
            return Err(LoadError::invalid(
                format!("{key}.code"),
                "must be 1 to 64 of a-z, A-Z, 0-9 and `-_.:/`, and is for failures only",
            ));
        }
        Ok(AnswerRule {
            status: status.clone(),
            headers: headers
                .iter()
                .map(|(name, expected)| header(key, name, expected))
                .collect::<Result<_, _>>()?,
            body: body
                .iter()
                .map(|(pointer, Expected(values))| {
                    check_pointer(&format!("{key}.body"), pointer)?;
                    Ok((raw::way_of(pointer), values.clone()))
                })
                .collect::<Result<_, LoadError>>()?,
            exists: exists
                .iter()
                .map(|pointer| {
                    check_pointer(&format!("{key}.exists"), pointer)?;
                    Ok(raw::way_of(pointer))
                })
                .collect::<Result<_, LoadError>>()?,
            verdict,
            code: code.clone(),
            keep: match keep.is_empty() {
                true => None,
                false => Some(self.keep(key, keep, verdict)?),
            },
        })
    }

    /// The values of the request, some of them at other pointers. A workflow can rely on the same
    /// outputs, whichever rule matches.
    fn keep(
        &self,
        key: &str,
        elsewhere: &BTreeMap<String, String>,
        verdict: Verdict,
    ) -> Result<Keep, LoadError> {
        let key = format!("{key}.keep");
        if verdict != Verdict::Success {
            return Err(LoadError::invalid(key, "is for the outcome success"));
        }
        let unknown = elsewhere.keys().find(|&name| !self.keep.contains_key(name));
        if let Some(name) = unknown {
            return Err(LoadError::invalid(
                format!("{key}.{name}"),
                "is not in `keep` of the request, which names all values that a step may have",
            ));
        }
        let mut all = self.keep.clone();
        for (name, pointer) in elsewhere {
            all.insert(name.clone(), pointer.clone());
        }
        Keep::compile(&key, &all)
    }
}

fn header(
    key: &str,
    name: &str,
    Expected(values): &Expected,
) -> Result<(HeaderName, Vec<String>), LoadError> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        LoadError::invalid(
            format!("{key}.headers"),
            format!("{name:?} is not a header"),
        )
    })?;
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Ok((name, values.iter().map(text).collect()))
}

impl AnswerRule {
    /// Whether an answer meets the conditions. Calls `body` only if a condition concerns it.
    pub(super) fn matches<'b>(
        &self,
        action: Action,
        status: StatusCode,
        headers: &HeaderMap,
        body: impl Fn() -> Option<&'b RawValue>,
    ) -> bool {
        if action == Action::Run && self.verdict == Verdict::Absent {
            return false;
        }
        let has_status =
            self.status == StatusSet::default() || self.status.contains(status.as_u16());
        let has_header = |(name, expected): &(HeaderName, Vec<String>)| {
            let mut values = headers.get_all(name).iter();
            values.any(|value| {
                expected
                    .iter()
                    .any(|text| text.as_bytes() == value.as_bytes())
            })
        };
        let find = |way: &[Box<str>]| raw::find(body()?, way);
        let has_value = |(way, expected): &(Vec<Box<str>>, Vec<Value>)| {
            let value = find(way).and_then(|value| serde_json::from_str(value.get()).ok());
            value.is_some_and(|value: Value| expected.contains(&value))
        };
        has_status
            && self.headers.iter().all(has_header)
            && self.body.iter().all(has_value)
            && self.exists.iter().all(|way| find(way).is_some())
    }
}
