//! One operation in memory, and what has to become of it in the batch that is being filled.
//!
//! What must hold: whatever changes an operation here marks its row to be written, and asks or
//! announces only together with that, so that a batch can put the row before the message.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::advance::{Advance, Patience, Verdict, next_due};
use crate::definition::Exhausted;
use crate::gate::Gates;
use crate::id::{BatchNumber, Offset, OperationId};
use crate::operation::{
    Created, HistoryEntry, OperationError, OperationRow, OperationState, ProcessState, StepError,
    StepProgress, StepState,
};
use crate::partition::command::Message;
use crate::partition::config::{EngineConfig, EngineStats, Ownership};
use crate::partition::messages;
use crate::record::{
    AmendRequest, Amendment, CreateRequest, Outcome, Position, Recovery, RecoveryVerb, StepReply,
};
use crate::step::IllegalTransition;
use crate::time::Timestamp;
use crate::workflow::{StepSet, Workflow, Workflows};

/// About how many bytes an operation takes beside its request.
const OPERATION_BYTES: usize = 1024;

/// What an operation's logic may look at beside the operation.
#[derive(Debug)]
pub(super) struct Desk<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) ownership: &'a Ownership,
    pub(super) stats: &'a mut EngineStats,
    /// How fast agents may be asked.
    pub(super) gates: &'a mut Gates,
    /// Messages that answer a request and belong to no state.
    pub(super) answers: &'a mut Vec<Message>,
    /// The batch that is being filled.
    pub(super) batch: BatchNumber,
    /// Whether replies were read so far that a missing one is missing.
    pub(super) time_outs: bool,
    pub(super) now: Timestamp,
}

/// An operation in memory.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: OperationId,
    pub(super) created: Arc<Created>,
    /// `None` if there is no such workflow: then the operation is final.
    pub(super) workflow: Option<Arc<Workflow>>,
    pub(super) state: OperationState,
    /// What the row says of these, or will say with the batch that is being filled.
    was: Was,
    /// Steps whose state changed since.
    touched: StepSet,
    /// About how much memory it takes.
    pub(super) bytes: usize,
    /// When it was created, loaded, or changed after it had been handed off.
    pub(super) since: Timestamp,
    /// Its request, if that is not done yet.
    pub(super) held: Option<Offset>,
    /// The deadline index has an entry for this instant which did not come up yet.
    pub(super) indexed: Option<Timestamp>,
    /// The instant that the timers have a valid entry for.
    pub(super) armed: Option<Timestamp>,
    /// An attempt is overdue, but replies are not read far enough to say so.
    pub(super) held_back: bool,
    /// It leaves memory when this batch settles: final, or handed off.
    pub(super) leaving: Option<BatchNumber>,
    pub(super) pending: Pending,
}

/// What tells that something has come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Was {
    state: ProcessState,
    failed_count: u32,
}

/// What the batch that is being filled has to do for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pending {
    /// The batch knows of the operation.
    pub(super) listed: bool,
    /// Its row is to be written.
    pub(super) write: bool,
    /// With the immutable columns.
    pub(super) write_created: bool,
    /// An attention entry is to be written.
    pub(super) attention: bool,
    /// The messages of its final state are to be sent.
    pub(super) announce: bool,
    /// That it was received is to be told.
    pub(super) received: bool,
    /// The record of its failure is to be sent.
    pub(super) failed: bool,
    /// A person is to be told that a step keeps failing.
    pub(super) waiting: Option<usize>,
    /// What these steps came to is to be told.
    pub(super) tell: StepSet,
    /// Those of them that may have been told before, under the number that they have.
    pub(super) tell_again: StepSet,
    /// The running attempts of these steps are to be asked for.
    pub(super) ask: StepSet,
}

impl Desk<'_> {
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

