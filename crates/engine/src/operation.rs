//! The state of one operation, as it is kept in the store.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{Attempt, Epoch, OperationId, OwnerId};
use crate::record::{Outputs, Position};
use crate::time::{Stamp, Timestamp};

/// The first 16 bytes of the SHA-256 over a request's canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestHash(pub [u8; 16]);

impl fmt::Display for RequestHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RequestHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The process state of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ProcessState {
    /// Accepted; no scheduler has read it yet. Never stored.
    Pending,
    /// Its steps are being performed.
    Processing,
    /// Every step is completed or skipped. Final.
    Processed,
    /// It failed for good and waits for a person.
    Error,
}

impl ProcessState {
    /// Whether the scheduler has nothing left to do for it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Processing => false,
            Self::Processed | Self::Error => true,
        }
    }

    /// The design's word for it, as it stands in answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Processed => "Processed",
            Self::Error => "Error",
        }
    }
}

/// The state of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum StepState {
    /// Not asked for, or asked for and not attempted by the agent.
    #[default]
    NotStarted,
    /// An attempt is under way.
    Running,
    /// Done.
    Completed,
    /// The last attempt failed; another follows if `retry_at` is set.
    Failed,
    /// The last attempt outlived its complete-by; another follows if `retry_at` is set.
    TimedOut,
    /// Its condition did not hold; it is not performed.
    Skipped,
}

impl StepState {
    /// The design's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "NotStarted",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::TimedOut => "TimedOut",
            Self::Skipped => "Skipped",
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepError {
    /// Stable and meant for programs: kebab-case, for example `owner-suspended`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Why an operation failed for good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OperationError {
    /// The step that failed, if it was a step.
    pub step: Option<String>,
    /// What went wrong.
    pub error: StepError,
}

/// How far a step has got.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StepProgress {
    /// Its state.
    pub state: StepState,
    /// The newest attempt; 0 if none was made.
    pub attempt: Attempt,
    /// By when the running attempt must finish.
    pub complete_by: Option<Timestamp>,
    /// When to try again, if another attempt follows.
    pub retry_at: Option<Timestamp>,
    /// How often it has failed or timed out.
    pub failure_count: u32,
    /// The last failure.
    pub error: Option<StepError>,
    /// What it produced.
    pub outputs: Outputs,
}

/// The part of an operation that never changes after it was created.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The version that the operation started with, and keeps.
    pub workflow_version: u32,
    /// The names of the workflow's steps, in the order of `OperationState::steps`.
    pub step_names: Vec<Arc<str>>,
    /// The tenant; empty for the only tenant.
    pub tenant: Arc<str>,
    /// The id that the caller knows it by.
    pub caller_id: Option<String>,
    /// The workflow's input: a JSON object, as UTF-8.
    pub input: Arc<[u8]>,
    /// By when the operation should be final.
    pub deadline: Option<Timestamp>,
    /// A topic of the caller's for status records.
    pub reply_to: Option<String>,
    /// Tells a repeat from a conflict.
    pub request_hash: RequestHash,
    /// Where the request lies that created it.
    pub request: Position,
    /// When ingestion took the request.
    pub requested_at: Timestamp,
    /// When the scheduler created the operation.
    pub created_at: Timestamp,
    /// The W3C trace context that the request came with.
    pub traceparent: Option<Arc<str>>,
}

/// The part of an operation that changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OperationState {
    /// The process state.
    pub state: ProcessState,
    /// The owner that holds it; `None` while handed off to the deadline index.
    pub locked_by: Option<OwnerId>,
    /// The ownership under which it was last written.
    pub epoch: Epoch,
    /// When something is next due for it, if it is not final.
    pub next_due: Option<Timestamp>,
    /// Whether it was ever handed off: if so, an entry in the deadline index stands at or before
    /// `next_due` until it is final and its messages are acknowledged.
    pub handed_off: bool,
    /// How often its steps have failed or timed out, in all.
    pub failure_count: u32,
    /// The number of the last status record.
    pub sequence: u32,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Why it failed for good, if it did.
    pub error: Option<OperationError>,
    /// Its steps, in the workflow's order.
    pub steps: Vec<StepProgress>,
}

/// One operation as the store has it.
#[derive(Clone, PartialEq, Debug)]
pub struct OperationRow {
    /// Its id.
    pub id: OperationId,
    /// What never changes.
    pub created: Arc<Created>,
    /// What changes.
    pub state: OperationState,
    /// The stamp of the newest write.
    pub stamp: Stamp,
}
