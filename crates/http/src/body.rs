//! Bodies of requests, of which the rest is read where nobody wants it.
//!
//! Why it exists. A server that has answered and leaves a body unread resets the stream of HTTP/2 (RFC 9113, 8.1), or closes the
//! connection of HTTP/1; a client that is still sending may then lose the answer. So the rest of a body is read and thrown
//! away behind the answer, up to a bound. Deliberately not read: the body of a client that waits for `100 Continue`, for
//! reading would ask for it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
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
    /// Whether the client sends it without being asked to.
    is_on_its_way: bool,
}

impl RequestBody {
    /// The body of this request.
    pub fn of(request: Request<Incoming>) -> Request<Self> {
        let is_on_its_way = !request.headers().contains_key(EXPECT);
        request.map(|incoming| Self {
            rest: Some(incoming),
            is_on_its_way,
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
            && self.is_on_its_way
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
