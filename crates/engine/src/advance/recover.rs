//! Applies requests of supervisors and operators, judged against the operation's current state.
//!
//! What must hold: a recovery that names an attempt applies to that attempt alone. So an attempt is
//! recovered once, however many supervisors ask for it and however often. A verb that has no
//! meaning in the operation's state changes nothing and says so.

use std::time::Duration;

use crate::action::Action;
use crate::advance::undo::undo_failed;
use crate::advance::{Advance, Patience};
use crate::operation::{Amended, OperationState, ProcessState, StepState, deadline};
use crate::record::{AttemptSeen, RecoveryVerb};
use crate::step::{IllegalTransition, StepEvent};
use crate::workflow::Undo;

/// The result of a recovery or an amendment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The operation was changed.
    Applied,
    /// It arrived too late: the state that it refers to has changed.
    Void,
    /// It would time out an attempt whose reply may still be unread.
    HeldBack,
    /// It is refused, with this stable code.
    Refused(&'static str),
}

/// Applies a recovery to an operation whose workflow is unknown: it stays parked.
pub fn recover_without_workflow(state: &mut OperationState, verb: &RecoveryVerb) -> Verdict {
    match verb {
        RecoveryVerb::Wake | RecoveryVerb::Retry { .. } => Verdict::Void,
        RecoveryVerb::Resubmitted { .. } => Verdict::Applied,
        RecoveryVerb::Abandon if state.state.is_parked() => {
            state.abandoned = true;
            Verdict::Applied
        }
        RecoveryVerb::Abandon
        | RecoveryVerb::Compensate { .. }
        | RecoveryVerb::Park { .. }
        | RecoveryVerb::Resubmit
        | RecoveryVerb::RetryCompensation
        | RecoveryVerb::Undone { .. } => Verdict::Refused(state.code_without_workflow()),
    }
}

