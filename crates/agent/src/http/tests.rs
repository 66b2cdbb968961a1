use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response as Answer};
use axum::serve::ListenerExt as _;
use tokio::sync::Notify;
use waybill_engine::{Attempt, OperationId, Timestamp};

use super::*;
use crate::testing::{StepRequestBuilder, attempt};

const PATIENCE: Duration = Duration::from_secs(20);

/// A service that answers what the test says, and remembers what it was asked.
struct Service {
    url: String,
    asked: Mutex<Vec<Asked>>,
    answer: Mutex<Box<dyn Fn(usize) -> Answer + Send>>,
    running: AtomicUsize,
    running_most: AtomicUsize,
    /// While this holds requests, none is answered.
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
    let variables = BTreeMap::from([("service".to_owned(), service.to_owned())]);
    HttpAgent::new(&file.agents[0].name, &file.agents[0].http, &variables)
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

const PUT: &str =
    "request: { method: PUT, path: '/packages/{{input.id}}', body: { size: '{{input.size?}}' } }";

fn request() -> StepRequestBuilder {
    StepRequestBuilder::new("package", "create").input(r#"{"id": "p 1", "size": 2}"#)
}

async fn outcome(agent: &HttpAgent) -> Outcome {
    attempt(agent, request().build()).await.unwrap()
}

fn kind_and_code(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Success { .. } => ("success", ""),
        Outcome::Transient { error } => ("transient", &error.code),
        Outcome::Permanent { error } => ("permanent", &error.code),
        Outcome::Unknown { error } => ("unknown", &error.code),
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

#[tokio::test]
async fn a_step_is_one_request_with_key_deadline_and_trace() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "request:\n  method: PUT\n  path: /packages/{{input.id}}?dry={{attempt}}\n  headers: { X-Tenant: '<{{tenant}}>' }\n  body: { size: '{{input.size}}', op: '{{operation}}' }\n",
    );
    let operation: OperationId = "0197a6b0-1234-7000-8000-000000000001".parse().unwrap();
    let mut request = request()
        .operation(operation)
        .tenant("acme")
        .attempt(Attempt(3))
        .build();
    request.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    request.complete_by = Timestamp(request.complete_by.0 / 1_000_000 * 1_000_000);
    let complete_by = crate::template::rfc3339(request.complete_by);
    let done = attempt(&agent, request).await.unwrap();
    assert_eq!(done, Outcome::Success { outputs: vec![] });

    let asked = &service.asked()[0];
    let header = |name: &str| asked.headers[name].to_str().unwrap();
    assert_eq!(asked.method, Method::PUT);
    assert_eq!(asked.uri, "/base/packages/p%201?dry=3");
    assert_eq!(header("idempotency-key"), format!("{operation}/create"));
    assert_eq!(header("waybill-complete-by"), complete_by);
    assert_eq!(header("x-tenant"), "<acme>");
    assert_eq!(header("content-type"), "application/json");
    assert!(header("traceparent").starts_with("00-0af765"));
    let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"size": 2, "op": operation.to_string()})
    );
}

#[tokio::test]
async fn a_step_of_its_own_has_a_request_of_its_own() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "steps:\n  create: { method: POST, path: /create }\n  close: { method: DELETE, path: /close }\n",
    );
    for step in ["create", "close"] {
        let request = StepRequestBuilder::new("package", step).build();
        attempt(&agent, request).await.unwrap();
    }
    let uris: Vec<String> = service
        .asked()
        .iter()
        .map(|asked| asked.uri.to_string())
        .collect();
    assert_eq!(uris, ["/base/create", "/base/close"]);
    let other = StepRequestBuilder::new("package", "other").build();
    let refused = attempt(&agent, other).await.unwrap();
    assert_eq!(kind_and_code(&refused), ("permanent", "step-unknown"));
}

