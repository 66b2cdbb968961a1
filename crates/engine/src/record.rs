//! The records between the roles, as values. The `messages` crate defines their encoding.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::action::{Action, Outputs};
use crate::contact::Contact;
use crate::id::{Attempt, Epoch, LayoutShard, OperationId, PartitionId};
use crate::operation::{ProcessState, RequestHash, StepError, StepState};
use crate::priority::Position;
use crate::time::Timestamp;

/// Who chose an operation's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IdOrigin {
    /// Ingestion generated a UUIDv7. No other record has this id, unless this very record is read
    /// twice.
    Server,
    /// The caller, or unknown: other records with this id may exist.
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
    /// The caller's own id for it, if it chose one.
    pub caller_id: Option<String>,
    /// The workflow's input: a JSON object, as UTF-8.
    pub input: Vec<u8>,
    /// By when the operation should be final.
    pub deadline: Option<Timestamp>,
    /// The caller's topic for status records, if it has one.
    pub reply_to: Option<String>,
    /// A hash over the canonical form of the request. It distinguishes a repeat from a conflict.
    pub request_hash: RequestHash,
    /// Whether `request_hash` is the one that ingestion computes, so that a scheduler can verify
    /// it. Other writers may have a hash of their own.
    pub verify_hash: bool,
    /// When ingestion accepted it.
    pub requested_at: Timestamp,
    /// The W3C trace context of the request.
    pub traceparent: Option<String>,
    /// The operation that this one runs again, if an operator resubmitted it as a new one.
    pub resubmission_of: Option<OperationId>,
    /// The people to notify when it has ended; at most [`Contact::COUNT_MAX`].
    pub notify: Vec<Contact>,
}

/// A record on `operation-requests` or `high-priority-requests`: a request of a caller.
#[derive(Clone, PartialEq, Debug)]
pub enum OperationRequest {
    /// Run a new operation.
    Create(CreateRequest),
    /// Change an operation that exists, or will exist.
    Amend(AmendRequest),
}

impl OperationRequest {
    /// The operation of the request.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        match self {
            Self::Create(create) => create.operation,
            Self::Amend(amend) => amend.operation,
        }
    }

    /// The tenant; empty for the only tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        match self {
            Self::Create(create) => &create.tenant,
            Self::Amend(amend) => &amend.tenant,
        }
    }
}

/// A request to cancel or to reschedule an operation.
#[derive(Clone, PartialEq, Debug)]
pub struct AmendRequest {
    /// The same in all repeats of the request. A repeat changes nothing.
    pub id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The tenant that sends the request; empty for the only tenant. Operations of other tenants
    /// are not changed.
    pub tenant: String,
    /// The caller's own id for the operation, if it chose one.
    pub caller_id: Option<String>,
    /// The change.
    pub amendment: Amendment,
    /// The reason, for people; may be empty.
    pub reason: String,
    /// The requester, for people; empty for the operation's caller.
    pub asked_by: String,
    /// When ingestion accepted it.
    pub requested_at: Timestamp,
}

/// How a caller changes its operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Amendment {
    /// Undo the completed steps and end `Cancelled`. A cancel that arrives before its create takes
    /// precedence.
    Cancel {
        /// The workflow, for the placeholder row of an operation that does not exist yet.
        workflow: String,
    },
    /// Replace fields of the input, if no step that uses one of them was requested yet.
    Reschedule {
        /// The fields and their new values: a JSON object, as UTF-8.
        fields: Vec<u8>,
        /// The operation's new deadline, if it changes.
        deadline: Option<Timestamp>,
    },
}

/// A request of a supervisor or an operator to the scheduler: a record on `recovery`.
///
/// The scheduler judges it against the current row. It is void if the named attempt is not the
/// latest one, or if the verb has no meaning in the current state.
#[derive(Clone, PartialEq, Debug)]
pub struct Recovery {
    /// The same in all repeats of the request.
    pub id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The name of the supervisor or the operator.
    pub asked_by: String,
    /// The reason, for people; may be empty.
    pub reason: String,
    /// When it was sent.
    pub asked_at: Timestamp,
    /// The due time of the index entry that led to it, if one did. The entry is used up, so a live
    /// operation needs another.
    pub due: Option<Timestamp>,
    /// The request.
    pub verb: RecoveryVerb,
}

/// An attempt, as the requester saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptSeen {
    /// The step.
    pub step: String,
    /// The action of the attempt.
    pub action: Action,
    /// Its number.
    pub attempt: Attempt,
}

