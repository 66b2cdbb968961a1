//! The messages of the textbook design, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// A caller's request.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeliveryRequest {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all deliveries.
    pub index: u32,
    /// The body of the request.
    pub input: Value,
}

/// A step request to an agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepRequest {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all deliveries.
    pub index: u32,
    /// The step.
    pub step: String,
    /// The idempotency key: several attempts have one effect.
    pub idempotency_key: String,
    /// The body of the request.
    pub input: Value,
    /// The results of earlier steps, by step and name.
    pub results: BTreeMap<String, String>,
}

/// The reply of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepReply {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all deliveries.
    pub index: u32,
    /// The step.
    pub step: String,
    /// The results of the step.
    pub outputs: BTreeMap<String, String>,
}

/// The end of a delivery.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its final state.
    pub state: String,
}
