//! The state of one operation, as it is kept in the store.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use uuid::Uuid;

use crate::contact::Contact;
use crate::id::{Attempt, Epoch, OperationId, OwnerId};
use crate::partition::Ownership;
use crate::priority::{LogPosition, Position, Source};
use crate::record::{Action, Outputs};
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
    /// Its steps are being performed, or one has failed for good and the supervisor is being asked.
    Processing,
    /// Every step is completed or skipped. Final.
    Processed,
    /// It failed for good and waits for a person. Parked.
    Error,
    /// What was done is being undone.
    Compensating,
    /// It failed for good and nothing is left standing. Final.
    Compensated,
    /// Its caller cancelled it and nothing is left standing. Final.
    Cancelled,
    /// It could not be undone and waits for a person. Parked.
    CompensationFailed,
}

impl ProcessState {
    /// The states that a list can be asked for. Whatever failed has an entry in the attention table, and so
    /// has what lingers; an operation that ended well or was cancelled need not have one.
    pub const LISTED: [Self; 5] = [
        Self::Processing,
        Self::Error,
        Self::Compensating,
        Self::Compensated,
        Self::CompensationFailed,
    ];
    /// All of them, in the order of an operation's life.
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

    /// Whether the scheduler has nothing left to do for it, unless a person asks.
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

    /// Whether it waits for a person. The row of a parked operation is kept for good.
    #[must_use]
    pub const fn is_parked(self) -> bool {
        matches!(self, Self::Error | Self::CompensationFailed)
    }

    /// The design's word for it, as it stands in answers, records and metrics.
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
    /// It is being undone, or waits for its turn to be.
    Compensating,
    /// It is undone, or was found to have had no effect.
    Compensated,
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
            Self::Compensating => "Compensating",
            Self::Compensated => "Compensated",
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
    /// What the newest attempt does.
    pub action: Action,
    /// The newest attempt, whatever it does; 0 if none was made.
    pub attempt: Attempt,
    /// By when the attempt under way must finish; `None` if none is.
    pub complete_by: Option<Timestamp>,
    /// When to try again, if another attempt follows.
    pub retry_at: Option<Timestamp>,
    /// How often it has failed or timed out.
    pub failure_count: u32,
    /// How often undoing it has failed or timed out.
    pub undo_failure_count: u32,
    /// How often in a row its agent did not try.
    pub not_attempted_count: u32,
    /// Until when an attempt of unknown outcome, or another copy of one that was asked for more than once, may still
    /// take effect: the step is not undone before.
    pub unsettled_until: Option<Timestamp>,
    /// While the step waits to be undone: until when the answer to the attempt is awaited that was under way when that
    /// began. The undo begins when it comes, or then.
    pub awaited_until: Option<Timestamp>,
    /// When no attempt at performing it can take effect any more, where its service does not refuse what comes after an
    /// undo. Only an undo that was asked for later is conclusive.
    pub settled_at: Option<Timestamp>,
    /// It was undone before that, and is asked about once more then. It stays so if that fails for good.
    pub is_to_be_confirmed: bool,
    /// The attempt whose success completed it.
    pub succeeded: Option<Attempt>,
    /// The attempt at performing it that was last found to have succeeded when it was superseded, or when the step was
    /// being undone.
    pub late_success: Option<Attempt>,
    /// The last failure.
    pub error: Option<StepError>,
    /// What it produced.
    pub outputs: Outputs,
    /// When its state last changed.
    pub changed_at: Timestamp,
    /// The number of its last status record; 0 if there was none.
    pub sequence: u32,
}

impl StepProgress {
    /// Whether an attempt is under way.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.complete_by.is_some()
    }

    /// From when on it may be undone; `None` if that is now.
    pub(crate) fn undo_from(&self) -> Option<Timestamp> {
        self.unsettled_until.max(self.awaited_until)
    }

    /// Whether the step may have been performed, for all that is known: it was asked for.
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

/// What somebody asked of an operation, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The request: a repeat has the same.
    pub id: Uuid,
    /// When it was applied or refused.
    pub at: Timestamp,
    /// Who asked: the caller, a supervisor, or an operator by name.
    pub by: String,
    /// What was asked, for example `cancel` or `resubmit`.
    pub verb: String,
    /// Why, for people.
    pub reason: String,
    /// The stable code of why it was refused; `None` if it was applied.
    pub refused: Option<String>,
}

/// What a reschedule replaced.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Amended {
    /// The input in place of the one that the operation was created with.
    pub input: Option<Arc<[u8]>>,
    /// The deadline in place of the one that it was created with: `Some(None)` lifts it.
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
    /// The operation that this one runs again, if an operator resubmitted it as a new one.
    pub resubmission_of: Option<OperationId>,
    /// Who is told how it ended.
    pub notify: Vec<Contact>,
}

/// The part of an operation that changes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
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
    /// The last record on `step-replies` that its owner read for it before the row was written. A record at or
    /// before it is one that is read again.
    pub last_reply: Option<LogPosition>,
    /// Why it failed for good, if it did.
    pub error: Option<OperationError>,
    /// How often it has failed for good: more than once if it was resubmitted.
    pub failed_count: u32,
    /// Why it could not be undone, if it could not.
    pub undo_error: Option<OperationError>,
    /// While it is undone, and after: whether its caller asked for that. It then ends `Cancelled`.
    pub cancelled: bool,
    /// A person ended it where it was parked: it waits for nobody any more.
    pub abandoned: bool,
    /// The row only keeps the place of an operation that was cancelled before it was created.
    pub tombstone: bool,
    /// What a reschedule replaced.
    pub amended: Option<Box<Amended>>,
    /// What was asked of it beside its request, oldest first; at most [`HISTORY_MAX`] entries.
    pub history: Vec<HistoryEntry>,
    /// The last record of each topic that led to an entry of the history. A record at or before it is one that is read
    /// again, also where the history has no room for its entry any more.
    pub last_asked: Vec<(Source, LogPosition)>,
    /// Its steps, in the workflow's order.
    pub steps: Vec<StepProgress>,
}

/// Most entries of an operation's history. Of more, the first half stays and the newest follow.
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

    /// Whether forward progress has ended for good and the supervisor is to say what becomes of it.
    #[must_use]
    pub fn awaits_decision(&self) -> bool {
        self.state == ProcessState::Processing && self.error.is_some()
    }

    /// The code with which a recovery is refused that needs the operation's workflow, where that is not known. A
    /// tombstone never had one.
    pub(crate) fn code_without_workflow(&self) -> &'static str {
        match self.tombstone {
            true => "never-created",
            false => "workflow-unknown",
        }
    }

    /// What went wrong, if something did: why it failed for good, or why it could not be undone.
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

    /// Whether a record was read before whose entry the history may have lost. While it has lost none, ids tell.
    pub(crate) fn was_forgotten(&self, topic: Source, record: LogPosition) -> bool {
        let mut last = self.last_asked.iter();
        self.history.len() >= HISTORY_MAX
            && last.any(|(source, last)| *source == topic && last.covers(record))
    }

    /// Adds an entry to the history, for a record of a topic.
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

    /// What became of a request that was applied or refused before.
    pub(crate) fn noted(&self, id: Uuid) -> Option<&HistoryEntry> {
        self.history.iter().find(|entry| entry.id == id)
    }
}

impl OperationRow {
    /// The workflow's input as it is now: a JSON object, as UTF-8.
    #[must_use]
    pub fn input(&self) -> &Arc<[u8]> {
        input(&self.created, &self.state)
    }

    /// By when the operation should be final, as it is now.
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