/// The request of a recovery.
#[derive(Clone, PartialEq, Debug)]
pub enum RecoveryVerb {
    /// Re-evaluate the operation: an index entry is due and nothing else is known to be due. A
    /// final state whose messages may be missing is announced again.
    Wake,
    /// Time out the attempt if it has exceeded its complete-by, and start the next.
    Retry {
        /// The latest attempt.
        seen: AttemptSeen,
        /// How long the next attempt may take.
        budget: Duration,
    },
    /// Undo the completed steps. A supervisor names the attempt that ended forward progress; an
    /// operator names none.
    Compensate {
        /// The attempt that failed for good.
        seen: Option<AttemptSeen>,
    },
    /// Park the operation: in `Error`, or in `CompensationFailed` during an undo.
    Park {
        /// The attempt that failed for good.
        seen: AttemptSeen,
    },
    /// Resume at the step that failed, if no step was undone.
    Resubmit,
    /// End a parked operation as it is; a person is responsible for its effects.
    Abandon,
    /// Retry the undos that failed.
    RetryCompensation,
    /// A person has undone this step.
    Undone {
        /// The step.
        step: String,
    },
    /// The operation was resubmitted as a new one; noted in its history.
    Resubmitted {
        /// The new operation.
        as_operation: OperationId,
    },
}

impl RecoveryVerb {
    /// Its name in the API, the history and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Retry { .. } => "retry",
            Self::Compensate { .. } => "compensate",
            Self::Park { .. } => "park",
            Self::Resubmit => "resubmit",
            Self::Abandon => "abandon",
            Self::RetryCompensation => "retry-compensation",
            Self::Undone { .. } => "undone",
            Self::Resubmitted { .. } => "resubmitted",
        }
    }

    /// The attempt that the request is about, if it names one.
    #[must_use]
    pub const fn seen(&self) -> Option<&AttemptSeen> {
        match self {
            Self::Retry { seen, .. }
            | Self::Park { seen }
            | Self::Compensate { seen: Some(seen) } => Some(seen),
            _ => None,
        }
    }
}

/// Proof that the sender of a reply has seen the request: 16 unguessable bytes that the scheduler
/// puts into the request and the agent repeats. `Debug` does not show them, because a reader of the
/// logs could use them to forge the reply.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce(pub [u8; Nonce::BYTES]);

impl Nonce {
    /// The length of a nonce in bytes.
    pub const BYTES: usize = 16;
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// A request to an agent: perform one attempt at one step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepRequest {
    /// The operation.
    pub operation: OperationId,
    /// Its workflow's name.
    pub workflow: Arc<str>,
    /// The step's name in the workflow.
    pub step: Arc<str>,
    /// The agent that performs it, which determines the topic.
    pub agent: Arc<str>,
    /// The number of the attempt.
    pub attempt: Attempt,
    /// The epoch of the owner that sent it.
    pub epoch: Epoch,
    /// The action.
    pub action: Action,
    /// After this instant the attempt counts as failed, and the agent must neither start nor
    /// continue.
    pub complete_by: Timestamp,
    /// The operation's tenant.
    pub tenant: Arc<str>,
    /// The operation's input: a JSON object, as UTF-8.
    pub input: Arc<[u8]>,
    /// Outputs of earlier steps, as (`step.name`, value).
    pub results: Outputs,
    /// The partition of `step-replies` for the reply.
    pub reply_partition: PartitionId,
    /// The shard whose owner sent it. Epochs are comparable only among requests of one shard.
    /// `None` if it is unknown.
    pub shard: Option<LayoutShard>,
    /// The nonce that the reply repeats. The engine leaves it out; the scheduler adds it when it
    /// sends the request.
    pub nonce: Option<Nonce>,
    /// The W3C trace context of the operation.
    pub traceparent: Option<Arc<str>>,
}

impl StepRequest {
    /// The idempotency key of the step: `operation id/step`, the same for all attempts and actions,
    /// so that a service can relate an undo or a probe to the step.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.operation, self.step)
    }
}

/// The error code with which an agent refuses an owner after it has received a request of the next
/// owner.
pub const OWNER_SUPERSEDED: &str = "owner-superseded";

/// The error code of an attempt whose request the brokers refused because of its topic. It says
/// nothing about the agent.
pub const STEP_REQUEST_REFUSED: &str = "step-request-refused";

/// How an attempt ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The step is done.
    Success {
        /// What it produced.
        outputs: Outputs,
    },
    /// It failed without effect, and a retry may succeed.
    Transient {
        /// Why.
        error: StepError,
    },
    /// It was refused, and a retry would be, too.
    Permanent {
        /// Why.
        error: StepError,
    },
    /// It may or may not have taken effect.
    Unknown {
        /// Why.
        error: StepError,
    },
    /// For a probe: the step was not performed. (If it was, the probe is a success, with the step's
    /// outputs.)
    NotPerformed,
    /// The agent did not try: it had no capacity before complete-by, or its circuit breaker is
    /// open.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long to wait before the next request, in milliseconds; at most five minutes are
        /// respected.
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
    /// The epoch of the owner that requested the attempt.
    pub epoch: Epoch,
    /// The action of the attempt, as in the request.
    pub action: Action,
    /// The nonce of the request. The scheduler verifies it before the engine sees the reply.
    pub nonce: Option<Nonce>,
    /// How the attempt ended.
    pub outcome: Outcome,
}

