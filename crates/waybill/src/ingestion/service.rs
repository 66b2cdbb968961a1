//! The API: which request is answered by what.
//!
//! What must hold: every answer that says no is a problem in `application/problem+json`, also for
//! addresses that do not exist and for a panic; no request holds more than its bodies' limit, and
//! all of them together no more than the budget, so that offered load cannot grow memory.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_engine::{OperationId, Timestamp};

use super::batch::{ANSWERS_MAX, Batch, BatchLimits};
use super::body::{Parts, Patience, Payload, read_whole};
use super::config::REQUEST_BYTES;
use super::docs::Docs;
use super::events::Events;
use super::gate::Refusal;
use super::intake::{Answer, Intake};
use super::measure::{Measures, RouteLabel};
use super::problem::{FieldProblem, Kind, Problem};
use super::request::{self, Envelope, Rules, Submission};
use super::status::{self, Query};
use super::token::StatusToken;
use super::view::{AcceptedView, DeliveryView, OperationView};

/// Where deliveries are.
pub const DELIVERIES: &str = "/api/deliveryrequests";
/// Where operations are.
pub const OPERATIONS: &str = "/v1/operations";
/// Where batches are sent to.
pub const BATCH: &str = "/v1/operations:batch";
/// What follows an operation's address where its events are.
pub const EVENTS: &str = "/events";
/// Where the API is described.
pub const OPENAPI: &str = "/openapi.json";
/// Where the description is shown.
pub const DOCS: &str = "/docs";
/// Where kinds of problems are explained.
pub const PROBLEMS: &str = "/problems";

/// The media type of requests and answers.
pub const JSON: &str = "application/json";
/// The media type of batches.
pub const NDJSON: &str = "application/x-ndjson";
const HTML: &str = "text/html; charset=utf-8";

/// Answers requests.
pub struct Api {
    /// Takes requests in.
    pub intake: Arc<Intake>,
    /// Lets operations be followed.
    pub events: Arc<Events>,
    /// What they are checked against.
    pub rules: Arc<Rules>,
    /// What is measured.
    pub measures: Arc<Measures>,
    /// The description of the API.
    pub docs: Docs,
    /// The largest body of a single request.
    pub request_bytes_max: usize,
    /// How long a client may take over a body.
    pub patience: Patience,
    /// What a batch may use.
    pub batch: BatchLimits,
    /// Bytes of bodies that may be held at once.
    pub budget: Arc<Semaphore>,
    /// Batches and streams of events under way.
    pub batches: TaskTracker,
    /// Ends them early.
    pub stop: CancellationToken,
}

/// An answer.
pub type Reply = Response<Payload>;