impl Advance<'_> {
    /// Applies a request of a supervisor or an operator.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn recover(
        &mut self,
        verb: &RecoveryVerb,
        patience: Patience,
    ) -> Result<Verdict, IllegalTransition> {
        match verb {
            RecoveryVerb::Wake => Ok(Verdict::Void),
            RecoveryVerb::Retry { seen, budget } => self.retry(seen, *budget, patience),
            RecoveryVerb::Compensate { seen: Some(seen) } if !self.decides(seen) => {
                Ok(Verdict::Void)
            }
            RecoveryVerb::Compensate { .. } => self.compensate(),
            RecoveryVerb::Park { seen } if !self.decides(seen) => Ok(Verdict::Void),
            RecoveryVerb::Park { .. } => {
                self.state.state = ProcessState::Error;
                Ok(Verdict::Applied)
            }
            RecoveryVerb::Resubmit => self.resubmit(patience),
            RecoveryVerb::Abandon => Ok(self.abandon()),
            RecoveryVerb::RetryCompensation => self.retry_compensation(patience),
            RecoveryVerb::Undone { step } => self.undone(step),
            RecoveryVerb::Resubmitted { .. } => Ok(Verdict::Applied),
        }
    }

    fn retry(
        &mut self,
        seen: &AttemptSeen,
        budget: Duration,
        patience: Patience,
    ) -> Result<Verdict, IllegalTransition> {
        let index = self.workflow.step_index(&seen.step);
        let Some(index) = index.filter(|index| self.is_newest(*index, seen)) else {
            return Ok(Verdict::Void);
        };
        let due = super::step_due(self.state, index, patience.grace);
        if self.state.state.is_final() || due.is_none_or(|due| due > self.now) {
            return Ok(Verdict::Void);
        }
        if self.state.steps[index].is_under_way() && !patience.time_outs {
            return Ok(Verdict::HeldBack);
        }
        self.step_is_due(index, Some(budget))?;
        self.proceed()?;
        Ok(Verdict::Applied)
    }

    /// Whether the failure that the supervisor saw still awaits its decision.
    fn decides(&self, seen: &AttemptSeen) -> bool {
        let failed = self
            .state
            .error
            .as_ref()
            .and_then(|error| error.step.as_deref());
        let index = self.workflow.step_index(&seen.step);
        self.state.awaits_decision()
            && failed == Some(&*seen.step)
            && index.is_some_and(|index| self.is_newest(index, seen))
    }

    fn is_newest(&self, index: usize, seen: &AttemptSeen) -> bool {
        let step = &self.state.steps[index];
        step.attempt == seen.attempt && step.action == seen.action
    }

    fn compensate(&mut self) -> Result<Verdict, IllegalTransition> {
        match self.state.state {
            ProcessState::Processing | ProcessState::Error => {
                if self.has_no_way_back() {
                    return Ok(Verdict::Refused("past-pivot"));
                }
                self.state.abandoned = false;
                self.turn_back(false)?;
                Ok(Verdict::Applied)
            }
            ProcessState::Compensating => Ok(Verdict::Void),
            ProcessState::CompensationFailed => Ok(Verdict::Refused("compensation-failed")),
            ProcessState::Pending
            | ProcessState::Processed
            | ProcessState::Compensated
            | ProcessState::Cancelled => Ok(Verdict::Refused("final")),
        }
    }

    fn resubmit(&mut self, patience: Patience) -> Result<Verdict, IllegalTransition> {
        if self.state.state != ProcessState::Error {
            return Ok(Verdict::Refused("not-parked-in-error"));
        }
        let is_undone = |state| matches!(state, StepState::Compensating | StepState::Compensated);
        if self.state.steps.iter().any(|step| is_undone(step.state)) {
            return Ok(Verdict::Refused("partly-undone"));
        }
        self.state.state = ProcessState::Processing;
        self.state.error = None;
        self.state.abandoned = false;
        // The operator who resubmits it has accepted that the deadline may pass.
        if deadline(self.created, self.state).is_some() {
            let amended = self
                .state
                .amended
                .get_or_insert_with(Box::<Amended>::default);
            amended.deadline = Some(None);
        }
        for index in 0..self.state.steps.len() {
            if self.state.steps[index].failed_for_good() {
                self.step(index, StepEvent::Renew)?;
            } else if self.state.steps[index].is_under_way() {
                // Attempts in progress at other steps were not supervised while the operation was
                // parked.
                self.step(index, StepEvent::Resume)?;
                self.ask.insert(index);
            }
        }
        self.proceed()?;
        self.due(patience)?;
        Ok(Verdict::Applied)
    }

    fn abandon(&mut self) -> Verdict {
        if !self.state.state.is_parked() {
            return Verdict::Refused("not-parked");
        }
        if self.state.abandoned {
            return Verdict::Void;
        }
        self.state.abandoned = true;
        Verdict::Applied
    }

    fn retry_compensation(&mut self, patience: Patience) -> Result<Verdict, IllegalTransition> {
        if self.state.state != ProcessState::CompensationFailed {
            return Ok(Verdict::Refused("not-compensation-failed"));
        }
        let by_agent = |index: &usize| {
            undo_failed(&self.state.steps[*index])
                && matches!(self.workflow.steps()[*index].undo, Undo::Agent(_))
        };
        let again: Vec<_> = (0..self.state.steps.len()).filter(by_agent).collect();
        if again.is_empty() {
            return Ok(Verdict::Refused("manual-undo-needed"));
        }
        self.state.state = ProcessState::Compensating;
        self.state.abandoned = false;
        for index in again {
            self.step(index, StepEvent::Renew)?;
        }
        self.due(patience)?;
        Ok(Verdict::Applied)
    }

    fn undone(&mut self, step: &str) -> Result<Verdict, IllegalTransition> {
        let Some(index) = self.workflow.step_index(step) else {
            return Ok(Verdict::Refused("unknown-step"));
        };
        let is_open = matches!(
            self.state.state,
            ProcessState::Compensating | ProcessState::CompensationFailed
        );
        let progress = &self.state.steps[index];
        let is_left = progress.state == StepState::Compensating
            || (progress.action == Action::Compensate && progress.failed_for_good());
        match (is_open, is_left) {
            (true, true) => {}
            (true, false) if progress.state == StepState::Compensated => return Ok(Verdict::Void),
            (true | false, true | false) => return Ok(Verdict::Refused("not-to-be-undone")),
        }
        self.state.state = ProcessState::Compensating;
        self.state.abandoned = false;
        self.step(index, StepEvent::Undone)?;
        self.proceed()?;
        Ok(Verdict::Applied)
    }
}
