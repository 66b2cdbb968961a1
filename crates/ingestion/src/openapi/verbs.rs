//! The operation of each verb, made from the one that is declared for all of them.

use serde_json::json;
use utoipa::openapi::path::{HttpMethod, Operation, Paths};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{RefOr, Required, Schema};
use waybill_api::verb::Verb;
use waybill_http::problem::Kind;

use super::{Templates, content_of, content_of_body, refuse};
use crate::docs::examples::{asked_example, cancelled, operation_view_example};
use crate::route::OPERATION;

/// Adds the paths.
pub(super) fn add_paths(paths: &mut Paths, templates: &Templates) {
    for verb in Verb::with_path() {
        let path = format!("{OPERATION}:{}", verb.in_path());
        paths.add_path_operation(path, vec![HttpMethod::Post], asking(verb, templates));
    }
}

/// The operation of one verb.
pub(super) fn asking(verb: Verb, templates: &Templates) -> Operation {
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
    let mut operation = templates.ask.clone();
    operation.operation_id = Some(id.to_owned());
    operation.summary = Some(summary.to_owned());
    let general = operation.description.take().unwrap_or_default();
    operation.description = Some(format!("{about} {general}"));
    set_body(verb, &mut operation);
    content_of(&mut operation, "202").example = Some(asked_example(verb.in_path()));
    let repeat =
        |of: &Operation| Some(("200".to_owned(), of.responses.responses.get("200")?.clone()));
    let responses = &mut operation.responses.responses;
    if verb == Verb::Cancel {
        responses.extend(repeat(&templates.create));
        content_of(&mut operation, "200").example = Some(cancelled(operation_view_example()));
        operation.tags = Some(vec!["Operations".to_owned()]);
        refuse(
            &mut operation,
            &[Kind::OperationFinal, Kind::TooManyRequests],
        );
        return operation;
    }
    if verb == Verb::Undone {
        responses.extend(repeat(&templates.get));
    }
    operation.tags = Some(vec!["Operators".to_owned()]);
    refuse(&mut operation, &[Kind::VerbRefused]);
    operation
}

/// Sets the body: an object with the fields of the verb.
fn set_body(verb: Verb, operation: &mut Operation) {
    let content = content_of_body(operation);
    let Some(RefOr::T(Schema::Object(object))) = &mut content.schema else {
        panic!("the body of a verb is an object");
    };
    object.description = None;
    let properties = &mut object.properties;
    properties.retain(|name, _| verb.fields().contains(&name.as_str()));
    for name in verb.required() {
        if let Some(RefOr::T(Schema::Object(property))) = properties.get_mut(*name) {
            property.schema_type = Type::String.into();
        }
        object.required.push((*name).to_owned());
    }
    content.example = Some(match verb {
        Verb::Undone => json!({"reason": "refunded by hand", "by": "kim", "step": "payment"}),
        Verb::Cancel => json!({"reason": "ordered twice"}),
        _ => json!({"reason": "the bank is back", "by": "kim"}),
    });
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && verb.required().is_empty()
    {
        body.required = Some(Required::False);
    }
}
