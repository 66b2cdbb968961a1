//! The state of one operation, as stored.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use uuid::Uuid;

use crate::action::{Action, Outputs};
use crate::contact::Contact;
use crate::id::{Attempt, Epoch, OperationId, OwnerId};
use crate::ownership::Ownership;
use crate::priority::{LogPosition, Position, Source};
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum ProcessState {
    /// Accepted; no scheduler has read it yet. Never stored.
    #[default]
    Pending,
    /// Its steps are being performed, or one has failed for good and the supervisor has yet to
    /// decide.
    Processing,
    /// Every step is completed or skipped. Final.
    Processed,
    /// It failed for good and waits for a person. Parked.
    Error,
    /// The completed steps are being undone.
    Compensating,
    /// It failed for good and all its effects were undone. Final.
    Compensated,
    /// Its caller cancelled it and all its effects were undone. Final.
    Cancelled,
    /// It could not be undone and waits for a person. Parked.
    CompensationFailed,
}

impl ProcessState {
    /// The states that can be listed. Operations that failed or linger have an entry in the
    /// attention table; those that succeeded or were cancelled need not have one.
    pub const LISTED: [Self; 5] = [
        Self::Processing,
        Self::Error,
        Self::Compensating,
        Self::Compensated,
        Self::CompensationFailed,
    ];
    /// All states, in the order of an operation's life.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Processing,
        Self::Processed,
        Self::Error,
        Self::Compensating,
        Self::Compensated,
        Self::Cancelled,
        Self::CompensationFailed,
    ];

    /// Whether the scheduler has no work left for it, unless a person asks.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Processing | Self::Compensating => false,
            Self::Processed
            | Self::Error
            | Self::Compensated
            | Self::Cancelled
            | Self::CompensationFailed => true,
        }
    }

    /// Whether it is parked. The row of a parked operation is kept until a person acts.
    #[must_use]
    pub const fn is_parked(self) -> bool {
        matches!(self, Self::Error | Self::CompensationFailed)
    }

    /// Its name in answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Processed => "Processed",
            Self::Error => "Error",
            Self::Compensating => "Compensating",
            Self::Compensated => "Compensated",
            Self::Cancelled => "Cancelled",
            Self::CompensationFailed => "CompensationFailed",
        }
    }
}

/// The state of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum StepState {
    /// Not requested, or requested and not attempted by the agent.
    #[default]
    NotStarted,
    /// An attempt is in progress.
    Running,
    /// Done.
    Completed,
    /// The last attempt failed; another follows if `retry_at` is set.
    Failed,
    /// The last attempt exceeded its complete-by; another follows if `retry_at` is set.
    TimedOut,
    /// Its condition did not hold; it is not performed.
    Skipped,
    /// It is being undone, or waits for its turn.
    Compensating,
    /// It was undone, or turned out to have no effect.
    Compensated,
}

impl StepState {
    /// Its name in answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "NotStarted",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::TimedOut => "TimedOut",
            Self::Skipped => "Skipped",
            Self::Compensating => "Compensating",
            Self::Compensated => "Compensated",
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepError {
    /// Stable, for programs: kebab-case, for example `owner-suspended`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Why an operation failed for good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OperationError {
    /// The step that failed, if a step did.
    pub step: Option<String>,
    /// What went wrong.
    pub error: StepError,
}

/// The progress of a step.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StepProgress {
    /// Its state.
    pub state: StepState,
    /// The action of the latest attempt.
    pub action: Action,
    /// The latest attempt, whatever its action; 0 if there was none.
    pub attempt: Attempt,
    /// The complete-by of the attempt in progress; `None` if there is none.
    pub complete_by: Option<Timestamp>,
    /// When to retry, if another attempt follows.
    pub retry_at: Option<Timestamp>,
    /// How often it has failed or timed out.
    pub failure_count: u32,
    /// How often its undo has failed or timed out.
    pub undo_failure_count: u32,
    /// How many times in a row its agent did not try.
    pub not_attempted_count: u32,
    /// Until when an attempt of unknown outcome, or another copy of a repeated request, may still
    /// take effect. The step is not undone before that.
    pub unsettled_until: Option<Timestamp>,
    /// While the step waits to be undone: how long to wait for the reply to the attempt that was in
    /// progress when that began. The undo begins with the reply, or at this time.
    pub awaited_until: Option<Timestamp>,
    /// For a service that may perform a step after its undo: the time after which no attempt can
    /// take effect any more. Only an undo that is requested later is conclusive.
    pub settled_at: Option<Timestamp>,
    /// It was undone before `settled_at`, and the undo is confirmed then. It stays undone if that
    /// fails for good.
    pub is_to_be_confirmed: bool,
    /// The attempt whose success completed it.
    pub succeeded: Option<Attempt>,
    /// The latest attempt whose success was found after it was superseded, or while the step was
    /// being undone.
    pub late_success: Option<Attempt>,
    /// The latest failure.
    pub error: Option<StepError>,
    /// Its outputs.
    pub outputs: Outputs,
    /// When its state last changed.
    pub changed_at: Timestamp,
    /// The number of the status record of its present state; 0 if there is none.
    pub sequence: u32,
}

