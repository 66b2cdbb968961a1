//! Connections: accepting them, encrypting them, serving HTTP/1.1 and HTTP/2 on each, and ending them in order.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::gate::{Gate, GateLimits};
use super::service::Api;
use crate::tls::{Stream, Tls};

/// How long to wait before accepting again when the system is out of something, such as file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many requests one HTTP/2 connection may have under way.
const HTTP2_STREAMS_MAX: u32 = 128;
/// How much of a body one HTTP/2 stream, and one connection, may send unread.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 512 * 1024;
/// How often a quiet HTTP/2 connection is asked whether it is still there.
const HTTP2_PING: Duration = Duration::from_secs(20);

/// Accepts connections and serves them.
pub struct Server {
    listener: TcpListener,
    tls: Tls,
    api: Arc<Api>,
    limits: GateLimits,
    /// One permit for each connection that may be open.
    connections: Arc<Semaphore>,
    http: auto::Builder<TokioExecutor>,
}

impl Server {
    /// A server of at most `connections_max` connections at once.
    pub fn new(
        listener: TcpListener,
        tls: Tls,
        api: Arc<Api>,
        limits: GateLimits,
        connections_max: usize,
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
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(HTTP2_PING);
        Self {
            listener,
            tls,
            api,
            limits,
            connections: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            http,
        }
    }

    /// Accepts until `stop` is cancelled, and then waits for the connections that are open to end;
    /// they are asked to, once nothing is under way on them. Dropping the future cuts them off.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            listener,
            tls,
            api,
            limits,
            connections,
            http,
        } = self;
        let mut serving = JoinSet::new();
        loop {
            let (permit, socket) = tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = serving.join_next() => {
                    log_panic(ended);
                    continue;
                }
                accepted = accept(&listener, &connections) => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "no connection could be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let (http, api, stop) = (http.clone(), Arc::clone(&api), stop.clone());
            let tls = tls.clone();
            serving.spawn(async move {
                if let Some(stream) = secured(&tls, socket, limits.head_timeout, &stop).await {
                    serve(http, api, Gate::new(stream, limits), stop).await;
                }
                drop(permit);
            });
        }
        drop(listener);
        while let Some(ended) = serving.join_next().await {
            log_panic(ended);
        }
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "serving a connection panicked");
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(OwnedSemaphorePermit, TcpStream)> {
    let permit = Arc::clone(connections)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    socket.set_nodelay(true)?;
    Ok((permit, socket))
}

/// The connection once it is encrypted, where it is to be; `None` where it came to nothing.
async fn secured(
    tls: &Tls,
    socket: TcpStream,
    within: Duration,
    stop: &CancellationToken,
) -> Option<Stream> {
    let handshake = tokio::time::timeout(within, tls.accept(socket));
    let ended = tokio::select! {
        ended = handshake => ended,
        () = stop.cancelled() => return None,
    };
    let refused: Box<dyn Error> = match ended {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => error.into(),
        Err(late) => late.into(),
    };
    tracing::debug!(error = &*refused, "a handshake came to nothing");
    None
}

async fn serve(
    http: auto::Builder<TokioExecutor>,
    api: Arc<Api>,
    gate: Gate<Stream>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let api = Arc::clone(&api);
        async move { Ok::<_, Infallible>(api.answer(request).await) }
    });
    let connection = http.serve_connection(TokioIo::new(gate), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // Clients go away at any moment; that is theirs to do.
        tracing::debug!(%error, "a connection ended early");
    }
}
