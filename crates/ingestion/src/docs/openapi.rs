//! The OpenAPI document, built from the views' schemas and the routes' constants.

mod examples;
mod ops;
mod security;

use serde_json::{Value, json};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathItemBuilder,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, KnownFormat, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, Content, ContentBuilder, InfoBuilder, LicenseBuilder, Object,
    ObjectBuilder, OpenApiBuilder, PathsBuilder, Ref, RefOr, Required, Response, ResponseBuilder,
    Schema,
};
use utoipa::{PartialSchema as _, ToSchema};
use waybill_api::id::CALLER_ID_CHARS_MAX;
use waybill_api::view::{AcceptedView, BatchLine, OperationIdsView, OperationView};
use waybill_drone_delivery::request::DeliveryRequest;
use waybill_engine::{Contact, Priority};
use waybill_http::auth::{Denied, Scope};
use waybill_http::media_type::{JSON, NDJSON};
use waybill_http::problem::{FieldProblem, Kind, PROBLEM_JSON, Problem, ProblemDetails};

use self::examples::{
    ID, delivery_example, delivery_view_example, location, named_delivery, ndjson,
    operation_example, operation_view_example, with,
};
use crate::route::{BATCH, DELIVERIES, DOCS, OPENAPI, OPERATIONS, PROBLEMS};
use crate::view::DeliveryView;

/// The document, as JSON, of a server with authentication (`is_guarded`) or without.
pub fn document(is_guarded: bool) -> String {
    let accepted = json!({"id": ID, "state": "Pending", "workflow": "drone-delivery"});
    let deliveries = post("createDelivery", "Create a delivery", "Deliveries")
        .description(Some(format!("{CREATING}\n\n{DELIVERY_DEADLINE}")))
        .parameter(idempotency_key())
        .request_body(Some(body(
            JSON,
            Ref::from_schema_name(NEW_DELIVERY),
            delivery_example(),
        )))
        .response(
            "202",
            accepted_response(with(accepted.clone(), "request", named_delivery())),
        )
        .response("200", repeated::<DeliveryView>(delivery_view_example()));
    let operations = post(
        "createOperation",
        "Create an operation of any workflow",
        "Operations",
    )
    .description(Some(CREATING))
    .parameter(idempotency_key())
    .request_body(Some(body(JSON, operation_reference(), operation_example())))
    .response(
        "202",
        accepted_response(with(accepted, "callerId", json!("order-17"))),
    )
    .response("200", repeated::<OperationView>(operation_view_example()));
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
        ndjson(&operation_example()),
    )))
    .response(
        "200",
        ResponseBuilder::new()
            .description("One result per line.")
            .content(
                NDJSON,
                content(
                    reference::<BatchLine<'_>>(),
                    ndjson(&json!({"status": 202, "id": ID, "location": location(OPERATIONS), "line": 1})),
                ),
            ),
    );
    let paths = ops::add_paths(PathsBuilder::new())
        .path(DELIVERIES, only(HttpMethod::Post, creating(deliveries)))
        .path(
            format!("{DELIVERIES}/{{id}}"),
            only(
                HttpMethod::Get,
                getting("getDelivery", "Get a delivery", "Deliveries")
                    .response("200", found::<DeliveryView>(delivery_view_example())),
            ),
        )
        .path(OPERATIONS, only(HttpMethod::Post, creating(operations)))
        .path(
            format!("{OPERATIONS}/{{id}}"),
            only(
                HttpMethod::Get,
                getting("getOperation", "Get an operation", "Operations")
                    .response("200", found::<OperationView>(operation_view_example())),
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
    let mut schemas = vec![("OperationRequest".to_owned(), operation_request().into())];
    add_schema::<AcceptedView<'_>>(&mut schemas);
    add_schema::<DeliveryView>(&mut schemas);
    add_schema::<OperationIdsView<'_>>(&mut schemas);
    add_schema::<OperationView>(&mut schemas);
    add_schema::<BatchLine<'_>>(&mut schemas);
    add_schema::<DeliveryRequest>(&mut schemas);
    schemas.push((NEW_DELIVERY.to_owned(), new_delivery()));
    add_schema::<ProblemDetails<'_>>(&mut schemas);
    ops::add_schemas(&mut schemas);
    let components = ComponentsBuilder::new().schemas_from_iter(schemas);
    let mut document = OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Waybill")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(INTRODUCTION))
                .license(Some(LicenseBuilder::new().name("Apache-2.0").build())),
        )
        .tags(Some([
            TagBuilder::new()
                .name("Deliveries")
                .description(Some("Deliveries by drone."))
                .build(),
            TagBuilder::new()
                .name("Operations")
                .description(Some("Runs of any workflow."))
                .build(),
            TagBuilder::new()
                .name(ops::OPERATORS)
                .description(Some(ops::OPERATORS_ABOUT))
                .build(),
            TagBuilder::new()
                .name("About")
                .description(Some("The API itself."))
                .build(),
        ]))
        .paths(paths)
        .components(Some(components.build()))
        .build();
    match is_guarded {
        true => security::secure(&mut document),
        false => security::stay_local(&mut document),
    }
    document
        .to_json()
        .expect("a document of strings and numbers serializes")
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

const DELIVERY_DEADLINE: &str = "The `deadline` is the time promised to the customer, by which \
                                 the operation should be final. A past deadline is refused with \
                                 422, and so is a pickup after the deadline. A repeat is accepted \
                                 even if its deadline has passed since.";

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
        .description(Some(
            "Use the operation's id or the caller's own id. With the `at` of a Location, a \
             request that no scheduler has read yet is `Pending`, never unknown.",
        ))
        .parameter(in_path(
            "id",
            "The operation's id, or the caller's own.",
            json!(ID),
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
            "/packageInfo/size",
            "must be one of Small, Medium, Large, not \"Huge\"",
        )]),
        Kind::MalformedJson => Problem::new(kind, "Line 3, column 12: expected value."),
        Kind::OutcomeUnknown => Problem::new(kind, kind.advice()).with_id(ID),
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

