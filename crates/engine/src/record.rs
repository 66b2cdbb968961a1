//! What travels between the roles, as values. How they look on the wire is the business of the
//! `messages` crate.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::{Attempt, Epoch, Offset, OperationId, PartitionId};
use crate::operation::{ProcessState, RequestHash, StepError, StepState};
use crate::time::Timestamp;

/// A topic that a scheduler reads its partition of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Source {
    /// `operation-requests`: what callers ask for.
    Requests,
    /// `step-replies`: what agents answer.
    Replies,
}

/// Where a record lies: its partition and offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Position {
    /// The partition.
    pub partition: PartitionId,
    /// The offset in it.
    pub offset: Offset,
}

/// Who chose an operation's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IdOrigin {
    /// Ingestion made a fresh UUIDv7: no other record with this id exists, unless this very record
    /// is read twice.
    Server,
    /// The caller's, or not known: others with this id may exist.
    Caller,
}

/// A request to run a new operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CreateRequest {
    /// The operation.
    pub operation: OperationId,
    /// Who chose the id.
    pub id_origin: IdOrigin,
    /// The workflow to run.
    pub workflow: String,
    /// The tenant on whose behalf it runs; empty for the only tenant.
    pub tenant: String,
    /// The id that the caller knows it by, if it chose one.
    pub caller_id: Option<String>,
    /// The workflow's input: a JSON object, as UTF-8.
    pub input: Vec<u8>,
    /// By when the operation should be final.
    pub deadline: Option<Timestamp>,
    /// A topic of the caller's for status records.
    pub reply_to: Option<String>,
    /// A hash over the canonical form of the request, which tells a repeat from a conflict.
    pub request_hash: RequestHash,
    /// When ingestion took it.
    pub requested_at: Timestamp,
    /// The W3C trace context that it came with.
    pub traceparent: Option<String>,
}

/// What a step request asks an agent to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Perform the step.
    Run,
}

/// Facts that steps produced, by name. An agent says of its service's answer what later steps and
/// conditions need; nothing else of the answer is kept.
pub type Outputs = Vec<(String, String)>;

/// A request to an agent: perform one attempt at one step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepRequest {
    /// The operation.
    pub operation: OperationId,
    /// Its workflow's name.
    pub workflow: Arc<str>,
    /// The step's name in the workflow.
    pub step: Arc<str>,
    /// The agent that performs it, which names the topic.
    pub agent: Arc<str>,
    /// Which try this is.
    pub attempt: Attempt,
    /// The ownership under which it was asked for.
    pub epoch: Epoch,
    /// What to do.
    pub action: Action,
    /// Past this instant the attempt counts as failed, and the agent must neither start nor go on.
    pub complete_by: Timestamp,
    /// The operation's tenant.
    pub tenant: Arc<str>,
    /// The operation's input: a JSON object, as UTF-8.
    pub input: Arc<[u8]>,
    /// What earlier steps produced, as (`step.name`, value).
    pub results: Outputs,
    /// The partition of `step-replies` to answer to.
    pub reply_partition: PartitionId,
    /// The W3C trace context of the operation.
    pub traceparent: Option<Arc<str>>,
}

impl StepRequest {
    /// The idempotency key of the step: `operation id/step`, the same over all attempts.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.operation, self.step)
    }
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The step is done.
    Success {
        /// What it produced.
        outputs: Outputs,
    },
    /// It failed without effect and may succeed when tried again.
    Transient {
        /// Why.
        error: StepError,
    },
    /// It was refused, and trying again is of no use.
    Permanent {
        /// Why.
        error: StepError,
    },
    /// It may or may not have taken effect.
    Unknown {
        /// Why.
        error: StepError,
    },
    /// The agent did not try: no room before complete-by, or an open breaker.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long to wait before asking again, in milliseconds.
        retry_after_ms: u32,
    },
}

/// An agent's answer to a step request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepReply {
    /// The operation.
    pub operation: OperationId,
    /// The step's name.
    pub step: String,
    /// The attempt that it answers.
    pub attempt: Attempt,
    /// The ownership under which the attempt was asked for.
    pub epoch: Epoch,
    /// How the attempt ended.
    pub outcome: Outcome,
}

/// What a status record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StatusKind {
    /// The operation reached a final state.
    Final,
    /// A request was refused because another with the same id and another body came first.
    Rejected,
}

/// A record on `operation-status`, and on the caller's own topic.
#[derive(Clone, PartialEq, Debug)]
pub struct OperationStatus {
    /// Stable: the same however often the record is sent.
    pub event_id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The id that the caller knows it by.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// Its tenant.
    pub tenant: String,
    /// What is told.
    pub kind: StatusKind,
    /// The state that the operation is in.
    pub state: ProcessState,
    /// Counts the operation's status records from 1.
    pub sequence: u32,
    /// The error that ended it, if one did.
    pub error: Option<StepError>,
    /// The step that the error belongs to.
    pub failing_step: Option<String>,
    /// Where the request lies that this answers.
    pub request: Position,
    /// When ingestion took the request.
    pub requested_at: Timestamp,
    /// When the state was reached.
    pub at: Timestamp,
    /// The topic of the caller's that gets a copy.
    pub reply_to: Option<String>,
}

/// A record on `failed-operations`: an operation that failed for good.
#[derive(Clone, PartialEq, Debug)]
pub struct FailedOperation {
    /// Stable: the same however often the record is sent.
    pub event_id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The id that the caller knows it by.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// The workflow version that it ran.
    pub workflow_version: u32,
    /// Its tenant.
    pub tenant: String,
    /// The step that failed.
    pub failing_step: Option<String>,
    /// The agent of that step.
    pub failing_agent: Option<String>,
    /// Why it failed.
    pub error: StepError,
    /// The steps that were completed, in order, with nothing of them undone.
    pub completed_steps: Vec<String>,
    /// Per step with failures, how often it failed.
    pub failure_counts: Vec<(String, u32)>,
    /// The state of every step.
    pub step_states: Vec<(String, StepState)>,
    /// The workflow's input as the caller sent it: a JSON object, as UTF-8.
    pub input: Vec<u8>,
    /// When ingestion took the request.
    pub requested_at: Timestamp,
    /// When it failed for good.
    pub failed_at: Timestamp,
}
