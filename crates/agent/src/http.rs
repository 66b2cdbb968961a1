//! The declarative HTTP agent: a YAML mapping from step to request.
//!
//! What must hold:
//!
//! * Every attempt at a step carries the same idempotency key, and its complete-by.
//! * A failure counts as without effect only if that is certain: an exchange that broke off after
//!   the request may have left is [`Outcome::Unknown`].
//! * No value of an operation changes the host that is called, or adds a path segment or a header.
//!
//! Deliberately absent: redirects, cookies, proxies from the environment, and bodies other than
//! JSON.

mod answer;
mod auth;
mod check;
mod client;
mod config;
mod last_answer;
mod load;
mod load_error;
mod place;
mod plan;

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::{Request, StatusCode};
use tokio::time::{Instant, sleep, timeout_at};
use waybill_engine::{Action, Outcome, murmur2};
use waybill_tls::ClientTls;
use waybill_units::backoff;

pub use auth::{
    ApiKeyConfig, AuthConfig, BasicConfig, BearerConfig, ClientAuth, Oauth2Config, ServiceTlsConfig,
};
pub use check::NeededInputs;
pub use config::{
    AgentConfig, AgentsFile, BreakerConfig, HttpConfig, InverseConfig, PoolConfig, RequestConfig,
    RetriesConfig, StatusSet, StatusesConfig,
};
pub use load::NamedHandler;
pub use load_error::LoadError;

use crate::breaker::{Breaker, BreakerSettings, Called, Judged};
use crate::handler::{Handler, StepCall, not_attempted, permanent, transient, unknown};
use crate::metrics::{ServiceMetrics, breaker_state};
use crate::spans;
use crate::template::Scope;
pub use crate::template::Variables;
use answer::{StatusRules, Verdict, retry_after};
use auth::{Auth, AuthPlan, Credential, TokenError};
use client::{Answer, BodyError, Client, SendError};
use last_answer::LastAnswer;
use load::{check_settings, client_tls};
use plan::{Plan, StepPlan};

/// An agent that performs each step as one HTTP exchange.
#[derive(Debug)]
pub struct HttpAgent {
    plan: Plan,
    rules: StatusRules,
    auth: Auth,
    client: Client,
    breaker: Breaker,
    service: ServiceMetrics,
    last_answer: LastAnswer,
    retries: RetriesConfig,
    timeout: Duration,
    concurrency_max: usize,
    response_bytes_max: usize,
}

/// An agent whose settings are checked, before any file is read that they name.
#[derive(Debug)]
struct Checked<'a> {
    name: &'a str,
    config: &'a HttpConfig,
    plan: Plan,
    rules: StatusRules,
    auth: AuthPlan,
}

/// The result of one exchange.
struct Exchanged {
    outcome: Outcome,
    /// The wait that the service asks for.
    retry_after: Option<Duration>,
    /// What it says about the service.
    health: Health,
}

/// What the result of an exchange says about the service.
enum Health {
    /// What the outcome says.
    OfOutcome,
    /// It is healthy, whatever the outcome is.
    Healthy,
    /// Nothing: complete-by passed before the service had sufficient time to answer.
    CutShort,
}

impl<'a> Checked<'a> {
    fn new(
        name: &'a str,
        config: &'a HttpConfig,
        variables: &Variables,
    ) -> Result<Self, LoadError> {
        check_settings(name, config)?;
        let auth = AuthPlan::compile(config)?;
        let plan = Plan::compile(config, variables)?;
        if config.http2 && plan.is_tls() {
            return Err(LoadError::invalid(
                "http2",
                "requires a service that offers HTTP/2 without TLS",
            ));
        }
        if !plan.is_tls() && config.tls != ServiceTlsConfig::default() {
            return Err(LoadError::invalid(
                "tls",
                "requires a baseUrl with https://",
            ));
        }
        if let Some(header) = auth.header() {
            plan.refuse_header(header)?;
        }
        Ok(Self {
            name,
            config,
            plan,
            rules: StatusRules::compile(config)?,
            auth,
        })
    }

    /// Reads the files, and creates the agent.
    fn open(self) -> Result<HttpAgent, LoadError> {
        let Self { name, config, .. } = self;
        let tls = match self.plan.is_tls() {
            true => Some(
                ClientTls::open(format!("agent {name}: tls"), &client_tls(&config.tls))
                    .map_err(|refused| LoadError::invalid("tls", refused.problem))?,
            ),
            false => None,
        };
        if self.auth.header().is_some() && !self.plan.is_tls() && !self.plan.is_this_machine() {
            tracing::warn!(
                agent = name,
                "the agent's credential is sent without TLS: its baseUrl begins with http://"
            );
        }
        Ok(HttpAgent {
            rules: self.rules,
            auth: self.auth.open(name)?,
            client: Client::new(config, tls),
            breaker: Breaker::new(
                name,
                BreakerSettings {
                    failure_rate: config.breaker.failure_rate,
                    calls: config.breaker.calls,
                    open_for: config.breaker.open_for,
                    half_open_calls: config.breaker.half_open_calls,
                },
                breaker_state(name),
            ),
            service: ServiceMetrics::new(name),
            last_answer: LastAnswer::new(),
            plan: self.plan,
            retries: config.retries.clone(),
            timeout: config.timeout,
            concurrency_max: config.concurrency_max,
            response_bytes_max: config.response_bytes_max,
        })
    }
}

