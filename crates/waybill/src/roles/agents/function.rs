//! The agents of the drone-delivery application as functions: they call the simulated services of this process
//! without HTTP, and understand their answers as the declarative agents do.

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

/// How many attempts may wait for a service at once.
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

/// What the account service has to know of a delivery.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ordered<'a> {
    #[serde(borrow)]
    owner_id: Cow<'a, str>,
}

/// What is kept of an answer.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    required: Option<bool>,
    drone_id: Option<String>,
}

/// A refusal.
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

impl FunctionAgent {
    async fn perform(&self, call: &StepCall) -> Outcome {
        let (input, key) = (&*call.request.input, call.idempotency_key());
        let request = match call.request.action {
            Action::Run if self.service == Service::Account => {
                let ordered: Ordered<'_> = match serde_json::from_slice(input) {
                    Ok(ordered) => ordered,
                    Err(error) => return permanent("input-unfit", error.to_string()),
                };
                let owner = &ordered.owner_id;
                let answer = self.caller.call(self.service, Request::Check { owner });
                return self.judge(Action::Run, answer.await);
            }
            // The third-party service looks for the locations, which stand in the input as they would in a body.
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
        self.judge(call.request.action, answer)
    }

    fn judge(&self, action: Action, answer: Result<Answered, CallError>) -> Outcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error @ CallError::Unanswered(_)) => {
                return unknown("outcome-unknown", error.to_string());
            }
            Err(error) => return permanent("call-unfit", error.to_string()),
        };
        let status = answer.status;
        if status.is_success() {
            return success(self.kept(action, &answer.body));
        }
        if status.as_u16() == 404 && action != Action::Run {
            return match action {
                Action::Probe => Outcome::NotPerformed,
                Action::Run | Action::Compensate => success(Vec::new()),
            };
        }
        let problem: Problem = serde_json::from_slice(&answer.body).unwrap_or_default();
        match status.as_u16() {
            // What the services answer where nothing took effect, and a later attempt may.
            429 | 503 => transient(problem.code, problem.detail),
            _ if status.is_server_error() => unknown(problem.code, problem.detail),
            _ => permanent(problem.code, problem.detail),
        }
    }

    fn kept(&self, action: Action, body: &[u8]) -> Vec<(String, String)> {
        let keeps = matches!(self.service, Service::ThirdParty | Service::Drone);
        if !keeps || action == Action::Compensate {
            return Vec::new();
        }
        let kept: Kept = serde_json::from_slice(body).unwrap_or_default();
        match self.service {
            Service::ThirdParty => kept
                .required
                .map(|required| ("required".to_owned(), required.to_string()))
                .into_iter()
                .collect(),
            _ => kept
                .drone_id
                .map(|drone| ("droneId".to_owned(), drone))
                .into_iter()
                .collect(),
        }
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