/// What a path means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route<'a> {
    Deliveries,
    Delivery(&'a str),
    Operations,
    Operation(&'a str),
    Events(&'a str),
    Batch,
    OpenApi,
    Docs,
    Problem(&'a str),
    Home,
    Nothing,
}

impl Route<'_> {
    fn of(path: &str) -> Route<'_> {
        let below = |base: &str| {
            path.strip_prefix(base)
                .and_then(|rest| rest.strip_prefix('/'))
                .filter(|id| !id.is_empty() && !id.contains('/'))
        };
        match path {
            DELIVERIES => Route::Deliveries,
            OPERATIONS => Route::Operations,
            BATCH => Route::Batch,
            OPENAPI => Route::OpenApi,
            DOCS => Route::Docs,
            "/" => Route::Home,
            _ => None
                .or_else(|| below(DELIVERIES).map(Route::Delivery))
                .or_else(|| below(OPERATIONS).map(Route::Operation))
                .or_else(|| events_of(path).map(Route::Events))
                .or_else(|| below(PROBLEMS).map(Route::Problem))
                .unwrap_or(Route::Nothing),
        }
    }

    fn label(self, method: &Method) -> RouteLabel {
        let is_get = method == Method::GET || method == Method::HEAD;
        match self {
            Self::Deliveries => RouteLabel::CreateDelivery,
            Self::Operations if is_get => RouteLabel::ListOperations,
            Self::Operations => RouteLabel::CreateOperation,
            Self::Delivery(_) | Self::Operation(_) if !is_get => RouteLabel::Ask,
            Self::Delivery(_) => RouteLabel::GetDelivery,
            Self::Operation(_) => RouteLabel::GetOperation,
            Self::Events(_) => RouteLabel::Events,
            Self::Batch => RouteLabel::Batch,
            Self::OpenApi | Self::Docs | Self::Problem(_) | Self::Home => RouteLabel::Docs,
            Self::Nothing => RouteLabel::Other,
        }
    }
}

/// The operation, as it is in the path, whose events the path stands for.
fn events_of(path: &str) -> Option<&str> {
    let id = path.strip_prefix(OPERATIONS)?.strip_prefix('/')?;
    let id = id.strip_suffix(EVENTS)?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

impl Api {
    /// Answers one request.
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let began = Instant::now();
        if request.method().as_str() == Refusal::METHOD {
            let reply = problem(&refused(Refusal::of_path(request.uri().path())));
            self.measures
                .answered(RouteLabel::Other, reply.status(), began);
            return reply;
        }
        let label = Route::of(request.uri().path()).label(request.method());
        let answered = AssertUnwindSafe(self.dispatch(request))
            .catch_unwind()
            .await;
        let reply = match answered {
            Ok(Ok(reply)) => reply,
            Ok(Err(refusal)) => problem(&refusal),
            Err(_) => {
                tracing::error!("answering a request panicked");
                let detail = "Answering this request failed; whether it was accepted is not known.";
                problem(&Problem::new(Kind::Internal, detail))
            }
        };
        self.measures.answered(label, reply.status(), began);
        reply
    }

    async fn dispatch(&self, request: Request<Incoming>) -> Result<Reply, Problem> {
        let (head, body) = request.into_parts();
        let route = Route::of(head.uri.path());
        let is_get = head.method == Method::GET || head.method == Method::HEAD;
        let is_post = head.method == Method::POST;
        let query = head.uri.query();
        match route {
            Route::Deliveries if is_post => self.create(&head.headers, body, Form::Delivery).await,
            Route::Operations if is_post => self.create(&head.headers, body, Form::General).await,
            Route::Batch if is_post => self.start_batch(&head.headers, body),
            Route::Delivery(id) if is_get => self.show(id, query, Form::Delivery).await,
            Route::Delivery(id) if head.method == Method::DELETE => {
                self.cancel_delivery(id, query, &head.headers).await
            }
            Route::Delivery(id) if head.method == Method::PATCH => {
                self.reschedule_delivery(id, query, &head.headers, body)
                    .await
            }
            Route::Operations if is_get => self.list(query).await,
            Route::Operation(id) if is_get => self.show(id, query, Form::General).await,
            Route::Operation(part) if is_post => self.ask(part, query, &head.headers, body).await,
            Route::Events(id) if head.method == Method::GET => {
                self.events(id, query, &head.headers).await
            }
            Route::OpenApi if is_get => Ok(whole(StatusCode::OK, JSON, self.docs.openapi())),
            Route::Docs if is_get => Ok(page(self.docs.page())),
            Route::Problem(name) if is_get => {
                self.docs.problem(name).map(page).ok_or_else(not_found)
            }
            Route::Home if is_get => Ok(redirect(DOCS)),
            Route::Nothing => Err(not_found()),
            Route::Deliveries | Route::Batch => Err(Problem::method_not_allowed("POST")),
            Route::Operations => Err(Problem::method_not_allowed("GET, HEAD, POST")),
            Route::Delivery(_) => Err(Problem::method_not_allowed("GET, HEAD, DELETE, PATCH")),
            Route::Events(_) => Err(Problem::method_not_allowed("GET")),
            Route::Operation(_)
            | Route::OpenApi
            | Route::Docs
            | Route::Problem(_)
            | Route::Home => Err(Problem::method_not_allowed("GET, HEAD")),
        }
    }

    async fn create(
        &self,
        headers: &HeaderMap,
        body: Incoming,
        form: Form,
    ) -> Result<Reply, Problem> {
        check_media_type(headers, JSON)?;
        let envelope = Envelope::of(headers)?;
        let announced = body
            .size_hint()
            .exact()
            .map_or(self.request_bytes_max, |exact| {
                usize::try_from(exact)
                    .unwrap_or(usize::MAX)
                    .min(self.request_bytes_max)
            });
        let _held = self.hold(announced)?;
        let body = read_whole(body, self.request_bytes_max, self.patience).await?;
        let submission = match form {
            Form::Delivery => request::delivery(&body, &envelope, &self.rules, now()),
            Form::General => request::operation(&body, &envelope, &self.rules, now()),
        }?;
        drop(body);
        match self.intake.submit(&submission).await? {
            Answer::Accepted(id, accepted) => Ok(created(
                form,
                &submission,
                &location(form.base(), id, accepted.token()),
            )),
            Answer::Repeated(row) => {
                let operation = OperationView::of_row(&row, &self.rules.workflows);
                let mut reply = match form {
                    Form::General => json(StatusCode::OK, &operation),
                    Form::Delivery => {
                        let request = status::request_of(&row);
                        json(StatusCode::OK, &DeliveryView { operation, request })
                    }
                };
                set(
                    &mut reply,
                    header::LOCATION,
                    location(form.base(), row.id, None),
                );
                Ok(reply)
            }
        }
    }

    async fn show(&self, id: &str, query: Option<&str>, form: Form) -> Result<Reply, Problem> {
        let id = decoded(id).ok_or_else(not_found)?;
        let parameters = Parameters::read(query)?;
        let query = Query {
            id: &id,
            tenant: &parameters.tenant,
            token: parameters.token,
            wants_request: form == Form::Delivery,
        };
        let found = status::find(&self.intake, query).await?;
        let workflows = &self.rules.workflows;
        let mut reply = match form {
            Form::Delivery => json(StatusCode::OK, &found.delivery(workflows)?),
            Form::General => json(StatusCode::OK, &found.operation(workflows)),
        };
        set_static(&mut reply, header::CACHE_CONTROL, "no-store");
        Ok(reply)
    }

    fn start_batch(&self, headers: &HeaderMap, body: Incoming) -> Result<Reply, Problem> {
        check_media_type(headers, NDJSON)?;
        let envelope = Envelope::of(headers)?;
        if envelope.has_key() {
            let detail = "Idempotency-Key belongs to one request: give each line its id";
            return Err(Problem::invalid(vec![FieldProblem::new("", detail)]));
        }
        let bytes = self.batch.bytes_max();
        let held = self.hold(bytes)?;
        let permits = held.num_permits();
        held.forget();
        let budget = Arc::clone(&self.budget);
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let batch = Batch::new(
            Parts::new(body, self.patience.pause_max),
            self.batch,
            envelope,
            Arc::clone(&self.intake),
            Arc::clone(&self.rules),
            Arc::clone(&self.measures),
            self.stop.clone(),
            answers,
        );
        self.batches.spawn(async move {
            // Given back also if the batch panics, when its stream simply ends.
            let _held = Held { budget, permits };
            batch.run().await;
        });
        let mut reply = Response::new(Payload::Stream(stream));
        set_static(&mut reply, header::CONTENT_TYPE, NDJSON);
        Ok(reply)
    }

    /// Takes a body's share of the budget.
    pub fn hold(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Problem> {
        u32::try_from(bytes + REQUEST_BYTES)
            .ok()
            .and_then(|permits| self.budget.try_acquire_many(permits).ok())
            .ok_or_else(|| {
                Problem::new(
                    Kind::Overloaded,
                    "Too many requests are being received at once.",
                )
            })
    }
}

/// A share of the budget that outlives its request.
struct Held {
    budget: Arc<Semaphore>,
    permits: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.add_permits(self.permits);
    }
}

/// In which form a request came, and is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As a delivery.
    Delivery,
    /// As an operation of any workflow.
    General,
}