impl HttpAgent {
    /// Creates the agent `name`.
    ///
    /// # Errors
    ///
    /// If its settings are invalid, or a file that they name is.
    pub fn new(name: &str, config: &HttpConfig, variables: &Variables) -> Result<Self, LoadError> {
        Checked::new(name, config, variables)?.open()
    }

    async fn perform(&self, call: &StepCall) -> Outcome {
        let (step, action) = (&call.request.step, call.request.action);
        let Some(plan) = self.plan.step(step, action) else {
            let (code, to) = match action {
                Action::Run => ("step-unknown", "perform"),
                Action::Compensate => ("compensation-unknown", "undo"),
                Action::Probe => ("probe-unknown", "probe"),
            };
            return permanent(
                code,
                format!("this agent defines no request to {to} {step:?}"),
            );
        };
        let started = Instant::now();
        let key = call.idempotency_key();
        let scope = Scope::new(&call.request, &key);
        let mut retry = 0;
        loop {
            let request = match self.plan.render(plan, &scope) {
                Ok(request) => request,
                Err(error) => return permanent(error.code(), error.to_string()),
            };
            // Outside the circuit breaker: a token that is not available is no fault of the
            // service.
            let credential = match self.auth.credential().await {
                Ok(credential) => credential,
                Err(error) => return token_unavailable(&error),
            };
            let exchange = async {
                let exchanged = self
                    .exchange(plan, request, credential, call, started)
                    .await;
                exchanged.judge()
            };
            let Called {
                value: exchanged,
                was_probe,
            } = match self.breaker.call(exchange).await {
                Ok(called) => called,
                Err(refused) => {
                    return not_attempted(
                        "breaker-open",
                        "the service has failed too often; its circuit breaker is open",
                        refused.retry_after,
                    );
                }
            };
            if was_probe && let Outcome::Transient { error } = exchanged.outcome {
                // The attempt probed the service for all waiting ones: this must not count as its
                // own failure.
                return not_attempted(error.code, error.message, self.breaker.open_for());
            }
            if !matches!(exchanged.outcome, Outcome::Transient { .. }) || retry == self.retries.max
            {
                return exchanged.outcome;
            }
            let delay = self.delay(retry, &key, exchanged.retry_after);
            if delay > self.retries.delay_max || delay >= call.remaining() {
                return exchanged.outcome;
            }
            sleep(delay).await;
            retry += 1;
        }
    }

    /// The wait before a retry: a random part, at least half, of the backoff, which doubles with
    /// each retry; at least the time that the service asks for.
    fn delay(&self, retry: u32, key: &str, asked: Option<Duration>) -> Duration {
        // The key spreads operations over the interval, without a random source.
        let spread = f64::from(murmur2(key.as_bytes()) ^ retry) / f64::from(u32::MAX);
        let Self { retries, .. } = self;
        let wait = backoff(retries.backoff, retries.delay_max, retry, spread);
        wait.max(asked.unwrap_or_default())
    }

    /// Sends one request of an attempt, and judges the answer, within the remaining time. If the
    /// service refuses the credential, the request is sent once more with another one.
    async fn exchange(
        &self,
        step: &StepPlan,
        request: Request<bytes::Bytes>,
        credential: Option<Credential>,
        call: &StepCall,
        started: Instant,
    ) -> Exchanged {
        let Some(mut credential) = credential else {
            let sent = self.send(request, None, call).await;
            return self.judge(step, sent, call, started);
        };
        let mut sent = self.send(request.clone(), Some(&credential), call).await;
        if sent.status() == Some(StatusCode::UNAUTHORIZED) {
            match self.auth.another(&credential).await {
                Ok(Some(another)) => {
                    credential = another;
                    sent = self.send(request, Some(&credential), call).await;
                }
                Ok(None) => {}
                Err(error) => {
                    return Exchanged {
                        health: Health::Healthy,
                        ..Exchanged::of(token_unavailable(&error))
                    };
                }
            }
        }
        self.judge(step, sent, call, started)
    }

