//! Connections: accepting them, encrypting them, serving HTTP/1.1 and HTTP/2 on each, and ending
//! them gracefully.

mod waiting;

use std::error::Error;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use waybill_connections::{
    ConnectionSlot, Connections, Full, Limits, RequestGuard, RequestLimits, share_of_one_address,
};

use self::waiting::{WAITING_MAX, Waiting};
use crate::body::ArrivingBody;
use crate::gate::{Gate, GateLimits};
use crate::meter::{ConnectionMeter, RefusalMeter};
use crate::problem::Kind;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::{Stream, Tls};

/// How long to wait before accepting again if the system has run out of a resource, such as file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait before the next search for a connection to replace.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// How much of an answer is passed on at a time. The next piece shows whether the client still
/// reads.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// The default limit on requests in progress on one HTTP/2 connection. h2 keeps two kilobytes for
/// each stream that was ever open at the same time, for the lifetime of the connection.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 128;
/// How many requests each connection may always have in progress, whatever the others have.
const REQUESTS_EACH: u32 = 4;
/// How many requests each connection may begin, however many connections there are.
const REQUESTS_PER_CONNECTION_MIN: usize = 32;
/// How much of a body one HTTP/2 stream, and all of one connection, may send unread. This is the
/// initial value of RFC 9113, section 6.9.2, and a connection cannot have less.
const HTTP2_WINDOW: u32 = 65_535;
/// How much of an answer may wait in an HTTP/2 stream: so little that only one piece waits.
const HTTP2_SEND_BUFFER: usize = 1;
/// How often the metrics of the limits are updated, besides each start and end of a connection.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// How often an idle HTTP/2 connection is pinged.
const HTTP2_PING: Duration = Duration::from_secs(20);

/// Answers the requests of a [`Server`].
pub trait Service: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Why a request gets no answer.
    type Unanswered: Error + Send + Sync + 'static;

    /// Answers one request. A request whose head was refused arrives as a
    /// [stand-in](crate::Refusal::METHOD), and its answer is the refusal.
    ///
    /// # Errors
    ///
    /// If the request gets no answer: its connection (HTTP/1) or its stream (HTTP/2) is then
    /// closed.
    fn answer(
        self: Arc<Self>,
        request: Request<ArrivingBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Unanswered>> + Send;
}

/// How much connections may use, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// The limit on open connections. A new one replaces a slow or idle one, or waits
    /// if there is none.
    pub connections_max: usize,
    /// The limit on open connections from one address. A new one replaces a slow or
    /// idle one of the address, or is closed if there is none.
    pub connections_per_address_max: usize,
    /// The limit on requests in progress on one HTTP/2 connection. The limit is lower, down to 32,
    /// if the share of each connection in `requests_shared_max` is lower.
    pub requests_per_connection_max: usize,
    /// The limit on requests in progress on all connections together, beyond a few that each
    /// connection may always have. One address gets at most three quarters. A request above the
    /// limit is refused by `REFUSED_STREAM` (RFC 9113, section 8.7): it was not looked at, and the
    /// client may retry.
    pub requests_shared_max: usize,
    /// The limits of each connection.
    pub gate: GateLimits,
}

/// Accepts connections and serves them.
pub struct Server<S> {
    listener: TcpListener,
    tls: Tls,
    service: Arc<S>,
    limits: ServerLimits,
    connections: Arc<Connections>,
    meter: ConnectionMeter,
    refusals: Arc<RefusalMeter>,
    http: auto::Builder<TokioExecutor>,
}

