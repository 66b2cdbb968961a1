//! What travels, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// What a caller asks for.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeliveryRequest {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all that are sent.
    pub index: u32,
    /// The body of the request.
    pub input: Value,
}

/// What an agent is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepRequest {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all that are sent.
    pub index: u32,
    /// The step.
    pub step: String,
    /// What makes one effect of several attempts.
    pub idempotency_key: String,
    /// The body of the request.
    pub input: Value,
    /// What the steps before have produced, by step and name.
    pub results: BTreeMap<String, String>,
}

/// What an agent answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepReply {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its number among all that are sent.
    pub index: u32,
    /// The step.
    pub step: String,
    /// What it has produced.
    pub outputs: BTreeMap<String, String>,
}

/// How a delivery ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The delivery's id.
    pub operation: Uuid,
    /// Its final state.
    pub state: String,
}
