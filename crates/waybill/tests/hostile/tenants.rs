//! Clients with a token for one tenant that take what all tenants share.

use reqwest::{Method, RequestBuilder, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::replies::WORKFLOW;
use super::*;

/// The name, scopes and tenant of each token. `writer` is of the attacker's tenant.
const TOKENS: [(&str, &str, &str); 3] = [
    ("acme", "submit,read", "acme"),
    ("zeta", "submit,read", "zeta"),
    ("writer", "submit", "acme"),
];
/// The memory for bodies: of single requests and of seven batches.
const BODY_BYTES: f64 = (4 << 20) as f64;

fn start() -> Site {
    Site::start_with(&Options {
        // Operations wait for an agent that does not run.
        workflows: &[("vault.yaml", WORKFLOW)],
        tokens: &TOKENS,
        http: "bodyBytesMax: 4MiB,",
        ..Options::default()
    })
}

fn ask(site: &Site, who: &str, method: Method, path: &str) -> RequestBuilder {
    let request = site.http.request(method, site.url("http", path));
    request.bearer_auth(&site.tokens[who])
}

async fn submit(site: &Site, who: &str, id: &str) -> Response {
    let order = json!({"workflow": "vault", "id": id, "input": {}});
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = ask(site, who, Method::POST, "/v1/operations").json(&order);
        let answer = request.send().await.unwrap();
        if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
            return answer;
        }
        assert!(Instant::now() < deadline, "{id} was not accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_holds_all_event_streams_leaves_half_to_another() {
    let site = start();
    for (who, id) in [("acme", "a"), ("zeta", "z")] {
        assert_eq!(submit(&site, who, id).await.status(), StatusCode::ACCEPTED);
    }
    let follow = async |who, id| {
        let path = format!("/v1/operations/{id}/events");
        ask(&site, who, Method::GET, &path).send().await.unwrap()
    };
    let mut attack = Vec::new();
    for _ in 0..4 {
        let stream = follow("acme", "a").await;
        assert_eq!(stream.status(), StatusCode::OK);
        attack.push(stream);
    }
    let further = follow("acme", "a").await.status();
    assert_eq!(further, StatusCode::SERVICE_UNAVAILABLE);
    let mut honest = Vec::new();
    for _ in 0..2 {
        let stream = follow("zeta", "z").await;
        assert_eq!(stream.status(), StatusCode::OK);
        honest.push(stream);
    }
    for stream in &mut honest {
        let event = stream.chunk().await.unwrap().expect("it is open");
        assert!(!event.is_empty());
    }
    // The attacker cannot take them back.
    let again = follow("acme", "a").await.status();
    assert_eq!(again, StatusCode::SERVICE_UNAVAILABLE);
}

/// Begins a batch.
async fn begin_batch(site: &Site, who: &str) -> TcpStream {
    let mut stream = TcpStream::connect(site.address("http")).await.unwrap();
    let head = format!(
        "POST /v1/operations:batch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n",
        site.tokens[who]
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_dripping_batches_keep_no_memory_from_another() {
    let site = start();
    let mut attack = Vec::new();
    for _ in 0..20 {
        let (mut read, mut write) = begin_batch(&site, "acme").await.into_split();
        attack.push(tokio::spawn(async move {
            // Blank lines, fast enough not to be slow.
            let blank = format!("400\r\n{}\n\r\n", " ".repeat(0x3ff));
            while write.write_all(blank.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }));
        attack.push(tokio::spawn(async move {
            let mut answer = [0; 1 << 10];
            while read.read(&mut answer).await.is_ok_and(|n| n > 0) {}
        }));
    }
    // Batches may take seven eighths.
    let deadline = Instant::now() + PATIENCE;
    while site.metric("waybill_ingestion_body_bytes").await < BODY_BYTES * 3.0 / 4.0 {
        assert!(Instant::now() < deadline, "they take the memory");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let line = json!({"workflow": "vault", "id": "z", "input": {}});
    let batch = ask(&site, "zeta", Method::POST, "/v1/operations:batch");
    let batch = batch.header("content-type", "application/x-ndjson");
    let answer = batch.body(line.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let answer = answer.text().await.unwrap();
    assert!(answer.contains("202"), "{answer}");
    let single = submit(&site, "zeta", "single").await.status();
    assert_eq!(single, StatusCode::ACCEPTED);
    for task in attack {
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_only_submit_learns_no_state_from_a_repeat() {
    let site = start();
    let first = submit(&site, "writer", "once").await;
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = ask(&site, "acme", Method::GET, "/v1/operations/once").send();
        let shown: Value = shown.await.unwrap().json().await.unwrap();
        if shown["state"] == "Processing" {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let repeat = submit(&site, "writer", "once").await;
    assert_eq!(repeat.status(), StatusCode::OK);
    let repeat: Value = repeat.json().await.unwrap();
    let shown: Vec<&String> = repeat.as_object().unwrap().keys().collect();
    assert_eq!(shown, ["callerId", "id"], "{repeat}");
    let read = ask(&site, "writer", Method::GET, "/v1/operations/once").send();
    assert_eq!(read.await.unwrap().status(), StatusCode::FORBIDDEN);
    // Nor does another tenant.
    let other = ask(&site, "zeta", Method::GET, "/v1/operations/once").send();
    assert_eq!(other.await.unwrap().status(), StatusCode::NOT_FOUND);
}
