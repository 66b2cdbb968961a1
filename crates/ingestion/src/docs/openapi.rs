//! The OpenAPI document, built from the views' schemas and the routes' constants.

mod examples;
mod forms;
mod ops;
mod security;

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathItemBuilder,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, KnownFormat, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::tag::{Tag, TagBuilder};
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, Content, ContentBuilder, InfoBuilder, LicenseBuilder, Object,
    ObjectBuilder, OpenApiBuilder, PathsBuilder, Ref, RefOr, Required, Response, ResponseBuilder,
    Schema,
};
use waybill_api::form::{EXAMPLE_ID, Form, FormDescription, Forms};
use waybill_api::id::CALLER_ID_CHARS_MAX;
use waybill_api::view::{AcceptedView, BatchLine, OperationIdsView, OperationView};
use waybill_engine::{Contact, Priority};
use waybill_http::auth::{Denied, Scope};
use waybill_http::media_type::{JSON, NDJSON};
use waybill_http::problem::{FieldProblem, Kind, PROBLEM_JSON, Problem, ProblemDetails};

use self::examples::{
    WORKFLOW, accepted_example, location, ndjson, operation_example, operation_view_example, with,
};
use crate::route::{BATCH, DOCS, OPENAPI, OPERATIONS, PROBLEMS};

/// A form with its description.
type Described = (Form, FormDescription);

/// The document, as JSON, of a server with authentication (`is_guarded`) or without, and with these
/// forms.
pub fn document(is_guarded: bool, forms: &Forms) -> String {
    let described: Vec<Described> = forms
        .iter()
        .map(|form| (form, form.rules.description()))
        .collect();
    let operations = post(
        "createOperation",
        "Create an operation of any workflow",
        "Operations",
    )
    .description(Some(CREATING))
    .parameter(idempotency_key())
    .request_body(Some(body(
        JSON,
        operation_reference(),
        operation_example(&described),
    )))
    .response(
        "202",
        accepted_response(with(
            accepted_example(WORKFLOW),
            "callerId",
            json!("order-17"),
        )),
    )
    .response(
        "200",
        repeated(reference::<OperationView>(), operation_view_example()),
    );
    let batch = post(
        "createOperations",
        "Create many operations in one request",
        "Operations",
    )
    .description(Some(
        "One request per line. The response has one result per line, in the same order, and \
         begins while the batch is still being sent. Blank lines get no result. `line` is the \
         number of the line, with blank lines counted. An invalid or overlong line does not \
         affect the others. Read the results while you send: the server pauses reading until the \
         client has read them.",
    ))
    .request_body(Some(body(
        NDJSON,
        operation_reference(),
        ndjson(&operation_example(&described)),
    )))
    .response(
        "200",
        ResponseBuilder::new()
            .description("One result per line.")
            .content(
                NDJSON,
                content(
                    reference::<BatchLine<'_>>(),
                    ndjson(&json!({"status": 202, "id": EXAMPLE_ID, "location": location(OPERATIONS), "line": 1})),
                ),
            ),
    );
    let paths = described.iter().fold(PathsBuilder::new(), forms::add_paths);
    let paths = ops::add_paths(paths)
        .path(OPERATIONS, only(HttpMethod::Post, creating(operations)))
        .path(
            format!("{OPERATIONS}/{{id}}"),
            only(
                HttpMethod::Get,
                getting("getOperation", "Get an operation", "Operations").response(
                    "200",
                    found(reference::<OperationView>(), operation_view_example()),
                ),
            ),
        )
        .path(
            BATCH,
            only(HttpMethod::Post, refusing(batch, &BATCH_REFUSALS)),
        )
        .path(
            OPENAPI,
            only(
                HttpMethod::Get,
                page("getOpenApi", "The OpenAPI document", JSON),
            ),
        )
        .path(
            DOCS,
            only(
                HttpMethod::Get,
                page("getDocs", "The OpenAPI document as an HTML page", HTML),
            ),
        )
        .path(
            format!("{PROBLEMS}/{{kind}}"),
            only(
                HttpMethod::Get,
                refusing(
                    page("getProblem", "Describe a problem type", HTML).parameter(in_path(
                        "kind",
                        "The last segment of a problem's `type`.",
                        json!("invalid-values"),
                    )),
                    &[Kind::NotFound],
                ),
            ),
        );
    let mut schemas = vec![(
        "OperationRequest".to_owned(),
        operation_request(&described).into(),
    )];
    add_schema::<AcceptedView<'_>>(&mut schemas);
    add_schema::<OperationIdsView<'_>>(&mut schemas);
    add_schema::<OperationView>(&mut schemas);
    add_schema::<BatchLine<'_>>(&mut schemas);
    add_schema::<ProblemDetails<'_>>(&mut schemas);
    ops::add_schemas(&mut schemas);
    forms::add_schemas(&mut schemas, &described);
    let components = ComponentsBuilder::new().schemas_from_iter(schemas);
    let mut document = OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Waybill")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(INTRODUCTION))
                .license(Some(LicenseBuilder::new().name("Apache-2.0").build())),
        )
        .tags(Some(tags(&described)))
        .paths(paths)
        .components(Some(components.build()))
        .build();
    match is_guarded {
        true => security::secure(&mut document, forms),
        false => security::stay_local(&mut document),
    }
    document
        .to_json()
        .expect("a document of strings and numbers serializes")
}

