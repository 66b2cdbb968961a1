//! The part of the document about existing operations.

use serde_json::{Value, json};
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathsBuilder,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{AdditionalProperties, Type};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, RefOr, Required, Response, ResponseBuilder, Schema,
};
use waybill_api::form::EXAMPLE_ID;
use waybill_api::verb::Verb;
use waybill_api::view::{EventView, ListView, OperationView, PAGE_ITEMS_MAX, VerbAcceptedView};
use waybill_http::media_type::{EVENT_STREAM, JSON};
use waybill_http::problem::Kind;

use super::examples::{WORKFLOW, operation_view_example, with};
use super::{
    add_schema, at, content, found, in_path, in_query, location_header, null_is_absent, only, post,
    reference, refusing, repeated, tenant, text,
};
use crate::route::{EVENTS, OPERATIONS};

/// The tag of the operators' verbs.
pub const OPERATORS: &str = "Operators";

/// The description of the tag.
pub const OPERATORS_ABOUT: &str = "Inspection and repair by an operator. Without \
                                   authentication, make sure that only operators can reach this \
                                   port.";

const REQUEST_ID: &str = "5f0e9c1a-7d4e-5b52-9a3c-2f1f6f2d9b10";
const NEW_ID: &str = "3c1d2e8f-0f65-5a41-8b7e-6a5d4c3b2a19";

/// The refusals of a verb.
pub(super) const ASK_REFUSALS: [Kind; 9] = [
    Kind::MalformedJson,
    Kind::UnknownOrExpired,
    Kind::RequestTimeout,
    Kind::BodyTooLarge,
    Kind::UnsupportedMediaType,
    Kind::InvalidValues,
    Kind::RowUnreadable,
    Kind::BrokerUnavailable,
    Kind::OutcomeUnknown,
];

/// Adds the schemas of the answers.
pub fn add_schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    add_schema::<VerbAcceptedView>(schemas);
    add_schema::<ListView>(schemas);
    add_schema::<EventView<'_>>(schemas);
}

/// Adds the paths.
pub fn add_paths(paths: PathsBuilder) -> PathsBuilder {
    let paths = paths.path(OPERATIONS, only(HttpMethod::Get, list())).path(
        format!("{OPERATIONS}/{{id}}{EVENTS}"),
        only(HttpMethod::Get, events()),
    );
    Verb::with_path().fold(paths, |paths, verb| {
        let path = format!("{OPERATIONS}/{{id}}:{}", verb.in_path());
        paths.path(path, only(HttpMethod::Post, asking(verb)))
    })
}

fn asking(verb: Verb) -> OperationBuilder {
    let (id, summary, about) = match verb {
        Verb::Cancel => (
            "cancelOperation",
            "Cancel an operation",
            "Undoes completed steps; the operation ends Cancelled. Refused in CompensationFailed: \
             use retry-compensation, undone or abandon.",
        ),
        Verb::Resubmit | Verb::ResubmitAsNew => (
            "resubmitOperation",
            "Resubmit an operation",
            "Continues at the failed step, without a deadline, if no step was undone. With \
             `asNew`, runs an operation that was undone or abandoned again as a new, linked \
             operation. This works once: a later request is refused with 409 \
             `resubmitted-before`, whose `id` is the new operation.",
        ),
        Verb::Compensate => (
            "compensateOperation",
            "Undo an operation",
            "Undoes completed steps, and gives up running attempts.",
        ),
        Verb::Abandon => (
            "abandonOperation",
            "Abandon an operation",
            "Ends a parked operation. Its remaining effects stay.",
        ),
        Verb::RetryCompensation => (
            "retryCompensation",
            "Retry a failed compensation",
            "For an operation in CompensationFailed.",
        ),
        Verb::Undone => (
            "recordUndone",
            "Record that an operator undid a step",
            "For a step that is being undone, or could not be undone. If the step is already \
             undone, the operation is returned unchanged.",
        ),
    };
    let tag = match verb {
        Verb::Cancel => "Operations",
        _ => OPERATORS,
    };
    let described = format!(
        "{about} The server answers once the request is durable. The scheduler then checks it \
         against the state of the operation, and records the result in the history."
    );
    let operation = of_one(id, summary, tag)
        .parameter(repeat_key())
        .description(Some(described))
        .request_body(Some(body(verb)));
    let operation = match verb {
        Verb::Cancel => operation.response(
            "200",
            repeated(
                reference::<OperationView>(),
                cancelled(operation_view_example()),
            ),
        ),
        Verb::Undone => operation.parameter(operator()).response(
            "200",
            found(reference::<OperationView>(), operation_view_example()),
        ),
        _ => operation.parameter(operator()),
    };
    let of_its_own: &[Kind] = match verb {
        Verb::Cancel => &[Kind::OperationFinal, Kind::TooManyRequests],
        _ => &[Kind::VerbRefused],
    };
    let operation = operation.response("202", asked(verb.in_path()));
    refusing(refusing(operation, of_its_own), &ASK_REFUSALS)
}

