//! The handlers of the routes that every server has. Each has its part of the API's description:
//! its doc comment is the summary and the description of the operation there.
//!
//! What must hold: a status, a parameter and a refusal is listed where its handler is declared.
//! `openapi` adds what depends on settings and workflows.
//!
//! Deliberately absent: the paths of forms. They differ by workflow, so the description makes them
//! of the operations here.

use waybill_api::form::EXAMPLE_ID;
use waybill_api::request::OperationRequest;
use waybill_api::verb::VerbRequest;
use waybill_api::view::{
    AcceptedView, BatchLine, ListView, OperationView, PAGE_ITEMS_MAX, VerbAcceptedView,
};
use waybill_http::media_type::{EVENT_STREAM, JSON, NDJSON};
use waybill_http::problem::Problem;

use super::reply::{page, whole};
use super::{Api, Call, Reply, not_found};
use crate::docs::Docs;
use crate::docs::examples::{
    WORKFLOW, accepted_example, asked_example, batch_example, events_example, list_example,
    operation_view_example, with,
};
use crate::docs::responses::{
    AskRefusals, BatchRefusals, CreateRefusals, EventsRefusals, GetRefusals, ListRefusals,
    OperationOrIds, PageRefusals, ServerSentEvent,
};
use crate::route::{ASK, BATCH, DOCS, EVENTS_OF_ONE, OPENAPI, OPERATION, OPERATIONS, PROBLEM};

const ACCEPTED: &str = "Accepted: the request is durable.";
const ID: &str = "The operation's id, or the caller's own.";
const AT: &str = "The `at` of the Location.";
const WAIT: &str =
    "How long to wait until the operation has ended or is parked, at most `http.waitMax`.";
const TENANT: &str = "The tenant of the caller's own id.";
const REPEATED: &str = "A repeat: the operation that the first request created, or only its ids \
                        for callers without the scope `read`. With `wait`: the operation once it \
                        has ended or is parked.";

/// Create an operation of any workflow
///
/// The server answers once the request is durable. With an id of your own, repeating the request is
/// safe: the same request returns the same operation, and a different request with that id is
/// refused with 409. Without an id, a 504 response contains the id to repeat the request with.
///
/// With `wait`, which needs the scope `read`, the answer is 200 with the operation once it has
/// ended or is parked. If that takes longer, or too many requests wait, it is 202.
#[utoipa::path(
    post,
    path = OPERATIONS,
    operation_id = "createOperation",
    tag = "Operations",
    params(
        ("Idempotency-Key" = Option<String>, Header, nullable = false, example = "order-17",
            min_length = 1, max_length = 256,
            description = "The caller's own id, if the body has none."),
        ("wait" = Option<String>, Query, description = WAIT, example = "30s"),
    ),
    request_body = OperationRequest,
    responses(
        (status = 202, description = ACCEPTED, body = AcceptedView,
            headers(("Location" = String,
                description = "The relative URL of the operation's state.")),
            example = json!(with(accepted_example(WORKFLOW), "callerId", "order-17"))),
        (status = 200, description = REPEATED, body = inline(OperationOrIds),
            headers(("Location" = String,
                description = "The relative URL of the operation's state.")),
            example = json!(operation_view_example())),
        CreateRefusals,
    ),
)]
pub async fn create_operation(api: &Api, call: Call<'_>) -> Result<Reply, Problem> {
    api.create(None, call).await
}

/// Create many operations in one request
///
/// One request per line. The response has one result per line, in the same order, and begins while
/// the batch is still being sent. Blank lines get no result. `line` is the number of the line, with
/// blank lines counted. An invalid or overlong line does not affect the others. Read the results
/// while you send: the server pauses reading until the client has read them.
#[utoipa::path(
    post,
    path = BATCH,
    operation_id = "createOperations",
    tag = "Operations",
    request_body(content = OperationRequest, content_type = NDJSON),
    responses(
        (status = 200, description = "One result per line.", body = BatchLine,
            content_type = NDJSON, example = json!(batch_example())),
        BatchRefusals,
    ),
)]
pub fn create_operations(api: &Api, call: Call<'_>) -> Result<Reply, Problem> {
    api.start_batch(call)
}

/// Get an operation
///
/// Use the operation's id or the caller's own id. With the `at` of a Location, a request that no
/// scheduler has read yet is `Pending`, never unknown.
///
/// With `wait`, the answer comes once the operation has ended or is parked, or after that time with
/// the state of then. With the `ETag` of an earlier answer in `If-None-Match`, the answer is 304 if
/// nothing has changed.
#[utoipa::path(
    get,
    path = OPERATION,
    operation_id = "getOperation",
    tag = "Operations",
    params(
        ("id" = String, Path, description = ID, example = json!(EXAMPLE_ID)),
        ("at" = Option<String>, Query, description = AT, example = "3-1234-5f2b9c01"),
        ("tenant" = Option<String>, Query, description = TENANT, example = "acme"),
        ("wait" = Option<String>, Query, description = WAIT, example = "30s"),
        ("If-None-Match" = Option<String>, Header, nullable = false,
            description = "The `ETag` of the state that the client has."),
    ),
    responses(
        (status = 200, description = "The current state.", body = OperationView,
            headers(("ETag" = String, description = "The tag of this answer.")),
            example = json!(operation_view_example())),
        (status = 304, description = "The client has the current state.",
            headers(("ETag" = String, description = "The tag of that answer."))),
        GetRefusals,
    ),
)]
pub async fn get_operation(api: &Api, id: &str, call: Call<'_>) -> Result<Reply, Problem> {
    api.show(id, None, call).await
}