#[tokio::test]
async fn statuses_mean_what_the_file_says() {
    let service = Service::start().await;
    let defaults = agent(&service.url, &format!("retries: {{ max: 0 }}\n{PUT}"));
    for (status, body, expected) in [
        (200, "", ("success", "")),
        (204, "", ("success", "")),
        (301, "", ("permanent", "http-301")),
        (400, r#"{"code": "bad-size"}"#, ("permanent", "bad-size")),
        (404, "not json", ("permanent", "http-404")),
        (409, r#"{"code": "has space"}"#, ("permanent", "http-409")),
        (422, r#"{"code": 7}"#, ("permanent", "http-422")),
        (408, "", ("transient", "http-408")),
        (425, "", ("transient", "http-425")),
        (429, r#"{"code": "slow-down"}"#, ("transient", "slow-down")),
        (503, "", ("transient", "http-503")),
        (500, "", ("unknown", "http-500")),
        (502, "", ("unknown", "http-502")),
        (504, "", ("unknown", "http-504")),
        (501, "", ("unknown", "http-501")),
    ] {
        service.answers(move |_| json(status, body));
        let outcome = outcome(&defaults).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status}");
    }

    let custom = agent(
        &service.url,
        &format!(
            "retries: {{ max: 0 }}\nerrorCode: /error/id\nstatuses:\n  success: [200-299, 404]\n  transient: [500-599]\n  unknown: [409]\n  permanent: [202]\n{PUT}"
        ),
    );
    for (status, expected) in [
        (200, ("success", "")),
        (404, ("success", "")),
        (202, ("permanent", "E1")),
        (409, ("unknown", "E1")),
        (500, ("transient", "E1")),
        (400, ("permanent", "E1")),
    ] {
        service.answers(move |_| json(status, r#"{"error": {"id": "E1"}}"#));
        let outcome = outcome(&custom).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status}");
    }
}

#[tokio::test]
async fn the_services_words_reach_the_error_message() {
    let service = Service::start().await;
    let agent = agent(&service.url, PUT);
    service.answers(|_| json(422, r#"{"title": "no", "detail": "the size is odd"}"#));
    let Outcome::Permanent { error } = outcome(&agent).await else {
        panic!("not permanent");
    };
    assert!(
        error.message.ends_with(": the size is odd"),
        "{}",
        error.message
    );
    service.answers(|_| (StatusCode::BAD_REQUEST, "ü".repeat(4_000)).into_response());
    let Outcome::Permanent { error } = outcome(&agent).await else {
        panic!("not permanent");
    };
    assert!(error.message.len() < 400, "{}", error.message.len());
}

#[tokio::test]
async fn what_is_kept_of_an_answer_becomes_outputs() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "responseBytesMax: 100\nrequest: { method: PUT, path: /, keep: { id: /drone/id, required: /required, rest: '/rest?' } }",
    );
    service.answers(|_| json(200, r#"{"drone": {"id": "d1"}, "required": false}"#));
    assert_eq!(
        outcome(&agent).await,
        Outcome::Success {
            outputs: vec![
                ("id".to_owned(), "d1".to_owned()),
                ("required".to_owned(), "false".to_owned())
            ]
        }
    );
    for (body, code) in [
        ("{", "answer-not-json"),
        (
            r#"{"drone": {"id": null}, "required": 1}"#,
            "answer-value-missing",
        ),
        (&format!("\"{}\"", "x".repeat(100)), "answer-too-large"),
    ] {
        let body = body.to_owned();
        service.answers(move |_| json(200, &body));
        assert_eq!(kind_and_code(&outcome(&agent).await), ("unknown", code));
    }
}

#[tokio::test]
async fn a_value_that_is_missing_is_permanent_and_nothing_is_sent() {
    let service = Service::start().await;
    let agent = agent(&service.url, PUT);
    let request = StepRequestBuilder::new("package", "create").build();
    let outcome = attempt(&agent, request).await.unwrap();
    assert_eq!(
        kind_and_code(&outcome),
        ("permanent", "template-value-missing")
    );
    assert!(format!("{outcome:?}").contains("input.id"));
    let crlf = agent_with_header(&service.url);
    let request = StepRequestBuilder::new("package", "create").input(r#"{"id": "a\r\nX: y"}"#);
    let outcome = attempt(&crlf, request.build()).await.unwrap();
    assert_eq!(
        kind_and_code(&outcome),
        ("permanent", "template-value-unsuitable")
    );
    assert!(service.asked().is_empty());
}

fn agent_with_header(service: &str) -> HttpAgent {
    agent(
        service,
        "request: { method: PUT, path: /, headers: { X-Id: '{{input.id}}' } }",
    )
}

#[tokio::test]
async fn a_service_that_is_away_is_transient() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let agent = agent(&url, PUT);
    assert_eq!(
        kind_and_code(&outcome(&agent).await),
        ("transient", "connect-failed")
    );
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_is_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Reads something of the request, and hangs up.
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 16])
                .await
                .unwrap();
        }
    });
    let agent = agent(&url, PUT);
    assert_eq!(
        kind_and_code(&outcome(&agent).await),
        ("unknown", "outcome-unknown")
    );
}

#[tokio::test]
async fn a_service_that_does_not_answer_in_time_is_unknown() {
    let service = Service::start().await;
    let _release = service.hold();
    let agent = agent(&service.url, &format!("timeout: 50ms\n{PUT}"));
    assert_eq!(
        kind_and_code(&outcome(&agent).await),
        ("unknown", "outcome-unknown")
    );
}

#[tokio::test]
async fn past_complete_by_there_is_no_answer() {
    let service = Service::start().await;
    let _release = service.hold();
    let agent = agent(&service.url, PUT);
    let late = request().complete_within(Duration::from_millis(50)).build();
    assert_eq!(attempt(&agent, late).await, None);
    assert_eq!(service.asked().len(), 1);
    let past = request().complete_by(Timestamp(0)).build();
    assert_eq!(attempt(&agent, past).await, None);
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn a_transient_failure_is_tried_again_inside_the_attempt_with_the_same_key() {
    let service = Service::start().await;
    service.answers(|count| json(if count < 3 { 503 } else { 200 }, ""));
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 2, backoff: 1ms }}\n{PUT}"),
    );
    assert_eq!(outcome(&agent).await, Outcome::Success { outputs: vec![] });
    let asked = service.asked();
    assert_eq!(asked.len(), 3);
    let keys: BTreeSet<_> = asked
        .iter()
        .map(|asked| asked.headers["idempotency-key"].to_str().unwrap())
        .collect();
    assert_eq!(keys.len(), 1);
}

