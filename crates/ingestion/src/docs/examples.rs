//! The examples of the document: one order, from its request to its status.

use serde_json::{Value, json};
use waybill_api::form::{EXAMPLE_ID, Form, FormDescription, example_view};
use waybill_api::verb::Verb;

use crate::route::OPERATIONS;

/// A form with its description.
pub type Described = (Form, FormDescription);

/// The workflow of the example.
pub const WORKFLOW: &str = "order-fulfilment";

/// A request in the general form, which the server can accept if a workflow has a form of its own.
pub fn operation_example(described: &[Described]) -> Value {
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
pub fn accepted_example(workflow: &str) -> Value {
    json!({"id": EXAMPLE_ID, "state": "Pending", "workflow": workflow})
}

/// An operation's status while a step waits for its next attempt.
pub fn operation_view_example() -> Value {
    example_view(WORKFLOW, ["stock", "payment", "shipping"])
}

/// A request in a form of its own as an answer shows it, with its id.
pub fn named_request(form: Form, description: &FormDescription) -> Value {
    let request = description.request_example.clone();
    with(request, form.names.id_field, json!(EXAMPLE_ID))
}

/// The status of the operation with such a request.
pub fn request_view_example(form: Form, description: &FormDescription) -> Value {
    let view = description.view_example.clone();
    with(view, "request", named_request(form, description))
}

/// An object with one more field.
pub fn with(mut object: Value, name: &str, value: impl Into<Value>) -> Value {
    object[name] = value.into();
    object
}

/// The answer to a verb that was accepted.
pub fn asked_example(verb: &str) -> Value {
    let example = json!({
        "id": EXAMPLE_ID,
        "verb": verb,
        "requestId": "5f0e9c1a-7d4e-5b52-9a3c-2f1f6f2d9b10",
    });
    match Verb::of_path(verb) {
        Some(Verb::Resubmit) => with(
            example,
            "resubmittedAs",
            "3c1d2e8f-0f65-5a41-8b7e-6a5d4c3b2a19",
        ),
        _ => example,
    }
}

/// An operation after its cancel.
pub fn cancelled(view: Value) -> Value {
    with(with(view, "state", "Cancelled"), "cancel", "applied")
}

/// A page of operations.
pub fn list_example() -> Value {
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
    json!({"items": [item], "next": "eyJ..."})
}

/// An event as it is sent.
pub fn events_example() -> Value {
    let data = json!({
        "operation": EXAMPLE_ID,
        "type": "step",
        "state": "Completed",
        "step": "stock",
        "attempt": 1,
        "action": "Run",
        "at": "2030-05-08T20:00:00.234567Z",
    });
    Value::String(format!("id: 1.C1\nevent: step\ndata: {data}\n\n"))
}

/// The answer to a batch.
pub fn batch_example() -> Value {
    let location = format!("{OPERATIONS}/{EXAMPLE_ID}?at=3-1234-5f2b9c01");
    ndjson(&json!({"status": 202, "id": EXAMPLE_ID, "location": location, "line": 1}))
}

/// Two lines of a batch.
pub fn ndjson(line: &Value) -> Value {
    Value::String(format!("{line}\n{line}\n"))
}