impl<S: Service> Server<S> {
    /// Creates a server. Metrics and the log use `name`.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        tls: Tls,
        service: Arc<S>,
        limits: ServerLimits,
    ) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        // The gate passes on complete heads within its limits and times them: the parser's own
        // limits must not be reached first. A client may close its sending side and wait for
        // answers.
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .half_close(true);
        http.http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(HTTP2_WINDOW)
            .initial_connection_window_size(HTTP2_WINDOW)
            .max_send_buf_size(HTTP2_SEND_BUFFER)
            .max_header_list_size(u32::try_from(limits.gate.head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(HTTP2_PING);
        let connections = Connections::new(
            name,
            Limits {
                max: limits.connections_max,
                per_address_max: limits.connections_per_address_max,
                // A request may take long here.
                stall_timeout: None,
                expects_login: false,
                requests: Some(RequestLimits {
                    each: REQUESTS_EACH,
                    shared: limits.requests_shared_max,
                    shared_per_address: share_of_one_address(limits.requests_shared_max),
                }),
            },
        );
        Self {
            listener,
            tls,
            service,
            limits,
            meter: ConnectionMeter::new(name, &connections, WAITING_MAX),
            refusals: Arc::new(RefusalMeter::new(name)),
            connections,
            http,
        }
    }

    /// The open connections.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Accepts connections until `stop` is cancelled. Then asks the open connections to end once
    /// they have no request in progress, and waits for them. Dropping the future cuts them off.
    pub async fn run(self, stop: CancellationToken) {
        let mut serving = JoinSet::new();
        // A connection that may have a slot immediately does not wait behind these.
        let mut waiting = Waiting::new();
        let mut retries = tokio::time::interval(FULL_PAUSE);
        retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shows = tokio::time::interval(SHOW_EVERY);
        shows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (socket, peer, waited_at) = tokio::select! {
                () = stop.cancelled() => break,
                _ = shows.tick() => {
                    self.meter.note(&self.connections);
                    self.meter.note_waiting(waiting.len());
                    continue;
                }
                Some(ended) = serving.join_next() => {
                    log_panic(ended);
                    continue;
                }
                _ = retries.tick(), if !waiting.is_empty() => {
                    let open = |peer| self.connections.connections_of(peer);
                    match waiting.take_next(open) {
                        Some((at, (socket, peer))) => (socket, peer, Some(at)),
                        None => continue,
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, peer)) => (socket, peer.ip(), None),
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let slot = match (self.slot(peer, waited_at.is_some()), waited_at) {
                (Ok(slot), _) => slot,
                (Err(Full::Address), _) => continue,
                (Err(Full::All), None) => {
                    waiting.push((socket, peer));
                    continue;
                }
                (Err(Full::All), Some(at)) => {
                    waiting.put_back(at, (socket, peer));
                    continue;
                }
            };
            if waited_at.is_some() {
                retries.reset_immediately();
            }
            let connection = Connection {
                http: self.http.clone(),
                tls: self.tls.clone(),
                service: Arc::clone(&self.service),
                limits: self.limits,
                refusals: Arc::clone(&self.refusals),
                stop: stop.clone(),
            };
            let (connections, meter) = (Arc::clone(&self.connections), self.meter.clone());
            let stall_timeout = self.limits.gate.stall_timeout;
            serving.spawn(async move {
                tokio::select! {
                    () = connection.serve(socket, &slot) => {}
                    () = slot.closing() => {
                        tracing::debug!("closed a connection to make room for another");
                    }
                    () = slot.unread_for(stall_timeout) => {
                        tracing::debug!("a client did not read its response in time");
                    }
                }
                drop(slot);
                meter.note(&connections);
            });
        }
        // Those that wait connect elsewhere.
        drop((self.listener, waiting));
        while let Some(ended) = serving.join_next().await {
            log_panic(ended);
        }
    }

    /// A slot for a connection from `peer`, which may have waited for it.
    fn slot(&self, peer: IpAddr, has_waited: bool) -> Result<ConnectionSlot, Full> {
        let (now, closing) = (Instant::now(), CancellationToken::new());
        let admitted = match has_waited {
            true => self.connections.readmit(now, peer, closing),
            false => self.connections.admit(now, peer, closing),
        };
        self.meter.note(&self.connections);
        admitted
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "serving a connection panicked");
    }
}

/// Everything that serves one connection.
struct Connection<S> {
    http: auto::Builder<TokioExecutor>,
    tls: Tls,
    service: Arc<S>,
    limits: ServerLimits,
    refusals: Arc<RefusalMeter>,
    stop: CancellationToken,
}

impl<S: Service> Connection<S> {
    async fn serve(self, socket: TcpStream, slot: &ConnectionSlot) {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended early");
            return;
        }
        let Some(stream) = self.secured(socket).await else {
            return;
        };
        let each_max = self.limits.requests_per_connection_max;
        let each = REQUESTS_PER_CONNECTION_MIN.min(each_max)..=each_max;
        let streams = slot.part_of(self.limits.requests_shared_max, each);
        let mut http = self.http;
        http.http2()
            .max_concurrent_streams(u32::try_from(streams).unwrap_or(u32::MAX));
        let gate = Gate::new(stream, self.limits.gate).with_write_monitor(slot.write_monitor());
        let (service, refusals) = (self.service, self.refusals);
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, guard) = (Arc::clone(&service), slot.begin_request());
            let id = RequestId::of(request.headers());
            let request = request.map(|body| ArrivingBody::new(body, || slot.begin_arrival()));
            let refusals = Arc::clone(&refusals);
            // A future takes kilobytes. Unboxed, it would stay in the task of an HTTP/2 stream
            // until the client has read the answer, and in the task of an idle HTTP/1 connection.
            Box::pin(async move {
                let guard =
                    guard.map_err(|_| NoAnswer::Refused(h2::Reason::REFUSED_STREAM.into()))?;
                let answer = id.scope(service.answer(request)).await;
                let mut answer = answer.map_err(NoAnswer::Unanswered)?;
                answer.headers_mut().insert(X_REQUEST_ID, id.to_header());
                if let Some(kind) = answer.extensions().get::<Kind>() {
                    refusals.note(*kind);
                }
                Ok::<_, NoAnswer<S::Unanswered>>(answer.map(|body| Tracked::new(body, guard)))
            })
        });
        let connection = http.serve_connection(TokioIo::new(gate), answer);
        let mut connection = pin!(connection);
        let served = tokio::select! {
            served = after_ready_tasks(connection.as_mut(), || slot.requests() > 1) => served,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            // A client may disconnect at any moment: this is no fault of the server.
            tracing::debug!(%error, "a connection ended early");
        }
    }

    /// Encrypts the connection if TLS is on; `None` if the handshake failed.
    async fn secured(&self, socket: TcpStream) -> Option<Stream> {
        let handshake =
            tokio::time::timeout(self.limits.gate.head_timeout, self.tls.accept(socket));
        let ended = tokio::select! {
            ended = handshake => ended,
            () = self.stop.cancelled() => return None,
        };
        let refused: Box<dyn Error> = match ended {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.into(),
            Err(late) => late.into(),
        };
        tracing::debug!(error = &*refused, "TLS handshake failed");
        None
    }
}

