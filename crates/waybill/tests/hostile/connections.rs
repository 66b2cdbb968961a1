//! Connections that are opened and abandoned.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::SendStream;
use h2::client::SendRequest;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// The memory limit of the program while many requests hold memory.
const MEMORY_BYTES: u64 = 256 << 20;
/// The number of connections that hold memory.
const HTTP2_CONNECTIONS: usize = 400;
/// The number of requests tried on each connection.
const HTTP2_STREAMS: usize = 128;

/// Opens more connections than a listener allows. Each sends `sent` and waits.
async fn open_connections(site: &Site, listener: &str, sent: &[u8]) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(site.address(listener)).await.unwrap();
        // The listener may close it at any moment to make room.
        let _ = stream.write_all(sent).await;
        streams.push(stream);
    }
    streams
}

/// The name of a metric of a listener's connections.
fn metric_of(listener: &str, name: &str) -> String {
    match listener {
        "broker" => format!("waybill_broker_connections{name}"),
        _ => format!("waybill_http_connections{name}{{listener=\"{listener}\"}}"),
    }
}

/// A program whose broker has as few connections as its other listeners.
fn start_with_few_connections() -> Site {
    let limits =
        format!("connectionsMax: {CONNECTIONS_MAX}, connectionsPerAddressMax: {CONNECTIONS_MAX}");
    Site::start_with(&Options {
        broker_settings: &limits,
        ..Options::default()
    })
}

/// Waits until a new Kafka client is answered.
async fn broker_answers(site: &Site) {
    let client: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", site.address("broker").to_string())
        .create()
        .unwrap();
    let topic = site.topic("operation-requests.v1");
    let answered = tokio::task::spawn_blocking(move || {
        let metadata = client.fetch_metadata(Some(&topic), PATIENCE).unwrap();
        metadata.topics()[0].partitions().len()
    });
    assert!(answered.await.unwrap() > 0);
}

