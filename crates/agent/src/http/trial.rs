//! One request of an agent, for the author of its file: the request, the answer, and the outcome.
//!
//! What must hold: the request is the one that an attempt sends, and the outcome the one that an
//! attempt derives from the answer. No credential is shown.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{COOKIE, HeaderName, SET_COOKIE};
use hyper::{HeaderMap, Request};
use tokio::time::Instant;
use waybill_config::REDACTED;
use waybill_engine::{Action, Outcome, StepRequest};

use super::checked::Checked;
use super::client::Answer;
use super::config::AgentConfig;
use super::plan::{CREDENTIAL_HEADERS, StepPlan};
use super::{HttpAgent, LoadError, token_unavailable};
use crate::handler::StepCall;
use crate::template::{RenderError, Scope, Variables};

/// Why there is no request to show.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The agent cannot be loaded.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// It has no request for the step.
    #[error("agent {agent:?} has no request to {} step {step:?}", to(.action))]
    NoRequest {
        /// The agent.
        agent: String,
        /// The step.
        step: String,
        /// What to do with it.
        action: Action,
    },
    /// The request cannot be made from these values.
    #[error("the attempt would end as permanent, {}", .0.code())]
    Render(#[source] RenderError),
}

fn to(action: &Action) -> &'static str {
    match action {
        Action::Run => "perform",
        Action::Compensate => "undo",
        Action::Probe => "probe",
    }
}

/// A request, without credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownRequest {
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there is none.
    pub body: String,
}

/// An answer, without credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownAnswer {
    /// The status with its name: `201 Created`.
    pub status: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it could be read.
    pub body: String,
}

/// A request that was sent once.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// The answer, if there was one in time.
    pub answer: Option<ShownAnswer>,
    /// How long it took.
    pub took: Duration,
    /// What it means.
    pub outcome: Outcome,
}

impl AgentConfig {
    /// The request that an attempt sends. Reads no secret file.
    ///
    /// # Errors
    ///
    /// If the agent is invalid, has no such request, or the request lacks a value.
    pub fn preview(
        &self,
        request: &StepRequest,
        variables: &Variables,
    ) -> Result<ShownRequest, TrialError> {
        let checked = Checked::new(&self.name, &self.http, variables);
        let checked = checked.map_err(|source| self.refused(source))?;
        let auth = checked.auth.header();
        let plan = checked.plan.step(&request.step, request.action);
        let plan = plan.ok_or_else(|| no_request(request))?;
        let key = request.idempotency_key();
        let rendered = checked.plan.render(plan, &Scope::new(request, &key));
        Ok(shown(rendered.map_err(TrialError::Render)?, auth))
    }

    /// Sends the request of an attempt once, without retries and without the circuit breaker.
    ///
    /// # Errors
    ///
    /// As for [`preview`](Self::preview), or if a file that the agent names cannot be read.
    pub async fn send_once(
        &self,
        request: StepRequest,
        variables: &Variables,
        within: Duration,
    ) -> Result<Trial, TrialError> {
        let agent = HttpAgent::new(&self.name, &self.http, variables);
        let agent = agent.map_err(|source| self.refused(source))?;
        let sent = Instant::now();
        let call = StepCall {
            request,
            sent,
            deadline: sent + within,
        };
        let plan = agent.plan.step(&call.request.step, call.request.action);
        let plan = plan.ok_or_else(|| no_request(&call.request))?;
        agent.try_once(plan, &call).await
    }

    fn refused(&self, source: LoadError) -> TrialError {
        TrialError::Load(Box::new(source.of_agent(&self.name)))
    }
}

fn no_request(request: &StepRequest) -> TrialError {
    TrialError::NoRequest {
        agent: request.agent.to_string(),
        step: request.step.to_string(),
        action: request.action,
    }
}

impl HttpAgent {
    async fn try_once(&self, plan: &StepPlan, call: &StepCall) -> Result<Trial, TrialError> {
        let key = call.idempotency_key();
        let request = self.plan.render(plan, &Scope::new(&call.request, &key));
        let request = request.map_err(TrialError::Render)?;
        let began = Instant::now();
        let sent = match self.auth.credential(call.deadline).await {
            Ok(credential) => self.send_authenticated(request, credential, call).await,
            Err(error) => Err(error),
        };
        let took = began.elapsed();
        Ok(match sent {
            Ok(sent) => {
                let answer = sent.answer.as_ref().and_then(|answer| answer.as_ref().ok());
                Trial {
                    answer: answer.map(shown_answer),
                    took,
                    outcome: self.judge(plan, sent, call, began).outcome,
                }
            }
            Err(error) => Trial {
                answer: None,
                took,
                outcome: token_unavailable(&error),
            },
        })
    }
}

fn shown(request: Request<Bytes>, auth: Option<&HeaderName>) -> ShownRequest {
    let mut headers = shown_headers(request.headers());
    // An attempt adds this header when it sends the request.
    headers.extend(auth.map(|name| (name.to_string(), REDACTED.to_owned())));
    ShownRequest {
        method: request.method().to_string(),
        url: request.uri().to_string(),
        headers,
        body: String::from_utf8_lossy(request.body()).into_owned(),
    }
}

fn shown_answer(Answer { head, body }: &Answer) -> ShownAnswer {
    let body = body.as_ref().map(|body| String::from_utf8_lossy(body));
    ShownAnswer {
        status: head.status.to_string(),
        headers: shown_headers(&head.headers),
        body: body.unwrap_or_default().into_owned(),
    }
}

fn shown_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut hidden: BTreeSet<&str> = CREDENTIAL_HEADERS.into_iter().collect();
    hidden.extend([COOKIE.as_str(), SET_COOKIE.as_str()]);
    let shown = |(name, value): (&HeaderName, &hyper::header::HeaderValue)| {
        let value = match hidden.contains(name.as_str()) {
            true => REDACTED.into(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        (name.to_string(), value)
    };
    headers.iter().map(shown).collect()
}
