//! Requests about existing operations: cancels, reschedules, operators' verbs, and the list.

mod amends;
mod shown;
mod verbs;

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use waybill_engine::{
    Action, AmendRequest, Attempt, OperationError, OperationId, OperationRequest, ProcessState,
    StepError, StepProgress, StepState, Timestamp,
};
use waybill_store::RowWrite;

use super::setup::*;

impl Setup {
    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path))
    }

    async fn verb(&self, id: OperationId, verb: &str, body: Value) -> (u16, Value) {
        let asked = self.post(&format!("{OPERATIONS}/{id}:{verb}"), body);
        let (status, view) = answer(asked.send().await.unwrap()).await;
        (status.as_u16(), view)
    }

    fn amendments(&self) -> Vec<(Lying, AmendRequest)> {
        let requests = self.requests().into_iter();
        let amend = |(record, request)| match request {
            OperationRequest::Amend(amend) => Some((record, amend)),
            OperationRequest::Create(_) => None,
        };
        requests.filter_map(amend).collect()
    }
}

fn id_of(name: &str) -> OperationId {
    OperationId::of_caller("", name)
}

fn failed(code: &str) -> Option<OperationError> {
    Some(OperationError {
        step: Some("one".to_owned()),
        error: error(code),
    })
}

fn error(code: &str) -> StepError {
    StepError {
        code: code.to_owned(),
        message: "as it happens".to_owned(),
    }
}

/// A row whose only step failed permanently.
fn parked(id: OperationId, action: Action) -> RowWrite {
    let state = match action {
        Action::Compensate => ProcessState::CompensationFailed,
        Action::Run | Action::Probe => ProcessState::Error,
    };
    let mut row = row(id, "order", state);
    row.state.error = failed("refused");
    row.state.undo_error = failed("undo-refused").filter(|_| action == Action::Compensate);
    row.state.steps = vec![StepProgress {
        state: StepState::Failed,
        action,
        attempt: Attempt(2),
        failure_count: 1,
        error: Some(error("refused")),
        changed_at: Timestamp(5_000_000),
        ..StepProgress::default()
    }];
    row
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_answered_202_during_a_broker_outage() {
    let setup = Setup::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    let id = id_of("error");
    setup.write(parked(id, Action::Run)).await;
    setup.cluster.broker_down(1).unwrap();
    let (status, problem) = setup.verb(id, "resubmit", json!({})).await;
    assert!(matches!(status, 503 | 504), "{problem}");
    let path = format!("{DELIVERIES}/not-yet");
    let response = setup.ask(Method::DELETE, &path).send().await.unwrap();
    assert!(response.status().is_server_error());
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_are_refused_with_the_allowed_ones() {
    let setup = Setup::start().await;
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
    ];
    for (path, allow) in [
        (DELIVERIES.to_owned(), "POST"),
        (format!("{DELIVERIES}/x"), "GET, HEAD, DELETE, PATCH"),
        (OPERATIONS.to_owned(), "GET, HEAD, POST"),
        (BATCH.to_owned(), "POST"),
        (format!("{OPERATIONS}/x"), "GET, HEAD"),
        (format!("{OPERATIONS}/x:cancel"), "POST"),
        (format!("{OPERATIONS}/x:abandon"), "POST"),
        (format!("{OPERATIONS}/x/events"), "GET"),
        ("/openapi.json".to_owned(), "GET, HEAD"),
        ("/docs".to_owned(), "GET, HEAD"),
        ("/problems/not-found".to_owned(), "GET, HEAD"),
        ("/".to_owned(), "GET, HEAD"),
    ] {
        // An ID may contain a colon, so a read looks for such an operation.
        let has_verb = path.contains("/x:");
        let is_allowed = |method: &Method| {
            let mut allowed = allow.split(", ");
            allowed.any(|name| name == method.as_str())
                || (has_verb && [Method::GET, Method::HEAD].contains(method))
        };
        for method in methods.iter().filter(|method| !is_allowed(method)) {
            let response = setup.ask(method.clone(), &path).send().await.unwrap();
            assert_eq!(response.headers()["allow"], allow, "{method} {path}");
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
            let media_type = &response.headers()[CONTENT_TYPE];
            assert_eq!(media_type, "application/problem+json", "{method} {path}");
            if method != Method::HEAD {
                let (_, kind, body) = problem(response).await;
                assert_eq!(kind, "method-not-allowed", "{method} {path}");
                assert_eq!(body["detail"], format!("Allowed methods: {allow}."));
            }
        }
    }
    // Not a verb, so it may be an ID.
    let other = setup.ask(Method::PUT, &format!("{OPERATIONS}/x:y"));
    let response = other.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    setup.ingestion.shutdown().await;
}
