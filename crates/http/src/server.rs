//! Connections: accepting them, encrypting them, serving HTTP/1.1 and HTTP/2 on each, and ending them in order.

use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
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
use waybill_connections::{Connections, Full, Limits, Place, RequestGuard, RequestLimits};

use crate::body::ArrivingBody;
use crate::gate::{Gate, GateLimits};
use crate::meter::{ConnectionMeter, RefusalMeter};
use crate::problem::Kind;
use crate::tls::{Stream, Tls};

/// How long to wait before accepting again when the system is out of something, such as file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait before looking again for a connection that could be replaced.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// How long a client may leave an answer unread before its connection makes room for another where there are too many.
const UNREAD_PATIENCE: Duration = Duration::from_secs(5);
/// How much of an answer is handed over at once: what is behind it shows whether the client reads on.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// How many requests one HTTP/2 connection may have under way, where no listener needs more: h2 keeps two kilobytes for
/// each that was ever open at once, for as long as the connection lives.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 128;
/// How many requests each connection may have under way, however many all others have.
const REQUESTS_EACH: u32 = 4;
/// How many requests each connection may begin, however many connections there are.
const REQUESTS_PER_CONNECTION_MIN: usize = 32;
/// How much of a body one HTTP/2 stream, and all of one connection, may send unread. It is what RFC 9113, section 6.9.2,
/// begins with, and a connection cannot be given less.
const HTTP2_WINDOW: u32 = 65_535;
/// How much of an answer may wait in an HTTP/2 stream before the next piece is handed over: so little that only one does.
const HTTP2_SEND_BUFFER: usize = 1;
/// How often the use of the limits is shown, beside each time that a connection begins or ends.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// How often a quiet HTTP/2 connection is asked whether it is still there.
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

    /// Answers one request. In place of a request whose head was refused comes a
    /// [stand-in](crate::Refusal::METHOD), whose answer says so.
    ///
    /// # Errors
    ///
    /// If it is to get no answer: then its connection (HTTP/1) or its stream (HTTP/2) is closed.
    fn answer(
        self: Arc<Self>,
        request: Request<ArrivingBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Unanswered>> + Send;
}

/// What connections may use, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// How many may be open. One more replaces the one that has been idle for longest; where none is idle it waits.
    pub connections_max: usize,
    /// How many may be open of one address. One more replaces the address's own that has been idle for longest; where
    /// none is idle it is closed.
    pub connections_per_address_max: usize,
    /// How many requests one HTTP/2 connection may have under way; fewer, down to 32, where there are so many connections
    /// that `requests_shared_max` divided among them is less.
    pub requests_per_connection_max: usize,
    /// How many requests may be under way on all connections together, beyond a few that each has of its own. Those from
    /// one address get three quarters of them. A request for which there is no room is refused by `REFUSED_STREAM`
    /// (RFC 9113, section 8.7): nothing of it was looked at, and the client may send it again.
    pub requests_shared_max: usize,
    /// What each may send, and how long it may take.
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
    /// A server that metrics and the log know by `name`.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        tls: Tls,
        service: Arc<S>,
        limits: ServerLimits,
    ) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        // The gate hands over whole heads within its limits and times them: the parser's own
        // limits must not be reached first. A client may shut its side down and wait for answers.
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
                // A request may take long here. A client that does not read its answer makes room sooner.
                stall_timeout: None,
                unread_timeout: Some(UNREAD_PATIENCE),
                requests: Some(RequestLimits {
                    each: REQUESTS_EACH,
                    shared: limits.requests_shared_max,
                    shared_per_address: limits.requests_shared_max - limits.requests_shared_max / 4,
                }),
            },
        );
        Self {
            listener,
            tls,
            service,
            limits,
            meter: ConnectionMeter::new(name, &connections),
            refusals: Arc::new(RefusalMeter::new(name)),
            connections,
            http,
        }
    }

    /// The connections that are open.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Accepts until `stop` is cancelled, and then waits for the connections that are open to end;
    /// they are asked to, once nothing is under way on them. Dropping the future cuts them off.
    pub async fn run(self, stop: CancellationToken) {
        let mut serving = JoinSet::new();
        let mut shows = tokio::time::interval(SHOW_EVERY);
        shows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                _ = shows.tick() => {
                    self.meter.note(&self.connections);
                    continue;
                }
                Some(ended) = serving.join_next() => {
                    log_panic(ended);
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let place = tokio::select! {
                () = stop.cancelled() => break,
                place = self.place(peer) => place,
            };
            let Some(place) = place else { continue };
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
                    () = connection.serve(socket, &place) => {}
                    () = place.closing() => {
                        tracing::debug!("an idle connection made room for another");
                    }
                    () = place.unread_for(stall_timeout) => {
                        tracing::debug!("a client did not read its answer in time");
                    }
                }
                drop(place);
                meter.note(&connections);
            });
        }
        drop(self.listener);
        while let Some(ended) = serving.join_next().await {
            log_panic(ended);
        }
    }

    /// A place for a connection; `None` if it has to be closed. Waits while all connections are busy.
    async fn place(&self, peer: SocketAddr) -> Option<Place> {
        loop {
            let closing = CancellationToken::new();
            let admitted = self.connections.admit(Instant::now(), peer.ip(), closing);
            self.meter.note(&self.connections);
            match admitted {
                Ok(place) => return Some(place),
                Err(Full::Address) => return None,
                Err(Full::All) => tokio::time::sleep(FULL_PAUSE).await,
            }
        }
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "serving a connection panicked");
    }
}