/// Waits until a listener has replaced a connection.
async fn has_replaced(site: &Site, listener: &str) {
    let replaced = metric_of(listener, "_replaced_total");
    let deadline = Instant::now() + PATIENCE;
    // The services and the broker update that metric once a second.
    while site.metric(&replaced).await == 0.0 {
        assert!(Instant::now() < deadline, "{replaced}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_send_nothing_block_no_other_client() {
    let site = start_with_few_connections();
    let mut opened = Vec::new();
    for listener in ["http", "admin", "services", "broker"] {
        opened.push(open_connections(&site, listener, b"").await);
    }
    site.deliver("beside-silence").await;
    site.ready().await;
    broker_answers(&site).await;
    for listener in ["api", "admin", "services", "broker"] {
        has_replaced(&site, listener).await;
        let metric = async |name| site.metric(&metric_of(listener, name)).await;
        let max = metric("_max").await;
        assert_eq!(max, CONNECTIONS_MAX as f64, "{listener}");
        assert!(metric("").await <= max, "{listener}");
        let of_address = metric("_per_address").await;
        assert!(of_address > 0.0, "{listener}");
        assert!(of_address <= metric("_per_address_max").await, "{listener}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_heads_and_idle_connections_block_no_other_client() {
    let site = start_with_few_connections();
    let half = b"GET /readyz HTTP/1.1\r\nhost: loc";
    let whole = b"GET /problems/not-found HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut opened = Vec::new();
    for listener in ["http", "admin", "services"] {
        for sent in [&half[..], whole] {
            opened.push(open_connections(&site, listener, sent).await);
        }
    }
    // A request for the versions of the protocol: its length, API, version, correlation ID, and no
    // client ID.
    let versions = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    for sent in [&versions[..6], &versions] {
        opened.push(open_connections(&site, "broker", sent).await);
    }
    site.deliver("beside-halves").await;
    broker_answers(&site).await;
    assert_eq!(site.get("admin", "/livez").await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_stop_halfway_block_no_other_client() {
    let site = Site::start();
    let mut opened = Vec::new();
    for (listener, route) in [
        ("http", "POST /v1/operations"),
        ("services", "PUT /api/packages/p"),
    ] {
        let sent = format!(
            "{route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: 5000\r\n\r\n{{"
        );
        opened.push(open_connections(&site, listener, sent.as_bytes()).await);
    }
    // Until then they may be honest.
    tokio::time::sleep(2 * waybill_connections::SLOW_AFTER).await;
    site.deliver("beside-halves-of-bodies").await;
    for listener in ["api", "services"] {
        has_replaced(&site, listener).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_arrive_slowly_keep_no_memory_from_others() {
    const BATCHES: usize = 118;
    let site = Site::start_with(&Options {
        connections_max: 200,
        ..Options::default()
    });
    let sent = b"POST /v1/operations:batch HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
    let mut slow = Vec::new();
    for _ in 0..BATCHES {
        let mut stream = TcpStream::connect(site.address("http")).await.unwrap();
        stream.write_all(sent).await.unwrap();
        slow.push(stream);
    }
    let batch = async || {
        let line = json!({"workflow": "drone-delivery", "input": delivery("in-a-batch")});
        let request = site.http.post(site.url("http", "/v1/operations:batch"));
        let request = request.header("Content-Type", "application/x-ndjson");
        let answer = request.body(line.to_string()).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    // Batches may take seven eighths of 64 MiB.
    let deadline = Instant::now() + PATIENCE;
    while site.metric("waybill_ingestion_body_bytes").await < f64::from(56 << 20) - 600_000.0 {
        assert!(Instant::now() < deadline, "they take the memory");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Single requests have memory of their own.
    let url = site.url("http", "/api/deliveryrequests");
    let single = site.post(&url, &delivery("beside-slow-batches")).await;
    assert_eq!(single, StatusCode::ACCEPTED);
    // Until then they may be honest.
    tokio::time::sleep(2 * waybill_connections::SLOW_AFTER).await;
    let (status, answer) = batch().await;
    assert_eq!(status, StatusCode::OK);
    assert!(answer.contains("202"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_refuses_ambiguous_framing() {
    let site = Site::start();
    for head in [
        "PUT /log HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        "GET /livez HTTP/1.1\r\n\r\n",
        "GET /livez HTTP/1.1\nhost: localhost\n\n",
    ] {
        for listener in ["http", "admin"] {
            let mut stream = TcpStream::connect(site.address(listener)).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let read = stream.read_to_string(&mut answer);
            tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 "), "{listener}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_without_an_end_is_refused_in_time_and_in_size() {
    let site = Site::start();
    let began = Instant::now();
    let mut stream = TcpStream::connect(site.address("admin")).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    let long = format!("x: {}\r\n", "y".repeat(32 * 1024));
    stream.write_all(long.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_by_request_limits_are_counted_by_reason() {
    let site = Site::start();
    let head = |method, path, bytes| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {bytes}\r\n\r\n"
        )
    };
    let whole = |method, path, body: &str| head(method, path, body.len()) + body;
    let nested = "[".repeat(40);
    let long_head = format!("GET / HTTP/1.1\r\nx: {}\r\n", "y".repeat(20_000));
    let batch = format!("{nested}\n\"{}\"\n", "x".repeat(70_000));
    let batch = whole("POST", "/v1/operations:batch", &batch).replace("/json", "/x-ndjson");
    for (listener, request, status) in [
        ("http", whole("POST", "/v1/operations", &nested), 400),
        (
            "http",
            whole("POST", "/v1/operations", &"x".repeat(70_000)),
            413,
        ),
        ("http", batch, 200),
        ("http", long_head.clone(), 431),
        ("admin", whole("PUT", "/log", &nested), 400),
        ("admin", whole("PUT", "/log", &"x".repeat(2_049)), 413),
        ("admin", head("PUT", "/log", 9), 408),
        ("admin", long_head, 431),
    ] {
        let mut stream = TcpStream::connect(site.address(listener)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        let expected = format!("HTTP/1.1 {status} ");
        assert!(
            answer.starts_with(&expected),
            "{listener} {status}: {answer}"
        );
    }
    for (listener, expected) in [("api", [2, 1, 2, 0]), ("admin", [1, 1, 1, 1])] {
        let reasons = [
            "body-too-large",
            "head-too-large",
            "nesting-too-deep",
            "request-timeout",
        ];
        for (reason, expected) in reasons.into_iter().zip(expected) {
            let name = format!(
                "waybill_http_requests_refused_total{{listener=\"{listener}\",reason=\"{reason}\"}}"
            );
            assert_eq!(site.metric(&name).await, f64::from(expected), "{name}");
        }
    }
}

/// Keeps a connection and its requests open.
type Held = (SendRequest<Bytes>, Vec<SendStream<Bytes>>);

/// Opens a connection and sends requests on it whose bodies never end. The server may refuse them.
async fn begin_bodies(site: &Site, listener: &str, path: &str) -> Held {
    let socket = TcpStream::connect(site.address(listener)).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let request = |method: &str| {
        hyper::Request::builder()
            .method(method)
            .uri(site.url(listener, path))
            .header("content-type", "application/json")
            .header("idempotency-key", "o/package")
            .body(())
            .unwrap()
    };
    // After an answer, the server's settings have arrived. Streams above its limit would wait for
    // others to end.
    let (answer, _) = requests.send_request(request("GET"), true).unwrap();
    answer.await.unwrap();
    let mut bodies = Vec::new();
    for _ in 0..HTTP2_STREAMS.min(requests.current_max_send_streams()) {
        let (_answer, mut body) = requests.send_request(request("POST"), false).unwrap();
        if bodies.len() < 2 {
            // The server may have answered without reading it.
            let _ = body.send_data(Bytes::from_static(&[b' '; 16 << 10]), false);
        }
        bodies.push(body);
    }
    (requests, bodies)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_never_end_on_many_connections_take_little_memory() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = rustix::process::Rlimit {
        current: files.maximum,
        ..files
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let connections_max = 2 * HTTP2_CONNECTIONS;
    let site = Site::start_with(&Options {
        limit: limit.as_ref(),
        connections_max,
        ..Options::default()
    });
    let mut held = Vec::new();
    for (listener, path) in [("http", "/v1/operations"), ("services", "/api/packages/p")] {
        for _ in 0..HTTP2_CONNECTIONS {
            held.push(begin_bodies(&site, listener, path).await);
        }
    }
    site.deliver("beside-bodies").await;
    drop(site);
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}
