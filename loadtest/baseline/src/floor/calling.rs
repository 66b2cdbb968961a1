//! Calls to the services over one HTTP/2 connection each, as the built-in agents make them.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::calls::{Call, Step};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const COMPLETE_BY: HeaderName = HeaderName::from_static("waybill-complete-by");
/// The time-out of a call, as in the workflow.
const COMPLETE_BY_AFTER: Duration = Duration::from_secs(5);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The connections to the services.
#[derive(Debug)]
pub struct Services {
    authority: Authority,
    /// By [`Step`].
    lines: Vec<SendRequest<Full<Bytes>>>,
}

impl Services {
    /// Connects to the services at `host:port`.
    ///
    /// # Errors
    ///
    /// If the services cannot be reached.
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        let mut lines = Vec::new();
        for _ in Step::ALL {
            let stream = TcpStream::connect(address)
                .await
                .with_context(|| format!("cannot connect to the services at {address}"))?;
            stream.set_nodelay(true)?;
            let (line, served) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            // Ends with the connection. An error shows up as a failed call.
            tokio::spawn(served);
            lines.push(line);
        }
        let authority = address.parse()?;
        Ok(Self { authority, lines })
    }

    /// Makes a call with this complete-by, and returns the body of the answer.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is no success.
    pub async fn call(
        &self,
        step: Step,
        call: Call,
        complete_by: HeaderValue,
    ) -> anyhow::Result<Bytes> {
        let request = self.request(call, complete_by)?;
        let mut line = self.lines[step as usize].clone();
        let answer = line.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        anyhow::ensure!(
            status.is_success(),
            "the service of step {} answered {status}: {}",
            step.name(),
            String::from_utf8_lossy(&body)
        );
        Ok(body)
    }

    fn request(
        &self,
        call: Call,
        complete_by: HeaderValue,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut uri = hyper::http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_maybe_shared(Bytes::from(call.path))?);
        let has_body = !call.body.is_empty();
        let mut request = Request::new(Full::new(Bytes::from(call.body)));
        *request.method_mut() = match call.method {
            "GET" => Method::GET,
            _ => Method::PUT,
        };
        *request.uri_mut() = Uri::from_parts(uri)?;
        let headers = request.headers_mut();
        headers.reserve(3);
        let key = HeaderValue::from_maybe_shared(Bytes::from(call.idempotency_key))?;
        headers.insert(IDEMPOTENCY_KEY, key);
        headers.insert(COMPLETE_BY, complete_by);
        if has_body {
            headers.insert(CONTENT_TYPE, JSON);
        }
        Ok(request)
    }
}

/// The complete-by of a call made now.
///
/// # Errors
///
/// If it is beyond the range of timestamps.
pub fn complete_by() -> anyhow::Result<HeaderValue> {
    let at = jiff::Timestamp::now().checked_add(COMPLETE_BY_AFTER)?;
    Ok(HeaderValue::try_from(at.to_string())?)
}
