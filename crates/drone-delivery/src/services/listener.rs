//! The listener: connection limits and a graceful shutdown.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, StatusCode};
use tokio_util::sync::CancellationToken;
use waybill_http::{
    ArrivingBody, GateLimits, HEADERS_LIMIT_MAX, Hosts, Refusal, Server, ServerLimits, Service,
    is_from_page,
};

use super::Site;
use super::answer::{Answer, AnswerBody, Problem, Unanswered};

/// Limits on what a connection may send, and on its time.
const GATE: GateLimits = GateLimits {
    head_bytes_max: 64 * 1024,
    headers_max: HEADERS_LIMIT_MAX,
    head_timeout: Duration::from_secs(120),
    stall_timeout: Duration::from_secs(60),
    idle_timeout: Duration::from_secs(120),
};

/// The maximum number of concurrent requests per HTTP/2 connection. Agents send many at the same
/// time, on few connections.
const REQUESTS_PER_CONNECTION_MAX: usize = 1_024;

/// How long running requests may take after the shutdown began.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Limits for `connections_max` connections, three quarters of them per address.
pub(super) const fn limits(connections_max: usize, requests_max: usize) -> ServerLimits {
    ServerLimits {
        connections_max,
        connections_per_address_max: connections_max - connections_max / 4,
        requests_per_connection_max: REQUESTS_PER_CONNECTION_MAX,
        requests_shared_max: requests_max,
        gate: GATE,
    }
}

impl Service for Site {
    type Body = AnswerBody;
    type Unanswered = Unanswered;

    async fn answer(self: Arc<Self>, request: Request<ArrivingBody>) -> Result<Answer, Unanswered> {
        if request.method().as_str() == Refusal::METHOD {
            let refusal = Refusal::of_path(request.uri().path());
            return Ok(Problem::new(StatusCode::BAD_REQUEST, "bad-head", refusal.detail()).into());
        }
        // Agents may use any host name and send no origin. Requests of web pages must use an IP
        // address or localhost. Another site's page can then change nothing, even if its own name
        // resolves to this machine.
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        if is_from_page(headers)
            && Hosts::local(&[], false)
                .check(method, uri, headers)
                .is_err()
        {
            let detail = "a web page of another origin cannot make changes";
            return Ok(Problem::new(StatusCode::FORBIDDEN, "foreign-origin", detail).into());
        }
        super::api::answer(self, request).await
    }
}

/// Serves until `stopping`, then lets running requests finish. Ends immediately with `aborting`.
pub(super) async fn listen(
    server: Server<Site>,
    stopping: CancellationToken,
    aborting: CancellationToken,
) {
    let time_is_up = async {
        stopping.cancelled().await;
        tokio::time::sleep(DRAIN_MAX).await;
    };
    tokio::select! {
        () = server.run(stopping.clone()) => {}
        () = time_is_up => {}
        () = aborting.cancelled() => {}
    }
}
