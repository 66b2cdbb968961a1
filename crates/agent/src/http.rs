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
mod check;
mod client;
mod config;
mod last_answer;
mod offline;
mod place;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout_at};
use waybill_config::FileError;
use waybill_engine::{Action, Outcome, murmur2};
use waybill_units::backoff;

pub use check::NeededInputs;
pub use config::{
    AgentConfig, AgentsFile, BreakerConfig, HttpConfig, InverseConfig, PoolConfig, RequestConfig,
    RetriesConfig, StatusSet, StatusesConfig,
};
pub use offline::{OfflineAgent, OfflineRequest};

use crate::breaker::{Breaker, BreakerSettings, Called, Judged};
use crate::handler::{Handler, StepCall, not_attempted, permanent, transient, unknown};
use crate::metrics::{ServiceMetrics, breaker_state};
use crate::spans;
use crate::template::{Scope, TemplateError};
use answer::{StatusRules, Verdict, retry_after};
use client::{Answer, BodyError, Client, SendError};
use last_answer::LastAnswer;
use plan::{Plan, StepPlan};

/// Why agents cannot be loaded from their file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not YAML, or holds unknown keys or unsuitable values.
    #[error("cannot read the agents file")]
    Yaml {
        /// The parser's message, with the position.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// One of the agents cannot work.
    #[error("agent {agent:?} cannot be loaded")]
    Agent {
        /// Its name.
        agent: String,
        /// Why.
        #[source]
        source: Box<LoadError>,
    },
    /// An agent does not support a request that a workflow requires.
    #[error(
        "agent {agent:?} does not fit step {step:?} of workflow {workflow:?}, version {version}: \
         `{key}` {why}"
    )]
    UnmetRequirement {
        /// The agent's name.
        agent: String,
        /// The workflow.
        workflow: String,
        /// Its version.
        version: u32,
        /// The step.
        step: String,
        /// The key in the agent's file, or of the step in the workflow's.
        key: String,
        /// Why it is unsupported.
        why: String,
    },
    /// A value is invalid.
    #[error("`{key}`: {why}")]
    Invalid {
        /// The key's path.
        key: String,
        /// Why its value is invalid.
        why: String,
    },
    /// A template is invalid.
    #[error("`{key}` is not a valid template")]
    Template {
        /// The key's path.
        key: String,
        /// Why it is invalid.
        #[source]
        source: TemplateError,
    },
    /// The system's TLS library failed to start.
    #[error("TLS is not available")]
    Tls {
        /// Why.
        #[source]
        source: native_tls::Error,
    },
}

impl LoadError {
    fn invalid(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            why: why.into(),
        }
    }

    fn of_agent(self, agent: &str) -> Self {
        Self::Agent {
            agent: agent.to_owned(),
            source: Box::new(self),
        }
    }
}

/// An agent's name and its handler, as [`Agents::start`](crate::Agents::start) takes them.
pub type NamedHandler = (String, Arc<dyn Handler>);

impl AgentsFile {
    /// Reads a file without checking the agents.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not YAML of the documented shape.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        waybill_config::read_document(path)
    }

    /// Parses a file without checking the agents.
    ///
    /// # Errors
    ///
    /// If it is not YAML of the documented shape.
    pub fn from_yaml(text: &str) -> Result<Self, LoadError> {
        serde_saphyr::from_str(text).map_err(|source| LoadError::Yaml {
            source: Box::new(source),
        })
    }

    /// Creates the agents, by name. `variables` provides the values of `{name}` in a `baseUrl`.
    ///
    /// # Errors
    ///
    /// If an agent's settings are invalid, or two agents have the same name.
    pub fn load(
        &self,
        variables: &BTreeMap<String, String>,
    ) -> Result<Vec<NamedHandler>, LoadError> {
        self.refuse_twins()?;
        self.agents
            .iter()
            .map(|agent| {
                let handler = HttpAgent::new(&agent.name, &agent.http, variables);
                let handler = handler.map_err(|source| source.of_agent(&agent.name))?;
                Ok((agent.name.clone(), Arc::new(handler) as Arc<dyn Handler>))
            })
            .collect()
    }

    /// Refuses two agents of the same name.
    fn refuse_twins(&self) -> Result<(), LoadError> {
        let mut seen = BTreeSet::new();
        match self.agents.iter().find(|agent| !seen.insert(&agent.name)) {
            Some(twin) => {
                Err(LoadError::invalid("name", "two agents have this name").of_agent(&twin.name))
            }
            None => Ok(()),
        }
    }
}

/// An agent that performs each step as one HTTP exchange.
#[derive(Debug)]
pub struct HttpAgent {
    plan: Plan,
    rules: StatusRules,
    client: Client,
    breaker: Breaker,
    service: ServiceMetrics,
    last_answer: LastAnswer,
    retries: RetriesConfig,
    timeout: Duration,
    concurrency_max: usize,
    response_bytes_max: usize,
}

/// The result of one exchange.
struct Exchanged {
    outcome: Outcome,
    /// The wait that the service asks for.
    retry_after: Option<Duration>,
    /// Whether complete-by passed before the service had sufficient time to answer.
    is_cut_short: bool,
}

