//! One operation in memory, and its effects in the open batch.
//!
//! What must hold: every change of an operation marks its row to be written, and messages are
//! marked only together with that, so that a batch can put the row before the message.

use std::sync::Arc;
use std::time::Duration;

use crate::advance::{Advance, Patience, next_due, pair_bytes};
use crate::contact::Contact;
use crate::gate::Gates;
use crate::id::{BatchNumber, Offset, OperationId};
use crate::operation::{
    Created, HistoryEntry, OperationError, OperationRow, OperationState, ProcessState, StepError,
    StepProgress, StepState,
};
use crate::ownership::Ownership;
use crate::partition::command::Message;
use crate::partition::config::EngineConfig;
use crate::partition::messages;
use crate::preview::workflow_of;
use crate::priority::{LogPosition, Position, Priority};
use crate::record::{CreateRequest, OWNER_SUPERSEDED, Outcome, StepReply};
use crate::stats::EngineStats;
use crate::step::IllegalTransition;
use crate::time::Timestamp;
use crate::workflow::{StepSet, Workflow, Workflows};

mod asked;
mod change;
mod time;

/// Approximate size of an operation excluding its request, in bytes.
const OPERATION_BYTES: usize = 1024;

/// What an operation's logic may read and write in addition to the operation.
#[derive(Debug)]
pub(super) struct OperationCx<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) ownership: &'a Ownership,
    pub(super) stats: &'a mut EngineStats,
    /// The throttling state of the agents.
    pub(super) gates: &'a mut Gates,
    /// Answers to requests, which belong to no state.
    pub(super) answers: &'a mut Vec<Message>,
    /// The number of the open batch.
    pub(super) batch: BatchNumber,
    /// The end of the inbox when the lease was taken. An earlier owner may have read the records
    /// below.
    pub(super) replies_end_before: Offset,
    /// Whether replies were read far enough to conclude that a missing reply was not sent.
    pub(super) time_outs: bool,
    pub(super) now: Timestamp,
}

/// An operation in memory.
#[derive(Debug)]
pub(super) struct ResidentOperation {
    pub(super) id: OperationId,
    pub(super) created: Arc<Created>,
    /// `None` if the workflow does not exist: then the operation is final.
    pub(super) workflow: Option<Arc<Workflow>>,
    pub(super) state: OperationState,
    /// As in the row, or as they will be after the open batch.
    persisted: Persisted,
    /// Steps whose state changed since then.
    touched: StepSet,
    /// Approximate memory, in bytes.
    pub(super) bytes: usize,
    /// When it was created, loaded, or changed after a hand-off.
    pub(super) since: Timestamp,
    /// Its request, if that is not done.
    pub(super) held: Option<(Priority, Offset)>,
    /// The instant of its entry in the deadline index, if that did not come up yet.
    pub(super) indexed: Option<Timestamp>,
    /// The latest instant of an entry that came up.
    pub(super) came_up: Option<Timestamp>,
    /// The instant of its valid entry in the timers.
    pub(super) armed: Option<Timestamp>,
    /// An attempt is overdue, but its reply may still be unread.
    pub(super) held_back: bool,
    /// The batch after whose settlement it leaves memory, because it is final or handed off.
    pub(super) leaving: Option<BatchNumber>,
    pub(super) pending: Pending,
}

/// The row's values whose changes are announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Persisted {
    state: ProcessState,
    failed_count: u32,
}

/// The effects of an operation in the open batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pending {
    /// The batch lists the operation.
    pub(super) listed: bool,
    /// Write its row.
    pub(super) write: bool,
    /// Write the immutable columns, too.
    pub(super) write_created: bool,
    /// Write an attention entry.
    pub(super) attention: bool,
    /// Send the messages of its final state.
    pub(super) announce: bool,
    /// Send the status record of its creation.
    pub(super) received: bool,
    /// Send the record of its failure.
    pub(super) failed: bool,
    /// Alert operators that these steps keep failing.
    pub(super) waiting: StepSet,
    /// Send the status records of these steps.
    pub(super) statuses: StepSet,
    /// Of these, steps whose record may have been sent before, under the same sequence number.
    pub(super) statuses_again: StepSet,
    /// Send the requests for these steps' attempts in progress.
    pub(super) ask: StepSet,
}

impl OperationCx<'_> {
    fn patience(&self) -> Patience {
        Patience {
            grace: self.config.timeout_grace,
            time_outs: self.time_outs,
        }
    }
}