fn tags(described: &[Described]) -> Vec<Tag> {
    let of_forms = described.iter().map(|(_, form)| (form.tag, form.about));
    let others = [
        ("Operations", "Runs of any workflow."),
        (ops::OPERATORS, ops::OPERATORS_ABOUT),
        ("About", "The API itself."),
    ];
    let tags = of_forms.chain(others);
    tags.map(|(name, about)| {
        TagBuilder::new()
            .name(name)
            .description(Some(about))
            .build()
    })
    .collect()
}

const HTML: &str = "text/html";

const INTRODUCTION: &str = "Waybill runs operations of several steps across remote services. Each \
                            accepted operation completes, is undone, or is parked for a \
                            person.\n\nThe server answers 202 once the request is durable. GET \
                            the URL in the Location header to read the operation's \
                            state.\n\nRefusals are problem details (RFC 9457). They list every \
                            invalid field. Invalid and unknown query parameters are reported \
                            alone, without the fields of the body.";

const CREATING: &str = "The server answers once the request is durable. With an id of your own, \
                        repeating the request is safe: the same request returns the same \
                        operation, and a different request with that id is refused with 409. \
                        Without an id, a 504 response contains the id to repeat the request with.";

const GETTING: &str = "Use the operation's id or the caller's own id. With the `at` of a Location, \
                       a request that no scheduler has read yet is `Pending`, never unknown.";

/// The refusals of a new operation.
const CREATE_REFUSALS: [Kind; 11] = [
    Kind::MalformedJson,
    Kind::RequestTimeout,
    Kind::IdConflict,
    Kind::BodyTooLarge,
    Kind::UnsupportedMediaType,
    Kind::InvalidValues,
    Kind::HeadTooLarge,
    Kind::TooManyRequests,
    Kind::Internal,
    Kind::BrokerUnavailable,
    Kind::OutcomeUnknown,
];
/// The refusals of a batch as a whole.
const BATCH_REFUSALS: [Kind; 3] = [
    Kind::UnsupportedMediaType,
    Kind::InvalidValues,
    Kind::Overloaded,
];
/// The refusals of a status request.
const GET_REFUSALS: [Kind; 4] = [
    Kind::UnknownOrExpired,
    Kind::InvalidValues,
    Kind::RowUnreadable,
    Kind::StoreUnavailable,
];

/// Adds a type's schema, and the schemas that it refers to.
fn add_schema<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), T::schema()));
}

fn post(id: &str, summary: &str, tag: &str) -> OperationBuilder {
    OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(summary))
        .tag(tag)
}

fn creating(operation: OperationBuilder) -> OperationBuilder {
    refusing(operation, &CREATE_REFUSALS)
}

