//! Connections that may be encrypted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tower_service::Service;
use waybill_tls::{ClientTls, Stream};

/// Why there is no connection.
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Connects to servers, with TLS for `https://`.
#[derive(Clone, Debug)]
pub(in crate::http) struct Connector {
    tcp: HttpConnector,
    tls: ClientTls,
    /// The name that certificates must have, if it is not the host of the URL.
    server_name: Option<Arc<str>>,
    /// The protocols to offer (ALPN), each after its length.
    protocols: &'static [u8],
    /// How long a handshake may take.
    handshake_timeout: Duration,
}

impl Connector {
    pub(super) fn new(mut tcp: HttpConnector, tls: ClientTls, handshake_timeout: Duration) -> Self {
        tcp.enforce_http(false);
        Self {
            tcp,
            tls,
            server_name: None,
            protocols: b"\x08http/1.1",
            handshake_timeout,
        }
    }

    pub(super) fn with_server_name(mut self, name: Option<&str>) -> Self {
        self.server_name = name.map(Into::into);
        self
    }

    async fn connect(mut self, uri: Uri) -> Result<TokioIo<Stream>, ConnectError> {
        let socket = self.tcp.call(uri.clone()).await?.into_inner();
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(TokioIo::new(Stream::Plain(socket)));
        }
        let host = uri.host().unwrap_or_default();
        let name = self.server_name.as_deref().unwrap_or(host);
        let handshake = self.tls.connect(socket, name, self.protocols);
        let stream = timeout(self.handshake_timeout, handshake).await;
        let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        Ok(TokioIo::new(stream?))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}
