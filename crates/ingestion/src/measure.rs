//! The metrics of ingestion. Handles are looked up once, not per request.

use std::time::Instant;

use hyper::StatusCode;
use metrics::{Counter, Gauge, Histogram};
use waybill_api::form::{Form, Forms};
use waybill_http::RefusalMeter;
use waybill_http::auth::DENIALS;
use waybill_http::problem::{Kind, Problem};
use waybill_telemetry::{Declared, Metric};

const REQUESTS: Metric<Counter, 2> = Metric::new(
    "waybill_ingestion_requests_total",
    "Requests that ingestion answered, by route and status class",
    ["route", "status"],
);
const DURATION: Metric<Histogram, 1> = Metric::new(
    "waybill_ingestion_request_duration_seconds",
    "Duration of requests, from the request head to the start of the response",
    ["route"],
);
const ACCEPTED: Metric<Counter> = Metric::new(
    "waybill_ingestion_accepted_total",
    "Requests that the broker acknowledged and ingestion answered with 202",
    [],
);
const UNAUTHORIZED: Metric<Counter, 1> = Metric::new(
    "waybill_ingestion_unauthorized_total",
    "Requests and batch lines that were refused because of their credentials",
    ["reason"],
);
const LIMITED: Metric<Counter> = Metric::new(
    "waybill_ingestion_limited_total",
    "Requests and batch lines that were refused because their tenant sent too many",
    [],
);
pub(super) const EVENT_STREAMS: Metric<Gauge> = Metric::new(
    "waybill_ingestion_event_streams",
    "Open event streams, and requests that wait for a result",
    [],
);

pub(super) const EVENT_STREAMS_MAX: Metric<Gauge> = Metric::new(
    "waybill_ingestion_event_streams_max",
    "Limit on open event streams and requests that wait for a result, together",
    [],
);
pub(super) const LISTS: Metric<Gauge> = Metric::new(
    "waybill_ingestion_lists",
    "Operation lists in progress or queued",
    [],
);
pub(super) const LISTS_MAX: Metric<Gauge> = Metric::new(
    "waybill_ingestion_lists_max",
    "Limit on operation lists in progress or queued",
    [],
);
pub(super) const BODY_BYTES: Metric<Gauge> = Metric::new(
    "waybill_ingestion_body_bytes",
    "Bytes held by request bodies and batches in progress",
    [],
);
pub(super) const BODY_BYTES_MAX: Metric<Gauge> = Metric::new(
    "waybill_ingestion_body_bytes_max",
    "Limit on the bytes held by request bodies and batches in progress",
    [],
);
pub(super) const QUEUE_BYTES: Metric<Gauge> = Metric::new(
    "waybill_ingestion_queue_bytes",
    "Bytes that unacknowledged records occupy in the queue to the broker",
    [],
);
pub(super) const QUEUE_BYTES_MAX: Metric<Gauge> = Metric::new(
    "waybill_ingestion_queue_bytes_max",
    "Limit on the bytes that records occupy in the queue to the broker",
    [],
);
pub(super) const PENDING_READS: Metric<Gauge> = Metric::new(
    "waybill_ingestion_pending_reads",
    "Status queries that wait while a pending request is read from its topic",
    [],
);
pub(super) const PENDING_READS_MAX: Metric<Gauge> = Metric::new(
    "waybill_ingestion_pending_reads_max",
    "Limit on status queries that wait while a pending request is read from its topic",
    [],
);

/// All metrics of ingestion.
pub const METRICS: &[&dyn Declared] = &[
    &REQUESTS,
    &DURATION,
    &ACCEPTED,
    &UNAUTHORIZED,
    &LIMITED,
    &EVENT_STREAMS,
    &EVENT_STREAMS_MAX,
    &LISTS,
    &LISTS_MAX,
    &BODY_BYTES,
    &BODY_BYTES_MAX,
    &QUEUE_BYTES,
    &QUEUE_BYTES_MAX,
    &PENDING_READS,
    &PENDING_READS_MAX,
];

/// The label that a request is counted under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteLabel {
    /// `POST` to the collection of a form.
    CreateInForm(Form),
    /// `GET` of a request in it.
    GetInForm(Form),
    /// `POST /v1/operations`.
    CreateOperation,
    /// `GET /v1/operations/{id}`.
    GetOperation,
    /// `GET /v1/operations`.
    ListOperations,
    /// A new request, or a `GET` of an operation, that waits for the result.
    Wait,
    /// A verb on an existing operation, such as cancel or reschedule.
    Ask,
    /// `GET /v1/operations/{id}/events`.
    Events,
    /// `POST /v1/operations:batch`.
    Batch,
    /// A line of a batch.
    BatchLine,
    /// Documentation.
    Docs,
    /// Anything else.
    Other,
}

