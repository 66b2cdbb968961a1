//! The agents of the drone-delivery application as functions. They call the simulated services of
//! this process without HTTP, and interpret answers like the declarative agents.
//!
//! Deliberately absent: a circuit breaker, and retries within an attempt. A function in the same
//! process is always reachable.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde::Deserialize;
use waybill_agent::http::NamedHandler;
use waybill_agent::{
    Action, BoxFuture, Handler, Outcome, StepCall, permanent, success, transient, unknown,
};
use waybill_drone_delivery::services::{Answered, CallError, Caller, Request, Service};
use waybill_http::problem::ProblemDetails;

/// The maximum number of attempts that wait for a service at the same time.
const CONCURRENCY_MAX: usize = 256;

/// The five agents, by name.
pub(super) fn agents(caller: &Caller) -> Vec<NamedHandler> {
    let agent = |service: Service| {
        let handler = FunctionAgent {
            service,
            caller: caller.clone(),
        };
        (
            service.as_str().to_owned(),
            Arc::new(handler) as Arc<dyn Handler>,
        )
    };
    Service::ALL.map(agent).into()
}

/// An agent of one of the services.
struct FunctionAgent {
    service: Service,
    caller: Caller,
}

/// The fields of a delivery that the account service needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ordered<'a> {
    #[serde(borrow)]
    owner_id: Cow<'a, str>,
}

/// The fields of an answer that later steps need.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    required: Option<bool>,
    drone_id: Option<String>,
}

impl FunctionAgent {
    async fn perform(&self, call: &StepCall) -> Outcome {
        let (input, key) = (&*call.request.input, call.idempotency_key());
        let request = match call.request.action {
            Action::Run if self.service == Service::Account => {
                let ordered: Ordered<'_> = match serde_json::from_slice(input) {
                    Ok(ordered) => ordered,
                    Err(error) => return permanent("input-invalid", error.to_string()),
                };
                let owner = &ordered.owner_id;
                let answer = self.caller.call(self.service, Request::Check { owner });
                return self.outcome(Action::Run, answer.await);
            }
            // The third-party service reads the locations, which have the same fields in the input
            // as in a request body.
            Action::Run if self.service == Service::ThirdParty => Request::Run {
                key: &key,
                body: Bytes::copy_from_slice(input),
            },
            Action::Run => Request::Run {
                key: &key,
                body: Bytes::new(),
            },
            Action::Compensate => Request::Undo { key: &key },
            Action::Probe => Request::Probe { key: &key },
        };
        let answer = self.caller.call(self.service, request).await;
        self.outcome(call.request.action, answer)
    }

    fn outcome(&self, action: Action, answer: Result<Answered, CallError>) -> Outcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error @ CallError::Unanswered(_)) => {
                return unknown("outcome-unknown", error.to_string());
            }
            Err(error) => return permanent("call-invalid", error.to_string()),
        };
        let status = answer.status;
        if status.is_success() {
            return match self.kept(action, &answer.body) {
                Some(kept) => success(kept),
                None => unknown("answer-invalid", "the answer lacks a field of the result"),
            };
        }
        if status.as_u16() == 404 && action != Action::Run {
            return match action {
                Action::Probe => Outcome::NotPerformed,
                Action::Run | Action::Compensate => success(Vec::new()),
            };
        }
        let ProblemDetails { code, detail, .. } = ProblemDetails::read(&answer.body);
        let code = code.unwrap_or_default();
        match status.as_u16() {
            // These statuses mean that nothing took effect and a retry may succeed.
            429 | 503 => transient(code, detail),
            _ if status.is_server_error() => unknown(code, detail),
            _ => permanent(code, detail),
        }
    }

    /// The results that later steps need from an answer; `None` if one is missing.
    fn kept(&self, action: Action, body: &[u8]) -> Option<Vec<(String, String)>> {
        if action == Action::Compensate {
            return Some(Vec::new());
        }
        let kept = || serde_json::from_slice::<Kept>(body).ok();
        let (name, value) = match self.service {
            Service::ThirdParty => ("required", kept()?.required?.to_string()),
            Service::Drone => ("droneId", kept()?.drone_id?),
            Service::Account | Service::Package | Service::Delivery => return Some(Vec::new()),
        };
        Some(vec![(name.to_owned(), value)])
    }
}

impl Handler for FunctionAgent {
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
        CONCURRENCY_MAX
    }
}
