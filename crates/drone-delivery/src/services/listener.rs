//! The listener: connections in, bounded in number, and an orderly end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_connections::{Connections, Limits, Place};

use super::Site;

/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// How often a quiet HTTP/2 connection is asked whether it is still there.
const HTTP2_PING: Duration = Duration::from_secs(20);

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 1_024;

/// How long requests that are under way may take once the services are to end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long to wait after the system refused to accept a connection, for example for want of file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Room for `max` connections, and for three quarters of them from one address.
pub(super) fn connections(max: usize) -> Arc<Connections> {
    Connections::new(
        "services",
        Limits {
            max,
            per_address_max: max - max / 4,
            stall_timeout: None,
            unread_timeout: None,
        },
    )
}

/// Serves until `stopping`, then drains; ends at once with `aborting`.
pub(super) async fn listen(
    listener: TcpListener,
    open: Arc<Connections>,
    site: Arc<Site>,
    stopping: CancellationToken,
    aborting: CancellationToken,
) {
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let closing = aborting.child_token();
                    let Ok(place) = open.admit(Instant::now(), peer.ip(), closing.clone()) else {
                        continue;
                    };
                    let (site, stopping) = (site.clone(), stopping.clone());
                    let connection = closing.run_until_cancelled_owned(async move {
                        serve(stream, site, stopping, &place).await;
                    });
                    connections.spawn(connection);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the services could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    stopping.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    let drained = tokio::time::timeout(DRAIN_MAX, connections.wait());
    if !matches!(aborting.run_until_cancelled(drained).await, Some(Ok(()))) {
        aborting.cancel();
        connections.wait().await;
    }
}

async fn serve(stream: TcpStream, site: Arc<Site>, stopping: CancellationToken, place: &Place) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection to the services closed early");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING)
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX);
    let service = service_fn(|request| {
        let (site, request_guard) = (site.clone(), place.begin_request());
        // Boxed: else an idle connection holds room for a request.
        Box::pin(async move {
            let answered = super::api::answer(site, request).await;
            drop(request_guard);
            answered
        })
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection to the services ended early");
    }
}
