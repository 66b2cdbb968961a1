//! The API: finds and runs the handler of each request.
//!
//! What must hold: every error answer is a problem in `application/problem+json`, also for unknown
//! addresses and after a panic. No request holds more than its body limit, and all of them together
//! no more than the budget, so that offered load cannot grow memory. No request is read before its
//! caller is known to be allowed to send it.

mod etag;
mod events;
pub mod handlers;
mod ops;
mod query;
mod reply;
mod wait;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{FutureExt as _, poll};
use hyper::body::Body;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_api::form::{Form, Forms};
use waybill_api::request::{self, Envelope, IDEMPOTENCY_KEY, Rules, Submission};
use waybill_api::verb::Verb;
use waybill_api::view::AcceptedView;
use waybill_clock::wall_clock;
use waybill_http::auth::{Auth, Caller, Scope};
use waybill_http::media_type::{JSON, NDJSON, check_media_type};
use waybill_http::payload::{Parts, Patience, Payload, read_whole};
use waybill_http::problem::{FieldProblem, Kind, Problem};
use waybill_http::{ArrivingBody, Cors, Hosts, Refusal, RequestBody, RequestId, Service};

use self::etag::tagged;
use self::reply::{problem, redirect};
use self::wait::{Awaited, check_may_read};
use super::batch::{ANSWERS_MAX, Batch, BatchLimits};
use super::docs::Docs;
use super::intake::{Answer, Intake};
use super::measure::{Measures, RouteLabel};
use super::route::{DOCS, Route, base, location};
use super::settings::REQUEST_BYTES;
use super::spans;
use super::status::{self, Query};
use super::tenant_semaphore::{MeasuredBody, Permit, RevocablePermit, TenantSemaphore};
use super::token::StatusToken;

pub use self::events::Events;
pub use self::ops::{ListAdmission, OPERATOR};
pub use self::query::{
    OF_CANCEL, OF_GET, OF_LIST, OF_ONE, Parameters, QueryErrors, decoded, pairs, refuse_parameters,
    wait_of_new_request,
};
pub use self::reply::{Reply, json, not_found, set, set_static};

/// Answers requests.
pub struct Api {
    /// Authenticates callers.
    pub auth: Auth,
    /// The hosts that the listener answers for.
    pub hosts: Hosts,
    /// The web pages of other origins that may use the API.
    pub cors: Cors,
    /// Accepts requests.
    pub intake: Arc<Intake>,
    /// Streams the events of operations.
    pub events: Arc<Events>,
    /// Bounds the cost of lists.
    pub lists: ListAdmission,
    /// The rules for requests.
    pub rules: Arc<Rules>,
    /// The forms of the configured workflows. Each has its own routes.
    pub forms: Forms,
    /// The metrics.
    pub measures: Arc<Measures>,
    /// The description of the API.
    pub docs: Docs,
    /// The largest body of a single request.
    pub request_bytes_max: usize,
    /// How long a client may take to send a body.
    pub patience: Patience,
    /// The limits of a batch.
    pub batch: BatchLimits,
    /// The longest wait of a request for a result.
    pub wait_max: Duration,
    /// The memory for request bodies, in bytes.
    pub budget: TenantSemaphore,
    /// Batches and event streams in progress.
    pub batches: TaskTracker,
    /// Ends them early.
    pub stop: CancellationToken,
}

/// A request of a caller who has the scope for it.
pub struct Call<'a> {
    query: Option<&'a str>,
    headers: &'a HeaderMap,
    body: RequestBody,
    caller: &'a Caller,
}

impl Service for Api {
    type Body = Payload;
    type Unanswered = Infallible;

    async fn answer(
        self: Arc<Self>,
        mut request: Request<ArrivingBody>,
    ) -> Result<Reply, Infallible> {
        let began = Instant::now();
        if request.method().as_str() == Refusal::METHOD {
            let reply = problem(&Refusal::of_path(request.uri().path()).into());
            self.measures
                .answered(RouteLabel::Other, reply.status(), began);
            return Ok(reply);
        }
        let route = Route::of(request.uri().path(), &self.forms);
        let label = route.label(request.method(), request.uri().query());
        let page = self.cors.permitted(request.headers());
        let span = spans::pattern(route).and_then(|it| spans::of_request(&mut request, it));
        let answered = AssertUnwindSafe(self.dispatch(RequestBody::of(request)))
            .catch_unwind()
            .await;
        let mut reply = match answered {
            Ok(Ok(reply)) => reply,
            Ok(Err(refusal)) => {
                self.measures.denied(&refusal);
                problem(&refusal)
            }
            Err(_) => {
                tracing::error!("answering a request panicked");
                let detail = "The server failed while answering this request. The request may \
                              have been accepted.";
                problem(&Problem::new(Kind::Internal, detail))
            }
        };
        self.cors.mark(page, reply.headers_mut());
        self.measures.answered(label, reply.status(), began);
        if let Some(span) = span {
            spans::answered(span, reply.status());
        }
        Ok(reply)
    }
}

