//! The examples of the document: one delivery, from its request to its status.

use serde_json::{Value, json};

/// The id of the example.
pub(super) const ID: &str = "0192f0c1-2345-7abc-8def-0123456789ab";

/// The address of its status.
pub(super) fn location(base: &str) -> String {
    format!("{base}/{ID}?at=3-1234-5f2b9c01")
}

/// A request for a delivery.
pub(super) fn delivery_example() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "my pickup",
        "dropOffLocation": "drop off",
        "pickupTime": "2030-05-08T20:00:00Z",
        "deadline": "2030-05-08T22:00:00Z",
        "expedited": true,
        "confirmationRequired": "None",
        "packageInfo": {"packageId": "mypackage", "size": "Small", "weight": 10, "tag": "mytag"},
    })
}

/// The delivery as an answer shows it, with its id.
pub(super) fn named_delivery() -> Value {
    with(delivery_example(), "deliveryId", json!(ID))
}

/// A request for an operation.
pub(super) fn operation_example() -> Value {
    json!({
        "workflow": "drone-delivery",
        "id": "order-17",
        "input": delivery_example(),
    })
}

/// An operation's status while a step waits for its next attempt.
pub(super) fn operation_view_example() -> Value {
    json!({
        "id": ID,
        "workflow": "drone-delivery",
        "callerId": "order-17",
        "state": "Processing",
        "steps": [
            {"name": "account", "state": "Completed", "attempt": 1, "action": "Run",
             "changedAt": "2030-05-08T20:00:00.134567Z"},
            {"name": "package", "state": "Failed", "attempt": 2, "action": "Run",
             "failureCount": 2, "retryAt": "2030-05-08T20:00:00.634567Z",
             "changedAt": "2030-05-08T20:00:00.234567Z",
             "error": {"code": "unavailable", "message": "the service answered 503"}},
            {"name": "delivery", "state": "NotStarted", "attempt": 0},
        ],
        "whatNext": "Step package will be retried at 2030-05-08T20:00:00.634567Z.",
        "verbs": ["cancel", "compensate"],
        "failureCount": 2,
        "nextDue": "2030-05-08T20:00:00.634567Z",
        "lockedBy": "7b1f6f0e-53a7-4c57-9a5e-1f0c6f2d9b10",
        "epoch": 3,
        "createdAt": "2030-05-08T20:00:00.123456Z",
        "updatedAt": "2030-05-08T20:00:00.234567Z",
    })
}

/// The status of a delivery with such a step.
pub(super) fn delivery_view_example() -> Value {
    with(operation_view_example(), "request", named_delivery())
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
