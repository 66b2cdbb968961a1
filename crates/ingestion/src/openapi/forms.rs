//! The part of the document about requests in a form of their own: the operations of the general
//! form, with the texts, schemas and examples of this one.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{
    HttpMethod, Operation, Parameter, ParameterBuilder, ParameterIn, Paths,
};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{AllOfBuilder, ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema};
use waybill_api::form::{FormDescription, OperationText};
use waybill_api::request::notify;
use waybill_api::verb::Verb;
use waybill_api::view::{AcceptedView, OperationView};
use waybill_http::problem::Kind;

use super::{Templates, content_of, content_of_body, refuse, verbs};
use crate::docs::examples::{
    Described, accepted_example, cancelled, named_request, request_view_example, with,
};
use crate::docs::responses::OperationOrIds;
use crate::service::OPERATOR;

/// Adds the paths of a form.
pub(super) fn add_paths(paths: &mut Paths, templates: &Templates, described: &Described) {
    let (form, about) = described;
    let (collection, item) = (form.names.collection, form.names.item);
    let (example, view) = (request_view_example(*form, about), about.view_schema);
    let accepted = accepted_example(form.names.workflow);
    let accepted = with(accepted, "request", named_request(*form, about));

    let mut create = named(&templates.create, about, about.create);
    set_body(
        &mut create,
        about.new_request_schema,
        &about.request_example,
    );
    content_of(&mut create, "202").example = Some(accepted);
    set_repeat(&mut create, view, example.clone());
    paths.add_path_operation(collection, vec![HttpMethod::Post], create);

    let mut get = named(&templates.get, about, about.get);
    let found = content_of(&mut get, "200");
    found.schema = Some(Ref::from_schema_name(view).into());
    found.example = Some(example.clone());
    paths.add_path_operation(item, vec![HttpMethod::Get], get);

    let mut cancel = verbs::asking(Verb::Cancel, templates);
    cancel.description = None;
    let mut cancel = named(&cancel, about, about.cancel);
    cancel.request_body = None;
    set_repeat(&mut cancel, view, cancelled(example));
    let reason = ParameterBuilder::new()
        .name("reason")
        .parameter_in(ParameterIn::Query)
        .description(Some("The reason."))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .example(Some("ordered twice".into()));
    without_operator(&mut cancel).push(reason.build().into());
    paths.add_path_operation(item, vec![HttpMethod::Delete], cancel);

    let mut change = templates.ask.clone();
    change.description = None;
    let mut change = named(&change, about, about.change);
    set_body(&mut change, about.change_schema, &about.change_example);
    without_operator(&mut change);
    refuse(&mut change, &[Kind::StepSent, Kind::TooManyRequests]);
    paths.add_path_operation(item, vec![HttpMethod::Patch], change);
}

/// A copy of an operation with these texts. Its description begins with that of the general form.
fn named(operation: &Operation, about: &FormDescription, text: OperationText) -> Operation {
    let mut operation = operation.clone();
    operation.operation_id = Some(text.id.to_owned());
    operation.summary = Some(text.summary.to_owned());
    operation.tags = Some(vec![about.tag.to_owned()]);
    let general = operation.description.as_deref().unwrap_or_default();
    let paragraphs = [general, text.description];
    let paragraphs = paragraphs.into_iter().filter(|text| !text.is_empty());
    operation.description = Some(paragraphs.collect::<Vec<_>>().join("\n\n"));
    operation
}

fn set_body(operation: &mut Operation, schema: &str, example: &Value) {
    let content = content_of_body(operation);
    content.schema = Some(Ref::from_schema_name(schema).into());
    content.example = Some(example.clone());
}

/// Sets the response to a repeat.
fn set_repeat(operation: &mut Operation, view: &str, example: Value) {
    let content = content_of(operation, "200");
    content.schema = Some(OperationOrIds::schema_of(Ref::from_schema_name(view)));
    content.example = Some(example);
}

/// Removes the header with the operator's name; returns the other parameters.
fn without_operator(operation: &mut Operation) -> &mut Vec<RefOr<Parameter>> {
    let parameters = operation.parameters.get_or_insert_default();
    let is_operator = |it: &RefOr<Parameter>| matches!(it, RefOr::T(it) if it.name == OPERATOR);
    parameters.retain(|parameter| !is_operator(parameter));
    parameters
}

/// Adds the schemas of the forms, and the requests that their answers show.
pub(super) fn add_schemas(schemas: &mut BTreeMap<String, RefOr<Schema>>, described: &[Described]) {
    for (_, about) in described {
        schemas.extend(about.schemas.iter().cloned());
        schemas.insert(about.new_request_schema.to_owned(), new_request(about));
        schemas.insert(about.view_schema.to_owned(), request_view(about));
    }
    let requests = described.iter().map(|(_, about)| about.request_schema);
    let requests: Vec<_> = requests.collect();
    if requests.is_empty() {
        return;
    }
    let about = "For a request in a form of its own: the request, with its id.";
    if let Some(RefOr::T(Schema::Object(accepted))) = schemas.get_mut(&*AcceptedView::name()) {
        let request = optional(&requests, about);
        accepted.properties.insert("request".to_owned(), request);
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
        request.properties.insert("notify".to_owned(), notify());
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
