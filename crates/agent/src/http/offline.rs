//! A declared agent without connections: the request that it would send for an attempt, and what it
//! would conclude from a response. Tests of workflows use it.
//!
//! Deliberately absent: the agent's own retries, its circuit breaker and its limits. A response
//! here is the one with which the attempt ends.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::Value;
use waybill_engine::{Action, Outcome, StepRequest};

use super::answer::StatusRules;
use super::plan::Plan;
use super::{AgentsFile, LoadError, no_request};
use crate::handler::permanent;
use crate::template::Scope;

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
    /// The agents without connections, by name. `variables` provides the values of `{name}` in a
    /// `baseUrl`.
    ///
    /// # Errors
    ///
    /// If the requests of an agent are invalid.
    pub fn offline(
        &self,
        variables: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, OfflineAgent>, LoadError> {
        let agents = self.agents.iter().map(|agent| {
            let plan = Plan::compile(&agent.http, variables);
            let offline = plan.and_then(|plan| {
                let rules = StatusRules::compile(&agent.http)?;
                Ok(OfflineAgent { plan, rules })
            });
            let offline = offline.map_err(|error| error.of_agent(&agent.name))?;
            Ok((agent.name.clone(), offline))
        });
        agents.collect()
    }
}

impl OfflineAgent {
    /// The request that the agent would send.
    ///
    /// # Errors
    ///
    /// The outcome of the attempt, if the agent would send none: it defines no request for the
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

    /// The outcome of an attempt whose request the service answers like this; `None` if there is no
    /// such status.
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
        let body = body.map_or_else(String::new, Value::to_string);
        let verdict = self.rules.verdict(status, action);
        let body = Some(body.as_bytes());
        Some(
            self.rules
                .outcome(verdict, action, status, &plan.keep, body),
        )
    }

    /// The outputs that the agent keeps of a successful response to a request for the step.
    #[must_use]
    pub fn kept_outputs(&self, step: &str) -> Vec<&str> {
        let plan = self.plan.step(step, Action::Run);
        plan.map(|plan| plan.keep.names()).unwrap_or_default()
    }
}
