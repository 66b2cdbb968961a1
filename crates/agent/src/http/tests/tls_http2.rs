//! HTTP/2 over TLS, chosen in the handshake.

use std::pin::Pin;

use bytes::Bytes;
use openssl::ssl::{AlpnError, Ssl, SslAcceptor, SslFiletype, SslMethod, select_next_proto};
use tokio::net::{TcpListener, TcpStream};
use tokio_openssl::SslStream;
use waybill_test_support::certificate::Certificate;

use super::*;

/// Accepts TLS with these protocols, and an agent of that service.
async fn listen(protocols: &'static [u8]) -> (TcpListener, SslAcceptor, HttpAgent) {
    let files = tempfile::tempdir().unwrap();
    let (chain, key) = Certificate::new().write(files.path());
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_certificate_chain_file(&chain).unwrap();
    acceptor
        .set_private_key_file(key, SslFiletype::PEM)
        .unwrap();
    acceptor.set_alpn_select_callback(move |_, offered| {
        select_next_proto(protocols, offered).ok_or(AlpnError::NOACK)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let settings = format!(
        "http2: true\nretries: {{ max: 0 }}\ntls: {{ caFile: {} }}\n{PUT}",
        chain.display()
    );
    let agent = agent(&format!("https://localhost:{port}"), &settings);
    (listener, acceptor.build(), agent)
}

async fn accept(listener: &TcpListener, acceptor: &SslAcceptor) -> SslStream<TcpStream> {
    let (socket, _) = listener.accept().await.unwrap();
    let ssl = Ssl::new(acceptor.context()).unwrap();
    let mut stream = SslStream::new(ssl, socket).unwrap();
    Pin::new(&mut stream).accept().await.unwrap();
    stream
}

#[tokio::test]
async fn calls_share_a_connection_over_http2_if_the_service_chooses_it() {
    let (listener, acceptor, agent) = listen(b"\x02h2").await;
    let service = tokio::spawn(async move {
        let stream = accept(&listener, &acceptor).await;
        let mut line = h2::server::handshake(stream).await.unwrap();
        for count in 0.. {
            let Some(Ok((_, mut to))) = line.accept().await else {
                break;
            };
            if count == 1 {
                to.send_reset(h2::Reason::REFUSED_STREAM);
                continue;
            }
            let head = hyper::Response::builder().status(204).body(()).unwrap();
            to.send_response(head, true).unwrap();
        }
    });
    let [first, refused, last] = [
        outcome(&agent).await,
        outcome(&agent).await,
        outcome(&agent).await,
    ];
    assert_eq!(kind_and_code(&first).0, "success", "{first:?}");
    assert_eq!(kind_and_code(&refused), ("transient", "request-unread"));
    assert_eq!(kind_and_code(&last).0, "success", "{last:?}");
    drop(agent);
    service.await.unwrap();
}

#[tokio::test]
async fn a_service_without_http2_is_called_over_http1() {
    let (listener, acceptor, agent) = listen(b"\x08http/1.1").await;
    let service = tokio::spawn(async move {
        let stream = accept(&listener, &acceptor).await;
        let answer = |_| async {
            Ok::<_, std::convert::Infallible>(hyper::Response::new(
                http_body_util::Empty::<Bytes>::new(),
            ))
        };
        let io = hyper_util::rt::TokioIo::new(stream);
        let connection = hyper::server::conn::http1::Builder::new();
        let _ = connection
            .serve_connection(io, hyper::service::service_fn(answer))
            .await;
    });
    let outcome = outcome(&agent).await;
    assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    drop(agent);
    service.await.unwrap();
}
