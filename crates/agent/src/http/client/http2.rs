//! HTTP/2 with prior knowledge: one connection, which all exchanges with a service share.
//!
//! hyper's client gives each request a task, a channel and a place in a pool. Here is what is left when
//! there is one connection, and every request is at hand with its whole body. The connection lets
//! whatever is ready run before it goes on, so that many requests share a write when there are many, and a
//! single one leaves at once.
//!
//! What must hold:
//!
//! * A request is called unconnected or unread only where it has surely had no effect.
//! * No request is begun that finds no room among those that the service takes at a time: it would leave later,
//!   perhaps past its complete-by. So whoever has no room waits here.
//!
//! Deliberately absent: negotiation, TLS, further connections, and trying again.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower_service::Service as _;
use waybill_telemetry::chain;

use super::{Answer, Body, BodyError, SendError};

/// How often a connection that is kept is asked whether it is still there, and for how long an answer is
/// waited for.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The least time between two looks for connections that nobody uses.
const IDLE_LOOK_MIN: Duration = Duration::from_millis(10);
/// How long the first request that waits for a place waits before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What the service may send of one answer, and of all, before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// The largest head of an answer.
const HEADERS_BYTES_MAX: u32 = 64 * 1024;

/// The connection to one service. It is opened by the first request that finds none.
#[derive(Debug)]
pub(in crate::http) struct Http2 {
    connector: HttpConnector,
    idle_for: Duration,
    line: Arc<Mutex<Option<Line>>>,
    /// Held by the one who connects: when that failed last, and why.
    connecting: tokio::sync::Mutex<Option<(Instant, String)>>,
}

/// An open connection.
#[derive(Clone, Debug)]
struct Line {
    requests: SendRequest<Bytes>,
    places: Arc<Places>,
}

/// The exchanges that are under way on a connection.
#[derive(Debug, Default)]
struct Places {
    taken: AtomicUsize,
    /// Held by the first request that waits; the others queue behind it. Without it, new requests would take each place that is
    /// freed, and some would wait until their deadline.
    turn: tokio::sync::Mutex<()>,
    freed: Notify,
    /// Whether one was taken lately.
    used: AtomicBool,
}

/// One of them; its end makes room.
#[derive(Debug)]
struct Place(Arc<Places>);

