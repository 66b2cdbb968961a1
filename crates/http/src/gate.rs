//! The gate in front of the HTTP parser: it sees every HTTP/1 request head before the parser does.
//!
//! Why it exists. hyper frames requests correctly, but silently: of a request with both
//! `Content-Length` and `Transfer-Encoding` it drops one, and a malformed head gets a bare 400. If
//! two parties frame such a request differently, requests can be smuggled. The gate refuses it, and
//! answers every refusal as a problem of the API.
//!
//! How. The gate wraps the socket. It holds a head back until it is complete, checks it, and passes
//! it on together with exactly the body that it announces. A refused head never passes. In its
//! place the parser reads a [stand-in](Refusal::stand_in), a request that the service answers with
//! the refusal, after the pipelined requests before it. The gate then reads no further. It
//! recognises HTTP/2 by its preface and passes it unchanged, because its framing has no such
//! ambiguities.
//!
//! What must hold: no byte of a refused request reaches the parser; where gate and parser could
//! frame differently, the gate is stricter; memory per connection is bounded by the head limit and
//! one read; and a connection that stalls, in either direction, ends.

mod framer;
mod head;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use framer::{Awaiting, Framer};
pub use head::{HEADERS_LIMIT_MAX, Refusal};
use waybill_connections::WriteMonitor;

/// How much a connection may use, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct GateLimits {
    /// The largest head of a request, in bytes.
    pub head_bytes_max: usize,
    /// The largest number of header fields.
    pub headers_max: usize,
    /// The time limit for a head from its first byte to its last, and for the first byte of a
    /// connection.
    pub head_timeout: Duration,
    /// How long a body, or the reading of an answer, may make no progress.
    pub stall_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
}

/// How much is read from the socket at a time.
const READ_BYTES: usize = 8 * 1024;

/// How long, and how much, the gate still reads from a client after the last answer on its
/// connection. Closing a socket with unread input resets it, and the answer may be lost.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// A socket whose request heads are checked.
#[derive(Debug)]
pub struct Gate<S> {
    socket: S,
    framer: Framer,
    limits: GateLimits,
    ended: bool,
    /// Whether nothing was received yet.
    is_silent: bool,
    /// When something was last read or written.
    active_at: Instant,
    /// When the head that is being read began.
    head_began: Option<Instant>,
    /// Fires at or before the next time-out. Reset only if it must fire earlier, or has fired.
    timer: Pin<Box<Sleep>>,
    linger: Option<Linger>,
    /// Reports whether the client keeps the connection from writing.
    write_monitor: Option<WriteMonitor>,
}

#[derive(Debug)]
struct Linger {
    until: Instant,
    bytes: usize,
}

impl<S> Gate<S> {
    /// Guards `socket`.
    pub fn new(socket: S, limits: GateLimits) -> Self {
        let now = Instant::now();
        Self {
            socket,
            framer: Framer::new(limits.head_bytes_max, limits.headers_max),
            limits,
            ended: false,
            is_silent: true,
            active_at: now,
            head_began: None,
            timer: Box::pin(tokio::time::sleep_until(now + limits.head_timeout)),
            linger: None,
            write_monitor: None,
        }
    }

    /// Reports to `write_monitor` whether the client keeps the connection from writing.
    #[must_use]
    pub fn with_write_monitor(mut self, write_monitor: WriteMonitor) -> Self {
        self.write_monitor = Some(write_monitor);
        self
    }

    /// When the gate stops waiting for the client's next bytes.
    fn read_due(&self) -> Instant {
        match self.framer.awaiting() {
            _ if self.is_silent => self.active_at + self.limits.head_timeout,
            Awaiting::RestOfHead => {
                self.head_began.unwrap_or(self.active_at) + self.limits.head_timeout
            }
            Awaiting::RestOfBody => self.active_at + self.limits.stall_timeout,
            Awaiting::Request | Awaiting::Anything => self.active_at + self.limits.idle_timeout,
        }
    }

    /// Ready once `due` has passed.
    fn poll_due(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        loop {
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            if self.timer.is_elapsed() || self.timer.deadline() > due {
                self.timer.as_mut().reset(due);
            }
            ready!(self.timer.as_mut().poll(cx));
        }
    }

    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let due = self.active_at + self.limits.stall_timeout;
        self.poll_due(cx, due)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Records the result of a write: progress, or a connection that waits for its client.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Some(write_monitor) = &mut self.write_monitor {
            write_monitor.set_blocked(written.is_pending());
            if let Poll::Ready(Ok(bytes)) = written {
                write_monitor.wrote(bytes);
            }
        }
        if written.is_pending() {
            return self.poll_stalled(cx);
        }
        self.active_at = Instant::now();
        written
    }
}

