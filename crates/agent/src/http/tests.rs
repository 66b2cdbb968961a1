//! The declarative agent against a service with scripted answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response as Answer};
use axum::serve::ListenerExt as _;
use tokio::sync::Notify;
use waybill_engine::{Attempt, OperationId, Timestamp};
use waybill_telemetry::chain;

use super::*;
use crate::testing::{StepRequestBuilder, attempt};

mod answers;
mod auth;
mod breaker;
mod check;
mod exchange;
mod http2;
mod load;
mod tls;
mod tls_http2;
mod trial;
mod undo_and_probe;
mod variables;

const PATIENCE: Duration = Duration::from_secs(20);

/// A service that sends the responses of the test, and records its requests.
struct Service {
    url: String,
    asked: Mutex<Vec<Asked>>,
    answer: Mutex<Box<dyn Fn(usize) -> Answer + Send>>,
    running: AtomicUsize,
    running_most: AtomicUsize,
    /// While this is set, no request is answered.
    hold: Mutex<Option<Arc<Notify>>>,
}

#[derive(Clone, Debug)]
struct Asked {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
}

impl Service {
    async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Arc::new(Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            asked: Mutex::default(),
            answer: Mutex::new(Box::new(|_| StatusCode::NO_CONTENT.into_response())),
            running: AtomicUsize::new(0),
            running_most: AtomicUsize::new(0),
            hold: Mutex::default(),
        });
        let app = Router::new()
            .fallback(serve)
            .with_state(Arc::clone(&service));
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        service
    }

    fn answers(&self, answer: impl Fn(usize) -> Answer + Send + 'static) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    fn hold(&self) -> Arc<Notify> {
        let release = Arc::new(Notify::new());
        *self.hold.lock().unwrap() = Some(Arc::clone(&release));
        release
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    State(service): State<Arc<Service>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Answer {
    let running = service.running.fetch_add(1, Ordering::SeqCst) + 1;
    service.running_most.fetch_max(running, Ordering::SeqCst);
    let count = {
        let mut asked = service.asked.lock().unwrap();
        asked.push(Asked {
            method,
            uri,
            headers,
            body,
        });
        asked.len()
    };
    let hold = service.hold.lock().unwrap().clone();
    if let Some(hold) = hold {
        hold.notified().await;
    }
    service.running.fetch_sub(1, Ordering::SeqCst);
    let answer = service.answer.lock().unwrap();
    answer(count)
}

fn agent(service: &str, rest: &str) -> HttpAgent {
    let yaml = format!(
        "agents:\n  - name: package\n    http:\n      baseUrl: '{{service}}/base/'\n{}\n",
        indent(rest)
    );
    load(&yaml, service).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

fn load(yaml: &str, service: &str) -> Result<HttpAgent, LoadError> {
    let file = AgentsFile::from_yaml(yaml)?;
    HttpAgent::new(
        &file.agents[0].name,
        &file.agents[0].http,
        &variables(service),
    )
}

fn variables(service: &str) -> Variables {
    let of = |pairs: &[(&str, &str)]| {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    };
    Variables::new(
        of(&[("service", service)]),
        of(&[("payments", service), ("region", "eu/1"), ("empty", "")]),
    )
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

const PUT: &str =
    "request: { method: PUT, path: '/packages/{{input.id}}', body: { size: '{{input.size?}}' } }";

/// A request that can be undone and probed.
const WITH_INVERSES: &str = "request: { method: PUT, path: '/packages/{{input.id}}', keep: { shelf: /shelf }, compensate: { method: DELETE }, probe: { method: GET } }";

const ACTIONS: [Action; 3] = [Action::Run, Action::Compensate, Action::Probe];

fn request() -> StepRequestBuilder {
    StepRequestBuilder::new("package", "create").input(r#"{"id": "p 1", "size": 2}"#)
}

async fn outcome(agent: &HttpAgent) -> Outcome {
    outcome_of(agent, Action::Run).await
}

async fn outcome_of(agent: &HttpAgent, action: Action) -> Outcome {
    let request = request().action(action).build();
    attempt(agent, request).await.unwrap()
}

fn kind_and_code(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Success { .. } => ("success", ""),
        Outcome::Transient { error } => ("transient", &error.code),
        Outcome::Permanent { error } => ("permanent", &error.code),
        Outcome::Unknown { error } => ("unknown", &error.code),
        Outcome::NotPerformed => ("not-performed", ""),
        Outcome::NotAttempted { error, .. } => ("not-attempted", &error.code),
    }
}

fn json(status: u16, body: &str) -> Answer {
    (
        StatusCode::from_u16(status).unwrap(),
        [("content-type", "application/json")],
        body.to_owned(),
    )
        .into_response()
}
