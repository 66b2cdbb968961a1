//! The consequences of a change of an operation: its row is written, and its news is published.
//!
//! What must hold: the row that is written with a record contains the record's sequence number, so
//! that a repeated record has the same number.

use crate::advance::next_due;
use crate::definition::OnFailure;
use crate::operation::{ProcessState, StepState};
use crate::partition::resident::{OperationCx, Persisted, ResidentOperation, needs_status};
use crate::workflow::StepSet;

impl ResidentOperation {
    /// Marks the row to be written, and everything that follows from the new state.
    pub(super) fn changed(&mut self, cx: &mut OperationCx<'_>) {
        if self.leaving.is_some() && !self.state.state.is_final() {
            self.since = cx.now;
        }
        self.pending.write = true;
        self.leaving = None;
        self.state.epoch = cx.ownership.epoch;
        let touched = std::mem::take(&mut self.touched);
        let persisted = self.persisted;
        // The undo of another step may have failed since.
        let failed_anew =
            self.state.state == ProcessState::CompensationFailed && !touched.is_empty();
        let entered = persisted.state != self.state.state || failed_anew;
        self.drop_numbers(touched);
        // Steps that continue after a failure publish nothing: the final record has the last
        // number. (Neither they nor a refusal change the time of the end.)
        if entered || !self.state.state.is_final() {
            self.state.updated_at = cx.now;
            self.note_statuses(touched, cx);
        }
        self.persisted = Persisted {
            state: self.state.state,
            failed_count: self.state.failed_count,
        };
        if self.persisted.failed_count > persisted.failed_count {
            self.pending.failed = true;
            self.pending.attention = true;
        }
        if self.state.state.is_final() {
            self.ended(entered, cx);
            return;
        }
        if persisted.state.is_final() {
            self.reopened(cx);
        }
        self.state.locked_by = Some(cx.ownership.owner);
        let decision = self.state.awaits_decision();
        let reminder = decision.then(|| cx.now + cx.config.supervisor_decision_timeout);
        let due = next_due(&self.state, cx.config.timeout_grace, None);
        self.state.next_due = due.into_iter().chain(reminder).min();
    }

    fn ended(&mut self, entered: bool, cx: &mut OperationCx<'_>) {
        self.state.locked_by = None;
        self.state.next_due = None;
        self.pending.write_created = true;
        self.leaving = Some(cx.batch);
        if !entered {
            return;
        }
        self.state.sequence += 1;
        self.pending.announce = true;
        self.pending.attention |= self.state.state.is_parked();
        match self.state.state {
            ProcessState::Processed => cx.stats.processed += 1,
            ProcessState::Error => cx.stats.failed += 1,
            ProcessState::Compensated | ProcessState::Cancelled => cx.stats.undone += 1,
            ProcessState::CompensationFailed => cx.stats.undo_failed += 1,
            ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating => {}
        }
    }

    /// A final operation continues. No request holds a checkpoint for it, so the deadline index
    /// must have an entry. (Its previous end is not announced any more if it was not yet.)
    fn reopened(&mut self, cx: &OperationCx<'_>) {
        self.pending.announce = false;
        self.pending.attention = true;
        self.state.handed_off = true;
        self.indexed = None;
        self.since = cx.now;
        self.pending.write_created = true;
    }

    /// Takes from steps that changed the numbers under which records of their previous states may
    /// have been sent: a next owner must not send such a record again with the present state.
    fn drop_numbers(&mut self, touched: StepSet) {
        for index in touched.iter() {
            let is_unsent = self.pending.statuses.contains(index)
                && !self.pending.statuses_again.contains(index);
            if !is_unsent {
                self.state.steps[index].sequence = 0;
                self.pending.statuses.remove(index);
                self.pending.statuses_again.remove(index);
            }
        }
    }

    /// Marks the status records of steps, and an alert when a step begins to wait at long
    /// intervals.
    fn note_statuses(&mut self, touched: StepSet, cx: &OperationCx<'_>) {
        let publishes = self.publishes_steps(cx.config);
        for index in touched.iter() {
            let step = &mut self.state.steps[index];
            if publishes && needs_status(step.state) && step.sequence == 0 {
                self.state.sequence += 1;
                step.sequence = self.state.sequence;
                self.pending.statuses.insert(index);
            }
            if self.keeps_failing(index) {
                self.pending.waiting.insert(index);
            }
        }
    }

    /// Whether a step has just used up its attempts, and is now retried at long intervals.
    pub(in crate::partition) fn keeps_failing(&self, index: usize) -> bool {
        let step = &self.state.steps[index];
        let definition = self.workflow.as_ref().map(|found| &found.steps()[index]);
        matches!(step.state, StepState::Failed | StepState::TimedOut)
            && step.retry_at.is_some()
            && definition.is_some_and(|definition| {
                definition.on_failure == OnFailure::Retry
                    && step.failure_count == definition.run.max_attempts
            })
    }
}
