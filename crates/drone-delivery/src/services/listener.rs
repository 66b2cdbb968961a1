//! The listener: connections in, bounded in number, and an orderly end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Site;

/// How many connections may be open; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 4_096;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 1_024;

/// How long requests that are under way may take once the services are to end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long to wait after the system refused to accept a connection, for example for want of file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stopping`, then drains; ends at once with `aborting`.
pub(super) async fn listen(
    listener: TcpListener,
    site: Arc<Site>,
    stopping: CancellationToken,
    aborting: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            let place = room.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (site, stopping) = (site.clone(), stopping.clone());
                    let connection = aborting.clone().run_until_cancelled_owned(async move {
                        serve(stream, site, stopping).await;
                        drop(place);
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

async fn serve(stream: TcpStream, site: Arc<Site>, stopping: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection to the services closed early");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().auto_date_header(false);
    builder
        .http2()
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX);
    let service = service_fn(|request| super::api::answer(site.clone(), request));
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
