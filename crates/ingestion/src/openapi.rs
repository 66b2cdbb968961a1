//! The OpenAPI document: what the handlers and views declare, and what only a running server knows.
//!
//! Attributes and derives cannot express the second part: the paths, schemas and examples of the
//! configured workflows' forms, the operation of each verb in its table, and the scopes, which a
//! server without authentication does not have.

mod forms;
mod security;
mod verbs;

use utoipa::openapi::path::{Operation, Paths};
use utoipa::openapi::tag::{Tag, TagBuilder};
use utoipa::openapi::{Content, OpenApi, RefOr, Schema};
use utoipa::{OpenApi as _, ToSchema as _};
use waybill_api::form::{FormDescription, Forms};
use waybill_api::request::OperationRequest;
use waybill_api::view::{EventView, OperationIdsView};
use waybill_http::problem::{Kind, ProblemDetails};

use crate::docs::examples::{Described, ndjson, operation_example};
use crate::docs::responses::refusal;
use crate::route::{ASK, BATCH, OPERATION, OPERATIONS};
use crate::service::handlers;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Waybill", description = INTRODUCTION, license(name = "Apache-2.0")),
    paths(
        handlers::create_operation,
        handlers::create_operations,
        handlers::get_operation,
        handlers::list_operations,
        handlers::follow_operation,
        handlers::ask_operation,
        handlers::get_openapi,
        handlers::get_docs,
        handlers::get_problem,
    ),
    // The operations refer to these by name only.
    components(schemas(EventView, OperationIdsView, ProblemDetails)),
    tags(
        (name = "Operations", description = "Runs of any workflow."),
        (name = "Operators", description = OPERATORS),
        (name = "About", description = "The API itself."),
    ),
)]
struct Declared;

const INTRODUCTION: &str = "Waybill runs operations of several steps across remote services. Each \
                            accepted operation completes, is undone, or is parked for a \
                            person.\n\nThe server answers 202 once the request is durable. GET \
                            the URL in the Location header to read the operation's \
                            state.\n\nRefusals are problem details (RFC 9457). They list every \
                            invalid field. Invalid and unknown query parameters are reported \
                            alone, without the fields of the body.\n\nEach response has \
                            `X-Request-Id`: the caller's, if the request has a valid one, or a \
                            new one.";

const OPERATORS: &str = "Inspection and repair by an operator. Without authentication, make sure \
                         that only operators can reach this port.";

/// The document, as JSON, of a server with authentication (`is_guarded`) or without, and with these
/// forms.
pub fn document(is_guarded: bool, forms: &Forms) -> String {
    let described: Vec<Described> = forms
        .iter()
        .map(|form| (form, form.rules.description()))
        .collect();
    let mut document = Declared::openapi();
    complete_general_form(&mut document, &described);
    let paths = &mut document.paths;
    let templates = Templates::take(paths);
    verbs::add_paths(paths, &templates);
    let components = document.components.get_or_insert_default();
    for described in &described {
        forms::add_paths(paths, &templates, described);
    }
    forms::add_schemas(&mut components.schemas, &described);
    let of_forms = described.iter().map(|(_, form)| tag(form.tag, form.about));
    let tags = document.tags.get_or_insert_default();
    tags.splice(..0, of_forms);
    match is_guarded {
        true => security::secure(&mut document, forms),
        false => security::stay_local(&mut document),
    }
    document
        .to_json()
        .expect("a document of strings and numbers serializes")
}

/// The operations that those of verbs and of forms are made from.
struct Templates {
    create: Operation,
    get: Operation,
    ask: Operation,
}

impl Templates {
    /// Takes the operation that stands for all verbs out of the paths, and copies the others.
    fn take(Paths { paths, .. }: &mut Paths) -> Self {
        const DECLARED: &str = "the handlers declare these operations";
        Self {
            ask: paths
                .remove(ASK)
                .and_then(|path| path.post)
                .expect(DECLARED),
            create: paths[OPERATIONS].post.clone().expect(DECLARED),
            get: paths[OPERATION].get.clone().expect(DECLARED),
        }
    }
}

/// Adds the examples of the general form, and what it says about each form. The form has no example
/// of its own: the server accepts this one if a workflow has a form.
fn complete_general_form(document: &mut OpenApi, described: &[Described]) {
    let example = operation_example(described);
    for (path, example) in [(BATCH, ndjson(&example)), (OPERATIONS, example)] {
        let operation = document.paths.paths.get_mut(path);
        let operation = operation.and_then(|path| path.post.as_mut());
        if let Some(operation) = operation {
            content_of_body(operation).example = Some(example);
        }
    }
    let components = document.components.get_or_insert_default();
    let name = OperationRequest::name();
    let Some(RefOr::T(Schema::Object(request))) = components.schemas.get_mut(&*name) else {
        panic!("createOperation takes an object");
    };
    let mut add = |field: &str, sentence: &dyn Fn(&FormDescription) -> String| {
        let Some(RefOr::T(Schema::Object(property))) = request.properties.get_mut(field) else {
            panic!("a request has the field {field}");
        };
        for (form, about) in described {
            let text = property.description.get_or_insert_default();
            text.push_str(&format!(
                " For {}, {}.",
                form.names.workflow,
                sentence(about)
            ));
        }
    };
    add("input", &|form| format!("it is {}", form.general_input));
    add("deadline", &|form| form.general_deadline.to_owned());
    add("priority", &|form| {
        format!("it is {}", form.general_priority)
    });
}

/// The content of the body that an operation takes.
fn content_of_body(operation: &mut Operation) -> &mut Content {
    match &mut operation.request_body {
        Some(RefOr::T(body)) => match body.content.values_mut().next() {
            Some(RefOr::T(content)) => content,
            _ => panic!("a body has content"),
        },
        _ => panic!("the operation takes a body"),
    }
}

/// The content of an operation's response.
fn content_of<'a>(operation: &'a mut Operation, status: &str) -> &'a mut Content {
    match operation.responses.responses.get_mut(status) {
        Some(RefOr::T(response)) => match response.content.values_mut().next() {
            Some(RefOr::T(content)) => content,
            _ => panic!("the response {status} has content"),
        },
        _ => panic!("the operation has the response {status}"),
    }
}

/// Adds refusals to an operation.
fn refuse(operation: &mut Operation, kinds: &[Kind]) {
    let refusals = kinds.iter().map(|kind| refusal(*kind));
    operation.responses.responses.extend(refusals);
}

fn tag(name: &str, about: &str) -> Tag {
    TagBuilder::new()
        .name(name)
        .description(Some(about))
        .build()
}

#[cfg(test)]
mod tests;
