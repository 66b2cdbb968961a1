//! The examples of the document: one order, from its request to its status.

use serde_json::{Value, json};
use waybill_api::form::{EXAMPLE_ID, Form, FormDescription, example_view};

use super::Described;

/// The workflow of the example.
pub(super) const WORKFLOW: &str = "order-fulfilment";

/// The address of the example's status.
pub(super) fn location(base: &str) -> String {
    format!("{base}/{EXAMPLE_ID}?at=3-1234-5f2b9c01")
}

/// A request in the general form, which the server can accept if a workflow has a form of its own.
pub(super) fn operation_example(described: &[Described]) -> Value {
    match described {
        [] => order_example(),
        [(form, about), ..] => json!({
            "workflow": form.names.workflow,
            "id": "order-17",
            "input": about.request_example,
        }),
    }
}

fn order_example() -> Value {
    json!({
        "workflow": WORKFLOW,
        "id": "order-17",
        "input": {
            "orderId": "order-17",
            "customer": "ada@example.org",
            "lines": [{"article": "lamp", "quantity": 2, "price": 20, "weight": 1.2}],
            "payment": {"card": "4111111111111111"},
        },
    })
}

/// The answer to a request that was accepted.
pub(super) fn accepted_example(workflow: &str) -> Value {
    json!({"id": EXAMPLE_ID, "state": "Pending", "workflow": workflow})
}

/// An operation's status while a step waits for its next attempt.
pub(super) fn operation_view_example() -> Value {
    example_view(WORKFLOW, ["stock", "payment", "shipping"])
}

/// A request in a form of its own as an answer shows it, with its id.
pub(super) fn named_request(form: Form, description: &FormDescription) -> Value {
    let request = description.request_example.clone();
    with(request, form.names.id_field, json!(EXAMPLE_ID))
}

/// The status of the operation with such a request.
pub(super) fn request_view_example(form: Form, description: &FormDescription) -> Value {
    let view = description.view_example.clone();
    with(view, "request", named_request(form, description))
}

/// An object with one more field.
pub(super) fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

/// Two lines of a batch.
pub(super) fn ndjson(line: &Value) -> Value {
    Value::String(format!("{line}\n{line}\n"))
}