impl StepReply {
    /// The reply to a request.
    #[must_use]
    pub fn to(request: &StepRequest, outcome: Outcome) -> Self {
        Self {
            operation: request.operation,
            step: request.step.to_string(),
            attempt: request.attempt,
            epoch: request.epoch,
            action: request.action,
            nonce: request.nonce,
            outcome,
        }
    }
}

/// The kind of a status record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StatusKind {
    /// The operation reached a final state.
    Final,
    /// A request was rejected: an earlier one has the same id and another body.
    Rejected,
    /// The operation was created. On `operation-status` only if step states are published there.
    Received,
    /// A step ended, or was undone. On `operation-status` only if step states are published there.
    Step,
    /// A cancel was refused: the operation was already final.
    CancelRefused,
    /// A reschedule was applied.
    Rescheduled,
    /// A reschedule was refused; the error contains the reason.
    RescheduleRefused,
}

/// A record on `operation-status`, and on the caller's own topic if it has one.
#[derive(Clone, PartialEq, Debug)]
pub struct OperationStatus {
    /// The same however often the record is sent.
    pub event_id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The caller's own id for it.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// Its tenant.
    pub tenant: String,
    /// The kind of the record.
    pub kind: StatusKind,
    /// The state of the operation.
    pub state: ProcessState,
    /// Counts the operation's status records from 1, including those to the caller's own topic; 0
    /// for the answer to a refused request.
    pub sequence: u32,
    /// The error that ended it, if one did, or the reason for a refusal.
    pub error: Option<StepError>,
    /// The step that the error belongs to.
    pub failing_step: Option<String>,
    /// With [`StatusKind::Step`]: the step and its state.
    pub step: Option<(String, StepState)>,
    /// The position of the request that this answers.
    pub request: Position,
    /// When ingestion accepted the request.
    pub requested_at: Timestamp,
    /// When the state was reached.
    pub at: Timestamp,
    /// The caller's topic that receives a copy.
    pub reply_to: Option<String>,
}

/// A record on `failed-operations`: an operation that failed for good.
#[derive(Clone, PartialEq, Debug)]
pub struct FailedOperation {
    /// The same however often the record is sent.
    pub event_id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The caller's own id for it.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// The workflow version of the operation.
    pub workflow_version: u32,
    /// Its tenant.
    pub tenant: String,
    /// The step that failed.
    pub failing_step: Option<String>,
    /// The agent of that step.
    pub failing_agent: Option<String>,
    /// The latest attempt at that step; 0 if there was none.
    pub failing_attempt: Attempt,
    /// The action of that attempt.
    pub failing_action: Action,
    /// Whether the supervisor has yet to decide how it ends. If not, it is parked.
    pub awaits_decision: bool,
    /// Why it failed.
    pub error: StepError,
    /// The completed steps, in order, without those that were undone.
    pub completed_steps: Vec<String>,
    /// How often each step has failed, for steps with failures.
    pub failure_counts: Vec<(String, u32)>,
    /// The state of every step.
    pub step_states: Vec<(String, StepState)>,
    /// The workflow's input as the caller sent it: a JSON object, as UTF-8.
    pub input: Vec<u8>,
    /// When ingestion accepted the request.
    pub requested_at: Timestamp,
    /// When it failed for good.
    pub failed_at: Timestamp,
}

/// A record on `owner-notices`: an operation with contacts has ended, or was parked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnerNotice {
    /// The same however often the record is sent.
    pub event_id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The caller's own id for it.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// Its tenant.
    pub tenant: String,
    /// The new state.
    pub state: ProcessState,
    /// The people to notify.
    pub contacts: Vec<Contact>,
    /// When the state was reached.
    pub at: Timestamp,
}

/// A record on `operator-alerts`: an operation needs an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct OperatorAlert {
    /// The same however often the record is sent.
    pub event_id: Uuid,
    /// The kind of the alert.
    pub kind: AlertKind,
    /// The operation.
    pub operation: OperationId,
    /// The caller's own id for it.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// Its tenant.
    pub tenant: String,
    /// The step that it concerns, if any.
    pub step: Option<String>,
    /// What went wrong.
    pub error: Option<StepError>,
    /// What an operator should do, as text.
    pub advice: String,
    /// When the condition arose.
    pub at: Timestamp,
}

/// Why an operator is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum AlertKind {
    /// An operation is parked in `Error`.
    OperationParked,
    /// An operation is parked in `CompensationFailed`.
    CompensationFailed,
    /// A step can only be undone by a person, who must confirm it.
    ManualUndo,
    /// A step keeps failing and is retried at long intervals.
    Waiting,
    /// The row of an operation cannot be read.
    RowUnreadable,
}

impl AlertKind {
    /// Its stable name in records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperationParked => "operation-parked",
            Self::CompensationFailed => "compensation-failed",
            Self::ManualUndo => "manual-undo",
            Self::Waiting => "waiting",
            Self::RowUnreadable => "row-unreadable",
        }
    }
}