impl RouteLabel {
    /// Those that do not depend on forms.
    const FIXED: [(Self, &'static str); 10] = [
        (Self::CreateOperation, "create-operation"),
        (Self::GetOperation, "get-operation"),
        (Self::ListOperations, "list-operations"),
        (Self::Wait, "wait"),
        (Self::Ask, "ask"),
        (Self::Events, "events"),
        (Self::Batch, "batch"),
        (Self::BatchLine, "batch-line"),
        (Self::Docs, "docs"),
        (Self::Other, "other"),
    ];
}

/// Ingestion's metrics.
#[derive(Debug)]
pub struct Measures {
    /// Few enough that a search is cheaper than a hash.
    routes: Vec<(RouteLabel, RouteMeasures)>,
    accepted: Counter,
    denials: [Counter; DENIALS.len()],
    limited: Counter,
    /// Counts the lines of batches that a limit refuses. The server counts whole requests.
    refusals: RefusalMeter,
}

#[derive(Debug)]
struct RouteMeasures {
    /// By the first digit of the status, from 2 on.
    answers: [Counter; 4],
    duration: Histogram,
}

impl Measures {
    /// Registers the metrics of a server with these forms.
    pub fn new(forms: &Forms) -> Self {
        let fixed = RouteLabel::FIXED.map(|(label, route)| (label, RouteMeasures::new(route)));
        let in_forms = forms.iter().flat_map(|form| {
            let measures = |verb: &str| RouteMeasures::new(&format!("{verb}-{}", form.names.noun));
            [
                (RouteLabel::CreateInForm(form), measures("create")),
                (RouteLabel::GetInForm(form), measures("get")),
            ]
        });
        Self {
            routes: in_forms.chain(fixed).collect(),
            accepted: ACCEPTED.of([]),
            denials: DENIALS.map(|reason| UNAUTHORIZED.of([reason])),
            limited: LIMITED.of([]),
            refusals: RefusalMeter::new(super::LISTENER),
        }
    }

    /// Counts an answer, and how long it took since `began`.
    pub fn answered(&self, route: RouteLabel, status: StatusCode, began: Instant) {
        let measures = self.of(route);
        measures.count(status);
        measures.duration.record(began.elapsed().as_secs_f64());
        if !matches!(route, RouteLabel::Ask | RouteLabel::Wait) {
            self.count_accepted(status);
        }
    }

    /// Counts a request that was accepted and waits for its result.
    pub fn accepted(&self) {
        self.accepted.increment(1);
    }

    /// Counts a problem that denies access, or that enforces a rate limit.
    pub fn denied(&self, problem: &Problem) {
        if problem.kind == Kind::TooManyRequests {
            self.limited.increment(1);
        }
        let reason = problem.denial();
        let place = reason.and_then(|reason| DENIALS.iter().position(|known| *known == reason));
        if let Some(place) = place {
            self.denials[place].increment(1);
        }
    }

    /// Counts a line of a batch, and the reason if it is refused.
    pub fn line(&self, status: StatusCode, problem: Option<&Problem>) {
        if let Some(problem) = problem {
            self.denied(problem);
            self.refusals.note(problem.kind);
        }
        self.of(RouteLabel::BatchLine).count(status);
        self.count_accepted(status);
    }

    /// # Panics
    ///
    /// If the route is of a form that the server does not have.
    fn of(&self, route: RouteLabel) -> &RouteMeasures {
        let mut routes = self.routes.iter();
        let found = routes.find(|(label, _)| *label == route);
        &found.expect("each route of the server is registered").1
    }

    fn count_accepted(&self, status: StatusCode) {
        if status == StatusCode::ACCEPTED {
            self.accepted.increment(1);
        }
    }
}

impl RouteMeasures {
    fn new(route: &str) -> Self {
        Self {
            answers: ["2xx", "3xx", "4xx", "5xx"].map(|status| REQUESTS.of([route, status])),
            duration: DURATION.of([route]),
        }
    }

    fn count(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(2);
        self.answers[class.min(3)].increment(1);
    }
}

#[cfg(test)]
mod tests {
    use waybill_drone_delivery::DroneDelivery;

    use super::*;

    #[test]
    fn every_label_is_registered() {
        let forms = Forms::new([&DroneDelivery as _]);
        let measures = Measures::new(&forms);
        let form = forms.of(DroneDelivery::WORKFLOW).unwrap();
        let fixed = RouteLabel::FIXED.map(|(label, _)| label);
        let in_form = [RouteLabel::CreateInForm(form), RouteLabel::GetInForm(form)];
        for label in fixed.into_iter().chain(in_form) {
            measures.of(label);
        }
    }
}
