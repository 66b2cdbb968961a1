//! Request and response bodies: bounded reading, and streaming.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::problem::{Kind, Problem};

/// The body of an answer.
#[derive(Debug)]
pub enum Payload {
    /// A whole body.
    Whole(Option<Bytes>),
    /// Parts that are sent until the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(receiver) => receiver
                .poll_recv(cx)
                .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// How long a client may take to send a body.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest pause.
    pub pause_max: Duration,
    /// The time limit for the whole body, even if it arrives steadily.
    pub whole_max: Duration,
}

/// Reads a whole body of at most `bytes_max` bytes.
pub async fn read_whole<B>(body: B, bytes_max: usize, patience: Patience) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(bytes_max));
    }
    let mut parts = Parts::new(body, patience.pause_max);
    match tokio::time::timeout(patience.whole_max, gather(&mut parts, bytes_max)).await {
        Ok(gathered) => gathered,
        Err(_) => {
            let seconds = patience.whole_max.as_secs_f32();
            let detail = format!("The body was incomplete after {seconds} seconds.");
            Err(Problem::new(Kind::RequestTimeout, detail))
        }
    }
}

async fn gather<B>(parts: &mut Parts<B>, bytes_max: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(first) = parts.next().await? else {
        return Ok(Bytes::new());
    };
    if first.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    // Nearly every body arrives in one part, which is then not copied.
    let Some(second) = parts.next().await? else {
        return Ok(first);
    };
    let mut whole = BytesMut::from(first);
    let mut part = second;
    loop {
        if whole.len() + part.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        whole.extend_from_slice(&part);
        match parts.next().await? {
            Some(next) => part = next,
            None => return Ok(whole.freeze()),
        }
    }
}

/// The parts of a body.
#[derive(Debug)]
pub struct Parts<B> {
    body: B,
    pause_max: Duration,
}

impl<B: Body<Data = Bytes> + Unpin> Parts<B> {
    /// The parts of `body`. The client may pause for `pause_max`.
    pub fn new(body: B, pause_max: Duration) -> Self {
        Self { body, pause_max }
    }

    /// The next part, if it has already arrived: no timer is then needed.
    pub fn next_now(&mut self) -> Option<Result<Option<Bytes>, Problem>> {
        loop {
            match self.body.frame().now_or_never()? {
                None => return Some(Ok(None)),
                Some(Err(_)) => return Some(Err(incomplete())),
                Some(Ok(frame)) => {
                    if let Ok(part) = frame.into_data() {
                        return Some(Ok(Some(part)));
                    }
                }
            }
        }
    }

    /// The next part; `None` at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        if let Some(now) = self.next_now() {
            return now;
        }
        loop {
            match tokio::time::timeout(self.pause_max, self.body.frame()).await {
                Err(_) => {
                    let seconds = self.pause_max.as_secs_f32();
                    let detail = format!("No part of the body arrived for {seconds} seconds.");
                    return Err(Problem::new(Kind::RequestTimeout, detail));
                }
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(incomplete()),
                Ok(Some(Ok(frame))) => {
                    if let Ok(part) = frame.into_data() {
                        return Ok(Some(part));
                    }
                }
            }
        }
    }
}

fn incomplete() -> Problem {
    Problem::new(
        Kind::IncompleteBody,
        "The body ended early, or its framing is malformed.",
    )
}

/// The problem of a body, or a line, that is longer than `bytes_max`.
pub fn too_large(bytes_max: usize) -> Problem {
    Problem::new(
        Kind::BodyTooLarge,
        format!("The limit is {bytes_max} bytes."),
    )
}