impl<S: AsyncRead + Unpin> Gate<S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffer = self.framer.buffer();
        buffer.reserve(READ_BYTES);
        let read = self.socket.read_buf(buffer);
        std::pin::pin!(read).poll(cx)
    }

    /// Discards input until the client ends it, or the time or the byte limit is reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Linger { until, .. }) = self.linger else {
            return Poll::Ready(());
        };
        let mut waste = [0; READ_BYTES];
        loop {
            let mut into = ReadBuf::new(&mut waste);
            match Pin::new(&mut self.socket).poll_read(cx, &mut into) {
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {
                    let Some(linger) = &mut self.linger else {
                        return Poll::Ready(());
                    };
                    linger.bytes += into.filled().len();
                    if linger.bytes > LINGER_BYTES_MAX {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.poll_due(cx, until),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let gate = &mut *self;
        loop {
            if gate.framer.hand_over(into) {
                return Poll::Ready(Ok(()));
            }
            if gate.framer.has_refused() {
                // The stand-in asked to close: the answer ends the connection, not an end of input.
                return Poll::Pending;
            }
            if gate.ended || gate.framer.is_lost() {
                return Poll::Ready(Ok(()));
            }
            match gate.poll_fill(cx) {
                Poll::Ready(Ok(0)) => gate.ended = true,
                Poll::Ready(Ok(_)) => {
                    gate.is_silent = false;
                    gate.active_at = Instant::now();
                    gate.framer.advance();
                    gate.head_began = match gate.framer.awaiting() {
                        Awaiting::RestOfHead => gate.head_began.or(Some(gate.active_at)),
                        _ => None,
                    };
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let due = gate.read_due();
                    ready!(gate.poll_due(cx, due));
                    match gate.framer.awaiting() {
                        Awaiting::RestOfHead => gate.framer.refuse(Refusal::HeadTimeout),
                        _ => gate.ended = true,
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.socket).poll_flush(cx) {
            Poll::Ready(flushed) => Poll::Ready(flushed),
            Poll::Pending => self.poll_stalled(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            self.linger = Some(Linger {
                until: Instant::now() + LINGER,
                bytes: 0,
            });
        }
        if !self.ended && self.framer.is_owed_input() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const LIMITS: GateLimits = GateLimits {
        head_bytes_max: 1024,
        headers_max: 10,
        head_timeout: Duration::from_millis(20),
        stall_timeout: Duration::from_millis(40),
        idle_timeout: Duration::from_millis(60),
    };

    #[tokio::test]
    async fn a_slow_head_times_out() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut gate = Gate::new(server, LIMITS);
        let began = Instant::now();
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let mut got = vec![0; 256];
        let n = gate.read(&mut got).await.unwrap();
        assert_eq!(got[..n], Refusal::HeadTimeout.stand_in().into_bytes());
        assert!(began.elapsed() >= LIMITS.head_timeout);
    }

    #[tokio::test]
    async fn a_silent_connection_times_out_like_a_head() {
        let (_client, server) = tokio::io::duplex(4096);
        let limits = GateLimits {
            idle_timeout: Duration::from_secs(3600),
            ..LIMITS
        };
        let mut gate = Gate::new(server, limits);
        let mut all = Vec::new();
        gate.read_to_end(&mut all).await.unwrap();
        assert!(all.is_empty(), "{all:?}");
    }

    #[tokio::test]
    async fn an_idle_connection_ends() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut gate = Gate::new(server, LIMITS);
        let began = Instant::now();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut all = Vec::new();
        gate.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), 27);
        assert!(began.elapsed() >= LIMITS.idle_timeout);
    }

    #[tokio::test]
    async fn a_stalled_body_ends() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut gate = Gate::new(server, LIMITS);
        let began = Instant::now();
        let head = b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc";
        client.write_all(head).await.unwrap();
        let mut all = Vec::new();
        gate.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, head);
        assert!(began.elapsed() >= LIMITS.stall_timeout);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_answer_is_dropped() {
        let (_client, server) = tokio::io::duplex(16);
        let mut gate = Gate::new(server, LIMITS);
        let error = gate.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn bytes_pass_unchanged_in_pieces_of_any_size() {
        let stream = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\
                       POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                       3;x=y\r\nabc\r\n0\r\ntrailer: t\r\n\r\nGET /c HTTP/1.1\r\nhost: a\r\n\r\n";
        for cut in 1..stream.len() {
            let (mut client, server) = tokio::io::duplex(4096);
            let mut gate = Gate::new(server, LIMITS);
            client.write_all(&stream[..cut]).await.unwrap();
            let later = tokio::spawn(async move {
                tokio::task::yield_now().await;
                client.write_all(&stream[cut..]).await.unwrap();
                client.shutdown().await.unwrap();
            });
            let mut all = Vec::new();
            gate.read_to_end(&mut all).await.unwrap();
            later.await.unwrap();
            assert_eq!(all, stream, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn bytes_sent_after_a_refusal_are_read_and_discarded() {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let mut gate = Gate::new(server, LIMITS);
        client.write_all(&[b'x'; 20_000]).await.unwrap();
        let mut got = vec![0; 256];
        let n = gate.read(&mut got).await.unwrap();
        assert!(got[..n].starts_with(b"REFUSED "));
        gate.write_all(b"answer").await.unwrap();
        let closing = tokio::spawn(async move { gate.shutdown().await });
        client.write_all(&[b'x'; 20_000]).await.unwrap();
        client.shutdown().await.unwrap();
        closing.await.unwrap().unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
}