impl Pending {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl ResidentOperation {
    /// A new operation, with no step started.
    pub(super) fn create(
        request: CreateRequest,
        position: Position,
        bytes: usize,
        workflows: &Workflows,
        ownership: &Ownership,
        now: Timestamp,
    ) -> Self {
        let workflow = workflows.newest(&request.workflow).cloned();
        let created = Created {
            workflow: workflow.as_ref().map_or_else(
                || request.workflow.as_str().into(),
                |workflow| Arc::clone(workflow.name()),
            ),
            workflow_version: workflow.as_ref().map_or(0, |workflow| workflow.version()),
            step_names: workflow
                .as_ref()
                .map_or_else(Vec::new, |workflow| workflow.step_names().to_vec()),
            tenant: request.tenant.into(),
            caller_id: request.caller_id,
            input: request.input.into(),
            deadline: request.deadline.or_else(|| {
                let allowed = workflow.as_ref().and_then(|workflow| workflow.deadline());
                allowed.map(|allowed| now + allowed)
            }),
            reply_to: request.reply_to,
            request_hash: request.request_hash,
            request: position,
            requested_at: request.requested_at,
            created_at: now,
            traceparent: request.traceparent.map(Into::into),
            resubmission_of: request.resubmission_of,
            notify: request.notify,
        };
        let state = OperationState::new(ownership, created.step_names.len(), now);
        Self {
            bytes: bytes.max(created.input.len()) + OPERATION_BYTES,
            held: Some((position.priority, position.offset)),
            pending: Pending {
                write_created: true,
                ..Pending::default()
            },
            ..Self::of(request.operation, Arc::new(created), state, workflow, now)
        }
    }

    /// An operation, as loaded from the store. `is_own`: this owner has written the row, and left
    /// it.
    pub(super) fn load(
        row: OperationRow,
        is_own: bool,
        workflows: &Workflows,
        now: Timestamp,
    ) -> Self {
        let workflow = workflow_of(&row, workflows).cloned();
        // A hand-off leaves an index entry at the row's next due time. If another owner wrote it,
        // the sweep may have passed the entry: that owner may have died before it looked.
        let is_indexed = row.state.handed_off && is_own;
        Self {
            bytes: weight(&row.created, &row.state),
            indexed: row.state.next_due.filter(|_| is_indexed),
            ..Self::of(row.id, row.created, row.state, workflow, now)
        }
    }

    fn of(
        id: OperationId,
        created: Arc<Created>,
        state: OperationState,
        workflow: Option<Arc<Workflow>>,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            created,
            workflow,
            persisted: Persisted {
                state: state.state,
                failed_count: state.failed_count,
            },
            touched: StepSet::EMPTY,
            state,
            bytes: 0,
            since: now,
            held: None,
            indexed: None,
            came_up: None,
            armed: None,
            held_back: false,
            leaving: None,
            pending: Pending::default(),
        }
    }

    /// Starts a new operation. If its workflow is unknown, it ends here.
    pub(super) fn start(&mut self, cx: &mut OperationCx<'_>) -> Result<(), IllegalTransition> {
        if self.publishes_steps(cx.config) {
            self.state.sequence = messages::RECEIVED_SEQUENCE;
            self.pending.received = true;
        }
        match self.advance(cx) {
            Some(mut advance) => advance.start()?,
            None => self.refuse_workflow(),
        }
        self.changed(cx);
        Ok(())
    }

    /// Takes the operation over from an earlier owner.
    pub(super) fn resume(&mut self, cx: &mut OperationCx<'_>) -> Result<(), IllegalTransition> {
        if self.publishes_steps(cx.config) {
            self.pending.received = true;
            for (index, step) in self.state.steps.iter().enumerate() {
                if step.sequence > 0 && needs_status(step.state) {
                    self.pending.statuses.insert(index);
                    self.pending.statuses_again.insert(index);
                }
            }
        }
        self.pending.failed |= self.state.error.is_some();
        for index in 0..self.state.steps.len() {
            if self.keeps_failing(index) {
                self.pending.waiting.insert(index);
            }
        }
        match self.advance(cx) {
            Some(mut advance) => advance.resume()?,
            None => self.refuse_workflow(),
        }
        self.changed(cx);
        Ok(())
    }