/// List operations that need attention
///
/// Lists operations that linger, failed, or are parked. Processed and abandoned operations are
/// omitted unless the parameters request them. For the next page, pass `next` as `cursor` with the
/// other parameters unchanged, until `next` is absent. An operation may be on several pages.
#[utoipa::path(
    get,
    path = OPERATIONS,
    operation_id = "listOperations",
    tag = "Operators",
    params(
        ("state" = Option<String>, Query, example = "Error,CompensationFailed",
            description = "Only these states, separated by commas."),
        ("workflow" = Option<String>, Query, example = json!(WORKFLOW),
            description = "Only this workflow."),
        ("tenant" = Option<String>, Query, example = "acme", description = "Only this tenant."),
        ("step" = Option<String>, Query, example = "payment",
            description = "Only operations that failed at this step, or are at it."),
        ("error" = Option<String>, Query, example = "undo-refused",
            description = "Only this error code or fingerprint."),
        ("olderThan" = Option<String>, Query, example = "10m",
            description = "Only operations that have needed attention for longer than this."),
        ("abandoned" = Option<bool>, Query, example = true,
            description = "true: include abandoned operations."),
        ("order" = Option<String>, Query, example = "oldest",
            description = "oldest (the default) or newest first."),
        ("limit" = Option<String>, Query, example = "100",
            description = format!("The number of items per page, from 1 to {PAGE_ITEMS_MAX}.")),
        ("cursor" = Option<String>, Query, example = "eyJ...",
            description = "The `next` of the previous page."),
    ),
    responses(
        (status = 200, description = "A page of operations.", body = ListView,
            example = json!(list_example())),
        ListRefusals,
    ),
)]
pub async fn list_operations(api: &Api, call: Call<'_>) -> Result<Reply, Problem> {
    api.list(call).await
}

/// Follow an operation
///
/// Server-sent events: `received`, `step`, `state`, and finally `final`, which ends the stream. To
/// resume, pass the id of the last event as `Last-Event-ID`; this also works after a restart. If
/// that event was `final`, the answer is 204. The server sends comments to keep an idle stream
/// alive.
#[utoipa::path(
    get,
    path = EVENTS_OF_ONE,
    operation_id = "followOperation",
    tag = "Operations",
    params(
        ("id" = String, Path, description = ID, example = json!(EXAMPLE_ID)),
        ("at" = Option<String>, Query, description = AT, example = "3-1234-5f2b9c01"),
        ("tenant" = Option<String>, Query, description = TENANT, example = "acme"),
        ("Last-Event-ID" = Option<String>, Header, nullable = false, example = "1.C1R1",
            description = "The id of the last event received."),
    ),
    responses(
        (status = 200, description = "Events as they occur.", body = inline(ServerSentEvent),
            content_type = EVENT_STREAM, example = json!(events_example())),
        EventsRefusals,
    ),
)]
pub async fn follow_operation(api: &Api, id: &str, call: Call<'_>) -> Result<Reply, Problem> {
    api.events(id, call).await
}

/// Apply a verb
///
/// The server answers once the request is durable. The scheduler then checks it against the state
/// of the operation, and records the result in the history.
// The description has an operation for each verb, with its own text, body and refusals.
#[utoipa::path(
    post,
    path = ASK,
    params(
        ("id" = String, Path, description = ID, example = json!(EXAMPLE_ID)),
        ("at" = Option<String>, Query, description = AT, example = "3-1234-5f2b9c01"),
        ("tenant" = Option<String>, Query, description = TENANT, example = "acme"),
        ("Idempotency-Key" = Option<String>, Header, nullable = false, example = "repair-17",
            description = "Makes repeating the request safe: requests with the same key are \
                           applied once. A 504 response contains the key to repeat the request \
                           with."),
        ("Waybill-Operator" = Option<String>, Header, nullable = false, example = "kim",
            description = "The operator's name, for the history."),
    ),
    request_body = inline(VerbRequest),
    responses(
        (status = 202, description = ACCEPTED, body = VerbAcceptedView,
            headers(("Location" = String,
                description = "The relative URL of the operation's state.")),
            example = json!(asked_example("reschedule"))),
        AskRefusals,
    ),
)]
pub async fn ask_operation(api: &Api, part: &str, call: Call<'_>) -> Result<Reply, Problem> {
    api.ask(part, call).await
}

/// The OpenAPI document
#[utoipa::path(
    get,
    path = OPENAPI,
    operation_id = "getOpenApi",
    tag = "About",
    responses((status = 200, description = "The OpenAPI document", body = Object,
        content_type = JSON)),
)]
pub fn get_openapi(api: &Api) -> Reply {
    whole(hyper::StatusCode::OK, JSON, api.docs.openapi())
}

/// The OpenAPI document as an HTML page
#[utoipa::path(
    get,
    path = DOCS,
    operation_id = "getDocs",
    tag = "About",
    responses((status = 200, description = "The OpenAPI document as an HTML page", body = String,
        content_type = "text/html")),
)]
pub fn get_docs() -> Reply {
    page(Docs::page())
}

/// Describe a problem type
#[utoipa::path(
    get,
    path = PROBLEM,
    operation_id = "getProblem",
    tag = "About",
    params(
        ("kind" = String, Path, example = "invalid-values",
            description = "The last segment of a problem's `type`."),
    ),
    responses(
        (status = 200, description = "Describe a problem type", body = String,
            content_type = "text/html"),
        PageRefusals,
    ),
)]
pub fn get_problem(api: &Api, kind: &str) -> Result<Reply, Problem> {
    api.docs.problem(kind).map(page).ok_or_else(not_found)
}
