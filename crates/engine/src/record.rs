//! What travels between the roles, as values. How they look on the wire is the business of the
//! `messages` crate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::contact::Contact;
use crate::id::{Attempt, Epoch, LayoutShard, OperationId, PartitionId};
use crate::operation::{ProcessState, RequestHash, StepError, StepState};
use crate::priority::Position;
use crate::time::Timestamp;

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
    /// The operation that this one runs again, if an operator resubmitted it as a new one.
    pub resubmission_of: Option<OperationId>,
    /// Who is told how it ended; at most [`Contact::COUNT_MAX`].
    pub notify: Vec<Contact>,
}

/// A record on `operation-requests`: what a caller asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum OperationRequest {
    /// Run a new operation.
    Create(CreateRequest),
    /// Change an operation that exists, or will.
    Amend(AmendRequest),
}

impl OperationRequest {
    /// The operation that it is about.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        match self {
            Self::Create(create) => create.operation,
            Self::Amend(amend) => amend.operation,
        }
    }

    /// On whose behalf; empty for the only tenant.
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
    /// Stable over repeats of the request: a repeat changes nothing.
    pub id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// The tenant on whose behalf it is asked; empty for the only tenant. An operation of another
    /// tenant is not touched.
    pub tenant: String,
    /// The id that the caller knows the operation by, if it chose one.
    pub caller_id: Option<String>,
    /// What is asked.
    pub amendment: Amendment,
    /// Why, for people; may be empty.
    pub reason: String,
    /// Who asks, for people; empty for the operation's caller.
    pub asked_by: String,
    /// When ingestion took it.
    pub requested_at: Timestamp,
}

/// How a caller changes its operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Amendment {
    /// Undo what was done and end `Cancelled`. One that comes before its create wins over it.
    Cancel {
        /// The workflow, for the row that keeps the place of an operation which is not there yet.
        workflow: String,
    },
    /// Replace fields of the input, if no step that uses one of them was asked for yet.
    Reschedule {
        /// The fields and their new values: a JSON object, as UTF-8.
        fields: Vec<u8>,
        /// The operation's new deadline, if it changes.
        deadline: Option<Timestamp>,
    },
}

/// What a step request asks an agent to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Action {
    /// Perform the step.
    #[default]
    Run,
    /// Undo the step, whether or not it was performed.
    Compensate,
    /// Say whether the step was performed, without performing it.
    Probe,
}

impl Action {
    /// Its name, as it stands in answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "Run",
            Self::Compensate => "Compensate",
            Self::Probe => "Probe",
        }
    }
}

/// What a supervisor or an operator asks of the scheduler: a record on `recovery`.
///
/// Whatever it asks is judged again by the scheduler, against the row as it is then: an attempt
/// that is not the one that was seen, or a state in which the verb means nothing, makes it void.
#[derive(Clone, PartialEq, Debug)]
pub struct Recovery {
    /// Stable over repeats of the same request.
    pub id: Uuid,
    /// The operation.
    pub operation: OperationId,
    /// Who asks: the supervisor's name, or the operator's.
    pub asked_by: String,
    /// Why, for people; may be empty.
    pub reason: String,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// The due time of the deadline index' entry that led to it, if one did: it came up, so that
    /// another must stand while the operation lives.
    pub due: Option<Timestamp>,
    /// What is asked.
    pub verb: RecoveryVerb,
}

/// An attempt as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptSeen {
    /// The step.
    pub step: String,
    /// What the attempt does.
    pub action: Action,
    /// Its number.
    pub attempt: Attempt,
}

/// What a recovery asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum RecoveryVerb {
    /// Look at the operation: an index entry came up and nothing else is known to be due. A final
    /// state whose messages may be missing is announced again.
    Wake,
    /// Give up the attempt if it outlived its complete-by, and make the next.
    Retry {
        /// The attempt that it follows.
        seen: AttemptSeen,
        /// How long the next attempt may take.
        budget: Duration,
    },
    /// Undo what was done. By a supervisor: because this attempt ended forward progress. By an
    /// operator, without an attempt: because a person says so.
    Compensate {
        /// The attempt that failed for good.
        seen: Option<AttemptSeen>,
    },
    /// Leave the operation to a person: `Error`, or `CompensationFailed` while it is undone.
    Park {
        /// The attempt that failed for good.
        seen: AttemptSeen,
    },
    /// Go on at the step that failed, where nothing was undone.
    Resubmit,
    /// End a parked operation as it stands; a person answers for what was done.
    Abandon,
    /// Undo again what could not be undone.
    RetryCompensation,
    /// A person undid this step.
    Undone {
        /// The step.
        step: String,
    },
    /// The operation was resubmitted as a new one, which is noted in its history.
    Resubmitted {
        /// The new operation.
        as_operation: OperationId,
    },
}