    /// Applies a reply, unless it is stale. `offset` is that of its record, if it has one.
    pub(super) fn reply(
        &mut self,
        offset: Option<Offset>,
        reply: StepReply,
        cx: &mut OperationCx<'_>,
    ) -> Result<(), IllegalTransition> {
        // An agent refused an earlier owner. This owner has sent the request again, and it may be
        // in progress.
        let is_refusal = matches!(
            &reply.outcome,
            Outcome::NotAttempted { error, .. } if error.code == OWNER_SUPERSEDED
        );
        if is_refusal && reply.epoch < cx.ownership.epoch {
            cx.stats.stale_replies += 1;
            return Ok(());
        }
        let is_repeat = self.is_repeat(offset, cx);
        let grown = match &reply.outcome {
            Outcome::Success { outputs } => pair_bytes(outputs),
            Outcome::Transient { .. }
            | Outcome::Permanent { .. }
            | Outcome::Unknown { .. }
            | Outcome::NotPerformed
            | Outcome::NotAttempted { .. } => 0,
        };
        let Some(mut advance) = self.advance(cx) else {
            cx.stats.stale_replies += 1;
            return Ok(());
        };
        if advance.reply(reply, is_repeat)? {
            self.bytes += grown;
            self.changed(cx);
        }
        Ok(())
    }

    /// Returns whether a record of `step-replies` was read for this operation before, and notes
    /// that it was. Owners read a log in order, and the row stores the effect of a record together
    /// with the note. (A reply without a record is never repeated.)
    fn is_repeat(&mut self, offset: Option<Offset>, cx: &OperationCx<'_>) -> bool {
        let Some(offset) = offset else {
            return false;
        };
        let partition = cx.ownership.partition;
        let record = LogPosition { partition, offset };
        let last = &mut self.state.last_reply;
        if offset < cx.replies_end_before && last.is_some_and(|last| last.covers(record)) {
            return true;
        }
        *last = Some(record);
        false
    }

    /// Handles due work.
    pub(super) fn due(&mut self, cx: &mut OperationCx<'_>) -> Result<(), IllegalTransition> {
        let patience = cx.patience();
        let Some(mut advance) = self.advance(cx) else {
            return Ok(());
        };
        let outcome = advance.due(patience)?;
        self.held_back = outcome.held_back;
        if outcome.changed {
            self.changed(cx);
        }
        Ok(())
    }

    /// When the operation is handed off to the deadline index: after a while in memory, or
    /// immediately if it waits beyond that until `due` and expects no reply. So thousands of
    /// operations that wait for one agent leave the window to others.
    fn hand_off_at(&self, config: &EngineConfig, due: Option<Timestamp>) -> Timestamp {
        let lingered = self.since + config.hand_off_after;
        let may_get_reply =
            |step: &StepProgress| step.is_under_way() || step.awaited_until.is_some();
        let is_idle = !self.state.steps.iter().any(may_get_reply);
        match is_idle && due.is_some_and(|due| due >= lingered) {
            true => self.since,
            false => lingered,
        }
    }

    /// Hands the operation off to the deadline index if it has been in memory for too long.
    pub(super) fn hand_off_if_lingering(&mut self, cx: &mut OperationCx<'_>) {
        let stays = self.state.state.is_final() || self.leaving.is_some();
        let due = || next_due(&self.state, cx.config.timeout_grace, None);
        if stays || self.hand_off_at(cx.config, due()) > cx.now {
            return;
        }
        self.pending.attention |= !self.state.handed_off;
        self.state.handed_off = true;
        self.changed(cx);
        self.state.locked_by = None;
        self.leaving = Some(cx.batch);
        cx.stats.handed_off += 1;
    }

    /// An entry of the deadline index came up. A live operation needs another one, even if its row
    /// shows no hand-off: the checkpoint may have passed its request while the row was unreadable.
    pub(super) fn index_entry_came_up(&mut self, due: Timestamp, cx: &mut OperationCx<'_>) {
        self.came_up = self.came_up.max(Some(due));
        let another_stands = self.indexed.is_some_and(|indexed| indexed > due);
        if self.state.state.is_final() || another_stands {
            return;
        }
        self.pending.attention |= !self.state.handed_off;
        self.state.handed_off = true;
        self.indexed = None;
        self.changed(cx);
    }

    /// Parks the operation because the engine itself failed on it, unless it has ended already.
    pub(super) fn park(&mut self, message: String, cx: &mut OperationCx<'_>) {
        cx.stats.internal_errors += 1;
        let is_final = self.state.state.is_final();
        if is_final && self.leaving.is_some() {
            return;
        }
        if !is_final {
            self.fail(StepError {
                code: "internal-error".to_owned(),
                message,
            });
            self.touched = StepSet::EMPTY;
        }
        self.changed(cx);
    }

