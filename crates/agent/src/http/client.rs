//! One exchange with a service, over persistent connections.

mod connector;
mod http2;

use std::error::Error as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::http::response;
use hyper::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Builder};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use waybill_telemetry::chain;
use waybill_tls::ClientTls;

use self::connector::Connector;
pub(super) use self::connector::ServiceTls;
use self::http2::Http2;
use super::config::HttpConfig;

/// The connections to one service. No redirect is followed, and no proxy is read from the
/// environment.
#[derive(Debug)]
pub(super) enum Client {
    Plain(legacy::Client<HttpConnector, Full<Bytes>>),
    Tls(legacy::Client<Connector, Full<Bytes>>),
    Http2(Http2),
}

/// The service's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: response::Parts,
    pub(super) body: Result<Bytes, BodyError>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum SendError {
    /// No connection was available: the request certainly had no effect.
    Unconnected(String),
    /// The service reported that it did not process the request, which certainly had no effect.
    Unread(String),
    /// It may have had an effect.
    BrokeOff(String),
}

/// Why a body could not be read.
#[derive(Debug)]
pub(super) enum BodyError {
    /// It is larger than the limit.
    TooLarge,
    /// The connection broke off.
    Incomplete(String),
}

/// Exchanges, each over a connection of its own.
#[derive(Debug)]
pub(super) struct OneShot(legacy::Client<Connector, Full<Bytes>>);

impl OneShot {
    /// Connects within `timeout`.
    pub(super) fn new(tls: ClientTls, timeout: Duration) -> Self {
        let connector = Connector::new(tcp(timeout), tls, timeout);
        let mut builder = Builder::new(TokioExecutor::new());
        builder.pool_max_idle_per_host(0);
        Self(builder.build(connector))
    }

    /// Sends the request and reads the answer, with a body of at most `bytes_max`.
    pub(super) async fn exchange(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> Result<Answer, SendError> {
        read_answer(self.0.request(request.map(Full::new)).await, bytes_max).await
    }
}

fn tcp(connect_timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp.set_keepalive(Some(Duration::from_secs(60)));
    tcp
}

impl Client {
    /// The client of one service, at `https://` or not. `tls` is for it, and for redirects.
    pub(super) fn new(config: &HttpConfig, is_tls: bool, tls: Option<ServiceTls>) -> Self {
        let tcp = tcp(config.connect_timeout);
        if config.http2 && !is_tls {
            return Self::Http2(Http2::new(tcp, config.pool.idle_for));
        }
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(config.pool.idle_for)
            .pool_max_idle_per_host(config.pool.idle_max.unwrap_or(config.concurrency_max));
        match tls {
            Some(tls) => {
                let connector = Connector::of_service(tcp, tls, config);
                Self::Tls(builder.build(connector))
            }
            None => Self::Plain(builder.build(tcp)),
        }
    }

    /// Sends the request and reads the answer, with a body of at most `bytes_max`. Waits no longer
    /// than `until`; a request that has no shared connection by then fails.
    pub(super) async fn exchange(
        &self,
        request: Request<Bytes>,
        until: Instant,
        bytes_max: usize,
    ) -> Result<Answer, SendError> {
        let answer = match self {
            Self::Plain(client) => client.request(request.map(Full::new)).await,
            Self::Tls(client) => client.request(request.map(Full::new)).await,
            Self::Http2(client) => return client.exchange(request, until, bytes_max).await,
        };
        read_answer(answer, bytes_max).await
    }
}

async fn read_answer(
    answer: Result<Response<Incoming>, legacy::Error>,
    bytes_max: usize,
) -> Result<Answer, SendError> {
    let answer = answer.map_err(|error| match error.is_connect() {
        true => SendError::Unconnected(chain(&error)),
        false if is_unread(&error) => SendError::Unread(chain(&error)),
        false => SendError::BrokeOff(chain(&error)),
    })?;
    let (head, body) = answer.into_parts();
    let body = read_body(body, bytes_max).await;
    Ok(Answer { head, body })
}

/// Whether the service certainly did not process the request, over HTTP/2.
fn is_unread(error: &legacy::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(http2::is_unread) {
            return true;
        }
        cause = error.source();
    }
    false
}

async fn read_body(mut body: Incoming, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut read = Body::new(bytes_max);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Incomplete(chain(&error)))?;
        if let Ok(data) = frame.into_data() {
            read.add(data)?;
        }
    }
    Ok(read.whole())
}

/// A body being read.
struct Body {
    first: Bytes,
    rest: BytesMut,
    bytes_max: usize,
}

impl Body {
    fn new(bytes_max: usize) -> Self {
        Self {
            first: Bytes::new(),
            rest: BytesMut::new(),
            bytes_max,
        }
    }

    fn add(&mut self, data: Bytes) -> Result<(), BodyError> {
        if self.first.len() + self.rest.len() + data.len() > self.bytes_max {
            return Err(BodyError::TooLarge);
        }
        // Nearly every answer is one frame, which needs no copy.
        if self.first.is_empty() {
            self.first = data;
        } else {
            self.rest.extend_from_slice(&data);
        }
        Ok(())
    }

    fn whole(self) -> Bytes {
        if self.rest.is_empty() {
            return self.first;
        }
        let mut whole = BytesMut::from(&*self.first);
        whole.unsplit(self.rest);
        whole.freeze()
    }
}