impl StepProgress {
    /// Whether an attempt is in progress.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.complete_by.is_some()
    }

    /// The earliest time of its undo; `None` if that is now.
    pub(crate) fn undo_from(&self) -> Option<Timestamp> {
        self.unsettled_until.max(self.awaited_until)
    }

    /// Whether the step may have been performed, because it was requested.
    #[must_use]
    pub fn was_asked_for(&self) -> bool {
        self.attempt > Attempt(0)
    }

    /// Whether its last action failed and no other attempt follows.
    #[must_use]
    pub fn failed_for_good(&self) -> bool {
        matches!(self.state, StepState::Failed | StepState::TimedOut) && self.retry_at.is_none()
    }
}

/// A request about an operation, and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The id of the request. A repeat has the same id.
    pub id: Uuid,
    /// When it was applied or refused.
    pub at: Timestamp,
    /// Who asked: the caller, a supervisor, or an operator by name.
    pub by: String,
    /// The request, for example `cancel` or `resubmit`.
    pub verb: String,
    /// The reason, for people.
    pub reason: String,
    /// The stable code of the refusal; `None` if it was applied.
    pub refused: Option<String>,
}

/// The values that a reschedule replaced.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Amended {
    /// The new input, if it was replaced.
    pub input: Option<Arc<[u8]>>,
    /// The new deadline, if it was replaced: `Some(None)` removes it.
    pub deadline: Option<Option<Timestamp>>,
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
    /// The caller's own id for it.
    pub caller_id: Option<String>,
    /// The workflow's input: a JSON object, as UTF-8.
    pub input: Arc<[u8]>,
    /// By when the operation should be final.
    pub deadline: Option<Timestamp>,
    /// The caller's topic for status records, if it has one.
    pub reply_to: Option<String>,
    /// Distinguishes a repeated request from a conflicting one.
    pub request_hash: RequestHash,
    /// The position of the request that created it.
    pub request: Position,
    /// When ingestion accepted the request.
    pub requested_at: Timestamp,
    /// When the scheduler created the operation.
    pub created_at: Timestamp,
    /// The W3C trace context of the request.
    pub traceparent: Option<Arc<str>>,
    /// The operation that this one runs again, if an operator resubmitted it as a new one.
    pub resubmission_of: Option<OperationId>,
    /// The people to notify when it has ended.
    pub notify: Vec<Contact>,
}

/// The part of an operation that changes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct OperationState {
    /// The process state.
    pub state: ProcessState,
    /// The owner that holds it; `None` after a hand-off to the deadline index.
    pub locked_by: Option<OwnerId>,
    /// The epoch of its latest write.
    pub epoch: Epoch,
    /// When it is next due, if it is not final.
    pub next_due: Option<Timestamp>,
    /// Whether it was ever handed off. If so, the deadline index has an entry at or before
    /// `next_due` until it is final and its messages are acknowledged.
    pub handed_off: bool,
    /// How often its steps have failed or timed out in total.
    pub failure_count: u32,
    /// The number of its latest status record.
    pub sequence: u32,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The last record on `step-replies` that its owner read for it before the row was written. A
    /// record at or before it is a repeat.
    pub last_reply: Option<LogPosition>,
    /// Why it failed for good, if it did.
    pub error: Option<OperationError>,
    /// How often it has failed for good: more than once if it was resubmitted.
    pub failed_count: u32,
    /// Why it could not be undone, if it could not.
    pub undo_error: Option<OperationError>,
    /// During and after an undo: whether its caller has cancelled it. It then ends `Cancelled`.
    pub cancelled: bool,
    /// An operator abandoned it while it was parked: it no longer waits for a person.
    pub abandoned: bool,
    /// The row is a placeholder for an operation that was cancelled before it was created.
    pub tombstone: bool,
    /// The values that a reschedule replaced.
    pub amended: Option<Box<Amended>>,
    /// The requests about it after its creation, oldest first; at most [`HISTORY_MAX`] entries.
    pub history: Vec<HistoryEntry>,
    /// The last record of each topic that led to an entry of the history. A record at or before it
    /// is a repeat, even if the history no longer has its entry.
    pub last_asked: Vec<(Source, LogPosition)>,
    /// Its steps, in the workflow's order.
    pub steps: Vec<StepProgress>,
}

