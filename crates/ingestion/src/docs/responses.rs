//! Responses of the API's description that are no views: refusals, and bodies of several schemas.

use std::collections::BTreeMap;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, Type};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Schema,
};
use utoipa::{IntoResponses, PartialSchema, ToSchema};
use waybill_api::form::EXAMPLE_ID;
use waybill_api::view::{OperationIdsView, OperationView};
use waybill_http::auth::{Denied, Scope};
use waybill_http::problem::{FieldProblem, Kind, PROBLEM_JSON, Problem, ProblemDetails};

/// Declares types that stand for the refusals of an operation in its `responses`.
macro_rules! refusals {
    ($($(#[$about:meta])* $name:ident: $($kind:ident)+;)+) => {$(
        $(#[$about])*
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$(Kind::$kind),+].map(refusal).into()
            }
        }
    )+};
}

refusals! {
    /// The refusals of a new operation.
    CreateRefusals: MalformedJson RequestTimeout IdConflict BodyTooLarge UnsupportedMediaType
        InvalidValues HeadTooLarge TooManyRequests Internal BrokerUnavailable OutcomeUnknown;
    /// The refusals of a batch as a whole.
    BatchRefusals: UnsupportedMediaType InvalidValues Overloaded;
    /// The refusals of a status request.
    GetRefusals: UnknownOrExpired InvalidValues RowUnreadable StoreUnavailable;
    /// The refusals of a list.
    ListRefusals: InvalidValues StoreUnavailable;
    /// The refusals of an event stream.
    EventsRefusals: UnknownOrExpired InvalidValues Overloaded;
    /// The refusals of every verb.
    AskRefusals: MalformedJson UnknownOrExpired RequestTimeout BodyTooLarge UnsupportedMediaType
        InvalidValues RowUnreadable BrokerUnavailable OutcomeUnknown;
    /// The refusals of a page.
    PageRefusals: NotFound;
}

/// The status of a refusal, and its response.
pub fn refusal(kind: Kind) -> (String, RefOr<Response>) {
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
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(ProblemDetails::name())))
        .example(serde_json::to_value(example.details()).ok());
    let response = ResponseBuilder::new()
        .description(kind.title())
        .content(PROBLEM_JSON, content.build());
    let response = match example.retry_after() {
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
    };
    (kind.status().as_str().to_owned(), RefOr::T(response))
}

/// An operation, or only its ids.
pub struct OperationOrIds;

impl OperationOrIds {
    /// The schema, if the operation has the schema `operation`.
    pub fn schema_of(operation: Ref) -> RefOr<Schema> {
        let ids = Ref::from_schema_name(OperationIdsView::name());
        let either = AnyOfBuilder::new().item(operation).item(ids);
        RefOr::T(Schema::AnyOf(either.build()))
    }
}

// The derive makes `oneOf` of an enum, and an operation has the fields of its ids, too.
impl PartialSchema for OperationOrIds {
    fn schema() -> RefOr<Schema> {
        Self::schema_of(Ref::from_schema_name(OperationView::name()))
    }
}

impl ToSchema for OperationOrIds {}

/// A server-sent event. Its data is JSON in a text, described by a schema of this document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a stream is written as text")]
pub struct ServerSentEvent {
    #[schema(required = false)]
    id: String,
    #[schema(required = false)]
    event: String,
    /// JSON: see the schema `Event`.
    #[schema(required = false, content_media_type = "application/json")]
    data: String,
}
