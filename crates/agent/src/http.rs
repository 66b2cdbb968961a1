//! The declarative HTTP agent: a YAML mapping from step to request.
//!
//! What must hold:
//!
//! * Every attempt at a step carries the same idempotency key, and its complete-by.
//! * A failure counts as without effect only if that is certain: an exchange that broke off after
//!   the request may have left is [`Outcome::Unknown`].
//! * No value of an operation changes the host that is called, or adds a path segment or a header.
//!
//! Deliberately absent: cookies, proxies from the environment, and bodies other than
//! JSON.

mod answer;
mod auth;
mod check;
mod checked;
mod client;
mod config;
mod exchanged;
mod last_answer;
mod load;
mod load_error;
mod offline;
mod place;
mod plan;
mod redirects;
mod trial;

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::{Request, Uri};
use tokio::time::{Instant, sleep, timeout_at};
use waybill_engine::{Action, Outcome, murmur2};
use waybill_units::backoff;

pub use answer::{AnswerOutcome, AnswerRuleConfig, Expected};
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
pub use offline::{OfflineAgent, OfflineRequest};
pub use redirects::RedirectsConfig;
pub use trial::{ShownAnswer, ShownRequest, Trial, TrialError};

use crate::breaker::{Breaker, Called};
use crate::handler::{Handler, StepCall, not_attempted, permanent, transient, unknown};
use crate::metrics::ServiceMetrics;
use crate::spans;
use crate::template::Scope;
pub use crate::template::Variables;
use answer::{StatusRules, Verdict, retry_after};
use auth::{Auth, Credential, TokenError};
use checked::Checked;
use client::{Answer, BodyError, Client, SendError};
use exchanged::{Exchanged, Health, Sent};
use last_answer::LastAnswer;
use plan::{Plan, StepPlan};
use redirects::Redirect;

/// An agent that performs each step as one HTTP exchange.
#[derive(Debug)]
pub struct HttpAgent {
    plan: Plan,
    rules: StatusRules,
    auth: Auth,
    client: Client,
    redirects: Option<RedirectsConfig>,
    /// The scheme and the host of the service.
    service_url: Uri,
    breaker: Breaker,
    service: ServiceMetrics,
    last_answer: LastAnswer,
    retries: RetriesConfig,
    timeout: Duration,
    concurrency_max: usize,
    response_bytes_max: usize,
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
            // Outside the circuit breaker: a missing token is not a fault of the service.
            let credential = match self.auth.credential(call.deadline).await {
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
            let is_repeatable = matches!(exchanged.outcome, Outcome::Transient { .. })
                && !matches!(exchanged.health, Health::NoToken);
            if !is_repeatable || retry == self.retries.max {
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
        request: Request<bytes::Bytes>,
        credential: Option<Credential>,
        call: &StepCall,
        started: Instant,
    ) -> Exchanged {
        match self.send_authenticated(request, credential, call).await {
            Ok(sent) => self.judge(step, sent, call, started),
            Err(error) => Exchanged {
                health: Health::NoToken,
                ..Exchanged::of(token_unavailable(&error))
            },
        }
    }

    /// Sends a request. If the service refuses the credential, sends it once more with another one.
    async fn send_authenticated(
        &self,
        request: Request<bytes::Bytes>,
        credential: Option<Credential>,
        call: &StepCall,
    ) -> Result<Sent, TokenError> {
        let Some(credential) = credential else {
            return Ok(self.send(request, None, call).await);
        };
        let sent = self.send(request.clone(), Some(&credential), call).await;
        if !sent.is_unauthorized() {
            return Ok(sent);
        }
        Ok(
            match self.auth.replacement(&credential, call.deadline).await? {
                Some(other) => self.send(request, Some(&other), call).await,
                None => sent,
            },
        )
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
        let exchange = self.follow(request, credential, until);
        let mut sent = timeout_at(until, exchange).await.unwrap_or_default();
        sent.ended = Instant::now();
        if let (Some(credential), Some(Ok(answer))) = (credential, &mut sent.answer) {
            credential.redact_headers(&mut answer.head.headers);
            if let Ok(body) = &mut answer.body {
                *body = credential.redact(std::mem::take(body));
            }
        }
        let status = sent.status().map(|status| status.as_u16());
        self.service.count(status, sent.ended - began);
        if let Some(span) = span {
            spans::called(span, status);
        }
        sent
    }

    /// Sends the request, and follows redirects.
    async fn follow(
        &self,
        mut request: Request<bytes::Bytes>,
        credential: Option<&Credential>,
        until: Instant,
    ) -> Sent {
        let bytes_max = self.response_bytes_max;
        let Some(redirects) = &self.redirects else {
            let answer = self.client.exchange(request, until, bytes_max).await;
            return Sent::of(answer);
        };
        let mut sent = Sent::default();
        for followed in 0.. {
            let exchange = self.client.exchange(request.clone(), until, bytes_max);
            let answer = exchange.await;
            let next = answer.as_ref().ok().and_then(|Answer { head, .. }| {
                redirects.next(
                    &self.service_url,
                    &request,
                    (head.status, &head.headers),
                    followed,
                )
            });
            sent.answer = Some(answer);
            match next {
                Some(Redirect::To(next, is_elsewhere)) => {
                    request = *next;
                    sent.is_elsewhere |= is_elsewhere;
                    if sent.is_elsewhere
                        && let Some(credential) = credential
                    {
                        credential.remove_from(&mut request);
                    }
                }
                Some(Redirect::Refused(why)) => {
                    sent.redirect_refused = Some(why);
                    break;
                }
                None => break,
            }
        }
        sent
    }

    fn judge(&self, step: &StepPlan, sent: Sent, call: &StepCall, started: Instant) -> Exchanged {
        let ended = sent.ended;
        let outcome = match sent.answer {
            Some(Ok(answer)) => {
                self.last_answer.note(ended);
                let refused = sent.redirect_refused.as_deref();
                return self.classify(step, call.request.action, answer, refused);
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

    fn classify(
        &self,
        step: &StepPlan,
        action: Action,
        Answer { head, body }: Answer,
        redirect_refused: Option<&str>,
    ) -> Exchanged {
        let text = body.as_deref().ok();
        let meaning = self
            .rules
            .meaning(action, (&step.answers, &step.keep), &head, text);
        let is_kept = !meaning.keep.is_empty();
        let outcome = match (meaning.verdict, &body) {
            (Verdict::Success, Err(BodyError::TooLarge)) if is_kept => unknown(
                "answer-too-large",
                format!(
                    "the service's response has more than {} bytes",
                    self.response_bytes_max
                ),
            ),
            (Verdict::Success, Err(BodyError::Incomplete(error))) if is_kept => unknown(
                "answer-incomplete",
                format!("the service's response is incomplete: {error}"),
            ),
            (Verdict::Success | Verdict::Absent, _) => {
                self.rules.outcome(&meaning, action, &head, text)
            }
            _ => match redirect_refused.filter(|_| !meaning.is_by_rule) {
                Some(why) => permanent(
                    "redirect-refused",
                    format!("the service answered {}, not followed: {why}", head.status),
                ),
                None => self.rules.outcome(&meaning, action, &head, text),
            },
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

/// The outcome of an attempt without an access token: the request was not sent.
fn token_unavailable(error: &TokenError) -> Outcome {
    transient("token-unavailable", error.to_string())
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

#[cfg(test)]
mod tests;