impl Live {
    /// A new operation, without anything done for it.
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
        };
        let state = OperationState::new(ownership, created.step_names.len(), now);
        Self {
            bytes: bytes.max(created.input.len()) + OPERATION_BYTES,
            held: Some(position.offset),
            pending: Pending {
                write_created: true,
                ..Pending::default()
            },
            ..Self::of(request.operation, Arc::new(created), state, workflow, now)
        }
    }

    /// An operation as the store has it.
    pub(super) fn load(row: OperationRow, workflows: &Workflows, now: Timestamp) -> Self {
        let workflow = workflows
            .get(&row.created.workflow, row.created.workflow_version)
            .filter(|workflow| {
                workflow.step_names() == row.created.step_names
                    && workflow.steps().len() == row.state.steps.len()
            })
            .cloned();
        // A clean hand-off leaves the entry of the deadline index at the row's next due time. Of
        // any other row it is only known that some entry stands.
        let handed_off = row.state.handed_off && row.state.locked_by.is_none();
        let outputs: usize = row.state.steps.iter().map(output_bytes).sum();
        Self {
            bytes: row.created.input.len() + outputs + OPERATION_BYTES,
            indexed: row.state.next_due.filter(|_| handed_off),
            ..Self::of(row.id, row.created, row.state, workflow, now)
        }
    }

    /// What keeps the place of an operation that was cancelled before it was created.
    pub(super) fn tombstone(
        request: &AmendRequest,
        workflow: &str,
        position: Position,
        ownership: &Ownership,
        now: Timestamp,
    ) -> Self {
        let created = Created {
            workflow: workflow.into(),
            workflow_version: 0,
            step_names: Vec::new(),
            tenant: request.tenant.as_str().into(),
            caller_id: request.caller_id.clone(),
            input: Arc::from(*b"{}"),
            deadline: None,
            reply_to: None,
            request_hash: crate::operation::RequestHash::default(),
            request: position,
            requested_at: request.requested_at,
            created_at: now,
            traceparent: None,
            resubmission_of: None,
        };
        let state = OperationState {
            state: ProcessState::Cancelled,
            cancelled: true,
            tombstone: true,
            ..OperationState::new(ownership, 0, now)
        };
        Self {
            bytes: OPERATION_BYTES,
            held: Some(position.offset),
            was: Was {
                state: ProcessState::Processing,
                failed_count: 0,
            },
            ..Self::of(request.operation, Arc::new(created), state, None, now)
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
            was: Was {
                state: state.state,
                failed_count: state.failed_count,
            },
            touched: StepSet::EMPTY,
            state,
            bytes: 0,
            since: now,
            held: None,
            indexed: None,
            armed: None,
            held_back: false,
            leaving: None,
            pending: Pending::default(),
        }
    }

    /// Begins a new operation; one whose workflow is not known ends here.
    pub(super) fn start(&mut self, desk: &mut Desk<'_>) -> Result<(), IllegalTransition> {
        if self.tells_steps(desk.config) {
            self.state.sequence = messages::RECEIVED_SEQUENCE;
            self.pending.received = true;
        }
        match self.advance(desk) {
            Some(mut advance) => advance.start()?,
            None => self.refuse_workflow(),
        }
        self.changed(desk);
        Ok(())
    }

    /// Takes the operation over from an earlier owner.
    pub(super) fn resume(&mut self, desk: &mut Desk<'_>) -> Result<(), IllegalTransition> {
        if self.tells_steps(desk.config) {
            self.pending.received = true;
            for (index, step) in self.state.steps.iter().enumerate() {
                if step.sequence > 0 && is_told(step.state) {
                    self.pending.tell.insert(index);
                    self.pending.tell_again.insert(index);
                }
            }
        }
        self.pending.failed |= self.state.error.is_some();
        match self.advance(desk) {
            Some(mut advance) => advance.resume()?,
            None => self.refuse_workflow(),
        }
        self.changed(desk);
        Ok(())
    }

    /// Applies a reply if it means anything.
    pub(super) fn reply(
        &mut self,
        reply: StepReply,
        desk: &mut Desk<'_>,
    ) -> Result<(), IllegalTransition> {
        let grown = match &reply.outcome {
            Outcome::Success { outputs } => pair_bytes(outputs),
            Outcome::Transient { .. }
            | Outcome::Permanent { .. }
            | Outcome::Unknown { .. }
            | Outcome::NotPerformed
            | Outcome::NotAttempted { .. } => 0,
        };
        let Some(mut advance) = self.advance(desk) else {
            desk.stats.stale_replies += 1;
            return Ok(());
        };
        if advance.reply(reply)? {
            self.bytes += grown;
            self.changed(desk);
        }
        Ok(())
    }

    /// Applies what is due.
    pub(super) fn due(&mut self, desk: &mut Desk<'_>) -> Result<(), IllegalTransition> {
        let patience = desk.patience();
        let Some(mut advance) = self.advance(desk) else {
            return Ok(());
        };
        let outcome = advance.due(patience)?;
        self.held_back = outcome.held_back;
        if outcome.changed {
            self.changed(desk);
        }
        Ok(())
    }

    /// Applies what a supervisor or an operator asks for, once.
    pub(super) fn recover(
        &mut self,
        recovery: Recovery,
        desk: &mut Desk<'_>,
    ) -> Result<(), IllegalTransition> {
        if let Some(due) = recovery.due {
            self.index_entry_came_up(due, desk);
        }
        if self.state.noted(recovery.id).is_some() {
            desk.stats.recoveries_void += 1;
            return Ok(());
        }
        let patience = desk.patience();
        let verdict = match self.advance(desk) {
            Some(mut advance) => advance.recover(&recovery.verb, patience)?,
            None => self.recover_without_workflow(&recovery.verb),
        };
        let refused = match verdict {
            Verdict::Applied => {
                desk.stats.recoveries += 1;
                None
            }
            Verdict::HeldBack => {
                self.held_back = true;
                return Ok(());
            }
            Verdict::Void => {
                desk.stats.recoveries_void += 1;
                return Ok(());
            }
            Verdict::Refused(code) => {
                desk.stats.recoveries_refused += 1;
                Some(code)
            }
        };
        if !matches!(recovery.verb, RecoveryVerb::Retry { .. }) {
            let verb = match &recovery.verb {
                RecoveryVerb::Undone { step } => format!("undone {step}"),
                RecoveryVerb::Resubmitted { as_operation } => format!("resubmitted {as_operation}"),
                verb => verb.as_str().to_owned(),
            };
            self.note(
                recovery.id,
                recovery.asked_by,
                verb,
                recovery.reason,
                refused,
                desk,
            );
        }
        self.changed(desk);
        Ok(())
    }

    /// What can be asked of an operation whose workflow is not known: it is parked, and stays so.
    fn recover_without_workflow(&mut self, verb: &RecoveryVerb) -> Verdict {
        match verb {
            RecoveryVerb::Wake | RecoveryVerb::Retry { .. } => Verdict::Void,
            RecoveryVerb::Resubmitted { .. } => Verdict::Applied,
            RecoveryVerb::Abandon if self.state.state.is_parked() => {
                self.state.abandoned = true;
                Verdict::Applied
            }
            RecoveryVerb::Abandon
            | RecoveryVerb::Compensate { .. }
            | RecoveryVerb::Park { .. }
            | RecoveryVerb::Resubmit
            | RecoveryVerb::RetryCompensation
            | RecoveryVerb::Undone { .. } => Verdict::Refused("workflow-unknown"),
        }
    }

    /// Applies a cancel or a reschedule, once, and answers one that is refused.
    pub(super) fn amend(
        &mut self,
        request: AmendRequest,
        position: Position,
        desk: &mut Desk<'_>,
    ) -> Result<(), IllegalTransition> {
        if let Some(entry) = self.state.noted(request.id) {
            desk.stats.duplicates += 1;
            // Its answer may have been lost with the owner that noted it.
            let refused = entry.refused.as_deref();
            if refused.is_some() || matches!(request.amendment, Amendment::Reschedule { .. }) {
                let (created, state) = (&self.created, self.state.state);
                desk.answers.push(messages::answer(
                    &request, created, state, position, refused, entry.at,
                ));
            }
            return Ok(());
        }
        // Read again, it gets the answer that it got when the operation was not there yet.
        let came_too_early = matches!(request.amendment, Amendment::Reschedule { .. })
            && position.offset < self.created.request.offset;
        let verdict = if came_too_early || *request.tenant != *self.created.tenant {
            Verdict::Refused("unknown-operation")
        } else if let Some(mut advance) = self.advance(desk) {
            advance.amend(&request.amendment)?
        } else if self.state.state == ProcessState::Cancelled {
            match request.amendment {
                Amendment::Cancel { .. } => Verdict::Void,
                Amendment::Reschedule { .. } => Verdict::Refused("final"),
            }
        } else {
            Verdict::Refused("workflow-unknown")
        };
        let refused = match verdict {
            Verdict::Refused(code) => Some(code),
            Verdict::Void => return Ok(()),
            Verdict::Applied | Verdict::HeldBack => None,
        };
        let verb = match &request.amendment {
            Amendment::Cancel { .. } => "cancel",
            Amendment::Reschedule { .. } => "reschedule",
        };
        if refused.is_some() {
            desk.stats.amendments_refused += 1;
        }
        if refused.is_some() || verb == "reschedule" {
            desk.answers.push(messages::answer(
                &request,
                &self.created,
                self.state.state,
                position,
                refused,
                desk.now,
            ));
        }
        if refused != Some("unknown-operation") {
            let (verb, by) = (verb.to_owned(), "caller".to_owned());
            self.note(request.id, by, verb, request.reason, refused, desk);
            self.changed(desk);
        }
        Ok(())
    }

    /// Lets a create have the place that a cancel kept for it: the operation is cancelled.
    pub(super) fn adopt(
        &mut self,
        request: CreateRequest,
        position: Position,
        workflows: &Workflows,
        desk: &mut Desk<'_>,
    ) {
        let created = Self::create(request, position, 0, workflows, desk.ownership, desk.now);
        self.was.state = ProcessState::Processing;
        self.created = created.created;
        self.workflow = created.workflow;
        self.state.steps = created.state.steps;
        self.state.tombstone = false;
        self.changed(desk);
    }

    /// Keeps the place of an operation that was cancelled before it was created.
    pub(super) fn keep_place(&mut self, request: AmendRequest, desk: &mut Desk<'_>) {
        let (verb, by) = ("cancel".to_owned(), "caller".to_owned());
        self.note(request.id, by, verb, request.reason, None, desk);
        self.changed(desk);
    }

    fn note(
        &mut self,
        id: Uuid,
        by: String,
        verb: String,
        reason: String,
        refused: Option<&str>,
        desk: &Desk<'_>,
    ) {
        self.bytes += by.len() + verb.len() + reason.len();
        self.state.note(HistoryEntry {
            id,
            at: desk.now,
            by,
            verb,
            reason,
            refused: refused.map(str::to_owned),
        });
    }

    /// Hands the operation off to the deadline index if it has been here for too long.
    pub(super) fn hand_off_if_lingering(&mut self, desk: &mut Desk<'_>) {
        let stays = self.state.state.is_final() || self.leaving.is_some();
        if stays || self.since + desk.config.hand_off_after > desk.now {
            return;
        }
        self.pending.attention |= !self.state.handed_off;
        self.state.handed_off = true;
        self.changed(desk);
        self.state.locked_by = None;
        self.leaving = Some(desk.batch);
        desk.stats.handed_off += 1;
    }

    /// An entry of the deadline index came up. While the operation lives, another must stand.
    pub(super) fn index_entry_came_up(&mut self, due: Timestamp, desk: &mut Desk<'_>) {
        let another_stands = self.indexed.is_some_and(|indexed| indexed > due);
        if self.state.state.is_final() || !self.state.handed_off || another_stands {
            return;
        }
        self.indexed = None;
        self.changed(desk);
    }

    /// Ends the operation because the engine itself failed on it, if it has not ended already.
    pub(super) fn park(&mut self, message: String, desk: &mut Desk<'_>) {
        desk.stats.internal_errors += 1;
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
        self.changed(desk);
    }

    /// Whether the operation lives and nothing will ever happen to it: no transition leads there.
    pub(super) fn is_stuck(&self) -> bool {
        !self.state.state.is_final() && self.pending.write && self.state.next_due.is_none()
    }

    /// When to look at it next.
    pub(super) fn wake_at(&self, config: &EngineConfig, now: Timestamp) -> Option<Timestamp> {
        if self.leaving.is_some() {
            return None;
        }
        let hand_off = self.since + config.hand_off_after;
        let after = self.held_back.then_some(now);
        let due = next_due(&self.state, config.timeout_grace, after);
        Some(due.map_or(hand_off, |due| due.min(hand_off)))
    }

    /// Whether the store has it exactly as it is here: then the deadline index also has its entry,
    /// for one that came up would have changed it.
    pub(super) fn is_handed_off_unchanged(&self) -> bool {
        !self.state.state.is_final()
            && self.state.handed_off
            && self.state.locked_by.is_none()
            && self.leaving.is_none()
            && self.pending.is_empty()
    }

    /// How long the row is kept from now, if not for good: an operation that waits for a person
    /// never goes away.
    pub(super) fn keep_for(&self, config: &EngineConfig) -> Option<Duration> {
        let is_over =
            self.state.state.is_final() && (!self.state.state.is_parked() || self.state.abandoned);
        is_over.then_some(config.retention)
    }

    /// Has the row written, and everything done that follows from what came about.
    fn changed(&mut self, desk: &mut Desk<'_>) {
        if self.leaving.is_some() && !self.state.state.is_final() {
            self.since = desk.now;
        }
        self.pending.write = true;
        self.leaving = None;
        self.state.epoch = desk.ownership.epoch;
        let touched = std::mem::take(&mut self.touched);
        let was = self.was;
        // While it was undone further it may have failed anew, at another step.
        let failed_anew =
            self.state.state == ProcessState::CompensationFailed && !touched.is_empty();
        let entered = was.state != self.state.state || failed_anew;
        // What runs on beside a failure is not told: the end has the last number.
        // (Nor does it, or a refusal, change the time at which the end came.)
        if entered || !self.state.state.is_final() {
            self.state.updated_at = desk.now;
            self.tell(touched, desk);
        }
        self.was = Was {
            state: self.state.state,
            failed_count: self.state.failed_count,
        };
        if self.was.failed_count > was.failed_count {
            self.pending.failed = true;
            self.pending.attention = true;
        }
        if self.state.state.is_final() {
            self.ended(entered, desk);
            return;
        }
        if was.state.is_final() {
            self.reopened(desk);
        }
        self.state.locked_by = Some(desk.ownership.owner);
        let decision = self.state.awaits_decision();
        let reminder = decision.then(|| desk.now + desk.config.decide_within);
        let due = next_due(&self.state, desk.config.timeout_grace, None);
        self.state.next_due = due.into_iter().chain(reminder).min();
    }

    fn ended(&mut self, entered: bool, desk: &mut Desk<'_>) {
        self.state.locked_by = None;
        self.state.next_due = None;
        self.pending.write_created = true;
        self.leaving = Some(desk.batch);
        if !entered {
            return;
        }
        self.state.sequence += 1;
        self.pending.announce = true;
        self.pending.attention |= self.state.state.is_parked();
        match self.state.state {
            ProcessState::Processed => desk.stats.processed += 1,
            ProcessState::Error => desk.stats.failed += 1,
            ProcessState::Compensated | ProcessState::Cancelled => desk.stats.undone += 1,
            ProcessState::CompensationFailed => desk.stats.undo_failed += 1,
            ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating => {}
        }
    }

    /// A final operation goes on. Nothing holds a checkpoint for it: the deadline index has to.
    /// (The end that it had is not announced any more if it was not yet.)
    fn reopened(&mut self, desk: &Desk<'_>) {
        self.pending.announce = false;
        self.pending.attention = true;
        self.state.handed_off = true;
        self.indexed = None;
        self.since = desk.now;
        self.pending.write_created = true;
    }

    /// Has told what steps came to, and when one begins to wait for long.
    fn tell(&mut self, touched: StepSet, desk: &Desk<'_>) {
        let tells = self.tells_steps(desk.config);
        for index in touched.iter() {
            let step = &mut self.state.steps[index];
            let has_number =
                self.pending.tell.contains(index) && !self.pending.tell_again.contains(index);
            if tells && is_told(step.state) && !has_number {
                self.state.sequence += 1;
                step.sequence = self.state.sequence;
                self.pending.tell.insert(index);
                self.pending.tell_again.remove(index);
            }
            let definition = self
                .workflow
                .as_ref()
                .map(|workflow| &workflow.steps()[index]);
            let has_failed = matches!(step.state, StepState::Failed | StepState::TimedOut);
            if has_failed
                && step.retry_at.is_some()
                && definition.is_some_and(|definition| {
                    definition.exhausted == Exhausted::Wait
                        && step.failure_count == definition.run.failures_max
                })
            {
                self.pending.waiting = Some(index);
            }
        }
    }

    fn tells_steps(&self, config: &EngineConfig) -> bool {
        config.tell_steps || self.created.reply_to.is_some()
    }

    fn refuse_workflow(&mut self) {
        let created = &self.created;
        let message = if created.step_names.is_empty() {
            format!("there is no workflow {:?}", &*created.workflow)
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

    fn advance<'a>(&'a mut self, desk: &'a mut Desk<'_>) -> Option<Advance<'a>> {
        Some(Advance {
            id: self.id,
            created: &self.created,
            workflow: self.workflow.as_deref()?,
            state: &mut self.state,
            ask: &mut self.pending.ask,
            touched: &mut self.touched,
            gates: desk.gates,
            stats: desk.stats,
            now: desk.now,
        })
    }
}

/// Whether callers are told that a step has come to this state.
pub(super) fn is_told(state: StepState) -> bool {
    match state {
        StepState::Completed
        | StepState::Failed
        | StepState::TimedOut
        | StepState::Skipped
        | StepState::Compensated => true,
        StepState::NotStarted | StepState::Running | StepState::Compensating => false,
    }
}

fn output_bytes(step: &StepProgress) -> usize {
    pair_bytes(&step.outputs)
}

fn pair_bytes(pairs: &[(String, String)]) -> usize {
    const PAIR_BYTES: usize = 48;
    pairs
        .iter()
        .map(|(name, value)| name.len() + value.len() + PAIR_BYTES)
        .sum()
}

/// The instant that an entry of the deadline index should stand at for something that is due at
/// `due`: never so near that its bucket may have been swept before the entry is durable.
pub(super) fn index_at(due: Timestamp, now: Timestamp) -> Timestamp {
    const INDEX_LEAD: Duration = Duration::from_secs(1);
    due.max(now + INDEX_LEAD)
}
