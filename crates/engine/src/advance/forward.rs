//! Forward progress: starts and skips steps until all have ended or one has failed for good.

use std::time::Duration;

use crate::advance::Advance;
use crate::operation::{OperationError, ProcessState, StepError, StepState, deadline};
use crate::step::{IllegalTransition, StepEvent};
use crate::time::Timestamp;
use crate::workflow::{StepCondition, Undo};

impl Advance<'_> {
    /// Starts and skips steps, and ends the operation once no step is left. After a step has failed
    /// for good no further step starts: the supervisor decides how the operation ends.
    pub(super) fn go_forward(&mut self) -> Result<(), IllegalTransition> {
        if self.state.awaits_decision() {
            return Ok(());
        }
        let mut steps = self.state.steps.iter();
        if let Some(index) = steps.position(|step| step.failed_for_good()) {
            let error = self.state.steps[index].error.clone();
            self.fail(index, error.unwrap_or_else(without_error));
            return Ok(());
        }
        // One pass is enough in this order: a skipped step comes before every step that depends on
        // it.
        let workflow = self.workflow;
        for &index in workflow.order() {
            let step = &workflow.steps()[index];
            let progress = &self.state.steps[index];
            let untouched = progress.state == StepState::NotStarted && progress.retry_at.is_none();
            if !untouched || !step.after.iter().all(|before| self.has_ended(before)) {
                continue;
            }
            if !step.when.as_ref().is_none_or(|when| self.holds(when)) {
                self.step(index, StepEvent::Skip)?;
            } else if self.fail_if_late(index, self.now + self.pause_of(index)) {
                return Ok(());
            } else if !self.put_off_if_throttled(index)? {
                self.step(index, StepEvent::Start)?;
                self.ask.insert(index);
            }
        }
        if (0..self.state.steps.len()).all(|index| self.has_ended(index)) {
            self.state.state = ProcessState::Processed;
        }
        Ok(())
    }

    /// How long the step's agent has asked for no attempts.
    pub(super) fn pause_of(&self, index: usize) -> Duration {
        let agent = &self.workflow.steps()[index].agent;
        self.gates.pause(agent, self.now)
    }

    /// Ends forward progress if the deadline is unreachable when this step is requested at `at`:
    /// now, or after its agent's pause or its own retry wait. An operation that can only go forward
    /// has no deadline.
    pub(super) fn fail_if_late(&mut self, index: usize, at: Timestamp) -> bool {
        let Some(deadline) = deadline(self.created, self.state) else {
            return false;
        };
        let needed = at.since(self.now) + self.budget_from(index);
        if self.has_no_way_back() || self.now + needed <= deadline {
            return false;
        }
        self.stats.deadline_unreachable += 1;
        let mut message = format!(
            "this step and the steps after it may take {needed:?}, which is longer than the time \
             left until the deadline"
        );
        if let Some(last) = &self.state.steps[index].error {
            message.push_str("; previous error: ");
            message.push_str(&last.code);
        }
        let code = "deadline-unreachable".to_owned();
        self.fail(index, StepError { code, message });
        true
    }

    /// Whether a completed step is never undone: then the operation only goes forward.
    pub(super) fn has_no_way_back(&self) -> bool {
        let mut steps = self.workflow.steps().iter().zip(&self.state.steps);
        steps.any(|(step, progress)| {
            progress.state == StepState::Completed
                && (step.is_pivot || step.undo == Undo::Impossible)
        })
    }

    /// The duration of this step and the longest path of steps after it, with one attempt each.
    fn budget_from(&self, index: usize) -> Duration {
        let steps = self.workflow.steps();
        let mut behind = vec![Duration::ZERO; steps.len()];
        for &later in self.workflow.order().iter().rev() {
            let follow = steps
                .iter()
                .enumerate()
                .filter(|(_, step)| step.after.contains(later));
            let longest = follow.map(|(follower, _)| behind[follower]).max();
            let own = if self.has_ended(later) {
                Duration::ZERO
            } else {
                steps[later].run.timeout
            };
            behind[later] = own + longest.unwrap_or_default();
        }
        behind[index]
    }

    fn fail(&mut self, index: usize, error: StepError) {
        self.state.failed_count += 1;
        self.state.error = Some(OperationError {
            step: Some(self.workflow.step_names()[index].to_string()),
            error,
        });
    }

    fn has_ended(&self, index: usize) -> bool {
        matches!(
            self.state.steps[index].state,
            StepState::Completed | StepState::Skipped
        )
    }

    fn holds(&self, when: &StepCondition) -> bool {
        let read = &self.state.steps[when.step];
        read.state == StepState::Completed
            && read
                .outputs
                .iter()
                .any(|(name, value)| *name == when.output && *value == when.equals)
    }
}

fn without_error() -> StepError {
    StepError {
        code: "failed".to_owned(),
        message: "the step failed without an error".to_owned(),
    }
}
