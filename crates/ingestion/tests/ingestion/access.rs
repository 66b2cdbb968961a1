//! Permissions of tokens. Operations of another tenant must look as if they did not exist.

mod lists;
mod payloads;
mod tenants;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use reqwest::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use waybill_engine::{HistoryEntry, OperationId, ProcessState, Timestamp};
use waybill_http::auth::AuthConfig;
use waybill_http::auth::{Auth, NewToken};
use waybill_ingestion::{Guards, IngestionSettings};

use super::setup::*;

/// An ingestion with authentication, and the tokens by name.
pub struct Guarded {
    pub setup: Setup,
    tokens: HashMap<&'static str, String>,
    _file: tempfile::NamedTempFile,
}

/// Name, scopes and tenant of each token.
const TOKENS: [(&str, &str, &str); 8] = [
    ("acme", "submit, read, repair", "acme"),
    ("zeta", "submit, read, repair", "zeta"),
    ("all", "submit, read, repair", "*"),
    ("submit", "submit", "acme"),
    ("read", "read", "acme"),
    ("repair", "repair", "acme"),
    ("payload", "submit, read, payload", "acme"),
    ("admin", "admin", "*"),
];

impl Guarded {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut IngestionSettings)) -> Self {
        Self::guarded(Guards::default(), change).await
    }

    /// With these guards, and authentication.
    pub async fn guarded(guards: Guards, change: impl FnOnce(&mut IngestionSettings)) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tokens = HashMap::new();
        let mut text = String::new();
        for (name, scopes, tenant) in TOKENS {
            let NewToken { token, hash } = NewToken::make();
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!(
                "- {{name: {name}, sha256: '{hash}', scopes: [{scopes}], tenant: '{tenant}'}}\n"
            ));
            tokens.insert(name, token.reveal().to_owned());
        }
        std::fs::write(file.path(), text).unwrap();
        let guards = Guards {
            auth: auth(file.path()),
            ..guards
        };
        Self {
            setup: Setup::guarded(guards, change).await,
            tokens,
            _file: file,
        }
    }

    pub fn token(&self, name: &str) -> &str {
        &self.tokens[name]
    }

    pub fn ask(&self, name: &str, method: Method, path: &str) -> RequestBuilder {
        let request = self.setup.http.request(method, self.setup.url(path));
        request.bearer_auth(self.token(name))
    }

    pub async fn get(&self, name: &str, path: &str) -> (u16, serde_json::Value) {
        let response = self.ask(name, Method::GET, path).send().await.unwrap();
        let (status, view) = answer(response).await;
        (status.as_u16(), view)
    }

    pub fn post(&self, name: &str, path: &str, body: impl ToString) -> RequestBuilder {
        self.setup.post(path, body).bearer_auth(self.token(name))
    }
}