impl Api {
    async fn dispatch(&self, request: Request<RequestBody>) -> Result<Reply, Problem> {
        let (head, body) = request.into_parts();
        let route = Route::of(head.uri.path(), &self.forms);
        self.hosts.check(&head.method, &head.uri, &head.headers)?;
        if self.cors.is_preflight(&head.method, &head.headers) {
            return Ok(self::reply::preflight());
        }
        let is_get = head.method == Method::GET || head.method == Method::HEAD;
        let is_post = head.method == Method::POST;
        let caller = &match route.scope(&head.method) {
            Some(scope) => self.auth.admit(&head.headers, scope)?,
            None => Caller::ANYBODY,
        };
        let call = Call {
            query: head.uri.query(),
            headers: &head.headers,
            body,
            caller,
        };
        match route {
            Route::Requests(form) if is_post => self.create(Some(form), call).await,
            Route::Operations if is_post => handlers::create_operation(self, call).await,
            Route::Batch if is_post => handlers::create_operations(self, call),
            Route::Request(form, id) if is_get => self.show(id, Some(form), call).await,
            Route::Request(form, id) if head.method == Method::DELETE => {
                self.cancel_in_form(form, id, call).await
            }
            Route::Request(form, id) if head.method == Method::PATCH => {
                self.reschedule(form, id, call).await
            }
            Route::Operations if is_get => handlers::list_operations(self, call).await,
            Route::Operation(id) if is_get => handlers::get_operation(self, id, call).await,
            Route::Operation(part) if is_post => handlers::ask_operation(self, part, call).await,
            Route::Events(id) if head.method == Method::GET => {
                handlers::follow_operation(self, id, call).await
            }
            Route::OpenApi if is_get => Ok(handlers::get_openapi(self)),
            Route::Docs if is_get => Ok(handlers::get_docs()),
            Route::DocsFile(name) if is_get => {
                let file = Docs::file(name).ok_or_else(not_found)?;
                Ok(self::reply::file(&file, &head.headers))
            }
            Route::Problem(kind) if is_get => handlers::get_problem(self, kind),
            Route::Home if is_get => Ok(redirect(DOCS)),
            Route::Nothing => Err(not_found()),
            Route::Requests(_) | Route::Batch => Err(Problem::method_not_allowed("POST")),
            Route::Operations => Err(Problem::method_not_allowed("GET, HEAD, POST")),
            Route::Request(..) => Err(Problem::method_not_allowed("GET, HEAD, DELETE, PATCH")),
            Route::Events(_) => Err(Problem::method_not_allowed("GET")),
            Route::Operation(part) if Verb::of_part(part).is_some() => {
                Err(Problem::method_not_allowed("POST"))
            }
            Route::Operation(_)
            | Route::OpenApi
            | Route::Docs
            | Route::DocsFile(_)
            | Route::Problem(_)
            | Route::Home => Err(Problem::method_not_allowed("GET, HEAD")),
        }
    }

    async fn create(&self, form: Option<Form>, call: Call<'_>) -> Result<Reply, Problem> {
        let Call {
            query,
            headers,
            body,
            caller,
        } = call;
        let wait = wait_of_new_request(query, caller)?;
        if wait.is_some() {
            check_may_read(caller)?;
        }
        check_media_type(headers, JSON)?;
        let envelope = Envelope::of(headers).from(caller);
        let announced = body
            .size_hint()
            .exact()
            .map_or(self.request_bytes_max, |exact| {
                usize::try_from(exact)
                    .unwrap_or(usize::MAX)
                    .min(self.request_bytes_max)
            });
        let (held, body) = self
            .receive(body, self.request_bytes_max, caller, announced)
            .await?;
        let submission = match form {
            Some(form) => request::in_form(form, &body, &envelope, &self.rules, wall_clock()),
            None => request::operation(&body, &envelope, &self.rules, wall_clock()),
        }?;
        drop(body);
        self.rules.tenant_limits.take(&submission.record.tenant)?;
        let answer = self.intake.submit(&submission).await?;
        drop(held);
        let awaited = |id, wait| Awaited {
            id,
            submission: &submission,
            form,
            wait,
        };
        match answer {
            Answer::Accepted(id, accepted) => {
                let token = StatusToken::of_accepted(&accepted);
                let reply = created(form, &submission, &location(base(form), id, token));
                let Some(wait) = wait else {
                    return Ok(reply);
                };
                self.measures.accepted();
                self.result_or(reply, awaited(id, wait), caller).await
            }
            Answer::Repeated(row) => match wait {
                None => Ok(self.as_it_is(&row, form, caller)),
                Some(wait) => {
                    let awaited = awaited(row.id, wait);
                    self.result_of_repeat(&row, awaited, caller).await
                }
            },
        }
    }

