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
use waybill_tls::{ClientTls, ClientTlsConfig, Stream};

use crate::http::LoadError;
use crate::http::auth::ServiceTlsConfig;
use crate::http::config::HttpConfig;
use crate::http::redirects::is_same;

/// The offer of HTTP/1.1 alone (ALPN).
const HTTP1: &[u8] = b"\x08http/1.1";

/// Why there is no connection.
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// TLS with a service, and with the hosts that it redirects to.
#[derive(Debug)]
pub(in crate::http) struct ServiceTls {
    own: OwnTls,
    elsewhere: ClientTls,
}

#[derive(Debug)]
struct OwnTls {
    url: Uri,
    tls: ClientTls,
    /// The name that the certificate must have, if it is not the host of the URL.
    server_name: Option<String>,
}

impl ServiceTls {
    /// Reads the files of an agent, which presents its certificate to its service only.
    pub(in crate::http) fn open(
        agent: &str,
        config: &ServiceTlsConfig,
        service: &Uri,
    ) -> Result<Self, LoadError> {
        let open = |identity| {
            let files = ClientTlsConfig {
                ca_file: config.ca_file.clone(),
                identity,
            };
            ClientTls::open(format!("agent {agent}: tls"), &files)
                .map_err(|refused| LoadError::invalid("tls", refused.problem))
        };
        let identity = config.cert_file.clone().zip(config.key_file.clone());
        let elsewhere = open(None)?;
        Ok(Self {
            own: OwnTls {
                url: service.clone(),
                tls: match identity.is_some() {
                    true => open(identity)?,
                    false => elsewhere.clone(),
                },
                server_name: config.server_name.clone(),
            },
            elsewhere,
        })
    }
}

/// Connects to servers, with TLS for `https://`.
#[derive(Clone, Debug)]
pub(in crate::http) struct Connector {
    tcp: HttpConnector,
    tls: ClientTls,
    /// The one server to show a certificate to, if there is one.
    service: Option<Arc<OwnTls>>,
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
            service: None,
            protocols: HTTP1,
            handshake_timeout,
        }
    }

    /// The connector to a service, and to the hosts that it redirects to.
    pub(super) fn of_service(tcp: HttpConnector, tls: ServiceTls, config: &HttpConfig) -> Self {
        Self {
            service: Some(Arc::new(tls.own)),
            protocols: match config.http2 {
                true => b"\x02h2\x08http/1.1",
                false => HTTP1,
            },
            ..Self::new(tcp, tls.elsewhere, config.connect_timeout)
        }
    }

    async fn connect(mut self, uri: Uri) -> Result<TokioIo<Stream>, ConnectError> {
        let socket = self.tcp.call(uri.clone()).await?.into_inner();
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(TokioIo::new(Stream::Plain(socket)));
        }
        let host = uri.host().unwrap_or_default();
        let own = self.service.filter(|service| is_same(&service.url, &uri));
        let (tls, name) = match &own {
            Some(own) => (&own.tls, own.server_name.as_deref().unwrap_or(host)),
            None => (&self.tls, host),
        };
        let handshake = tls.connect(socket, name, self.protocols);
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