impl RecoveryVerb {
    /// Its name: what the API, the history and metrics call it.
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
}

/// Facts that steps produced, by name. An agent says of its service's answer what later steps and
/// conditions need; nothing else of the answer is kept.
pub type Outputs = Vec<(String, String)>;

/// Proof that the sender of a reply has seen the request: 16 unguessable bytes that the scheduler puts into the request
/// and the agent repeats. `Debug` does not show them: with them, anyone who reads the logs could forge the reply.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce(pub [u8; Nonce::BYTES]);

impl Nonce {
    /// How long a nonce is.
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
    /// The shard whose owner asks: epochs can be compared among its requests, and with no others'. `None` if it is not
    /// known.
    pub shard: Option<LayoutShard>,
    /// What the reply repeats. The engine leaves it out; the scheduler adds it when it sends the request.
    pub nonce: Option<Nonce>,
    /// The W3C trace context of the operation.
    pub traceparent: Option<Arc<str>>,
}

impl StepRequest {
    /// The idempotency key of the step: `operation id/step`, the same over all attempts and
    /// actions, so that a service knows what an undo or a probe is about.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.operation, self.step)
    }
}

/// The code of the error with which an agent refuses an owner whose successor has asked it already.
pub const OWNER_SUPERSEDED: &str = "owner-superseded";

/// The code of the error of an attempt whose request the brokers refused because of its topic. It says nothing of the agent.
pub const STEP_REQUEST_REFUSED: &str = "step-request-refused";

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
    /// With a probe: the step was not performed. (If it was, the probe is a success, with what the
    /// step produced.)
    NotPerformed,
    /// The agent did not try: no room before complete-by, or an open breaker.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long to wait before asking again, in milliseconds. What exceeds five minutes is cut.
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
    /// What the attempt was to do, as in the request.
    pub action: Action,
    /// The nonce of the request. The scheduler verifies it before the engine sees the reply.
    pub nonce: Option<Nonce>,
    /// How the attempt ended.
    pub outcome: Outcome,
}

impl StepReply {
    /// The answer to a request.
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

/// What a status record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StatusKind {
    /// The operation reached a final state.
    Final,
    /// A request was refused because another with the same id and another body came first.
    Rejected,
    /// The operation was created. To the caller's own topic only.
    Received,
    /// A step ended, or was undone. To the caller's own topic only.
    Step,
    /// A cancel was refused: the operation had become final before.
    CancelRefused,
    /// A reschedule was applied.
    Rescheduled,
    /// A reschedule was refused; the error says why.
    RescheduleRefused,
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
    /// Counts the operation's status records from 1, those to the caller's own topic included; 0
    /// for the answer to a request that was refused.
    pub sequence: u32,
    /// The error that ended it, if one did, or why a request was refused.
    pub error: Option<StepError>,
    /// The step that the error belongs to.
    pub failing_step: Option<String>,
    /// With [`StatusKind::Step`]: the step and its state.
    pub step: Option<(String, StepState)>,
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
    /// The newest attempt at that step; 0 if none was made.
    pub failing_attempt: Attempt,
    /// What that attempt did.
    pub failing_action: Action,
    /// Whether the supervisor is to say what becomes of it. If not, it is parked.
    pub awaits_decision: bool,
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

/// A record on `owner-notices`: who asked to be told of an operation is to hear how it ended, or
/// that it waits for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnerNotice {
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
    /// The state that it has come to.
    pub state: ProcessState,
    /// Who is to be told.
    pub contacts: Vec<Contact>,
    /// When the state was reached.
    pub at: Timestamp,
}

/// A record on `operator-alerts`: something that needs a person.
#[derive(Clone, PartialEq, Debug)]
pub struct OperatorAlert {
    /// Stable: the same however often the record is sent.
    pub event_id: Uuid,
    /// What kind it is.
    pub kind: AlertKind,
    /// The operation.
    pub operation: OperationId,
    /// The id that the caller knows it by.
    pub caller_id: Option<String>,
    /// Its workflow's name.
    pub workflow: String,
    /// Its tenant.
    pub tenant: String,
    /// The step that it is about, if it is about one.
    pub step: Option<String>,
    /// What went wrong.
    pub error: Option<StepError>,
    /// What to do about it, for people.
    pub advice: String,
    /// When it came to be.
    pub at: Timestamp,
}

/// Why a person is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum AlertKind {
    /// An operation is parked in `Error`.
    OperationParked,
    /// An operation is parked in `CompensationFailed`.
    CompensationFailed,
    /// A step can only be undone by a person, who has to say so.
    ManualUndo,
    /// A step keeps failing and is tried again with long waits.
    Waiting,
    /// The row of an operation cannot be read.
    RowUnreadable,
}

impl AlertKind {
    /// Its stable name, as it stands in records and metrics.
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
