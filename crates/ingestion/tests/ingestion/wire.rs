//! The bytes on the connection: framing, slow clients, and both versions of HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn request_smuggling_shapes_are_refused_and_reach_no_topic() {
    let setup = Setup::start().await;
    let body = delivery().to_string();
    let length = format!("Content-Length: {}", body.len());
    let chunked = "Transfer-Encoding: chunked";
    let in_chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let cases = [
        (
            format!("{length}\r\n{chunked}"),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{chunked}\r\n{length}"),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{length}\r\nContent-Length: 1"),
            &body,
            "ambiguous-length",
        ),
        (format!("{length}\r\n{length}"), &body, "ambiguous-length"),
        (
            "Transfer-Encoding: xchunked".to_owned(),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            "Transfer-Encoding: chunked, chunked".to_owned(),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{length}\r\nX: a\r\n folded"),
            &body,
            "malformed-request",
        ),
        (format!("{length}\nX: a"), &body, "malformed-request"),
        (
            format!("Transfer-Encoding : chunked\r\n{length}"),
            &body,
            "malformed-request",
        ),
        (format!("{length}\r\nX: a\0b"), &body, "malformed-request"),
        (format!("{length}\r\nHost: b"), &body, "malformed-request"),
    ];
    for (fields, body, kind) in cases {
        let request = format!(
            "POST {DELIVERIES} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{fields}\r\n\r\n{body}"
        );
        let answer = setup.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{fields:?}: {answer}");
        assert!(answer.contains("connection: close"), "{fields:?}: {answer}");
        assert!(
            answer.contains(&format!("\"type\":\"/problems/{kind}\"")),
            "{fields:?}: {answer}"
        );
        assert_eq!(
            answer.matches("\r\ncontent-length: ").count(),
            1,
            "{fields:?}: {answer}"
        );
    }
    assert_eq!(setup.records().len(), 0);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_answered_in_order_and_nothing_after_it() {
    let setup = Setup::start().await;
    let body = order("turn-1", 1).to_string();
    let head =
        format!("POST {OPERATIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n");
    let good = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let smuggled =
        format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n");
    let later = good.replace("turn-1", "turn-2");
    let answer = setup
        .raw(format!("{good}{chunked}{smuggled}{later}").as_bytes())
        .await;
    let statuses: Vec<_> = answer
        .matches("HTTP/1.1 ")
        .zip(answer.split("HTTP/1.1 ").skip(1))
        .map(|(_, rest)| &rest[..3])
        .collect();
    assert_eq!(statuses, ["202", "202", "400"], "{answer}");
    let records = setup.records();
    assert!(
        records
            .iter()
            .all(|record| record.request.caller_id.as_deref() == Some("turn-1"))
    );
    assert_eq!(records.len(), 1, "the repeat met its first");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_that_are_too_long_slow_or_broken_are_refused() {
    let setup = Setup::with(|config| {
        config.header_read_timeout = Duration::from_millis(100);
        config.body_read_timeout = Duration::from_millis(100);
    })
    .await;
    let head = format!(
        "POST {DELIVERIES} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    let cases = [
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "x".repeat(200_000)
            ),
            "431",
            "head-too-large",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(80)),
            "431",
            "head-too-large",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(20_000)),
            "431",
            "head-too-large",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n".to_owned(),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Content-Length: 100\r\n\r\n{{"),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            "400",
            "incomplete-body",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\n2 \r\n{{}}\r\n0\r\n\r\n"),
            "400",
            "incomplete-body",
        ),
        (
            format!("{head}Content-Length: 70000\r\n\r\n{}", "x".repeat(70_000)),
            "413",
            "body-too-large",
        ),
        (
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n11170\r\n{}\r\n0\r\n\r\n",
                "x".repeat(70_000)
            ),
            "413",
            "body-too-large",
        ),
        (
            "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(),
            "400",
            "malformed-request",
        ),
    ];
    for (request, status, kind) in cases {
        let shown: String = request.chars().take(120).collect();
        let answer = setup.raw(request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer}"
        );
        assert!(
            answer.contains(&format!("/problems/{kind}")),
            "{shown:?}: {answer}"
        );
    }
    assert_eq!(setup.records().len(), 0);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_without_tls_is_supported() {
    let setup = Setup::start().await;
    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    let requests = (0..50).map(|number| {
        let body = order(&format!("h2-{number}"), number).to_string();
        let request = http2
            .post(setup.url(OPERATIONS))
            .header(CONTENT_TYPE, "application/json");
        request.body(body).send()
    });
    for response in futures_util::future::join_all(requests).await {
        let response = response.unwrap();
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        assert_eq!(response.status(), StatusCode::ACCEPTED);
    }
    assert_eq!(setup.records().len(), 50);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_refused_http2_body_is_read() {
    const CHUNKS: usize = 64;
    let setup = Setup::start().await;
    let stream = TcpStream::connect(setup.ingestion.address()).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    for (method, media_type, status) in [
        ("POST", "application/json", StatusCode::PAYLOAD_TOO_LARGE),
        ("POST", "text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("PUT", "application/json", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let chunks = (0..CHUNKS).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'a'; 16 * 1024])))
        });
        // Each one after a pause, so that the answer arrives before the last chunk.
        let chunks = stream::iter(chunks).then(async |chunk| {
            tokio::time::sleep(Duration::from_millis(1)).await;
            chunk
        });
        let request = hyper::Request::builder()
            .method(method)
            .uri(setup.url(OPERATIONS))
            .header(CONTENT_TYPE, media_type)
            .body(BodyExt::boxed_unsync(StreamBody::new(chunks)))
            .unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), status);
        within(answer.into_body().collect()).await.unwrap();
        within(async {
            while sent.load(Ordering::Relaxed) < CHUNKS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    assert!(!connection.is_finished());
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_http1_refusal_is_not_lost() {
    const CHUNK: [u8; 16 * 1024] = [b'a'; 16 * 1024];
    const CHUNKS: usize = 64;
    let setup = Setup::start().await;
    let mut socket = TcpStream::connect(setup.ingestion.address()).await.unwrap();
    // The connection stays usable for further requests.
    for _ in 0..2 {
        let head = format!(
            "POST {OPERATIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            CHUNK.len() * CHUNKS
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..CHUNKS {
            tokio::time::sleep(Duration::from_millis(1)).await;
            within(socket.write_all(&CHUNK)).await.unwrap();
        }
        let mut answer = vec![0; 64 * 1024];
        let read = within(socket.read(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_body_is_answered_408_and_its_connection_ends() {
    let pause = Duration::from_millis(150);
    let setup = Setup::with(|config| config.body_read_timeout = pause).await;
    for (path, media_type) in [
        (DELIVERIES, "application/json"),
        (OPERATIONS, "application/json"),
        (BATCH, "application/x-ndjson"),
    ] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\n");
        for body in [
            "Content-Length: 100\r\n\r\n",
            "Content-Length: 100\r\n\r\n{\"workflow\":",
            "Transfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n40\r\n{\"workflow\":",
        ] {
            let began = Instant::now();
            let answer = setup.raw(format!("{head}{body}").as_bytes()).await;
            assert!(began.elapsed() >= pause, "{path} {body:?}");
            // The answer to a batch has already begun, so it ends with a line that reports the
            // error.
            match path {
                BATCH => assert!(answer.contains("{\"status\":408,"), "{body:?}: {answer}"),
                _ => assert!(answer.starts_with("HTTP/1.1 408 "), "{body:?}: {answer}"),
            }
            assert!(
                answer.contains("\"type\":\"/problems/request-timeout\""),
                "{path} {body:?}: {answer}"
            );
        }
    }
    assert_eq!(setup.records().len(), 0);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_answered_408() {
    let setup = Setup::with(|config| config.body_timeout = Duration::from_millis(300)).await;
    let head = format!(
        "POST {DELIVERIES} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Content-Length: 60000\r\n\r\n"
    );
    let mut socket = TcpStream::connect(setup.ingestion.address()).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let dripping = tokio::spawn(async move {
        let mut drip = tokio::time::interval(Duration::from_millis(10));
        loop {
            drip.tick().await;
            if writer.write_all(b" ").await.is_err() {
                return;
            }
        }
    });
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    while !answer.ends_with(b"}") {
        let n = within(reader.read(&mut part)).await.unwrap();
        assert!(n > 0, "it ended without an answer");
        answer.extend_from_slice(&part[..n]);
    }
    dripping.abort();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("incomplete after 0.3 seconds"), "{answer}");
    setup.ingestion.shutdown().await;
}