impl Form {
    /// Where such operations are.
    pub const fn base(self) -> &'static str {
        match self {
            Self::Delivery => DELIVERIES,
            Self::General => OPERATIONS,
        }
    }
}

/// What a status query says beside the id.
#[derive(Debug, Default)]
pub struct Parameters {
    /// The tenant whose id it is; empty for the only one.
    pub tenant: String,
    /// The `at` of a `Location`.
    pub token: Option<StatusToken>,
}

impl Parameters {
    /// Reads a query; what it says of anything else is ignored.
    pub fn read(query: Option<&str>) -> Result<Self, Problem> {
        let mut parameters = Self::default();
        for (name, value) in query
            .unwrap_or_default()
            .split('&')
            .filter_map(|p| p.split_once('='))
        {
            let wrong = |detail: String| Problem::invalid(vec![FieldProblem::new("", detail)]);
            match name {
                "at" => {
                    let token = value
                        .parse()
                        .map_err(|error| wrong(format!("at {error}")))?;
                    parameters.token = Some(token);
                }
                "tenant" => {
                    let value = value.replace('+', " ");
                    parameters.tenant =
                        decoded(&value).ok_or_else(|| wrong("tenant must be UTF-8".to_owned()))?;
                }
                _ => {}
            }
        }
        Ok(parameters)
    }
}