fn list() -> OperationBuilder {
    let item = json!({
        "id": EXAMPLE_ID,
        "state": "CompensationFailed",
        "workflow": WORKFLOW,
        "callerId": "order-17",
        "step": "payment",
        "error": {"code": "undo-refused", "message": "the service answered 409"},
        "fingerprint": "3f9a0c52d1e8",
        "since": "2030-05-08T20:00:00.234567Z",
        "ageSeconds": 93,
    });
    let page = ResponseBuilder::new()
        .description("A page of operations.")
        .content(
            JSON,
            content(
                reference::<ListView>(),
                json!({"items": [item], "next": "eyJ..."}),
            ),
        )
        .build();
    let operation = post(
        "listOperations",
        "List operations that need attention",
        OPERATORS,
    )
    .description(Some(
        "Lists operations that linger, failed, or are parked. Processed and abandoned \
             operations are omitted unless the parameters request them. For the next page, pass \
             `next` as `cursor` with the other parameters unchanged, until `next` is absent. An \
             operation may be on several pages.",
    ))
    .response("200", page);
    let limit = format!("The number of items per page, from 1 to {PAGE_ITEMS_MAX}.");
    let parameters = [
        (
            "state",
            "Only these states, separated by commas.",
            json!("Error,CompensationFailed"),
        ),
        ("workflow", "Only this workflow.", json!(WORKFLOW)),
        ("tenant", "Only this tenant.", json!("acme")),
        (
            "step",
            "Only operations that failed at this step, or are at it.",
            json!("payment"),
        ),
        (
            "error",
            "Only this error code or fingerprint.",
            json!("undo-refused"),
        ),
        (
            "olderThan",
            "Only operations that have needed attention for longer than this.",
            json!("10m"),
        ),
        (
            "abandoned",
            "true: include abandoned operations.",
            json!("true"),
        ),
        (
            "order",
            "oldest (the default) or newest first.",
            json!("oldest"),
        ),
        ("limit", &limit, json!("100")),
        (
            "cursor",
            "The `next` of the previous page.",
            json!("eyJ..."),
        ),
    ];
    let operation = parameters
        .into_iter()
        .fold(operation, |operation, (name, about, example)| {
            operation.parameter(in_query(name, about, example))
        });
    refusing(operation, &[Kind::InvalidValues, Kind::StoreUnavailable])
}

fn events() -> OperationBuilder {
    let data = json!({
        "operation": EXAMPLE_ID,
        "type": "step",
        "state": "Completed",
        "step": "stock",
        "attempt": 1,
        "action": "Run",
        "at": "2030-05-08T20:00:00.234567Z",
    });
    let stream = ResponseBuilder::new()
        .description("Events as they occur.")
        .content(
            EVENT_STREAM,
            content(
                event(),
                Value::String(format!("id: 1.C1\nevent: step\ndata: {data}\n\n")),
            ),
        )
        .build();
    let operation = of_one("followOperation", "Follow an operation", "Operations")
        .description(Some(
            "Server-sent events: `received`, `step`, `state`, and finally `final`, which ends the \
             stream. To resume, pass the id of the last event as `Last-Event-ID`; this also works \
             after a restart. If that event was `final`, the answer is 204. The server sends \
             comments to keep an idle stream alive.",
        ))
        .parameter(header(
            "Last-Event-ID",
            "The id of the last event received.",
            json!("1.C1R1"),
        ))
        .response("200", stream);
    let refusals = [
        Kind::UnknownOrExpired,
        Kind::InvalidValues,
        Kind::Overloaded,
    ];
    refusing(operation, &refusals)
}