/// What one connection is served with.
struct Connection<S> {
    http: auto::Builder<TokioExecutor>,
    tls: Tls,
    service: Arc<S>,
    limits: ServerLimits,
    refusals: Arc<RefusalMeter>,
    stop: CancellationToken,
}

impl<S: Service> Connection<S> {
    async fn serve(self, socket: TcpStream, place: &Place) {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended early");
            return;
        }
        let Some(stream) = self.secured(socket).await else {
            return;
        };
        let each_max = self.limits.requests_per_connection_max;
        let each = REQUESTS_PER_CONNECTION_MIN.min(each_max)..=each_max;
        let streams = place.part_of(self.limits.requests_shared_max, each);
        let mut http = self.http;
        http.http2()
            .max_concurrent_streams(u32::try_from(streams).unwrap_or(u32::MAX));
        let gate = Gate::new(stream, self.limits.gate).with_outlet(place.outlet());
        let (service, refusals) = (self.service, self.refusals);
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, guard) = (Arc::clone(&service), place.begin_request());
            let request = request.map(|body| ArrivingBody::new(body, || place.begin_arrival()));
            let refusals = Arc::clone(&refusals);
            // A future takes kilobytes. Unboxed, it stays in the task of an HTTP/2 stream until the client has read the answer,
            // and in that of an idle HTTP/1 connection.
            Box::pin(async move {
                let guard =
                    guard.map_err(|_| NoAnswer::Refused(h2::Reason::REFUSED_STREAM.into()))?;
                let answer = service.answer(request).await;
                let answer = answer.map_err(NoAnswer::Unanswered)?;
                if let Some(kind) = answer.extensions().get::<Kind>() {
                    refusals.note(*kind);
                }
                Ok::<_, NoAnswer<S::Unanswered>>(answer.map(|body| Tracked::new(body, guard)))
            })
        });
        let connection = http.serve_connection(TokioIo::new(gate), answer);
        let mut connection = pin!(connection);
        let served = tokio::select! {
            served = after_ready_tasks(connection.as_mut(), || place.requests() > 1) => served,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            // Clients go away at any moment; that is theirs to do.
            tracing::debug!(%error, "a connection ended early");
        }
    }

    /// The connection once it is encrypted, where it is to be; `None` where it came to nothing.
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
        tracing::debug!(error = &*refused, "a handshake came to nothing");
        None
    }
}

/// Polls a connection; while it has several requests under way, behind the tasks that are ready. So answers that become ready
/// together leave with one write. A connection with one request is polled at once.
///
/// hyper has a task for each request of an HTTP/2 connection, and an answer wakes the connection. tokio runs next what a task has
/// woken, so the connection would write each answer by itself. All of the connection waits, reading too: until the thread's
/// queue is empty or it polls sockets (see the runtime's event interval), or until something else wakes the connection.
async fn after_ready_tasks<F: Future>(
    mut connection: Pin<&mut F>,
    has_other_requests: impl Fn() -> bool,
) -> F::Output {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited && has_other_requests();
        if waited {
            // tokio wakes it once ready tasks have run.
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
    #[error("too many requests are under way")]
    Refused(#[source] h2::Error),
    #[error("the service leaves the request without an answer")]
    Unanswered(#[source] E),
}

/// The body of an answer, in small pieces. Its request is under way until the last one is written, or all are dropped.
struct Tracked<B> {
    body: B,
    /// What is left of the piece that the body gave last.
    rest: Bytes,
    /// Goes with the last piece. Where the body tells only afterwards that it has ended, that is an empty one.
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
    async fn a_connection_waits_for_what_is_ready_while_it_has_other_requests() {
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