/// The time now.
pub fn now() -> Timestamp {
    Timestamp(jiff::Timestamp::now().as_microsecond())
}

/// Where to ask for an operation's status.
pub fn location(base: &str, id: OperationId, token: Option<StatusToken>) -> String {
    match token {
        Some(token) => format!("{base}/{id}?at={token}"),
        None => format!("{base}/{id}"),
    }
}

/// The value of a query's parameter, if it stands there.
pub fn query_value(query: Option<&str>, name: &str) -> Result<Option<String>, Problem> {
    let mut pairs = query.unwrap_or_default().split('&');
    let value = pairs.find_map(|pair| {
        let (found, value) = pair.split_once('=')?;
        (found == name).then(|| decoded(&value.replace('+', " ")))
    });
    let wrong = || {
        let detail = format!("{name} must be UTF-8");
        Problem::invalid(vec![FieldProblem::new("", detail)])
    };
    value.map(|value| value.ok_or_else(wrong)).transpose()
}

/// Text of a path or a query without its percent encoding; `None` if it is not UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

/// Refuses a body of another media type, or one that is encoded further.
pub fn check_media_type(headers: &HeaderMap, expected: &'static str) -> Result<(), Problem> {
    let refuse = || {
        let detail = format!("The body must be {expected}, in UTF-8 and not encoded further.");
        Err(Problem::new(Kind::UnsupportedMediaType, detail))
    };
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(given), None) = (types.next(), types.next()) else {
        return refuse();
    };
    let Ok(given) = given.to_str() else {
        return refuse();
    };
    let mut parts = given.split(';').map(str::trim);
    if !parts
        .next()
        .is_some_and(|name| name.eq_ignore_ascii_case(expected))
    {
        return refuse();
    }
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !parts.all(is_utf8)
        || !headers
            .get_all(header::CONTENT_ENCODING)
            .iter()
            .all(is_plain)
    {
        return refuse();
    }
    Ok(())
}

fn refused(refusal: Refusal) -> Problem {
    let kind = match refusal {
        Refusal::TwoFramings | Refusal::BadContentLength | Refusal::BadTransferEncoding => {
            Kind::AmbiguousLength
        }
        Refusal::TooLarge => Kind::HeadTooLarge,
        Refusal::HeadTimeout => Kind::RequestTimeout,
        Refusal::Malformed | Refusal::BareLineFeed | Refusal::BadHost => Kind::MalformedRequest,
    };
    Problem::new(kind, refusal.detail())
}

/// There is nothing at this address.
pub fn not_found() -> Problem {
    Problem::new(Kind::NotFound, "See /openapi.json for what there is.")
}

