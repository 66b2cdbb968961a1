//! HTTP/2 with prior knowledge: one connection, which all exchanges with a service share.
//!
//! hyper's client gives each request a task, a channel and a place in a pool. Here is what is left when
//! there is one connection, and every request is at hand with its whole body. The connection lets
//! whatever is ready run before it goes on, so that many requests share a write when there are many, and a
//! single one leaves at once.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower_service::Service as _;

use super::{Answer, Body, BodyError, SendError};
use crate::chain::chain;

/// How often a connection that is kept is asked whether it is still there, and for how long an answer is
/// waited for.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
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
    used: Arc<AtomicBool>,
}

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
        let late = |_| SendError::NotSent("none was ready in time".to_owned());
        let mut requests = ready.await.map_err(late)??;
        // An error here means that the connection ended before the request was taken.
        let (answer, mut sending) = requests
            .send_request(request, body.is_empty())
            .map_err(|error| SendError::NotSent(chain(&error)))?;
        if !body.is_empty() {
            sending.send_data(body, true).map_err(broke_off)?;
        }
        let (head, body) = answer.await.map_err(broke_off)?.into_parts();
        let body = read_body(body, bytes_max).await;
        Ok(Answer { head, body })
    }

    /// What takes a request now.
    async fn ready(&self, uri: &Uri) -> Result<SendRequest<Bytes>, SendError> {
        let asked_at = Instant::now();
        if let Some(requests) = self.current_ready().await {
            return Ok(requests);
        }
        let mut failed = self.connecting.lock().await;
        // Somebody else may have connected, or tried to.
        if let Some(requests) = self.current_ready().await {
            return Ok(requests);
        }
        if let Some((at, why)) = &*failed
            && *at >= asked_at
        {
            return Err(SendError::NotSent(why.clone()));
        }
        match self.connect(uri.clone()).await {
            Ok(line) => {
                *lock(&self.line) = Some(line.clone());
                let ready = line.requests.ready().await;
                ready.map_err(|error| SendError::NotSent(chain(&error)))
            }
            Err(why) => {
                *failed = Some((Instant::now(), why.clone()));
                Err(SendError::NotSent(why))
            }
        }
    }

    /// The connection that there is, if it takes requests.
    async fn current_ready(&self) -> Option<SendRequest<Bytes>> {
        let line = lock(&self.line).clone()?;
        line.used.store(true, Ordering::Relaxed);
        line.requests.ready().await.ok()
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
            used: Arc::new(AtomicBool::new(true)),
        };
        let pings = connection.ping_pong();
        let watch = watch(
            pings,
            Arc::clone(&line.used),
            Arc::clone(&self.line),
            self.idle_for,
        );
        tokio::spawn(async move {
            tokio::select! {
                () = serve(connection) => {}
                () = watch => {}
            }
        });
        Ok(line)
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

/// Returns when the other side answers no more. A connection that nobody has used for `idle_for` is let go:
/// it ends when its last answer is there.
async fn watch(
    pings: Option<PingPong>,
    used: Arc<AtomicBool>,
    line: Arc<Mutex<Option<Line>>>,
    idle_for: Duration,
) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    let mut idle = Duration::ZERO;
    loop {
        let pause = KEEP_ALIVE.min(idle_for);
        sleep(pause).await;
        idle = match used.swap(false, Ordering::Relaxed) {
            true => Duration::ZERO,
            false => idle + pause,
        };
        if idle >= idle_for {
            let mut line = lock(&line);
            let is_it = |line: &mut Line| Arc::ptr_eq(&line.used, &used);
            if !used.load(Ordering::Relaxed) {
                line.take_if(is_it);
            }
        }
        match timeout(KEEP_ALIVE, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// What an exchange came to that had no answer.
fn broke_off(error: h2::Error) -> SendError {
    match error.reason() {
        // The service says that it has not looked at the request (RFC 9113, section 8.7).
        Some(Reason::REFUSED_STREAM) if error.is_remote() && error.is_reset() => {
            SendError::NotSent(chain(&error))
        }
        _ => SendError::BrokeOff(chain(&error)),
    }
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
