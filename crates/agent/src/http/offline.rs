//! A declared agent without connections: the request that it would send for an attempt, and what it
//! would conclude from a response. Tests of workflows use them.
//!
//! Deliberately absent: the agent's own retries, its circuit breaker and its limits. A response
//! here ends the attempt.

use std::collections::BTreeMap;

use hyper::{Response, StatusCode};
use serde_json::Value;
use waybill_engine::{Action, Outcome, StepRequest};

use super::answer::StatusRules;
use super::checked::Checked;
use super::config::AgentsFile;
use super::load_error::LoadError;
use super::no_request;
use super::plan::Plan;
use crate::handler::permanent;
use crate::template::{Scope, Variables};

/// A declared agent without connections.
#[derive(Debug)]
pub struct OfflineAgent {
    plan: Plan,
    rules: StatusRules,
}

/// The HTTP request of an attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct OfflineRequest {
    /// Its method.
    pub method: String,
    /// Its path and query, below `baseUrl`'s host.
    pub path: String,
    /// Its headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body, if it has one.
    pub body: Option<Value>,
}

impl AgentsFile {
    /// The agents without connections, by name. `variables` provides the values of placeholders
    /// that are the same for every request. Reads no file that an agent names.
    ///
    /// # Errors
    ///
    /// If the settings of an agent are invalid.
    pub fn offline(
        &self,
        variables: &Variables,
    ) -> Result<BTreeMap<String, OfflineAgent>, LoadError> {
        let agents = self.agents.iter().map(|agent| {
            let checked = Checked::new(&agent.name, &agent.http, variables);
            let Checked { plan, rules, .. } =
                checked.map_err(|error| error.of_agent(&agent.name))?;
            Ok((agent.name.clone(), OfflineAgent { plan, rules }))
        });
        agents.collect()
    }
}

impl OfflineAgent {
    /// The request that the agent would send.
    ///
    /// # Errors
    ///
    /// The outcome of the attempt, if the agent would send no request: it defines none for the
    /// action, or a value of its template is missing.
    pub fn request(&self, request: &StepRequest) -> Result<OfflineRequest, Box<Outcome>> {
        let plan = self.plan.step(&request.step, request.action);
        let plan = plan.ok_or_else(|| Box::new(no_request(&request.step, request.action)))?;
        let key = request.idempotency_key();
        let scope = Scope::new(request, &key);
        let rendered = self.plan.render(plan, &scope);
        let rendered =
            rendered.map_err(|error| Box::new(permanent(error.code(), error.to_string())))?;
        let (head, body) = rendered.into_parts();
        let headers = head.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.to_string(), value.into_owned())
        });
        let path = head.uri.path_and_query();
        Ok(OfflineRequest {
            method: head.method.to_string(),
            path: path.map_or_else(String::new, ToString::to_string),
            headers: headers.collect(),
            body: serde_json::from_slice(&body).ok(),
        })
    }

    /// The outcome of an attempt whose request the service answers with this status and body, and
    /// without headers; `None` if the status is invalid.
    #[must_use]
    pub fn outcome(
        &self,
        request: &StepRequest,
        status: u16,
        body: Option<&Value>,
    ) -> Option<Outcome> {
        let status = StatusCode::from_u16(status).ok()?;
        let action = request.action;
        let Some(plan) = self.plan.step(&request.step, action) else {
            return Some(no_request(&request.step, action));
        };
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = status;
        let body = body.map_or_else(String::new, Value::to_string);
        let body = Some(body.as_bytes());
        let rules = (&plan.answers[..], &plan.keep);
        let meaning = self.rules.meaning(action, rules, &head, body);
        Some(self.rules.outcome(&meaning, action, &head, body))
    }

    /// The outputs that the agent may keep of a successful response to a request for the step.
    #[must_use]
    pub fn kept_outputs(&self, step: &str) -> Vec<&str> {
        let Some(plan) = self.plan.step(step, Action::Run) else {
            return Vec::new();
        };
        let of_rules = plan.answers.iter().filter_map(|rule| rule.keep.as_ref());
        of_rules
            .chain([&plan.keep])
            .flat_map(|keep| keep.names())
            .collect()
    }
}