fn created(form: Form, submission: &Submission, location: &str) -> Reply {
    let record = &submission.record;
    // A delivery's request shows the caller's id as `deliveryId`.
    let (request, caller_id) = match form {
        Form::Delivery => (status::raw(&record.input), None),
        Form::General => (None, record.caller_id.as_deref()),
    };
    let view = AcceptedView {
        id: record.operation,
        state: "Pending",
        workflow: &record.workflow,
        caller_id,
        request: request.as_deref(),
    };
    let mut reply = json(StatusCode::ACCEPTED, &view);
    set(&mut reply, header::LOCATION, location);
    reply
}

fn problem(problem: &Problem) -> Reply {
    problem.to_response().map(|body| Payload::Whole(Some(body)))
}

/// An answer in JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("views have string keys and finite numbers");
    whole(status, JSON, body.into())
}

fn page(html: Bytes) -> Reply {
    let mut reply = whole(StatusCode::OK, HTML, html);
    set_static(
        &mut reply,
        header::CONTENT_SECURITY_POLICY,
        Docs::CONTENT_SECURITY_POLICY,
    );
    set_static(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    reply
}

fn redirect(to: &'static str) -> Reply {
    let mut reply = Response::new(Payload::Whole(None));
    *reply.status_mut() = StatusCode::FOUND;
    set_static(&mut reply, header::LOCATION, to);
    reply
}

fn whole(status: StatusCode, media_type: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Payload::Whole(Some(body)));
    *reply.status_mut() = status;
    set_static(&mut reply, header::CONTENT_TYPE, media_type);
    reply
}

/// Sets a header.
pub fn set(reply: &mut Reply, name: header::HeaderName, value: impl AsRef<str>) {
    let value = HeaderValue::from_str(value.as_ref()).expect("ids, numbers and dashes are visible");
    reply.headers_mut().insert(name, value);
}

/// Sets a header.
pub fn set_static(reply: &mut Reply, name: header::HeaderName, value: &'static str) {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let cases = [
            ("/api/deliveryrequests", Route::Deliveries),
            ("/api/deliveryrequests/a%2Fb", Route::Delivery("a%2Fb")),
            ("/api/deliveryrequests/", Route::Nothing),
            ("/api/deliveryrequests/a/b", Route::Nothing),
            ("/v1/operations", Route::Operations),
            ("/v1/operations:batch", Route::Batch),
            ("/v1/operations/x", Route::Operation("x")),
            ("/v1/operations/x:cancel", Route::Operation("x:cancel")),
            ("/v1/operations/x/events", Route::Events("x")),
            ("/v1/operations//events", Route::Nothing),
            ("/v1/operations/x/y/events", Route::Nothing),
            ("/v1/operationsx", Route::Nothing),
            ("/problems/not-found", Route::Problem("not-found")),
            ("/", Route::Home),
            ("*", Route::Nothing),
        ];
        for (path, route) in cases {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn only_json_in_utf_8_is_taken() {
        let check = |types: &[&'static str], encoding: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            for given in types {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_static(given));
            }
            if let Some(encoding) = encoding {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
            check_media_type(&headers, JSON).is_ok()
        };
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
        ] {
            assert!(check(&[good], None), "{good}");
        }
        assert!(check(&["application/json"], Some("identity")));
        for bad in [
            "",
            "text/plain",
            "application/jsonp",
            "application/json; charset=latin1",
        ] {
            assert!(!check(&[bad], None), "{bad}");
        }
        assert!(!check(&[], None));
        assert!(!check(&["application/json", "application/json"], None));
        assert!(!check(&["application/json"], Some("gzip")));
    }

    #[test]
    fn a_query_gives_tenant_and_token() {
        let parameters = Parameters::read(Some("x&tenant=a%20b+c&at=1-2-0a0b0c0d")).unwrap();
        assert_eq!(parameters.tenant, "a b c");
        assert_eq!(parameters.token.unwrap().to_string(), "1-2-0a0b0c0d");
        assert_eq!(
            Parameters::read(Some("at=x")).unwrap_err().kind,
            Kind::InvalidValues
        );
        assert_eq!(
            Parameters::read(Some("tenant=%ff")).unwrap_err().kind,
            Kind::InvalidValues
        );
        assert!(Parameters::read(None).unwrap().token.is_none());
    }
}