    async fn show(&self, id: &str, form: Option<Form>, call: Call<'_>) -> Result<Reply, Problem> {
        let id = decoded(id).ok_or_else(not_found)?;
        let parameters = Parameters::read(call.query, call.caller, &OF_GET)?;
        let query = Query {
            id: &id,
            tenant: &parameters.tenant,
            tenants: &parameters.tenants,
            token: parameters.token,
            wants_request: form.is_some(),
        };
        let mut found = status::find(&self.intake, query).await?;
        if let Some(wait) = parameters.wait
            && let Some(id) = found.changing()
        {
            self.wait_for(id, wait, call.caller).await?;
            found = status::find(&self.intake, query).await?;
        }
        let workflows = &self.rules.workflows;
        let has_payload = call.caller.may(Scope::Payload);
        let mut reply = match form {
            Some(form) => json(
                StatusCode::OK,
                &found.in_form(form, workflows, has_payload)?,
            ),
            None => json(StatusCode::OK, &found.operation(workflows, has_payload)),
        };
        set_static(&mut reply, header::CACHE_CONTROL, "no-store");
        Ok(tagged(reply, call.headers))
    }

    fn start_batch(&self, call: Call<'_>) -> Result<Reply, Problem> {
        let Call {
            query,
            headers,
            body,
            caller,
        } = call;
        refuse_parameters(query, caller)?;
        check_media_type(headers, NDJSON)?;
        let envelope = Envelope::of(headers).checked()?.from(caller);
        if envelope.has_key() {
            let detail = "applies to a single request: give each line its own id";
            let wrong = FieldProblem::of_header(IDEMPOTENCY_KEY, detail);
            return Err(Problem::invalid(vec![wrong]));
        }
        let bytes = self.batch.bytes_max();
        // Batches leave an eighth to single requests.
        let spare = self.budget.max() / 8;
        let permit = self
            .budget
            .acquire_revocable(caller.tenants(), bytes + REQUEST_BYTES, spare);
        let permit = permit.ok_or_else(too_much_is_received)?;
        let body = permit.measure(body);
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let batch = Batch::new(
            Parts::new(body, self.patience.pause_max),
            self.batch,
            envelope,
            Arc::clone(&self.intake),
            Arc::clone(&self.rules),
            Arc::clone(&self.measures),
            self.stop.clone(),
            permit,
            answers,
        );
        // A panic also releases the permit, and then the stream just ends.
        let id = RequestId::current();
        self.batches
            .spawn(RequestId::scope_current(id, batch.run()));
        let mut reply = Response::new(Payload::Stream(stream));
        set_static(&mut reply, header::CONTENT_TYPE, NDJSON);
        Ok(reply)
    }

    /// Reads a whole body of at most `bytes_max` bytes, with a permit of the budget for `announced`
    /// bytes. Fails if the client sends slowly and other requests need the memory.
    pub async fn receive(
        &self,
        body: RequestBody,
        bytes_max: usize,
        caller: &Caller,
        announced: usize,
    ) -> Result<(Held, Bytes), Problem> {
        let permit = self
            .budget
            .acquire(caller.tenants(), announced + REQUEST_BYTES);
        let permit = permit.ok_or_else(too_much_is_received)?;
        let body = MeasuredBody::new(body);
        let arrivals = body.arrivals();
        let mut reading = pin!(read_whole(body, bytes_max, self.patience));
        // Nearly every body has arrived already.
        if let Poll::Ready(read) = poll!(&mut reading) {
            return Ok((Held::Fixed { _permit: permit }, read?));
        }
        let permit = self.budget.make_revocable(permit, arrivals);
        tokio::select! {
            read = reading => Ok((Held::Revocable { _permit: permit }, read?)),
            () = permit.revoked() => {
                let detail = "Other requests need the memory that this body uses, and it arrives slowly.";
                Err(Problem::new(Kind::Overloaded, detail))
            }
        }
    }
}

/// The part of the budget that a body holds until this is dropped.
#[derive(Debug)]
pub enum Held {
    Fixed { _permit: Permit },
    Revocable { _permit: RevocablePermit },
}

fn too_much_is_received() -> Problem {
    let detail = "Too many requests are being received.";
    Problem::new(Kind::Overloaded, detail)
}

/// The answer to a request in `form`; `None` is the general form.
fn created(form: Option<Form>, submission: &Submission, location: &str) -> Reply {
    let record = &submission.record;
    // A request in a form of its own shows the caller's id itself.
    let (request, caller_id) = match form {
        Some(_) => (status::raw(&record.input), None),
        None => (None, record.caller_id.as_deref()),
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
