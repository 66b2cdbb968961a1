//! The API over TLS: both versions of HTTP, slow clients, and renewed certificates.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode, SslVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;
use waybill_http::{Tls, TlsConfig};
use waybill_ingestion::{Guards, IngestionSettings};
use waybill_test_support::certificate::Certificate;

use super::setup::*;

struct Encrypted {
    setup: Setup,
    certificate: Certificate,
    tls: Tls,
    directory: tempfile::TempDir,
}

impl Encrypted {
    async fn with(change: impl FnOnce(&mut IngestionSettings)) -> Self {
        let certificate = Certificate::new();
        let directory = tempfile::tempdir().unwrap();
        let (cert_file, key_file) = certificate.write(directory.path());
        let config = TlsConfig {
            cert_file: Some(cert_file),
            key_file: Some(key_file),
        };
        let tls = Tls::load("http.tls", &config).unwrap();
        let guards = Guards {
            tls: tls.clone(),
            ..Guards::default()
        };
        Self {
            setup: Setup::guarded(guards, change).await,
            certificate,
            tls,
            directory,
        }
    }

    fn address(&self) -> SocketAddr {
        self.setup.ingestion.address()
    }
}

fn posting(uri: &str, id: &str) -> Request<Full<Bytes>> {
    Request::post(uri)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::from(order(id, 1).to_string()))
        .unwrap()
}

async fn over_http1(stream: SslStream<TcpStream>) -> http1::SendRequest<Full<Bytes>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test(flavor = "multi_thread")]
async fn both_http_versions_are_negotiated() {
    let encrypted = Encrypted::with(|_| {}).await;
    for (protocols, chosen) in [
        (&b"\x02h2\x08http/1.1"[..], &b"h2"[..]),
        (b"\x08http/1.1\x02h2", b"h2"),
        (b"\x08http/1.1", b"http/1.1"),
        (b"\x03foo", b""),
    ] {
        let stream = encrypted
            .certificate
            .connect(encrypted.address(), protocols)
            .await;
        let negotiated = stream.ssl().selected_alpn_protocol().unwrap_or_default();
        assert_eq!(negotiated, chosen);
        let response = if chosen == b"h2" {
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            let request = posting("https://localhost/v1/operations", "by-h2");
            within(sender.send_request(request)).await.unwrap()
        } else {
            let mut sender = over_http1(stream).await;
            let request = posting(OPERATIONS, "by-h1");
            within(sender.send_request(request)).await.unwrap()
        };
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        response.into_body().collect().await.unwrap();
    }
    assert_eq!(encrypted.setup.records().len(), 2);
    encrypted.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn older_tls_versions_and_plain_text_are_refused() {
    let encrypted = Encrypted::with(|_| {}).await;
    let mut connector = SslConnector::builder(SslMethod::tls_client()).unwrap();
    connector.set_verify(SslVerifyMode::NONE);
    connector.set_cipher_list("ALL:@SECLEVEL=0").unwrap();
    connector
        .set_max_proto_version(Some(SslVersion::TLS1_1))
        .unwrap();
    let ssl = connector.build().configure().unwrap();
    let socket = TcpStream::connect(encrypted.address()).await.unwrap();
    let mut stream = SslStream::new(ssl.into_ssl("localhost").unwrap(), socket).unwrap();
    assert!(Pin::new(&mut stream).connect().await.is_err());

    let mut socket = TcpStream::connect(encrypted.address()).await.unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n";
    socket.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // The connection may be reset as well.
    let _ = within(socket.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    encrypted.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handshake_times_out_and_delays_no_other_client() {
    let patience = Duration::from_millis(500);
    let encrypted = Encrypted::with(|config| {
        config.header_read_timeout = patience;
        config.connections_max = 4;
    })
    .await;
    let began = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(encrypted.address()).await.unwrap());
    }
    let connect = async || {
        let stream = encrypted
            .certificate
            .connect(encrypted.address(), b"\x08http/1.1")
            .await;
        let mut sender = over_http1(stream).await;
        let response = sender.send_request(posting(OPERATIONS, "a")).await.unwrap();
        assert!(response.status().is_success());
        sender
    };
    let held = connect().await;
    assert!(began.elapsed() < patience, "it waited for the silent ones");
    // The limit is reached: the oldest silent connection is closed to make room.
    drop(within(connect()).await);
    assert_eq!(within(silent[0].read(&mut [0; 1])).await.unwrap_or(0), 0);
    for mut socket in silent {
        assert_eq!(within(socket.read(&mut [0; 1])).await.unwrap_or(0), 0);
    }
    drop(held);
    encrypted.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_used_without_closing_connections() {
    let encrypted = Encrypted::with(|_| {}).await;
    let stream = encrypted
        .certificate
        .connect(encrypted.address(), b"\x08http/1.1")
        .await;
    let mut before = over_http1(stream).await;
    let mut still_served = async |id: &str| {
        let response = before.send_request(posting(OPERATIONS, id)).await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED, "{id}");
        response.into_body().collect().await.unwrap();
    };
    still_served("one").await;

    // The first half of a renewal: the certificate does not match the key.
    let renewed = Certificate::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let (path, _) = renewed.write(elsewhere.path());
    std::fs::copy(path, encrypted.directory.path().join("tls.crt")).unwrap();
    encrypted.tls.reload();
    let old = &encrypted.certificate;
    old.connect(encrypted.address(), b"\x02h2").await;

    renewed.write(encrypted.directory.path());
    encrypted.tls.reload();
    renewed.connect(encrypted.address(), b"\x02h2").await;
    still_served("two").await;

    std::fs::remove_file(encrypted.directory.path().join("tls.key")).unwrap();
    encrypted.tls.reload();
    renewed.connect(encrypted.address(), b"\x02h2").await;
    still_served("three").await;
    encrypted.setup.ingestion.shutdown().await;
}

#[test]
fn mismatched_certificate_files_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&two).unwrap();
    let (certificate, key) = Certificate::new().write(&one);
    let (_, others) = Certificate::new().write(&two);
    let nothing = directory.path().join("nothing");
    std::fs::write(&nothing, "nothing").unwrap();
    let missing = directory.path().join("missing");
    for (cert_file, key_file, expected) in [
        (
            &certificate,
            &others,
            "does not match the first certificate",
        ),
        (&nothing, &key, "contains no certificate"),
        (
            &certificate,
            &nothing,
            "contains no unencrypted private key",
        ),
        (&certificate, &missing, "cannot be read"),
    ] {
        let config = TlsConfig {
            cert_file: Some(cert_file.clone()),
            key_file: Some(key_file.clone()),
        };
        let refused = Tls::load("http.tls", &config).unwrap_err().to_string();
        assert!(
            refused.starts_with("http.tls: ") && refused.contains(expected),
            "{refused}"
        );
    }
}
