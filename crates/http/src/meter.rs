//! Metrics of the connections of listeners, and of the requests on them.

use metrics::{Counter, Gauge};
use waybill_connections::Connections;
use waybill_telemetry::{Declared, Metric};

use crate::problem::Kind;

const OPEN: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections",
    "Open HTTP connections, by listener",
    ["listener"],
);
const MAX: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections_max",
    "Limit on open HTTP connections, by listener",
    ["listener"],
);
const PER_ADDRESS: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections_per_address",
    "Open HTTP connections of the client address that has the most, by listener",
    ["listener"],
);
const PER_ADDRESS_MAX: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections_per_address_max",
    "Limit on open HTTP connections of one client address, by listener",
    ["listener"],
);
const WAITING: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections_waiting",
    "New HTTP connections that wait for room on a full listener, by listener",
    ["listener"],
);
const WAITING_MAX: Metric<Gauge, 1> = Metric::new(
    "waybill_http_connections_waiting_max",
    "Limit on new HTTP connections that wait for room, by listener",
    ["listener"],
);
const REPLACED: Metric<Counter, 1> = Metric::new(
    "waybill_http_connections_replaced_total",
    "HTTP connections that were closed to make room for a new one, by listener",
    ["listener"],
);
const REFUSED: Metric<Counter, 1> = Metric::new(
    "waybill_http_connections_refused_total",
    "New HTTP connections that were refused because no open one could be closed for them, by listener",
    ["listener"],
);

const REQUESTS: Metric<Gauge, 1> = Metric::new(
    "waybill_http_requests_shared",
    "HTTP requests in progress beyond the four that each connection has to itself, by listener",
    ["listener"],
);
const REQUESTS_MAX: Metric<Gauge, 1> = Metric::new(
    "waybill_http_requests_shared_max",
    "Limit on HTTP requests in progress beyond the four of each connection, by listener",
    ["listener"],
);
const REQUESTS_PER_ADDRESS: Metric<Gauge, 1> = Metric::new(
    "waybill_http_requests_shared_per_address",
    "HTTP requests in progress beyond the four of each connection, of the client address that has \
     the most, by listener",
    ["listener"],
);
const REQUESTS_PER_ADDRESS_MAX: Metric<Gauge, 1> = Metric::new(
    "waybill_http_requests_shared_per_address_max",
    "Limit on HTTP requests of one client address in progress beyond the four of each connection, \
     by listener",
    ["listener"],
);
const REQUESTS_REFUSED: Metric<Counter, 2> = Metric::new(
    "waybill_http_requests_refused_total",
    "HTTP requests and batch lines that were refused because of a limit, by listener and reason: \
     refused-stream for too many requests in progress, otherwise the problem type",
    ["listener", "reason"],
);

/// The reason of an HTTP/2 request that is refused because a limit is reached.
const REFUSED_STREAM: &str = "refused-stream";
/// The problems of requests that exceed a limit on single requests, in size or in time.
const REFUSALS: [Kind; 4] = [
    Kind::BodyTooLarge,
    Kind::HeadTooLarge,
    Kind::NestingTooDeep,
    Kind::RequestTimeout,
];

/// The metrics of all servers.
pub const METRICS: &[&dyn Declared] = &[
    &OPEN,
    &MAX,
    &PER_ADDRESS,
    &PER_ADDRESS_MAX,
    &WAITING,
    &WAITING_MAX,
    &REPLACED,
    &REFUSED,
    &REQUESTS,
    &REQUESTS_MAX,
    &REQUESTS_PER_ADDRESS,
    &REQUESTS_PER_ADDRESS_MAX,
    &REQUESTS_REFUSED,
];

/// Shows the connections of one listener as metrics.
#[derive(Clone)]
pub(crate) struct ConnectionMeter {
    open: Gauge,
    per_address: Gauge,
    waiting: Gauge,
    replaced: Counter,
    refused: Counter,
    requests: Gauge,
    requests_per_address: Gauge,
    requests_refused: Counter,
}

impl ConnectionMeter {
    /// Creates a meter for the connections of `listener`, and shows their limits immediately.
    pub(crate) fn new(listener: &str, connections: &Connections, waiting_max: usize) -> Self {
        let limits = connections.limits();
        MAX.of([listener]).set(limits.max as f64);
        let per_address_max = limits.per_address_max as f64;
        PER_ADDRESS_MAX.of([listener]).set(per_address_max);
        WAITING_MAX.of([listener]).set(waiting_max as f64);
        if let Some(requests) = limits.requests {
            REQUESTS_MAX.of([listener]).set(requests.shared as f64);
            let per_address_max = requests.shared_per_address as f64;
            REQUESTS_PER_ADDRESS_MAX.of([listener]).set(per_address_max);
        }
        Self {
            open: OPEN.of([listener]),
            per_address: PER_ADDRESS.of([listener]),
            waiting: WAITING.of([listener]),
            replaced: REPLACED.of([listener]),
            refused: REFUSED.of([listener]),
            requests: REQUESTS.of([listener]),
            requests_per_address: REQUESTS_PER_ADDRESS.of([listener]),
            requests_refused: REQUESTS_REFUSED.of([listener, REFUSED_STREAM]),
        }
    }

    /// Shows the current number of connections and requests.
    pub(crate) fn note(&self, connections: &Connections) {
        let counts = connections.counts();
        self.open.set(counts.open as f64);
        self.per_address.set(counts.per_address as f64);
        self.replaced.absolute(counts.replaced);
        self.refused.absolute(counts.refused);
        self.requests.set(counts.requests_shared as f64);
        let per_address = counts.requests_shared_per_address as f64;
        self.requests_per_address.set(per_address);
        self.requests_refused.absolute(counts.requests_refused);
    }

    /// Shows how many connections wait for room.
    pub(crate) fn note_waiting(&self, waiting: usize) {
        self.waiting.set(waiting as f64);
    }
}

/// Counts the requests of one listener that a limit on single requests refuses.
#[derive(Clone, Debug)]
pub struct RefusalMeter([Counter; REFUSALS.len()]);

impl RefusalMeter {
    /// A meter of the requests to `listener`.
    #[must_use]
    pub fn new(listener: &str) -> Self {
        Self(REFUSALS.map(|kind| REQUESTS_REFUSED.of([listener, kind.name()])))
    }

    /// Counts the problem if a limit caused it.
    pub fn note(&self, kind: Kind) {
        let at = REFUSALS.iter().position(|known| *known == kind);
        if let Some(at) = at {
            self.0[at].increment(1);
        }
    }
}