    async fn send(
        &self,
        mut request: Request<bytes::Bytes>,
        credential: Option<&Credential>,
        call: &StepCall,
    ) -> Sent {
        if let Some(credential) = credential {
            credential.add_to(&mut request);
        }
        let span = spans::of_call(&mut request);
        let began = Instant::now();
        let until = call.deadline.min(began + self.timeout);
        let answer = self
            .client
            .exchange(request, until, self.response_bytes_max);
        let mut answer = timeout_at(until, answer).await.ok();
        let ended = Instant::now();
        if let (Some(credential), Some(Ok(answer))) = (credential, &mut answer)
            && let Ok(body) = &mut answer.body
        {
            *body = credential.redact(std::mem::take(body));
        }
        let sent = Sent { answer, ended };
        let status = sent.status().map(|status| status.as_u16());
        self.service.count(status, ended - began);
        if let Some(span) = span {
            spans::called(span, status);
        }
        sent
    }

    fn judge(
        &self,
        step: &StepPlan,
        Sent { answer, ended }: Sent,
        call: &StepCall,
        started: Instant,
    ) -> Exchanged {
        let outcome = match answer {
            Some(Ok(answer)) => {
                self.last_answer.note(ended);
                return self.classify(step, call.request.action, answer);
            }
            Some(Err(SendError::Unconnected(why))) => transient(
                "connect-failed",
                format!("could not connect to the service: {why}"),
            ),
            Some(Err(SendError::Unread(why))) => transient(
                "request-unread",
                format!("the service did not process the request: {why}"),
            ),
            Some(Err(SendError::BrokeOff(why))) => unknown(
                "outcome-unknown",
                format!("the exchange was interrupted: {why}"),
            ),
            None => unknown("outcome-unknown", "the service did not answer in time"),
        };
        // The attempt spent most of its time in transit and in the agent's queue: a busy service
        // that answers others must not count as failing.
        let has_waited = ended - started < started - call.sent;
        let is_cut_short =
            ended >= call.deadline && has_waited && self.last_answer.is_after(call.sent);
        Exchanged {
            health: match is_cut_short {
                true => Health::CutShort,
                false => Health::OfOutcome,
            },
            ..Exchanged::of(outcome)
        }
    }

    fn classify(&self, step: &StepPlan, action: Action, answer: Answer) -> Exchanged {
        let Answer { head, body } = answer;
        let verdict = self.rules.verdict(head.status, action);
        let outcome = match (verdict, body) {
            (Verdict::Absent, _) if action == Action::Probe => Outcome::NotPerformed,
            (Verdict::Absent, _) => Outcome::Success {
                outputs: Vec::new(),
            },
            (Verdict::Success, _) if step.keep.is_empty() => Outcome::Success {
                outputs: Vec::new(),
            },
            (Verdict::Success, Ok(body)) => step.keep.outcome(&body),
            (Verdict::Success, Err(BodyError::TooLarge)) => unknown(
                "answer-too-large",
                format!(
                    "the service's response has more than {} bytes",
                    self.response_bytes_max
                ),
            ),
            (Verdict::Success, Err(BodyError::Incomplete(error))) => unknown(
                "answer-incomplete",
                format!("the service's response is incomplete: {error}"),
            ),
            (failure, body) => self
                .rules
                .failure(failure, head.status, body.as_deref().ok()),
        };
        Exchanged {
            retry_after: retry_after(&head.headers),
            ..Exchanged::of(outcome)
        }
    }
}

impl Handler for HttpAgent {
    fn run<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.perform(call).boxed()
    }

    fn compensate<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.perform(call).boxed()
    }

    fn probe<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        self.perform(call).boxed()
    }

    fn concurrency_max(&self) -> usize {
        self.concurrency_max
    }
}

/// A request that was sent.
struct Sent {
    /// `None` if there was none in time.
    answer: Option<Result<Answer, SendError>>,
    ended: Instant,
}

impl Sent {
    fn status(&self) -> Option<StatusCode> {
        match &self.answer {
            Some(Ok(answer)) => Some(answer.head.status),
            Some(Err(_)) | None => None,
        }
    }
}

impl Exchanged {
    fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            retry_after: None,
            health: Health::OfOutcome,
        }
    }

    /// How it counts for the circuit breaker.
    fn judge(self) -> Judged<Self> {
        match (&self.health, &self.outcome) {
            (Health::CutShort, _) => Judged::CutShort(self),
            (Health::OfOutcome, Outcome::Transient { .. } | Outcome::Unknown { .. }) => {
                Judged::Failure(self)
            }
            (Health::Healthy, _)
            | (
                Health::OfOutcome,
                Outcome::Success { .. }
                | Outcome::Permanent { .. }
                | Outcome::NotPerformed
                | Outcome::NotAttempted { .. },
            ) => Judged::Healthy(self),
        }
    }
}

/// The outcome of an attempt without an access token, which has not reached the service.
fn token_unavailable(error: &TokenError) -> Outcome {
    transient("token-unavailable", error.to_string())
}

#[cfg(test)]
mod tests;
