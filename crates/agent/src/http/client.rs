//! One exchange with a service over pooled connections.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_tls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Builder};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use native_tls::TlsConnector;

use super::LoadError;
use super::config::HttpConfig;

/// A pool of connections to one service. It follows no redirect and reads no proxy from the
/// environment.
#[derive(Debug)]
pub(super) enum Client {
    Plain(legacy::Client<HttpConnector, Full<Bytes>>),
    Tls(legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Client {
    pub(super) fn new(config: &HttpConfig, tls: bool) -> Result<Self, LoadError> {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(config.connect_timeout));
        http.set_keepalive(Some(Duration::from_secs(60)));

        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(config.pool.idle_for)
            .pool_max_idle_per_host(config.pool.idle_max.unwrap_or(config.concurrency_max))
            .http2_only(config.http2);
        if tls {
            http.enforce_http(false);
            let connector = HttpsConnector::from((http, tls_connector()?.into()));
            Ok(Self::Tls(builder.build(connector)))
        } else {
            Ok(Self::Plain(builder.build(http)))
        }
    }

    /// Sends the request and reads the answer's head.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, legacy::Error> {
        match self {
            Self::Plain(client) => client.request(request).await,
            Self::Tls(client) => client.request(request).await,
        }
    }
}

/// The process's TLS settings, loaded once: the system's root certificates are large.
fn tls_connector() -> Result<TlsConnector, LoadError> {
    static CONNECTOR: OnceLock<TlsConnector> = OnceLock::new();
    if let Some(connector) = CONNECTOR.get() {
        return Ok(connector.clone());
    }
    let connector = TlsConnector::new().map_err(|source| LoadError::Tls { source })?;
    Ok(CONNECTOR.get_or_init(|| connector).clone())
}

/// Why a body could not be had.
#[derive(Debug)]
pub(super) enum BodyError {
    /// It is larger than the limit.
    TooLarge,
    /// The connection broke off.
    Incomplete(hyper::Error),
}

/// Reads a body of at most `bytes_max`.
pub(super) async fn read_body(mut body: Incoming, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Incomplete)?.into_data() else {
            continue;
        };
        if first.len() + rest.len() + data.len() > bytes_max {
            return Err(BodyError::TooLarge);
        }
        // Nearly every answer is one frame, which needs no copy.
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(&*first);
    whole.unsplit(rest);
    Ok(whole.freeze())
}