#[tokio::test]
async fn retry_after_holds_the_next_try_back() {
    let service = Service::start().await;
    service.answers(|_| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response());
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 2, backoff: 1ms }}\n{PUT}"),
    );
    assert_eq!(
        kind_and_code(&outcome(&agent).await),
        ("transient", "http-429")
    );
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_not_tried_again_inside_the_attempt() {
    let service = Service::start().await;
    service.answers(|_| json(500, ""));
    let agent = agent(&service.url, PUT);
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "unknown");
    assert_eq!(service.asked().len(), 1);
}

const BREAKER: &str = "retries: { max: 0 }\nbreaker: { failureRate: 0.5, calls: 4, openFor: 200ms, halfOpenCalls: 2 }\n";

#[tokio::test]
async fn the_breaker_opens_and_closes_again() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("{BREAKER}{PUT}"));
    // What the service refuses for good says nothing against it.
    service.answers(|_| json(404, ""));
    for _ in 0..20 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "permanent");
    }
    service.answers(|_| json(500, ""));
    let refused = until(&agent, "not-attempted").await;
    let asked = service.asked().len();
    let Outcome::NotAttempted {
        error,
        retry_after_ms,
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(error.code, "breaker-open");
    assert!((1..=200).contains(&retry_after_ms), "{retry_after_ms}");
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "not-attempted");
    assert_eq!(
        service.asked().len(),
        asked,
        "an open breaker sends nothing"
    );

    // A failed probe opens it again; once the service is well, it closes.
    until(&agent, "unknown").await;
    until(&agent, "not-attempted").await;
    service.answers(|_| json(200, ""));
    until(&agent, "success").await;
    for _ in 0..20 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    }
}

#[tokio::test]
async fn a_half_open_breaker_lets_few_calls_through_at_once() {
    let service = Service::start().await;
    let agent = Arc::new(agent(&service.url, &format!("{BREAKER}{PUT}")));
    service.answers(|_| json(500, ""));
    until(&agent, "not-attempted").await;
    let before = service.asked().len();
    let release = service.hold();
    service.answers(|_| json(200, ""));

    let deadline = Instant::now() + PATIENCE;
    let mut probes = Vec::new();
    while service.asked().len() < before + 2 {
        assert!(Instant::now() < deadline, "the breaker never half-opened");
        let agent = Arc::clone(&agent);
        probes.push(tokio::spawn(async move { outcome(&agent).await }));
        tokio::task::yield_now().await;
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..10 {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "not-attempted");
    }
    assert_eq!(service.asked().len(), before + 2);
    *service.hold.lock().unwrap() = None;
    release.notify_waiters();
    let mut succeeded = 0;
    for probe in probes {
        succeeded += usize::from(kind_and_code(&probe.await.unwrap()).0 == "success");
    }
    assert_eq!(succeeded, 2);
    until(&agent, "success").await;
}