impl HttpAgent {
    /// Creates the agent `name`.
    ///
    /// # Errors
    ///
    /// If its settings are invalid.
    pub fn new(
        name: &str,
        config: &HttpConfig,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, LoadError> {
        check_settings(name, config)?;
        let plan = Plan::compile(config, variables)?;
        if config.http2 && plan.is_tls() {
            return Err(LoadError::invalid(
                "http2",
                "requires a service that offers HTTP/2 without TLS",
            ));
        }
        Ok(Self {
            rules: StatusRules::compile(config)?,
            client: Client::new(config, plan.is_tls())?,
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
            plan,
            retries: config.retries.clone(),
            timeout: config.timeout,
            concurrency_max: config.concurrency_max,
            response_bytes_max: config.response_bytes_max,
        })
    }

    async fn perform(&self, call: &StepCall) -> Outcome {
        let (step, action) = (&call.request.step, call.request.action);
        let Some(plan) = self.plan.step(step, action) else {
            return no_request(step, action);
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
            let exchange = async {
                let exchanged = self.exchange(plan, request, call, started).await;
                match exchanged.outcome {
                    _ if exchanged.is_cut_short => Judged::CutShort(exchanged),
                    Outcome::Transient { .. } | Outcome::Unknown { .. } => {
                        Judged::Failure(exchanged)
                    }
                    Outcome::Success { .. }
                    | Outcome::Permanent { .. }
                    | Outcome::NotPerformed
                    | Outcome::NotAttempted { .. } => Judged::Healthy(exchanged),
                }
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

    /// Sends one request of an attempt, and judges the answer, within the remaining time.
    async fn exchange(
        &self,
        step: &StepPlan,
        mut request: hyper::Request<bytes::Bytes>,
        call: &StepCall,
        started: Instant,
    ) -> Exchanged {
        let span = spans::of_call(&mut request);
        let began = Instant::now();
        let until = call.deadline.min(began + self.timeout);
        let answer = self
            .client
            .exchange(request, until, self.response_bytes_max);
        let answer = timeout_at(until, answer).await;
        let ended = Instant::now();
        let took = ended - began;
        let status = match &answer {
            Ok(Ok(answer)) => Some(answer.head.status.as_u16()),
            Ok(Err(_)) | Err(_) => None,
        };
        self.service.count(status, took);
        if let Some(span) = span {
            spans::called(span, status);
        }
        let outcome = match answer {
            Ok(Ok(answer)) => {
                self.last_answer.note(ended);
                return self.classify(step, call.request.action, answer);
            }
            Ok(Err(SendError::Unconnected(why))) => transient(
                "connect-failed",
                format!("could not connect to the service: {why}"),
            ),
            Ok(Err(SendError::Unread(why))) => transient(
                "request-unread",
                format!("the service did not process the request: {why}"),
            ),
            Ok(Err(SendError::BrokeOff(why))) => unknown(
                "outcome-unknown",
                format!("the exchange was interrupted: {why}"),
            ),
            Err(_) => unknown("outcome-unknown", "the service did not answer in time"),
        };
        // The attempt spent most of its time in transit and in the agent's queue: a busy service
        // that answers others must not count as failing.
        let has_waited = ended - started < started - call.sent;
        let is_cut_short =
            ended >= call.deadline && has_waited && self.last_answer.is_after(call.sent);
        Exchanged {
            is_cut_short,
            ..Exchanged::of(outcome)
        }
    }

    fn classify(&self, step: &StepPlan, action: Action, answer: Answer) -> Exchanged {
        let Answer { head, body } = answer;
        let verdict = self.rules.verdict(head.status, action);
        let outcome = match (verdict, body) {
            (Verdict::Success, Err(BodyError::TooLarge)) if !step.keep.is_empty() => unknown(
                "answer-too-large",
                format!(
                    "the service's response has more than {} bytes",
                    self.response_bytes_max
                ),
            ),
            (Verdict::Success, Err(BodyError::Incomplete(error))) if !step.keep.is_empty() => {
                unknown(
                    "answer-incomplete",
                    format!("the service's response is incomplete: {error}"),
                )
            }
            (verdict, body) => {
                let body = body.as_deref().ok();
                self.rules
                    .outcome(verdict, action, head.status, &step.keep, body)
            }
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

impl Exchanged {
    fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            retry_after: None,
            is_cut_short: false,
        }
    }
}

/// The outcome of an attempt for which an agent defines no request.
fn no_request(step: &str, action: Action) -> Outcome {
    let (code, to) = match action {
        Action::Run => ("step-unknown", "perform"),
        Action::Compensate => ("compensation-unknown", "undo"),
        Action::Probe => ("probe-unknown", "probe"),
    };
    permanent(
        code,
        format!("this agent defines no request to {to} {step:?}"),
    )
}

/// Refuses settings that no agent can use.
fn check_settings(name: &str, config: &HttpConfig) -> Result<(), LoadError> {
    let name_fits = !name.is_empty()
        && name.len() <= 100
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !name_fits {
        return Err(LoadError::invalid(
            "name",
            "must have 1 to 100 characters, only lower-case a-z, 0-9 and '-'",
        ));
    }
    for (key, value) in [
        ("concurrencyMax", config.concurrency_max),
        ("breaker.calls", config.breaker.calls),
        ("breaker.halfOpenCalls", config.breaker.half_open_calls),
    ] {
        if !(1..=100_000).contains(&value) {
            return Err(LoadError::invalid(key, "must be from 1 to 100000"));
        }
    }
    for (key, value) in [
        ("timeout", config.timeout),
        ("connectTimeout", config.connect_timeout),
        ("breaker.openFor", config.breaker.open_for),
    ] {
        if value.is_zero() || value > Duration::from_secs(24 * 3600) {
            return Err(LoadError::invalid(key, "must be from 1ms to 24h"));
        }
    }
    let rate = config.breaker.failure_rate;
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(LoadError::invalid(
            "breaker.failureRate",
            "must be above 0 and at most 1",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