    /// Whether the operation is live and has nothing due, which no valid transition causes.
    pub(super) fn is_stuck(&self) -> bool {
        !self.state.state.is_final() && self.pending.write && self.state.next_due.is_none()
    }

    /// When it needs attention next.
    pub(super) fn wake_at(&self, config: &EngineConfig, now: Timestamp) -> Option<Timestamp> {
        if self.leaving.is_some() {
            return None;
        }
        let after = self.held_back.then_some(now);
        let due = next_due(&self.state, config.timeout_grace, after);
        let hand_off = self.hand_off_at(config, due);
        Some(due.map_or(hand_off, |due| due.min(hand_off)))
    }

    /// Whether the store has exactly this state. Then the deadline index also has its entry,
    /// because an entry that came up would have changed the state.
    pub(super) fn is_handed_off_unchanged(&self) -> bool {
        !self.state.state.is_final()
            && self.state.handed_off
            && self.state.locked_by.is_none()
            && self.leaving.is_none()
            && self.pending.is_empty()
    }

    /// How long the row is kept from now; `None` if a person must act first.
    pub(super) fn keep_for(&self, config: &EngineConfig) -> Option<Duration> {
        let is_over =
            self.state.state.is_final() && (!self.state.state.is_parked() || self.state.abandoned);
        is_over.then_some(config.retention)
    }

    fn publishes_steps(&self, config: &EngineConfig) -> bool {
        config.publish_step_status || self.created.reply_to.is_some()
    }

    fn refuse_workflow(&mut self) {
        let created = &self.created;
        let message = if created.step_names.is_empty() {
            format!("workflow {:?} does not exist", &*created.workflow)
        } else {
            format!(
                "workflow {:?} has no version {} with the steps that this operation started with",
                &*created.workflow, created.workflow_version
            )
        };
        self.fail(StepError {
            code: "workflow-unknown".to_owned(),
            message,
        });
    }

    fn fail(&mut self, error: StepError) {
        self.state.state = ProcessState::Error;
        self.state.failed_count += 1;
        self.state.error = Some(OperationError { step: None, error });
    }

    fn advance<'a>(&'a mut self, cx: &'a mut OperationCx<'_>) -> Option<Advance<'a>> {
        Some(Advance {
            id: self.id,
            created: &self.created,
            workflow: self.workflow.as_deref()?,
            state: &mut self.state,
            ask: &mut self.pending.ask,
            touched: &mut self.touched,
            gates: cx.gates,
            stats: cx.stats,
            now: cx.now,
        })
    }
}

/// Whether a step that enters this state is reported in a status record.
pub(super) fn needs_status(state: StepState) -> bool {
    match state {
        StepState::Completed
        | StepState::Failed
        | StepState::TimedOut
        | StepState::Skipped
        | StepState::Compensated => true,
        StepState::NotStarted | StepState::Running | StepState::Compensating => false,
    }
}

/// Approximate size of an operation, in bytes.
fn weight(created: &Created, state: &OperationState) -> usize {
    let amended = state
        .amended
        .as_ref()
        .and_then(|amended| amended.input.as_ref());
    let steps = state.steps.iter().map(|step| pair_bytes(&step.outputs));
    let history = state.history.iter().map(|entry| {
        let texts = entry.by.len() + entry.verb.len() + entry.reason.len();
        size_of::<HistoryEntry>() + texts
    });
    let contacts = created.notify.iter();
    let contacts = contacts.map(|contact| size_of::<Contact>() + contact.reveal().len());
    OPERATION_BYTES
        + created.input.len()
        + contacts.sum::<usize>()
        + amended.map_or(0, |input| input.len())
        + steps.chain(history).sum::<usize>()
}

/// The instant of the index entry for an operation that is due at `due`: never so near that its
/// bucket may have been swept before the entry is durable. It is also later than any entry that
/// came up: the clock of a supervisor may be ahead, and a sweep passes over an entry that it has
/// dealt with.
pub(super) fn index_at(due: Timestamp, now: Timestamp, came_up: Option<Timestamp>) -> Timestamp {
    const INDEX_LEAD: Duration = Duration::from_secs(1);
    let after = came_up.map_or(now, |came_up| came_up.max(now));
    due.max(after + INDEX_LEAD)
}
