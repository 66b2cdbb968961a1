//! Connections to the API or the services, reopened after a failure.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

use super::endpoint::{Endpoint, Stream};

type Body = Full<Bytes>;

/// The maximum time for an answer. Longer than the API's own time-outs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client that sends one request after the other.
pub struct Client {
    endpoint: Endpoint,
    line: Line,
}

/// The connection of a client.
enum Line {
    /// An own connection with one request at a time.
    Http1(Option<http1::SendRequest<Body>>),
    /// A shared connection.
    Http2(Http2),
}

/// A connection with many concurrent requests. Clones share it.
#[derive(Clone, Default)]
pub struct Http2(Rc<RefCell<Option<http2::SendRequest<Body>>>>);

impl Client {
    /// Uses an own HTTP/1.1 connection.
    pub fn new(endpoint: impl Into<Endpoint>) -> Self {
        let line = Line::Http1(None);
        Self {
            endpoint: endpoint.into(),
            line,
        }
    }

    /// Uses a shared HTTP/2 connection.
    pub fn sharing(endpoint: impl Into<Endpoint>, connection: Http2) -> Self {
        let line = Line::Http2(connection);
        Self {
            endpoint: endpoint.into(),
            line,
        }
    }

    /// Posts `body` and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// If no complete answer arrived in time.
    pub async fn post(
        &mut self,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::post(format!("{}{path}", self.endpoint.url()))
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body))?;
        self.send(request).await
    }

    /// Puts `body`, which is JSON, and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// If no complete answer arrived in time.
    pub async fn put(&mut self, path: &str, body: Bytes) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::put(format!("{}{path}", self.endpoint.url()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.send(request).await
    }

    /// Sends a `DELETE` and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// If no complete answer arrived in time.
    pub async fn delete(&mut self, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::delete(format!("{}{path}", self.endpoint.url()));
        self.send(request.body(Full::default())?).await
    }

    /// Sends a `GET` and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// If no complete answer arrived in time.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::get(format!("{}{path}", self.endpoint.url()));
        self.send(request.body(Full::default())?).await
    }

    async fn send(&mut self, request: Request<Body>) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = tokio::time::timeout(TIMEOUT, self.try_send(request)).await;
        let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")));
        if answer.is_err()
            && let Line::Http1(connection) = &mut self.line
        {
            *connection = None;
        }
        answer
    }

    async fn try_send(
        &mut self,
        mut request: Request<Body>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let endpoint = &self.endpoint;
        endpoint.admit(&mut request);
        let answer = match &mut self.line {
            Line::Http1(connection) => send_http1(endpoint, connection, request).await?,
            Line::Http2(shared) => shared.send(endpoint, request).await?,
        };
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

/// HTTP/1.1 has the host in a header, and the path alone in the request.
async fn send_http1(
    endpoint: &Endpoint,
    connection: &mut Option<http1::SendRequest<Body>>,
    mut request: Request<Body>,
) -> anyhow::Result<Response<Incoming>> {
    request.headers_mut().insert(header::HOST, endpoint.host()?);
    if let Some(path) = request.uri().path_and_query() {
        *request.uri_mut() = path.as_str().parse()?;
    }
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(match endpoint.connect(b"\x08http/1.1").await? {
            Stream::Plain(socket) => over_http1(socket).await?,
            Stream::Tls(stream) => over_http1(stream).await?,
        }),
    };
    connection
        .ready()
        .await
        .context("the connection was closed")?;
    Ok(connection.send_request(request).await?)
}

async fn over_http1<S>(stream: S) -> hyper::Result<http1::SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, served) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the connection. An error shows up as a failed request.
    tokio::spawn(served);
    Ok(sender)
}

async fn over_http2<S>(stream: S) -> hyper::Result<http2::SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, served) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(served);
    Ok(sender)
}

impl Http2 {
    async fn send(
        &self,
        endpoint: &Endpoint,
        request: Request<Body>,
    ) -> anyhow::Result<Response<Incoming>> {
        let open = self.0.borrow().clone();
        let mut connection = match open.filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => {
                let sender = match endpoint.connect(b"\x02h2").await? {
                    Stream::Plain(socket) => over_http2(socket).await?,
                    Stream::Tls(stream) => over_http2(stream).await?,
                };
                // If several clients open it at the same time, the last one is kept. The others end
                // with their requests.
                *self.0.borrow_mut() = Some(sender.clone());
                sender
            }
        };
        connection
            .ready()
            .await
            .context("the connection was closed")?;
        Ok(connection.send_request(request).await?)
    }
}