fn auth(tokens: &Path) -> Auth {
    let config = AuthConfig {
        tokens_file: Some(tokens.to_owned()),
        ..AuthConfig::default()
    };
    Auth::load(&config).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_without_the_scope_read_shows_no_state() {
    let guarded = Guarded::start().await;
    let create = || guarded.post("submit", OPERATIONS, order("once", 1));
    let (status, first) = answer(create().send().await.unwrap()).await;
    assert_eq!(status, 202, "{first}");
    let record = &guarded.setup.records()[0];
    guarded
        .setup
        .schedule(record, ProcessState::Processed)
        .await;
    let (status, again) = answer(create().send().await.unwrap()).await;
    let known = json!({"id": first["id"], "callerId": "once"});
    assert_eq!((status.as_u16(), again), (200, known));
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_without_the_scope_read_shows_neither_state_nor_names() {
    let guarded = Guarded::start().await;
    let write = async |name: &str, state: ProcessState, history: Vec<HistoryEntry>| {
        let mut row = row(OperationId::of_caller("acme", name), "order", state);
        let mut created = row.created.as_deref().unwrap().clone();
        created.tenant = "acme".into();
        row.created = Some(created.into());
        row.state.history = history;
        guarded.setup.write(row).await;
    };
    let parked = ProcessState::CompensationFailed;
    write("parked", parked, Vec::new()).await;
    write("undone", ProcessState::Compensated, Vec::new()).await;
    let resubmission = HistoryEntry {
        id: OperationId::of_caller("acme", "again").event_id("resubmitted/k"),
        at: Timestamp(5_000_000),
        by: "kim".to_owned(),
        verb: format!("resubmitted {}", OperationId::of_caller("acme", "new")),
        reason: String::new(),
        refused: None,
    };
    write("again", ProcessState::Compensated, vec![resubmission]).await;

    let (cancel, resubmit) = (json!({}), json!({"asNew": true}));
    for (who, asked, body, code, shown) in [
        (
            "submit",
            "parked:cancel",
            &cancel,
            "compensation-failed",
            "CompensationFailed",
        ),
        ("submit", "undone:cancel", &cancel, "final", "Compensated"),
        (
            "repair",
            "again:resubmit",
            &resubmit,
            "resubmitted-before",
            "kim",
        ),
    ] {
        let path = format!("{OPERATIONS}/{asked}");
        for (who, is_shown) in [(who, false), ("acme", true)] {
            let response = guarded.post(who, &path, body).send().await.unwrap();
            let (status, _, problem) = problem(response).await;
            assert_eq!((status, &problem["code"]), (409, &json!(code)), "{problem}");
            let detail = problem["detail"].as_str().unwrap();
            assert_eq!(detail.contains(shown), is_shown, "{who}: {detail}");
            let is_silent = !detail.contains("Allowed") && !detail.contains("1970");
            assert!(is_shown || is_silent, "{who}: {detail}");
        }
    }
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_all_event_streams_gives_some_to_another() {
    let guarded = Guarded::with(|config| config.event_streams_max = 4).await;
    for (who, id) in [("acme", "a"), ("zeta", "z")] {
        let made = guarded.post(who, OPERATIONS, order(id, 1)).send().await;
        assert_eq!(made.unwrap().status(), 202);
    }
    let follow = async |who: &str, id: &str| {
        let path = format!("{OPERATIONS}/{id}/events");
        guarded.ask(who, Method::GET, &path).send().await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..4 {
        let stream = follow("acme", "a").await;
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    assert_eq!(follow("acme", "a").await.status(), 503, "there are no more");
    for _ in 0..2 {
        let stream = follow("zeta", "z").await;
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    assert_eq!(follow("zeta", "z").await.status(), 503, "no more than half");
    // The two oldest streams were closed to make room.
    for stream in &mut streams[..2] {
        within(async { while stream.chunk().await.unwrap().is_some() {} }).await;
    }
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_lists_are_refused() {
    let guarded = Guarded::with(|config| config.lists_max = 0).await;
    let list = guarded.ask("acme", Method::GET, OPERATIONS).send();
    let (status, kind, _) = problem(list.await.unwrap()).await;
    assert_eq!((status, kind.as_str()), (503, "overloaded"));
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_half_of_the_queue_to_the_broker_while_another_wants_some() {
    let guarded = Guarded::with(|config| config.producer_queue_records_max = 4).await;
    let send = async |who: &str, id: String| {
        let sent = guarded.post(who, OPERATIONS, order(&id, 1)).send().await;
        sent.unwrap().status().as_u16()
    };
    // The producer is connected before the broker becomes slow: after 2 s without an
    // acknowledgement it counts as unavailable.
    assert_eq!(send("acme", "warm".to_owned()).await, 202);
    let slow = Duration::from_millis(1_500);
    let cluster = &guarded.setup.cluster;
    cluster.broker_round_trip_time(1, slow).unwrap();
    let begin = |round: char| -> FuturesUnordered<_> {
        (0..6)
            .map(|n| send("acme", format!("{round}{n}")))
            .collect()
    };

    // It fills the queue alone. Further requests are refused immediately.
    let mut alone = begin('a');
    assert_eq!([alone.next().await, alone.next().await], [Some(503); 2]);
    assert_eq!(send("zeta", "z0".to_owned()).await, 503);
    assert_eq!(alone.collect::<Vec<_>>().await, [202; 4]);

    let mut beside_another = begin('b');
    for _ in 0..4 {
        assert_eq!(beside_another.next().await, Some(503));
    }
    assert_eq!(send("zeta", "z1".to_owned()).await, 202);
    assert_eq!(beside_another.collect::<Vec<_>>().await, [202; 2]);
    guarded.setup.ingestion.shutdown().await;
}

/// Every route and its required scope.
const ROUTES: [(&str, &str, &str); 15] = [
    ("POST", "/api/deliveryrequests", "submit"),
    ("GET", "/api/deliveryrequests/x", "read"),
    ("DELETE", "/api/deliveryrequests/x", "submit"),
    ("PATCH", "/api/deliveryrequests/x", "submit"),
    ("POST", "/v1/operations", "submit"),
    ("POST", "/v1/operations:batch", "submit"),
    ("GET", "/v1/operations", "read"),
    ("GET", "/v1/operations/x", "read"),
    ("GET", "/v1/operations/x/events", "read"),
    ("POST", "/v1/operations/x:cancel", "submit"),
    ("POST", "/v1/operations/x:resubmit", "repair"),
    ("POST", "/v1/operations/x:compensate", "repair"),
    ("POST", "/v1/operations/x:abandon", "repair"),
    ("POST", "/v1/operations/x:retry-compensation", "repair"),
    ("POST", "/v1/operations/x:undone", "repair"),
];

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_token_only_the_documents_are_served() {
    let guarded = Guarded::start().await;
    let setup = &guarded.setup;
    let unknown = NewToken::make();
    let cases = [
        (None, "no-token", "Bearer realm=\"waybill\""),
        (
            Some("Basic YTpi".to_owned()),
            "no-token",
            "Bearer realm=\"waybill\"",
        ),
        (
            Some(format!("Bearer {}", unknown.token.reveal())),
            "invalid-token",
            "Bearer realm=\"waybill\", error=\"invalid_token\"",
        ),
        (
            Some("Bearer secret".to_owned()),
            "invalid-token",
            "Bearer realm=\"waybill\", error=\"invalid_token\"",
        ),
    ];
    for (method, path, _) in ROUTES {
        for (header, code, challenge) in &cases {
            let method: Method = method.parse().unwrap();
            let mut request = setup.http.request(method.clone(), setup.url(path));
            if let Some(header) = header {
                request = request.header(AUTHORIZATION, header);
            }
            let response = request.body("{}").send().await.unwrap();
            assert_eq!(response.headers()[WWW_AUTHENTICATE], *challenge);
            let (status, kind, problem) = problem(response).await;
            assert_eq!(
                (status, &*kind),
                (401, "unauthenticated"),
                "{method} {path}"
            );
            assert_eq!(problem["code"], *code, "{method} {path}");
            assert!(!problem.to_string().contains(unknown.token.reveal()));
        }
    }
    for open in ["/openapi.json", "/docs", "/problems/unauthenticated"] {
        let response = setup.http.get(setup.url(open)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{open}");
    }
    assert_eq!(setup.requests().len(), 0);
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_needs_its_own_scope() {
    let guarded = Guarded::start().await;
    for (method, path, needed) in ROUTES {
        for scope in ["submit", "read", "repair", "admin"] {
            let method: Method = method.parse().unwrap();
            let request = guarded.ask(scope, method.clone(), path);
            let response = request.body("").send().await.unwrap();
            if scope == needed {
                assert!(
                    !matches!(response.status().as_u16(), 401 | 403),
                    "{scope}: {method} {path}"
                );
                continue;
            }
            let challenge = format!(
                "Bearer realm=\"waybill\", error=\"insufficient_scope\", scope=\"{needed}\""
            );
            assert_eq!(response.headers()[WWW_AUTHENTICATE], *challenge);
            let (status, kind, problem) = problem(response).await;
            assert_eq!(
                (status, &*kind),
                (403, "insufficient-scope"),
                "{scope}: {method} {path}"
            );
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(needed), "{detail}");
        }
    }
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_names_the_token_of_each_verb() {
    let guarded = Guarded::start().await;
    let setup = &guarded.setup;
    let made = guarded.post("acme", OPERATIONS, order("order-1", 1));
    assert_eq!(made.send().await.unwrap().status(), 202);
    for (path, body) in [
        ("/v1/operations/order-1:cancel", json!({"by": "kim"})),
        ("/v1/operations/order-1:cancel", json!({})),
    ] {
        let asked = guarded.post("acme", path, body).send().await.unwrap();
        assert_eq!(asked.status(), 202);
    }
    let by: Vec<String> = setup
        .requests()
        .into_iter()
        .filter_map(|(_, request)| match request {
            waybill_engine::OperationRequest::Amend(amend) => Some(amend.asked_by),
            waybill_engine::OperationRequest::Create(_) => None,
        })
        .collect();
    assert_eq!(by, ["kim (acme)", "acme"]);
    guarded.setup.ingestion.shutdown().await;
}

/// Begins a batch with one line and sends no more. Returns the connection and the status of the
/// answer.
async fn begin_batch(guarded: &Guarded, who: &str, id: &str) -> (TcpStream, String) {
    let address = guarded.setup.ingestion.address();
    let mut batch = TcpStream::connect(address).await.unwrap();
    let line = order(id, 1).to_string() + "\n";
    let begun = format!(
        "POST {BATCH} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n",
        guarded.token(who),
        line.len()
    );
    batch.write_all(begun.as_bytes()).await.unwrap();
    let mut status = [0; "HTTP/1.1 200".len()];
    within(batch.read_exact(&mut status)).await.unwrap();
    (batch, String::from_utf8_lossy(&status).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_all_batch_memory_gives_some_to_another() {
    let guarded = Guarded::with(|config| {
        config.batch_line_bytes_max = 64 << 10;
        config.body_bytes_max = 2 << 20;
    })
    .await;
    let mut batches = Vec::new();
    loop {
        let id = format!("a-{}", batches.len());
        let (batch, status) = begin_batch(&guarded, "acme", &id).await;
        if status.ends_with("503") {
            break;
        }
        assert!(status.ends_with("200"), "{status}");
        batches.push(batch);
        assert!(batches.len() < 1_000, "there is no bound");
    }
    assert!(batches.len() > 1);
    let (other, status) = begin_batch(&guarded, "zeta", "z").await;
    assert!(status.ends_with("200"), "{status}");
    // The oldest one was closed to make room.
    let (mut answer, mut part) = (String::new(), [0; 1024]);
    while !answer.contains("Other requests need the memory") {
        let n = within(batches[0].read(&mut part)).await.unwrap();
        assert!(n > 0, "it ended without saying why: {answer}");
        answer.push_str(std::str::from_utf8(&part[..n]).unwrap());
    }
    drop((other, batches));
    guarded.setup.ingestion.shutdown().await;
}
