//! HTTP/2 with prior knowledge: all exchanges with a service share one connection.
//!
//! hyper's client gives each request a task, a channel and a slot in a pool. This client needs
//! none of them, because it has one connection, and each request is available with its whole body.
//! The connection yields to ready tasks before it writes, so that concurrent requests share a
//! write, and a single one leaves immediately.
//!
//! What must hold:
//!
//! * A request counts as unconnected or unread only if it certainly had no effect.
//! * No request starts beyond the number of concurrent streams that the service allows: it would be
//!   sent later, perhaps past its complete-by. So it waits here for a free stream.
//!
//! Deliberately absent: negotiation, TLS, additional connections, and retries. Over TLS, hyper's
//! client speaks HTTP/2.

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

/// How often to ping a persistent connection, and how long to wait for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Minimum time between two checks for an idle connection.
const IDLE_LOOK_MIN: Duration = Duration::from_millis(10);
/// How long the first waiting request waits before it checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How much the service may send of one answer, and of all, before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// The largest headers of an answer.
const HEADERS_BYTES_MAX: u32 = 64 * 1024;

/// The connection to one service. The first request without a connection opens it.
#[derive(Debug)]
pub(in crate::http) struct Http2 {
    connector: HttpConnector,
    idle_for: Duration,
    connection: Arc<Mutex<Option<OpenConnection>>>,
    /// Held by the request that connects: when the last attempt failed, and why.
    connecting: tokio::sync::Mutex<Option<(Instant, String)>>,
}

/// An open connection.
#[derive(Clone, Debug)]
struct OpenConnection {
    requests: SendRequest<Bytes>,
    slots: Arc<StreamSlots>,
}

/// The exchanges in flight on a connection.
#[derive(Debug, Default)]
struct StreamSlots {
    taken: AtomicUsize,
    /// Held by the first request that waits; the others queue after it. Without it, new requests
    /// would take each freed slot, and some would wait until their deadline.
    next_waiter: tokio::sync::Mutex<()>,
    freed: Notify,
    /// Whether a slot was taken since the last check.
    used: AtomicBool,
}

/// The slot of one exchange; dropping it frees the slot.
#[derive(Debug)]
struct StreamSlot(Arc<StreamSlots>);

impl Http2 {
    pub(super) fn new(connector: HttpConnector, idle_for: Duration) -> Self {
        Self {
            connector,
            idle_for,
            connection: Arc::default(),
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
        let late = || SendError::Unconnected("no stream became free in time".to_owned());
        let (mut requests, _slot) = ready.await.map_err(|_| late())??;
        // A slot that is freed only at the deadline is too late for this request.
        if Instant::now() >= until {
            return Err(late());
        }
        // An error here means that the connection ended before it accepted the request.
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

    /// A sender for the request, and the request's slot on the connection.
    async fn ready(&self, uri: &Uri) -> Result<(SendRequest<Bytes>, StreamSlot), SendError> {
        let asked_at = Instant::now();
        if let Some(ready) = self.current_ready().await {
            return Ok(ready);
        }
        let mut failed = self.connecting.lock().await;
        // Another request may have connected in the meantime, or failed to.
        if let Some(ready) = self.current_ready().await {
            return Ok(ready);
        }
        if let Some((at, why)) = &*failed
            && *at >= asked_at
        {
            return Err(SendError::Unconnected(why.clone()));
        }
        match self.connect(uri.clone()).await {
            Ok(connection) => {
                *lock(&self.connection) = Some(connection.clone());
                let ready = connection.ready().await;
                ready.map_err(|error| SendError::Unconnected(chain(&error)))
            }
            Err(why) => {
                *failed = Some((Instant::now(), why.clone()));
                Err(SendError::Unconnected(why))
            }
        }
    }

    /// The current connection with a free slot, if it accepts requests.
    async fn current_ready(&self) -> Option<(SendRequest<Bytes>, StreamSlot)> {
        let connection = lock(&self.connection).clone()?;
        connection.ready().await.ok()
    }

    async fn connect(&self, uri: Uri) -> Result<OpenConnection, String> {
        let stream = self.connector.clone().call(uri).await;
        let stream = stream.map_err(|error| chain(&error))?;
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .handshake(stream.into_inner());
        let (requests, mut connection) = handshake.await.map_err(|error| chain(&error))?;
        let opened = OpenConnection {
            requests,
            slots: Arc::default(),
        };
        let watch = watch(connection.ping_pong());
        let slots = Arc::clone(&opened.slots);
        let closing = close_idle(slots, Arc::downgrade(&self.connection), self.idle_for);
        tokio::spawn(async move {
            tokio::select! {
                () = serve(connection) => {}
                () = watch => {}
                () = closing => {}
            }
        });
        Ok(opened)
    }
}

impl OpenConnection {
    /// Waits for a free slot. Fails if the connection accepts no more requests.
    async fn ready(self) -> Result<(SendRequest<Bytes>, StreamSlot), h2::Error> {
        let slot = self.slots.take(&self.requests).await;
        let requests = self.requests.ready().await?;
        Ok((requests, slot))
    }
}

impl StreamSlots {
    async fn take(self: Arc<Self>, requests: &SendRequest<Bytes>) -> StreamSlot {
        let next_waiter = self.next_waiter.lock().await;
        loop {
            let max = requests.current_max_send_streams();
            let next = |taken| (taken < max).then_some(taken + 1);
            let taken = self
                .taken
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
            if taken.is_ok() {
                self.used.store(true, Ordering::Relaxed);
                drop(next_waiter);
                return StreamSlot(self);
            }
            // The service may raise its limit in the meantime, without a notification.
            _ = timeout(LOOK_AGAIN, self.freed.notified()).await;
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_one();
    }
}

/// Serves the connection until it fails, or until no sender is left.
async fn serve(mut connection: Connection<TcpStream, Bytes>) {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited;
        if waited {
            // Polled again after the ready tasks have run.
            let _: Poll<()> = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        // The requests in flight receive the error.
        pin!(&mut connection).poll(cx).map(drop)
    })
    .await;
}

/// Returns when the service does not answer a ping.
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

/// Closes a connection that was idle for `idle_for`, or at least half of that, by dropping its last
/// sender.
async fn close_idle(
    slots: Arc<StreamSlots>,
    connection: Weak<Mutex<Option<OpenConnection>>>,
    idle_for: Duration,
) {
    loop {
        sleep((idle_for / 2).max(IDLE_LOOK_MIN)).await;
        if slots.taken.load(Ordering::Acquire) > 0 || slots.used.swap(false, Ordering::Relaxed) {
            continue;
        }
        if let Some(connection) = connection.upgrade() {
            lock(&connection).take_if(|connection| Arc::ptr_eq(&connection.slots, &slots));
        }
        return std::future::pending().await;
    }
}

/// The error of an exchange that had no answer.
fn broke_off(error: h2::Error) -> SendError {
    match is_unread(&error) {
        true => SendError::Unread(chain(&error)),
        false => SendError::BrokeOff(chain(&error)),
    }
}

/// Whether the service did not process a stream: it refused the stream, or the stream is above the
/// last stream ID of its GOAWAY (RFC 9113, sections 6.8 and 8.7).
pub(super) fn is_unread(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
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
