//! Undoes completed steps in reverse order, through their agents.
//!
//! Every step that was ever requested and may have an effect is undone, whatever its last attempt
//! returned. An attempt may have been made more than once: a new owner sends the request again, and
//! so does the scheduler after an agent has died. So even a refusal does not prove that there is no
//! effect. A service answers the undo of a step that it never performed with success, and refuses
//! to perform the step afterwards.

use crate::action::Action;
use crate::advance::Advance;
use crate::operation::{OperationError, ProcessState, StepProgress, StepState};
use crate::step::{IllegalTransition, StepEvent};
use crate::workflow::Undo;

impl Advance<'_> {
    /// Starts to undo the operation. It ends `Cancelled` if its caller has cancelled it, now or
    /// before, else `Compensated`. If it was parked during an undo because its workflow was
    /// unknown, the undo continues.
    pub(super) fn turn_back(&mut self, cancelled: bool) -> Result<(), IllegalTransition> {
        self.state.state = ProcessState::Compensating;
        self.state.cancelled |= cancelled;
        for index in 0..self.state.steps.len() {
            let progress = &self.state.steps[index];
            let is_pure = self.workflow.steps()[index].undo == Undo::Nothing;
            match progress.state {
                StepState::Compensated => {}
                StepState::Compensating if progress.is_under_way() => {
                    self.step(index, StepEvent::Resume)?;
                    self.ask.insert(index);
                }
                StepState::Compensating => {}
                _ if undo_failed(progress) => self.step(index, StepEvent::Renew)?,
                _ if !progress.was_asked_for() => {}
                _ if is_pure && progress.state != StepState::Running => {}
                _ => self.step(index, StepEvent::Undo)?,
            }
        }
        self.go_back()
    }

    /// Starts the undos whose turn has come, and ends the operation if no step is left to undo, or
    /// if the remaining undos have failed for good.
    pub(super) fn go_back(&mut self) -> Result<(), IllegalTransition> {
        for &index in self.workflow.order().iter().rev() {
            let progress = &self.state.steps[index];
            let waits = progress.state == StepState::Compensating
                && !progress.is_under_way()
                && progress.retry_at.is_none();
            if !waits || self.is_anything_left(index) {
                continue;
            }
            // A step that waits for late calls to settle is not requested yet.
            let is_settled = progress.undo_from().is_none_or(|at| at <= self.now);
            if is_settled && self.has_agent_to_undo(index) && self.put_off_if_throttled(index)? {
                continue;
            }
            self.step(index, StepEvent::BeginUndo)?;
            if self.state.steps[index].is_under_way() {
                self.stats.compensations += 1;
                self.ask.insert(index);
            }
        }
        let mut steps = self.state.steps.iter();
        if steps.any(|step| {
            step.state == StepState::Compensating
                && (step.is_under_way() || step.retry_at.is_some())
        }) {
            return Ok(());
        }
        let failed = self.state.steps.iter().position(undo_failed);
        self.state.undo_error = failed.and_then(|index| {
            Some(OperationError {
                step: Some(self.workflow.step_names()[index].to_string()),
                error: self.state.steps[index].error.clone()?,
            })
        });
        self.state.state = match (failed, self.state.cancelled) {
            (Some(_), _) => ProcessState::CompensationFailed,
            (None, true) => ProcessState::Cancelled,
            (None, false) => ProcessState::Compensated,
        };
        Ok(())
    }

    fn has_agent_to_undo(&self, index: usize) -> bool {
        matches!(self.workflow.steps()[index].undo, Undo::Agent(_))
    }

    /// Whether a later step has yet to be undone. (A step whose undo awaits only its confirmation
    /// does not count: no effect of it is known.)
    fn is_anything_left(&self, index: usize) -> bool {
        let mut steps = self.workflow.steps().iter().zip(&self.state.steps);
        steps.any(|(step, progress)| {
            step.ancestors.contains(index)
                && !progress.is_to_be_confirmed
                && (progress.state == StepState::Compensating || undo_failed(progress))
        })
    }
}

/// Whether the undo of a step has failed for good.
pub(super) fn undo_failed(progress: &StepProgress) -> bool {
    progress.action == Action::Compensate && progress.failed_for_good()
}
