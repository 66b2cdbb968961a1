//! The part of the document about requests in a form of their own.

use serde_json::json;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathsBuilder};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{AllOfBuilder, ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema};
use waybill_api::form::{Form, FormDescription};
use waybill_api::view::OperationView;
use waybill_http::media_type::JSON;
use waybill_http::problem::Kind;

use super::examples::{accepted_example, named_request, request_view_example, with};
use super::ops::{ASK_REFUSALS, asked, cancelled, of_one, repeat_key};
use super::{
    CREATING, Described, GETTING, accepted_response, body, creating, found, getting,
    idempotency_key, in_query, notify, null_is_absent, only, post, refusing, repeated,
};
use waybill_api::verb::Verb;
use waybill_api::view::AcceptedView;

/// Adds the paths of a form.
pub(super) fn add_paths(paths: PathsBuilder, (form, about): &Described) -> PathsBuilder {
    let (collection, item) = (form.names.collection, form.names.item);
    paths
        .path(collection, only(HttpMethod::Post, create(*form, about)))
        .path(item, only(HttpMethod::Get, get(*form, about)))
        .path(item, only(HttpMethod::Delete, cancel(*form, about)))
        .path(item, only(HttpMethod::Patch, change(about)))
}

fn create(form: Form, about: &FormDescription) -> OperationBuilder {
    let accepted = accepted_example(form.names.workflow);
    let operation = post(about.create.id, about.create.summary, about.tag)
        .description(Some(paragraphs(CREATING, about.create.description)))
        .parameter(idempotency_key())
        .request_body(Some(body(
            JSON,
            Ref::from_schema_name(about.new_request_schema),
            about.request_example.clone(),
        )))
        .response(
            "202",
            accepted_response(with(accepted, "request", named_request(form, about))),
        )
        .response(
            "200",
            repeated(view(about), request_view_example(form, about)),
        );
    creating(operation)
}

fn get(form: Form, about: &FormDescription) -> OperationBuilder {
    getting(about.get.id, about.get.summary, about.tag)
        .description(Some(paragraphs(GETTING, about.get.description)))
        .response("200", found(view(about), request_view_example(form, about)))
}

fn cancel(form: Form, about: &FormDescription) -> OperationBuilder {
    let example = cancelled(request_view_example(form, about));
    let operation = of_one(about.cancel.id, about.cancel.summary, about.tag)
        .parameter(repeat_key())
        .description(Some(about.cancel.description))
        .parameter(in_query("reason", "The reason.", json!("ordered twice")))
        .response("202", asked(Verb::Cancel.as_str()))
        .response("200", repeated(view(about), example));
    refusing(
        refusing(operation, &[Kind::OperationFinal, Kind::TooManyRequests]),
        &ASK_REFUSALS,
    )
}

fn change(about: &FormDescription) -> OperationBuilder {
    let operation = of_one(about.change.id, about.change.summary, about.tag)
        .parameter(repeat_key())
        .description(Some(about.change.description))
        .request_body(Some(body(
            JSON,
            Ref::from_schema_name(about.change_schema),
            about.change_example.clone(),
        )))
        .response("202", asked("reschedule"));
    refusing(
        refusing(operation, &[Kind::StepSent, Kind::TooManyRequests]),
        &ASK_REFUSALS,
    )
}

fn view(about: &FormDescription) -> Ref {
    Ref::from_schema_name(about.view_schema)
}

fn paragraphs(first: &str, second: &str) -> String {
    match second {
        "" => first.to_owned(),
        _ => format!("{first}\n\n{second}"),
    }
}

/// Adds the schemas of the forms, and the requests that their answers show.
pub(super) fn add_schemas(schemas: &mut Vec<(String, RefOr<Schema>)>, described: &[Described]) {
    for (_, about) in described {
        schemas.extend(about.schemas.iter().cloned());
        schemas.push((about.new_request_schema.to_owned(), new_request(about)));
        schemas.push((about.view_schema.to_owned(), request_view(about)));
    }
    let requests = described.iter().map(|(_, about)| about.request_schema);
    let requests: Vec<_> = requests.collect();
    if requests.is_empty() {
        return;
    }
    let about = "For a request in a form of its own: the request, with its id.";
    let name = AcceptedView::name();
    let accepted = schemas.iter_mut().find(|(schema, _)| *schema == name);
    if let Some((_, RefOr::T(Schema::Object(accepted)))) = accepted {
        let request = ("request".to_owned(), optional(&requests, about));
        accepted.properties.extend([request]);
    }
}

/// A new request, with the fields that may accompany it.
fn new_request(about: &FormDescription) -> RefOr<Schema> {
    let mut schemas = about.schemas.iter();
    let found = schemas.find(|(name, _)| name == about.request_schema);
    let (_, mut schema) = found
        .cloned()
        .expect("a form has the schema of its requests");
    if let RefOr::T(Schema::Object(request)) = &mut schema {
        let with_notify = null_is_absent(ObjectBuilder::new().property("notify", notify()));
        request.properties.extend(with_notify.properties);
    }
    schema
}

/// An operation with its request, as `RequestView` shows it.
fn request_view(about: &FormDescription) -> RefOr<Schema> {
    let mut operation = Ref::from_schema_name(OperationView::name());
    operation.description = about.view_operation_about.to_owned();
    let request = optional(
        &[about.request_schema],
        "The request. It may be absent while `Pending`, if it cannot be read from its topic in \
         time.",
    );
    let both = AllOfBuilder::new()
        .description(Some(about.view_about))
        .item(operation)
        .item(ObjectBuilder::new().property("request", request));
    RefOr::T(Schema::AllOf(both.build()))
}

/// One of these schemas, or null.
fn optional(schemas: &[&str], about: &str) -> RefOr<Schema> {
    let either = schemas.iter().fold(OneOfBuilder::new(), |either, name| {
        let mut schema = Ref::from_schema_name(*name);
        schema.description = about.to_owned();
        either.item(schema)
    });
    let null = ObjectBuilder::new().schema_type(Type::Null);
    RefOr::T(Schema::OneOf(either.item(null).build()))
}