fn repeated<T: ToSchema>(example: Value) -> Response {
    ResponseBuilder::new()
        .description(
            "A repeat: the operation that the first request created, or only its ids for callers \
             without the scope `read`.",
        )
        .header("Location", location_header())
        .content(JSON, content(operation_or_ids::<T>(), example))
        .build()
}

/// The operation, or only its IDs.
fn operation_or_ids<T: ToSchema>() -> RefOr<Schema> {
    let either = AnyOfBuilder::new()
        .item(reference::<T>())
        .item(reference::<OperationIdsView<'_>>());
    RefOr::T(Schema::AnyOf(either.build()))
}

fn found<T: ToSchema>(example: Value) -> Response {
    ResponseBuilder::new()
        .description("The current state.")
        .content(JSON, content(reference::<T>(), example))
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
fn operation_request() -> Object {
    let described = |description: &str| text().description(Some(description));
    let object = ObjectBuilder::new()
        .description(Some("A request for an operation of any workflow."))
        .property(
            "workflow",
            described("The workflow to run.").examples([json!("order")]),
        )
        .required("workflow")
        .property(
            "id",
            described("The caller's own id, of visible characters. It makes repeating the request \
                       safe.")
                .max_length(Some(256)),
        )
        .property(
            "input",
            ObjectBuilder::new()
                .description(Some(
                    "The input of the workflow; a DeliveryRequest for drone-delivery.",
                ))
                .additional_properties(Some(AdditionalProperties::FreeForm(true))),
        )
        .required("input")
        .property(
            "deadline",
            described(
                "The time by which the operation should be final: an ISO 8601 date and time in \
                 the future. For drone-delivery, it defaults to the deadline in the input, which \
                 must also be in the future.",
            )
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))),
        )
        .property(
            "priority",
            ObjectBuilder::new()
                .schema_type(SchemaType::Type(Type::String))
                .enum_values(Some(Priority::ALL.map(Priority::name)))
                .description(Some(
                    "Schedulers admit requests of priority `high` ahead of waiting `normal` ones. The default is `normal`; for \
                     drone-delivery it is `high` if the input's `expedited` is true.",
                )),
        )
        .property(
            "tenant",
            described("The tenant of the operation. Tenants do not share ids.")
                .max_length(Some(256)),
        )
        .property(
            "replyTo",
            described("A topic for the operation's status records, if this server allows it.")
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

/// The name of the schema of a delivery request.
const NEW_DELIVERY: &str = "NewDelivery";

/// A delivery request, with the fields that may accompany it.
fn new_delivery() -> RefOr<Schema> {
    let mut schema = DeliveryRequest::schema();
    if let RefOr::T(Schema::Object(delivery)) = &mut schema {
        let properties = &mut delivery.properties;
        let with_notify = null_is_absent(ObjectBuilder::new().property("notify", notify()));
        properties.extend(with_notify.properties);
    }
    schema
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