fn getting(id: &str, summary: &str, tag: &str) -> OperationBuilder {
    let operation = OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(summary))
        .tag(tag)
        .description(Some(GETTING))
        .parameter(in_path(
            "id",
            "The operation's id, or the caller's own.",
            json!(EXAMPLE_ID),
        ))
        .parameter(at())
        .parameter(tenant());
    refusing(operation, &GET_REFUSALS)
}

fn page(id: &str, summary: &str, media_type: &str) -> OperationBuilder {
    let text: RefOr<Schema> = match media_type {
        HTML => ObjectBuilder::new().schema_type(Type::String).into(),
        _ => ObjectBuilder::new().into(),
    };
    OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(summary))
        .tag("About")
        .response(
            "200",
            ResponseBuilder::new()
                .description(summary)
                .content(media_type, Content::new(Some(text))),
        )
}

fn refusing(operation: OperationBuilder, kinds: &[Kind]) -> OperationBuilder {
    kinds.iter().fold(operation, |operation, kind| {
        operation.response(kind.status().as_str(), refusal(*kind))
    })
}

fn refusal(kind: Kind) -> Response {
    let example = match kind {
        Kind::InvalidValues => Problem::invalid(vec![FieldProblem::new(
            "/priority",
            "must be normal or high, not \"urgent\"",
        )]),
        Kind::MalformedJson => Problem::new(kind, "Line 3, column 12: expected value."),
        Kind::OutcomeUnknown => Problem::new(kind, kind.advice()).with_id(EXAMPLE_ID),
        Kind::Unauthenticated => Denied::NoToken.into(),
        Kind::InsufficientScope => Denied::Scope(Scope::Submit).into(),
        _ => Problem::new(kind, kind.advice()),
    };
    let response = ResponseBuilder::new().description(kind.title()).content(
        PROBLEM_JSON,
        content(
            reference::<ProblemDetails<'_>>(),
            serde_json::to_value(example.details()).unwrap_or_default(),
        ),
    );
    match example.retry_after() {
        None => response.build(),
        Some(_) => response
            .header(
                "Retry-After",
                HeaderBuilder::new()
                    .schema(Some(ObjectBuilder::new().schema_type(Type::Integer)))
                    .description(Some("The number of seconds to wait before the next try."))
                    .build(),
            )
            .build(),
    }
}

