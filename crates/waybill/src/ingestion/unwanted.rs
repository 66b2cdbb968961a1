//! Bodies of requests, of which the rest is read where nobody wants it.
//!
//! Why it exists. Over HTTP/2 a server that has answered and leaves a body unread resets the stream, which is its right
//! (RFC 9113, 8.1); but some clients take that for a failure and lose the answer, curl before 7.89 among them. So what is
//! left of a body is read and thrown away behind the answer, up to a bound. Over HTTP/1 hyper sees to that itself.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Version};
use tokio::runtime::Handle;

/// How much is thrown away: more than the largest body that is taken, unless it is a batch.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long that may take.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once it is dropped.
    rest: Option<Incoming>,
    is_http2: bool,
}

impl RequestBody {
    /// The body of this request.
    pub fn of(request: Request<Incoming>) -> Request<Self> {
        let is_http2 = request.version() == Version::HTTP_2;
        request.map(|incoming| Self {
            rest: Some(incoming),
            is_http2,
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take()
            && self.is_http2
            && !rest.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(tokio::time::timeout(TIME_MAX, throw_away(rest)));
        }
    }
}

async fn throw_away(mut rest: Incoming) {
    let mut thrown_away = 0;
    while thrown_away < BYTES_MAX
        && let Some(Ok(frame)) = rest.frame().await
    {
        thrown_away += frame.data_ref().map_or(0, Bytes::len);
    }
}