impl Http2 {
    pub(super) fn new(connector: HttpConnector, idle_for: Duration) -> Self {
        Self {
            connector,
            idle_for,
            line: Arc::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    pub(super) async fn exchange(
        &self,
        request: Request<Bytes>,
        until: Instant,
        bytes_max: usize,
    ) -> Result<Answer, SendError> {
        let (head, body) = request.into_parts();
        let mut request = Request::from_parts(head, ());
        if !body.is_empty() || [Method::POST, Method::PUT, Method::PATCH].contains(request.method())
        {
            let length = HeaderValue::from(body.len());
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let ready = timeout_at(until, self.ready(request.uri()));
        let late = || SendError::Unconnected("none had room in time".to_owned());
        let (mut requests, _place) = ready.await.map_err(|_| late())??;
        // Room that others left at the very end of their time comes too late for this one as well.
        if Instant::now() >= until {
            return Err(late());
        }
        // An error here means that the connection ended before the request was taken.
        let (answer, mut sending) = requests
            .send_request(request, body.is_empty())
            .map_err(|error| SendError::Unconnected(chain(&error)))?;
        if !body.is_empty() {
            sending.send_data(body, true).map_err(broke_off)?;
        }
        let (head, body) = answer.await.map_err(broke_off)?.into_parts();
        let body = read_body(body, bytes_max).await;
        Ok(Answer { head, body })
    }

    /// What takes a request now, and the request's place there.
    async fn ready(&self, uri: &Uri) -> Result<(SendRequest<Bytes>, Place), SendError> {
        let asked_at = Instant::now();
        if let Some(ready) = self.current_ready().await {
            return Ok(ready);
        }
        let mut failed = self.connecting.lock().await;
        // Somebody else may have connected, or tried to.
        if let Some(ready) = self.current_ready().await {
            return Ok(ready);
        }
        if let Some((at, why)) = &*failed
            && *at >= asked_at
        {
            return Err(SendError::Unconnected(why.clone()));
        }
        match self.connect(uri.clone()).await {
            Ok(line) => {
                *lock(&self.line) = Some(line.clone());
                let ready = line.ready().await;
                ready.map_err(|error| SendError::Unconnected(chain(&error)))
            }
            Err(why) => {
                *failed = Some((Instant::now(), why.clone()));
                Err(SendError::Unconnected(why))
            }
        }
    }

    /// The connection that there is, if it takes requests, once it has room for one.
    async fn current_ready(&self) -> Option<(SendRequest<Bytes>, Place)> {
        let line = lock(&self.line).clone()?;
        line.ready().await.ok()
    }

    async fn connect(&self, uri: Uri) -> Result<Line, String> {
        let stream = self.connector.clone().call(uri).await;
        let stream = stream.map_err(|error| chain(&error))?;
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .handshake(stream.into_inner());
        let (requests, mut connection) = handshake.await.map_err(|error| chain(&error))?;
        let line = Line {
            requests,
            places: Arc::default(),
        };
        let watch = watch(connection.ping_pong());
        let places = Arc::clone(&line.places);
        let let_go = let_go_idle(places, Arc::downgrade(&self.line), self.idle_for);
        tokio::spawn(async move {
            tokio::select! {
                () = serve(connection) => {}
                () = watch => {}
                () = let_go => {}
            }
        });
        Ok(line)
    }
}

impl Line {
    /// Waits for room. Fails if the connection takes no requests any more.
    async fn ready(self) -> Result<(SendRequest<Bytes>, Place), h2::Error> {
        let place = self.places.take(&self.requests).await;
        let requests = self.requests.ready().await?;
        Ok((requests, place))
    }
}

impl Places {
    async fn take(self: Arc<Self>, requests: &SendRequest<Bytes>) -> Place {
        let turn = self.turn.lock().await;
        loop {
            let max = requests.current_max_send_streams();
            let next = |taken| (taken < max).then_some(taken + 1);
            let taken = self
                .taken
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
            if taken.is_ok() {
                self.used.store(true, Ordering::Relaxed);
                drop(turn);
                return Place(self);
            }
            // The service may allow more meanwhile, which wakes nobody.
            _ = timeout(LOOK_AGAIN, self.freed.notified()).await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_one();
    }
}

/// Serves the connection until it ends: with an error, or because nobody has it any more.
async fn serve(mut connection: Connection<TcpStream, Bytes>) {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited;
        if waited {
            // It is polled again once what is ready has run.
            let _: Poll<()> = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        // How it ended is told to those who wait for answers.
        pin!(&mut connection).poll(cx).map(drop)
    })
    .await;
}

/// Returns when the other side does not answer any more.
async fn watch(pings: Option<PingPong>) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        sleep(KEEP_ALIVE).await;
        match timeout(KEEP_ALIVE, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Lets a connection go that nobody has used for `idle_for`, or for half of that at least. It ends when nobody
/// has it any more.
async fn let_go_idle(places: Arc<Places>, line: Weak<Mutex<Option<Line>>>, idle_for: Duration) {
    loop {
        sleep((idle_for / 2).max(IDLE_LOOK_MIN)).await;
        if places.taken.load(Ordering::Acquire) > 0 || places.used.swap(false, Ordering::Relaxed) {
            continue;
        }
        if let Some(line) = line.upgrade() {
            lock(&line).take_if(|line| Arc::ptr_eq(&line.places, &places));
        }
        return std::future::pending().await;
    }
}

/// What an exchange came to that had no answer.
fn broke_off(error: h2::Error) -> SendError {
    // What a service refuses, and what came after the last that it says it looked at before it goes away, it
    // has not looked at (RFC 9113, sections 6.8 and 8.7).
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    if error.is_remote() && (is_refused || error.is_go_away()) {
        return SendError::Unread(chain(&error));
    }
    SendError::BrokeOff(chain(&error))
}

async fn read_body(mut body: RecvStream, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut read = Body::new(bytes_max);
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| BodyError::Incomplete(chain(&error)))?;
        // Fails only for more than was received.
        _ = body.flow_control().release_capacity(data.len());
        read.add(data)?;
    }
    Ok(read.whole())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