fn accepted_response(example: Value) -> Response {
    ResponseBuilder::new()
        .description("Accepted: the request is durable.")
        .header("Location", location_header())
        .content(JSON, content(reference::<AcceptedView<'_>>(), example))
        .build()
}

fn repeated(operation: Ref, example: Value) -> Response {
    ResponseBuilder::new()
        .description(
            "A repeat: the operation that the first request created, or only its ids for callers \
             without the scope `read`.",
        )
        .header("Location", location_header())
        .content(JSON, content(operation_or_ids(operation), example))
        .build()
}

/// The operation, or only its IDs.
fn operation_or_ids(operation: Ref) -> RefOr<Schema> {
    let either = AnyOfBuilder::new()
        .item(operation)
        .item(reference::<OperationIdsView<'_>>());
    RefOr::T(Schema::AnyOf(either.build()))
}

fn found(operation: Ref, example: Value) -> Response {
    ResponseBuilder::new()
        .description("The current state.")
        .content(JSON, content(operation, example))
        .build()
}

fn location_header() -> utoipa::openapi::Header {
    HeaderBuilder::new()
        .schema(Some(text()))
        .description(Some("The relative URL of the operation's state."))
        .example(Some(json!(location(OPERATIONS))))
        .build()
}

fn only(method: HttpMethod, operation: OperationBuilder) -> PathItem {
    PathItemBuilder::new().operation(method, operation).build()
}

fn body(media_type: &str, schema: Ref, example: Value) -> RequestBody {
    RequestBodyBuilder::new()
        .required(Some(Required::True))
        .content(media_type, content(schema, example))
        .build()
}

fn content(schema: impl Into<RefOr<Schema>>, example: Value) -> Content {
    ContentBuilder::new()
        .schema(Some(schema))
        .example(Some(example))
        .build()
}

fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

fn operation_reference() -> Ref {
    Ref::from_schema_name("OperationRequest")
}

fn idempotency_key() -> ParameterBuilder {
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .description(Some("The caller's own id, if the body has none."))
        .schema(Some(
            text()
                .min_length(Some(1))
                .max_length(Some(CALLER_ID_CHARS_MAX)),
        ))
        .example(Some(json!("order-17")))
}

fn in_path(name: &str, description: &str, example: Value) -> ParameterBuilder {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(text()))
        .example(Some(example))
}

fn in_query(name: &str, description: &str, example: Value) -> ParameterBuilder {
    in_path(name, description, example)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
}

fn at() -> ParameterBuilder {
    in_query("at", "The `at` of the Location.", json!("3-1234-5f2b9c01"))
}

fn tenant() -> ParameterBuilder {
    in_query(
        "tenant",
        "The tenant of the caller's own id.",
        json!("acme"),
    )
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// The general form of a request, which has no type of its own: it is read field by field.
fn operation_request(described: &[Described]) -> Object {
    let described_as = |description: &str| text().description(Some(description));
    let of_forms = |sentence: fn(&str, &FormDescription) -> String| -> String {
        let forms = described.iter();
        let sentences = forms.map(|(form, about)| sentence(form.names.workflow, about));
        sentences.collect()
    };
    let input = of_forms(|workflow, form| format!("; {} for {workflow}", form.general_input));
    let deadline =
        of_forms(|workflow, form| format!(" For {workflow}, {}.", form.general_deadline));
    let priority =
        of_forms(|workflow, form| format!("; for {workflow} it is {}", form.general_priority));
    let object = ObjectBuilder::new()
        .description(Some("A request for an operation of any workflow."))
        .property(
            "workflow",
            described_as("The workflow to run.").examples([json!(WORKFLOW)]),
        )
        .required("workflow")
        .property(
            "id",
            described_as(
                "The caller's own id, of visible characters. It makes repeating the request safe.",
            )
            .max_length(Some(256)),
        )
        .property(
            "input",
            ObjectBuilder::new()
                .description(Some(format!("The input of the workflow{input}.")))
                .additional_properties(Some(AdditionalProperties::FreeForm(true))),
        )
        .required("input")
        .property(
            "deadline",
            text()
                .description(Some(format!(
                    "The time by which the operation should be final: an ISO 8601 date and time \
                     in the future.{deadline}"
                )))
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))),
        )
        .property(
            "priority",
            ObjectBuilder::new()
                .schema_type(SchemaType::Type(Type::String))
                .enum_values(Some(Priority::ALL.map(Priority::name)))
                .description(Some(format!(
                    "Schedulers admit requests of priority `high` ahead of waiting `normal` ones. \
                     The default is `normal`{priority}."
                ))),
        )
        .property(
            "tenant",
            described_as("The tenant of the operation. Tenants do not share ids.")
                .max_length(Some(256)),
        )
        .property(
            "replyTo",
            described_as("A topic for the operation's status records, if this server allows it.")
                .max_length(Some(249)),
        )
        .property("notify", notify());
    null_is_absent(object)
}

/// A schema whose optional fields may also be null, which means the same as absent.
fn null_is_absent(object: ObjectBuilder) -> Object {
    let mut object = object.build();
    for (name, property) in &mut object.properties {
        let types = match property {
            _ if object.required.contains(name) => continue,
            RefOr::T(Schema::Object(property)) => &mut property.schema_type,
            RefOr::T(Schema::Array(property)) => &mut property.schema_type,
            _ => continue,
        };
        if let SchemaType::Type(of_value) = types {
            *types = SchemaType::Array(vec![of_value.clone(), Type::Null]);
        }
    }
    object
}

/// The contacts to notify.
fn notify() -> ArrayBuilder {
    let contact = text()
        .max_length(Some(Contact::BYTES_MAX))
        .examples([json!("mailto:anna@example.org"), json!("tel:+491701234567")]);
    ArrayBuilder::new()
        .items(contact)
        .max_items(Some(Contact::COUNT_MAX))
        .description(Some(
            "The contacts to notify when the operation ends or is delayed: mailto: with one \
             address, or tel: with one global number, for channels that this server has \
             configured. Responses omit them.",
        ))
}

#[cfg(test)]
mod tests;