/// Polls a connection. While it has several requests in progress, polls it after the tasks that are
/// ready, so that answers that become ready together leave with one write.
///
/// hyper has a task for each request of an HTTP/2 connection, and an answer wakes the connection.
/// tokio runs next what a task has woken, so the connection would write each answer separately. The
/// whole connection waits, reading too: until the thread's queue is empty or it polls sockets (see
/// the runtime's event interval), or until something else wakes the connection.
async fn after_ready_tasks<F: Future>(
    mut connection: Pin<&mut F>,
    has_other_requests: impl Fn() -> bool,
) -> F::Output {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited && has_other_requests();
        if waited {
            // tokio wakes the connection once the ready tasks have run.
            let _: Poll<()> = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        connection.as_mut().poll(cx)
    })
    .await
}

/// Why a stream of HTTP/2, or a connection of HTTP/1, is closed without an answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer<E: Error + 'static> {
    /// hyper closes the stream with the reason that it finds here.
    #[error("too many requests in progress")]
    Refused(#[source] h2::Error),
    #[error("the service did not answer the request")]
    Unanswered(#[source] E),
}

/// The body of an answer, in small pieces. Its request is in progress until the last piece is
/// written or the body is dropped.
struct Tracked<B> {
    body: B,
    /// The rest of the part that the body returned last.
    rest: Bytes,
    /// Moves to the last piece. A body that reveals its end only afterwards gets an empty last
    /// piece.
    guard: Option<RequestGuard>,
    has_ended: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Tracked<B> {
    fn new(body: B, mut guard: RequestGuard) -> Self {
        let is_empty = body.is_end_stream();
        guard.set_unread(!is_empty);
        Self {
            body,
            rest: Bytes::new(),
            guard: (!is_empty).then_some(guard),
            has_ended: is_empty,
        }
    }

    fn set_unread(&mut self, is_unread: bool) {
        if let Some(guard) = &mut self.guard {
            guard.set_unread(is_unread);
        }
    }
}

/// The last piece of an answer. The connection drops it once it is written.
struct LastPiece {
    bytes: Bytes,
    _guard: RequestGuard,
}

impl LastPiece {
    fn of(bytes: Bytes, guard: RequestGuard) -> Bytes {
        Bytes::from_owner(Self {
            bytes,
            _guard: guard,
        })
    }
}

impl AsRef<[u8]> for LastPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Tracked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Poll::Ready(None) => {
                    this.has_ended = true;
                    let guard = this.guard.take();
                    let last = guard.map(|guard| LastPiece::of(Bytes::new(), guard));
                    return Poll::Ready(last.map(|last| Ok(Frame::data(last))));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => {
                    this.set_unread(false);
                    return Poll::Pending;
                }
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE_BYTES_MAX));
        this.set_unread(true);
        this.has_ended = this.rest.is_empty() && this.body.is_end_stream();
        let piece = match this.guard.take_if(|_| this.has_ended) {
            Some(guard) => LastPiece::of(bytes, guard),
            None => bytes,
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let hint = self.body.size_hint();
        let mut with_rest = SizeHint::new();
        with_rest.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper + rest);
        }
        with_rest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_connection_runs_ready_tasks_first_while_it_has_other_requests() {
        for has_other_requests in [false, true] {
            let has_run = Arc::new(AtomicBool::new(false));
            let ready = Arc::clone(&has_run);
            tokio::spawn(async move { ready.store(true, Ordering::Relaxed) });
            let connection = pin!(poll_fn(|_| Poll::Ready(has_run.load(Ordering::Relaxed))));
            assert_eq!(
                after_ready_tasks(connection, || has_other_requests).await,
                has_other_requests
            );
        }
    }
}
