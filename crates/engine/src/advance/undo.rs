//! Going back: undoing what was done, last first, through the steps' agents.
//!
//! What is undone: every step that was ever asked for and may have an effect, whatever its last
//! attempt is known to have come to. An attempt may have been made more than once (an owner that
//! took over asks again, an agent that died is asked again), so that even a refusal does not prove
//! that nothing stands. A service takes the undo of something that it never did as done, and refuses
//! to do it afterwards.

use crate::advance::Advance;
use crate::operation::{OperationError, ProcessState, StepProgress, StepState};
use crate::record::Action;
use crate::step::{IllegalTransition, StepEvent};
use crate::workflow::Undo;

impl Advance<'_> {
    /// Turns the operation round. It ends `Cancelled` if its caller asked for that, now or before, else
    /// `Compensated`. One that was parked on its way back, because its workflow was not known then, goes on where it
    /// was.
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

    /// Begins to undo what has its turn, and ends the operation if nothing is left to undo, or if
    /// what is left has failed for good.
    pub(super) fn go_back(&mut self) -> Result<(), IllegalTransition> {
        for &index in self.workflow.order().iter().rev() {
            let progress = &self.state.steps[index];
            let waits = progress.state == StepState::Compensating
                && !progress.is_under_way()
                && progress.retry_at.is_none();
            if !waits || self.is_something_left_behind(index) {
                continue;
            }
            // Whoever has to wait until late calls have settled is not asked for yet.
            let is_settled = progress.undo_from().is_none_or(|at| at <= self.now);
            if is_settled && self.has_agent_to_undo(index) && self.put_off_if_throttled(index)? {
                continue;
            }
            self.step(index, StepEvent::Turn)?;
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

    /// Whether a step that came after this one is still to be undone. (Of one that was, and is to be confirmed, nothing
    /// stands that is known of.)
    fn is_something_left_behind(&self, index: usize) -> bool {
        let mut steps = self.workflow.steps().iter().zip(&self.state.steps);
        steps.any(|(step, progress)| {
            step.ancestors.contains(index)
                && !progress.is_to_be_confirmed
                && (progress.state == StepState::Compensating || undo_failed(progress))
        })
    }
}

/// Whether undoing a step has failed for good.
pub(super) fn undo_failed(progress: &StepProgress) -> bool {
    progress.action == Action::Compensate && progress.failed_for_good()
}
