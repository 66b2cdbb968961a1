//! Bodies of requests.
//!
//! An [`ArrivingBody`] reports to its connection how fast the client sends it. A [`RequestBody`]
//! reads and discards the rest of a body that its handler leaves unread.
//!
//! Why the rest is read. A server that answers and leaves a body unread resets the HTTP/2 stream
//! (RFC 9113, section 8.1) or closes the HTTP/1 connection. A client that is still sending may then
//! lose the answer. So the rest of a body is discarded after the answer, up to a bound.
//! Deliberately not read: the body of a client that waits for `100 Continue`, because reading would
//! request it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use tokio::runtime::Handle;
use waybill_connections::Arrival;

/// How much is discarded: more than the largest accepted body, except for a batch.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long that may take.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The body of a request, as it arrives.
#[derive(Debug)]
pub struct ArrivingBody {
    incoming: Incoming,
    /// `None` once the whole body has arrived.
    arrival: Option<Arrival>,
}

impl ArrivingBody {
    pub(crate) fn new(incoming: Incoming, begin: impl FnOnce() -> Arrival) -> Self {
        let arrival = (!incoming.is_end_stream()).then(begin);
        Self { incoming, arrival }
    }
}

impl Body for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        let Some(arrival) = &mut self.arrival else {
            return polled;
        };
        match &polled {
            Poll::Pending => arrival.wait(),
            Poll::Ready(Some(Ok(frame))) => {
                arrival.receive(frame.data_ref().map_or(0, Bytes::len));
            }
            Poll::Ready(Some(Err(_)) | None) => {}
        }
        if matches!(polled, Poll::Ready(None)) || self.incoming.is_end_stream() {
            self.arrival = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The body of a request. Dropping it reads and discards the rest.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once it is dropped.
    rest: Option<ArrivingBody>,
    /// Whether the client sends the body without waiting for `100 Continue`.
    is_on_its_way: bool,
}

impl RequestBody {
    /// The body of this request.
    pub fn of(request: Request<ArrivingBody>) -> Request<Self> {
        let is_on_its_way = !request.headers().contains_key(EXPECT);
        request.map(|body| Self {
            rest: Some(body),
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
            runtime.spawn(tokio::time::timeout(TIME_MAX, discard(rest)));
        }
    }
}

async fn discard(mut rest: ArrivingBody) {
    let mut thrown_away = 0;
    while thrown_away < BYTES_MAX
        && let Some(Ok(frame)) = rest.frame().await
    {
        thrown_away += frame.data_ref().map_or(0, Bytes::len);
    }
}