/// Maximum number of history entries. Beyond it, the first half and the newest entries are kept.
pub const HISTORY_MAX: usize = 64;

impl OperationState {
    /// A new operation with this many steps, held by its owner.
    pub(crate) fn new(ownership: &Ownership, steps: usize, now: Timestamp) -> Self {
        Self {
            state: ProcessState::Processing,
            locked_by: Some(ownership.owner),
            epoch: ownership.epoch,
            updated_at: now,
            steps: vec![StepProgress::default(); steps],
            ..Self::default()
        }
    }

    /// Whether forward progress has ended for good and the supervisor has yet to decide how it
    /// ends.
    #[must_use]
    pub fn awaits_decision(&self) -> bool {
        self.state == ProcessState::Processing && self.error.is_some()
    }

    /// The refusal code of a recovery that needs the operation's workflow, if the workflow is
    /// unknown. A placeholder never had one.
    pub(crate) fn code_without_workflow(&self) -> &'static str {
        match self.tombstone {
            true => "never-created",
            false => "workflow-unknown",
        }
    }

    /// The error, if there is one: why it failed for good, or why it could not be undone.
    #[must_use]
    pub fn failure(&self) -> Option<&OperationError> {
        match self.state {
            ProcessState::CompensationFailed => self.undo_error.as_ref(),
            ProcessState::Pending
            | ProcessState::Processing
            | ProcessState::Processed
            | ProcessState::Error
            | ProcessState::Compensating
            | ProcessState::Compensated
            | ProcessState::Cancelled => self.error.as_ref(),
        }
    }

    /// Whether the history may have dropped the entry of a record. Until it drops one, ids identify
    /// repeats.
    pub(crate) fn was_forgotten(&self, topic: Source, record: LogPosition) -> bool {
        let mut last = self.last_asked.iter();
        self.history.len() >= HISTORY_MAX
            && last.any(|(source, last)| *source == topic && last.covers(record))
    }

    /// Adds a history entry for a record of a topic.
    pub(crate) fn note(&mut self, entry: HistoryEntry, topic: Source, record: LogPosition) {
        match self
            .last_asked
            .iter_mut()
            .find(|(source, _)| *source == topic)
        {
            Some((_, last)) if last.covers(record) => {}
            Some((_, last)) => *last = record,
            None => self.last_asked.push((topic, record)),
        }
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(HISTORY_MAX / 2);
        }
        self.history.push(entry);
    }

    /// The history entry of an earlier request with this id.
    pub(crate) fn noted(&self, id: Uuid) -> Option<&HistoryEntry> {
        self.history.iter().find(|entry| entry.id == id)
    }
}

impl OperationRow {
    /// The current input of the workflow: a JSON object, as UTF-8.
    #[must_use]
    pub fn input(&self) -> &Arc<[u8]> {
        input(&self.created, &self.state)
    }

    /// The current deadline of the operation.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        deadline(&self.created, &self.state)
    }
}

pub(crate) fn input<'a>(created: &'a Created, state: &'a OperationState) -> &'a Arc<[u8]> {
    let amended = state
        .amended
        .as_ref()
        .and_then(|amended| amended.input.as_ref());
    amended.unwrap_or(&created.input)
}

pub(crate) fn deadline(created: &Created, state: &OperationState) -> Option<Timestamp> {
    let amended = state.amended.as_ref().and_then(|amended| amended.deadline);
    amended.unwrap_or(created.deadline)
}

/// One operation, as stored.
#[derive(Clone, PartialEq, Debug)]
pub struct OperationRow {
    /// Its id.
    pub id: OperationId,
    /// What never changes.
    pub created: Arc<Created>,
    /// What changes.
    pub state: OperationState,
    /// The stamp of the latest write.
    pub stamp: Stamp,
}