pub(super) fn of_one(id: &str, summary: &str, tag: &str) -> OperationBuilder {
    let about = "The operation's id, or the caller's own.";
    post(id, summary, tag)
        .parameter(in_path("id", about, json!(EXAMPLE_ID)))
        .parameter(at())
        .parameter(tenant())
}

pub(super) fn asked(verb: &str) -> Response {
    let example = json!({"id": EXAMPLE_ID, "verb": verb, "requestId": REQUEST_ID});
    let example = match Verb::of_path(verb) {
        Some(Verb::Resubmit) => with(example, "resubmittedAs", json!(NEW_ID)),
        _ => example,
    };
    ResponseBuilder::new()
        .description("Accepted: the request is durable.")
        .header("Location", location_header())
        .content(JSON, content(reference::<VerbAcceptedView>(), example))
        .build()
}

pub(super) fn cancelled(view: Value) -> Value {
    with(
        with(view, "state", json!("Cancelled")),
        "cancel",
        json!("applied"),
    )
}

fn body(verb: Verb) -> RequestBody {
    let fields = verb.fields().iter();
    let object = fields.fold(ObjectBuilder::new(), |object, field| {
        let schema = match *field {
            "asNew" => ObjectBuilder::new()
                .schema_type(Type::Boolean)
                .description(Some("Run the operation again as a new one.")),
            "reason" => text().description(Some("The reason, for people; at most 1,024 bytes.")),
            "by" => text().description(Some(
                "The operator's name, for the history. Defaults to the header Waybill-Operator.",
            )),
            "step" => text().description(Some("The step that an operator undid.")),
            _ => text().description(Some(
                "The workflow, if the operation does not exist yet and the cancel reserves its id.",
            )),
        };
        object.property(*field, schema)
    });
    let object = verb
        .required()
        .iter()
        .fold(object, |object, field| object.required(*field))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let example = match verb {
        Verb::Undone => json!({"reason": "refunded by hand", "by": "kim", "step": "payment"}),
        Verb::Cancel => json!({"reason": "ordered twice"}),
        _ => json!({"reason": "the bank is back", "by": "kim"}),
    };
    let required = match verb.required() {
        [] => Required::False,
        _ => Required::True,
    };
    RequestBodyBuilder::new()
        .required(Some(required))
        .content(
            JSON,
            ContentBuilder::new()
                .schema(Some(null_is_absent(object)))
                .example(Some(example))
                .build(),
        )
        .build()
}

pub(super) fn repeat_key() -> ParameterBuilder {
    header(
        "Idempotency-Key",
        "Makes repeating the request safe: requests with the same key are applied once. A 504 \
         response contains the key to repeat the request with.",
        json!("repair-17"),
    )
}

fn operator() -> ParameterBuilder {
    header(
        "Waybill-Operator",
        "The operator's name, for the history.",
        json!("kim"),
    )
}

/// A server-sent event. Its data is JSON in a text, described by a schema of this document.
fn event() -> ObjectBuilder {
    let data = format!(
        "JSON: see the schema `{}`.",
        <EventView<'_> as utoipa::ToSchema>::name()
    );
    ObjectBuilder::new()
        .property("id", text())
        .property("event", text())
        .property(
            "data",
            text().description(Some(data)).content_media_type(JSON),
        )
}

fn header(name: &str, description: &str, example: Value) -> ParameterBuilder {
    in_query(name, description, example).parameter_in(ParameterIn::Header)
}