/// Calls until an outcome of this kind comes.
async fn until(agent: &HttpAgent, kind: &str) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = outcome(agent).await;
        if kind_and_code(&outcome).0 == kind {
            return outcome;
        }
        assert!(Instant::now() < deadline, "no {kind}, last {outcome:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn http2_is_spoken_with_prior_knowledge() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("http2: true\n{PUT}"));
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(outcome(&agent).await, Outcome::Success { outputs: vec![] });
    }
    // Where small writes wait for acknowledgements (no TCP_NODELAY), each call takes 40 ms.
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn what_cannot_work_is_refused_at_load() {
    let one = |http: &str| format!("agents:\n  - name: package\n    http:\n{}", indent(http));
    let put = format!("baseUrl: http://h\n{PUT}\n");
    for (yaml, expected) in [
        ("agents: 7".to_owned(), ""),
        (one(&format!("{put}tiemout: 1s")), "unknown field `tiemout`"),
        (one(&format!("{put}timeout: 10")), "10"),
        (one(&format!("{put}timeout: 0s")), "timeout"),
        (one(&format!("{put}statuses: {{ success: [99] }}")), "99"),
        (
            one(&format!("{put}statuses: {{ success: [300-200] }}")),
            "300-200",
        ),
        (one(&format!("{put}concurrencyMax: 0")), "concurrencyMax"),
        (
            one(&format!("{put}breaker: {{ failureRate: 1.5 }}")),
            "failureRate",
        ),
        (one(&format!("{put}errorCode: code")), "errorCode"),
        (one(&format!("{put}idempotencyKeyHeader: Host")), "Host"),
        (one("baseUrl: http://h"), "request"),
        (one(&format!("baseUrl: h\n{PUT}")), "baseUrl"),
        (one(&format!("baseUrl: ftp://h\n{PUT}")), "http"),
        (one(&format!("baseUrl: http://u:p@h\n{PUT}")), "user"),
        (one(&format!("baseUrl: http://h?x\n{PUT}")), "query"),
        (
            one(&format!("baseUrl: 'http://{{other}}'\n{PUT}")),
            "service",
        ),
        (
            one(&format!("baseUrl: 'http://{{other'\n{PUT}")),
            "not closed",
        ),
        (
            one(&format!("baseUrl: https://h\nhttp2: true\n{PUT}")),
            "http2",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: PUT, path: '/{{env.X}}' }"),
            "{{env.X}}",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: put, path: / }"),
            "request.method",
        ),
        (
            one(
                "baseUrl: http://h\nrequest: { method: PUT, path: /, headers: { Content-Length: '1' } }",
            ),
            "Content-Length",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: PUT, path: /, keep: { a: b } }"),
            "request.keep.a",
        ),
        (
            format!("agents:\n  - name: Package\n    http: {{ baseUrl: http://h, {PUT} }}"),
            "lower-case",
        ),
    ] {
        let error = load(&yaml, "http://127.0.0.1:1").expect_err(&yaml);
        let said = chain(&error);
        assert!(said.contains(expected), "{yaml}\n{said}");
    }
}

#[test]
fn two_agents_of_one_name_are_refused() {
    let agent = format!("  - name: a\n    http: {{ baseUrl: http://h, {PUT} }}\n");
    let file = AgentsFile::from_yaml(&format!("agents:\n{agent}{agent}")).unwrap();
    assert!(file.load(&BTreeMap::new()).is_err());
}

#[test]
fn the_committed_agents_can_be_loaded() {
    for (path, variable) in [
        ("workflows/drone-delivery-agents.yaml", "services"),
        ("examples/order-fulfilment/agents.yaml", "services"),
    ] {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        let yaml = std::fs::read_to_string(&path).unwrap();
        let variables = BTreeMap::from([(variable.to_owned(), "http://127.0.0.1:1".to_owned())]);
        let loaded = AgentsFile::from_yaml(&yaml).and_then(|file| file.load(&variables));
        let loaded = loaded.unwrap_or_else(|error| panic!("{path}: {}", chain(&error)));
        assert!(!loaded.is_empty());
    }
}
