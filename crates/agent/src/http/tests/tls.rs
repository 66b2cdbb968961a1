//! TLS with a service: private authorities, names and client certificates.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use openssl::ssl::{Ssl, SslAcceptor, SslFiletype, SslMethod, SslVerifyMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_openssl::SslStream;
use waybill_test_support::certificate::Certificate;

use super::*;

/// A service with TLS that answers 204, and shows its certificate for `localhost`. It requires a
/// certificate of the client if it is given one.
async fn serve_tls(certificate: &Certificate, client: Option<&Certificate>) -> u16 {
    let files = tempfile::tempdir().unwrap();
    let (chain, key) = certificate.write(files.path());
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_certificate_chain_file(chain).unwrap();
    acceptor
        .set_private_key_file(key, SslFiletype::PEM)
        .unwrap();
    if let Some(client) = client {
        acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        let store = acceptor.cert_store_mut();
        store.add_cert(client.x509.clone()).unwrap();
    }
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let ssl = Ssl::new(acceptor.context()).unwrap();
            let mut stream = SslStream::new(ssl, socket).unwrap();
            if Pin::new(&mut stream).accept().await.is_err() {
                continue;
            }
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    port
}

/// Writes a certificate and its key to a directory of their own. Returns their paths.
pub(super) fn written(
    certificate: &Certificate,
    directory: &Path,
    name: &str,
) -> (PathBuf, PathBuf) {
    let directory = directory.join(name);
    std::fs::create_dir_all(&directory).unwrap();
    certificate.write(&directory)
}

#[tokio::test]
async fn a_private_authority_is_trusted_for_the_name_of_its_certificate() {
    let files = tempfile::tempdir().unwrap();
    let certificate = Certificate::new();
    let (ca, _) = written(&certificate, files.path(), "service");
    let ca = ca.display();
    let port = serve_tls(&certificate, None).await;
    // Of these the certificate is for `localhost` and 127.0.0.1.
    for (host, tls, expected) in [
        ("localhost", format!("caFile: {ca}"), ""),
        ("127.0.0.1", format!("caFile: {ca}"), ""),
        (
            "127.0.0.1",
            format!("caFile: {ca}, serverName: localhost"),
            "",
        ),
        (
            "127.0.0.1",
            format!("caFile: {ca}, serverName: a.example"),
            "a.example",
        ),
        (
            "localhost",
            String::new(),
            "certificate of localhost is not accepted",
        ),
    ] {
        let settings = format!("tls: {{ {tls} }}\nretries: {{ max: 0 }}\n{PUT}");
        let agent = agent(&format!("https://{host}:{port}"), &settings);
        let outcome = outcome(&agent).await;
        match expected {
            "" => assert_eq!(kind_and_code(&outcome).0, "success", "{tls}: {outcome:?}"),
            expected => {
                assert_eq!(kind_and_code(&outcome), ("transient", "connect-failed"));
                assert!(format!("{outcome:?}").contains(expected), "{outcome:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_agent_shows_its_certificate_and_a_renewed_one_when_the_files_change() {
    let files = tempfile::tempdir().unwrap();
    let [certificate, client, other] = [(); 3].map(|()| Certificate::new());
    let (ca, _) = written(&certificate, files.path(), "service");
    let (cert, key) = written(&other, files.path(), "client");
    let port = serve_tls(&certificate, Some(&client)).await;
    let settings = format!(
        "tls: {{ caFile: {}, certFile: {}, keyFile: {} }}\nretries: {{ max: 0 }}\n{PUT}",
        ca.display(),
        cert.display(),
        key.display()
    );
    let agent = agent(&format!("https://localhost:{port}"), &settings);
    assert_ne!(kind_and_code(&outcome(&agent).await).0, "success");
    written(&client, files.path(), "client");
    let renewed = async {
        while kind_and_code(&outcome(&agent).await).0 != "success" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.unwrap();
}
