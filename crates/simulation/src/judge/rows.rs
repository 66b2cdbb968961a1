//! Checks every row when it becomes durable, against the row before it.

use waybill_engine::{
    Action, OperationId, OperationRow, OperationState, ProcessState, StepProgress, StepState,
    Workflow,
};
use waybill_state::RowWrite;

use super::has_ended;
use crate::bugs::Bug;
use crate::history::Rule;
use crate::run::Run;
use crate::schedulers::Writer;
use crate::schedulers::messages::intents;
use crate::seen::Sight;
use crate::store::Written;

impl Run {
    /// A row becomes durable, if its stamp is not too low.
    pub fn persist(&mut self, change: RowWrite, writer: Writer) {
        let (id, epoch) = (change.id, change.state.epoch);
        let lease = self.store.leases.get(&writer.key).cloned();
        let is_late = lease
            .as_ref()
            .is_none_or(|lease| lease.epoch != writer.epoch);
        let is_within = lease
            .as_ref()
            .is_none_or(|lease| is_late || change.stamp < lease.stamp_limit);
        if epoch != writer.epoch || !is_within {
            self.fail(Rule::Stamps, id, || format!("{change:?} under {lease:?}"));
        }
        let old = self.store.row(id).cloned();
        let new = change.clone();
        let ignore = self.bug == Some(Bug::IgnoreStamps);
        let written = self.store.write(change, ignore);
        let (before, state) = (old.as_ref().map(|row| row.stamp), &new.state);
        let line = || {
            let (stamp, next_due) = (new.stamp, state.next_due);
            let steps = state
                .steps
                .iter()
                .map(describe)
                .collect::<Vec<_>>()
                .join(", ");
            format!(
                "row {written:?} by scheduler {}: {:?} [{steps}] due {next_due:?} handed off {} \
                 locked {} stamp {stamp:?}",
                writer.scheduler,
                state.state,
                state.handed_off,
                state.locked_by.is_some(),
            )
        };
        self.history.note(self.now, Some(id), line);
        match written {
            Written::Fenced => {
                self.seen.count(Sight::FencedWrites);
                if !is_late && !writer.may_repeat {
                    self.fail(Rule::Stamps, id, || {
                        format!("the owner's own write lost against {before:?}: {new:?}")
                    });
                }
                return;
            }
            Written::Clash => {
                return self.fail(Rule::Stamps, id, || {
                    format!("two writes with one stamp: {new:?}")
                });
            }
            Written::Incomplete => {
                return self.fail(Rule::Contract, id, || {
                    format!("the first write of a row: {new:?}")
                });
            }
            Written::Again => return self.seen.count(Sight::WritesRepeated),
            Written::Stands => {}
        }
        let was_branched = self.judge.branched.remove(&id);
        if is_late {
            self.seen.count(Sight::LateWritesThatStood);
            self.judge.branched.insert(id);
        }
        self.check_shape(&new);
        let workflow = self.workflow_of(id);
        if let (Some(old), false) = (&old, was_branched || is_late) {
            self.check_succession(old, &new, &writer);
            if let Some(workflow) = &workflow {
                self.check_order(old, &new, workflow);
            }
        }
        self.count_sights(old.as_ref(), &new);
        self.remember(&new);
    }

    fn workflow_of(&self, id: OperationId) -> Option<std::sync::Arc<Workflow>> {
        let created = &self.store.row(id)?.created;
        let workflows = &self.plan.workflows;
        workflows
            .get(&created.workflow, created.workflow_version)
            .cloned()
    }

    fn remember(&mut self, new: &RowWrite) {
        let (id, state) = (new.id, &new.state);
        self.judge.intents.extend(intents(id, state));
        if state.state.is_final() {
            let notice = (id, state.sequence, state.state.as_str());
            self.judge.finals.insert(notice);
        }
        if state.failed_count > 0 {
            self.judge.failures.insert((id, state.failed_count));
        }
    }

    /// Checks that do not depend on the row before.
    fn check_shape(&mut self, new: &RowWrite) {
        let (id, state) = (new.id, &new.state);
        let is_final = state.state.is_final();
        let is_over = is_final && (!state.state.is_parked() || state.abandoned);
        let is_right = new.keep_for.is_some() == is_over
            && (new.created.is_some() || !is_final)
            && state.next_due.is_some() != is_final
            && (state.locked_by.is_some() || is_final || state.handed_off);
        if !is_right {
            self.fail(Rule::Contract, id, || format!("{new:?}"));
        }
        let history = &state.history;
        let is_repeated = |at: usize| history[..at].iter().any(|entry| entry.id == history[at].id);
        if (0..history.len()).any(is_repeated) {
            self.fail(Rule::AppliedTwice, id, || format!("{:?}", state.history));
        }
        let too_often = state.steps.iter().find(|step| {
            let failures = step.failure_count + step.undo_failure_count;
            failures > step.attempt.0
        });
        if let Some(step) = too_often.cloned() {
            self.fail(Rule::AttemptCutShort, id, || {
                format!("more failures than attempts: {step:?}")
            });
        }
    }

    fn check_succession(&mut self, old: &OperationRow, new: &RowWrite, writer: &Writer) {
        let id = new.id;
        let is_right = (new.state.handed_off || !old.state.handed_off)
            && new.state.sequence >= old.state.sequence
            && new.state.failed_count >= old.state.failed_count
            && new.state.history.len() >= old.state.history.len();
        if !is_right {
            self.fail(Rule::Contract, id, || format!("{old:?}\n{new:?}"));
        }
        let steps = old.state.steps.iter().zip(&new.state.steps).enumerate();
        let wrong = steps
            .map(|(index, (old, new))| (index, old, new))
            .find(|(_, old, new)| {
                new.attempt < old.attempt || (old.state == StepState::Skipped && *old != *new)
            });
        if let Some((_, old, new)) = wrong {
            self.fail(Rule::Contract, id, || format!("{old:?}\n{new:?}"));
        }
        for index in 0..old.state.steps.len() {
            self.check_end_of_attempt(old, new, index, writer);
        }
    }

    /// An attempt ends by a reply to that very attempt, or by a time-out without one; or it loses
    /// its meaning because the operation is undone.
    fn check_end_of_attempt(
        &mut self,
        old: &OperationRow,
        new: &RowWrite,
        index: usize,
        writer: &Writer,
    ) {
        let (id, state) = (new.id, &new.state);
        let (before, after) = (&old.state.steps[index], &state.steps[index]);
        let Some(complete_by) = before.complete_by else {
            return;
        };
        let goes_on = after.is_under_way() && after.attempt == before.attempt;
        if goes_on || old.state.state.is_final() {
            return;
        }
        let undoes = before.action == Action::Compensate;
        let replies = self
            .judge
            .replies
            .get(&id)
            .map_or(&[][..], |replies| replies);
        let mut replies = replies.iter().filter(|reply| {
            (reply.step, reply.attempt, reply.undoes) == (index, before.attempt, undoes)
                && reply.counts_for(writer.epoch)
        });
        let first_reply = replies.next().map(|reply| reply.at);
        let is_answered = first_reply.is_some();
        let time_is_up = writer.local >= complete_by + self.plan.config.timeout_grace;
        let turned_round = has_turned_round(&old.state, state);
        let by_hand = state.history.len() > old.state.history.len();
        let mut late = self.judge.replies.get(&id).into_iter().flatten();
        let was_undone = before.state == StepState::Compensating;
        let superseded = was_undone && late.any(|reply| reply.step == index && !reply.undoes);
        if !is_answered && !time_is_up && !turned_round && !by_hand && !superseded {
            self.fail(Rule::AttemptCutShort, id, || {
                format!(
                    "step {index}: {before:?} became {after:?} at {:?}",
                    writer.local
                )
            });
        }
        let timed_out = after.state == StepState::TimedOut
            && after.attempt == before.attempt
            && !self.judge.was_unreadable(id);
        if timed_out && first_reply.is_some_and(|at| at < writer.replies_end) {
            self.fail(Rule::ReplyPassedOver, id, || {
                format!("step {index}: {before:?} timed out, its reply is {first_reply:?}")
            });
        }
    }

    /// A step begins after all steps that it depends on have ended, and is undone after all later
    /// steps are.
    fn check_order(&mut self, old: &OperationRow, new: &RowWrite, workflow: &Workflow) {
        let (id, state) = (new.id, &new.state);
        for (index, step) in workflow.steps().iter().enumerate() {
            let (before, after) = (old.state.steps.get(index), &state.steps[index]);
            let undoes = after.state == StepState::Compensating;
            let begins = if undoes {
                has_its_turn(after) && !before.is_some_and(has_its_turn)
            } else {
                after.is_under_way() && before.is_none_or(|before| before.attempt != after.attempt)
            };
            if !begins {
                continue;
            }
            let goes_back = before.is_some_and(|before| before.action == Action::Compensate);
            let is_right = if goes_back {
                // Its undo continues, even if a late success has reopened a later step.
                true
            } else if undoes {
                // One row may combine two events: this step's undo starts while another step only
                // awaits its confirmation; then a late success, or the confirming probe, reopens
                // that other step.
                let was_brought_back = |other: usize| {
                    let before = old.state.steps.get(other);
                    state.steps[other].late_success.is_some()
                        || before.is_some_and(|before| before.is_to_be_confirmed)
                };
                let mut others = workflow.steps().iter().zip(&state.steps).enumerate();
                others.all(|(position, (other, progress))| {
                    !other.ancestors.contains(index)
                        || !is_left_to_undo(progress)
                        || was_brought_back(position)
                })
            } else {
                step.after
                    .iter()
                    .all(|first| has_ended(state.steps[first].state))
            };
            if !is_right {
                self.fail(Rule::Order, id, || format!("step {index} of {state:?}"));
            }
        }
    }

    fn count_sights(&mut self, old: Option<&OperationRow>, new: &RowWrite) {
        let state = &new.state;
        let was = old.map(|row| row.state.state);
        if state.tombstone && was.is_none() {
            self.seen.count(Sight::TombstoneCancels);
        }
        if was.is_some_and(ProcessState::is_final) && !state.state.is_final() {
            self.seen.count(Sight::Reopened);
        }
        if state.state.is_parked() && was != Some(state.state) {
            self.seen.count(Sight::Parks);
        }
        let deadline_unreachable = state.error.as_ref().is_some_and(|failed| {
            failed.error.code == "deadline-unreachable" && state.awaits_decision()
        });
        if deadline_unreachable {
            self.seen.count(Sight::UnreachableDeadlines);
        }
        for (before, after) in old
            .iter()
            .flat_map(|row| row.state.steps.iter().zip(&state.steps))
        {
            if after.is_to_be_confirmed && !before.is_to_be_confirmed {
                self.seen.count(Sight::UndosToBeConfirmed);
            }
            if before
                .awaited_until
                .is_some_and(|until| until > state.updated_at)
                && after.awaited_until.is_none()
            {
                self.seen.count(Sight::UndosBegunByAnAnswer);
            }
            if after.late_success.is_some()
                && after.late_success == after.succeeded
                && before.late_success != after.late_success
            {
                self.seen.count(Sight::CopiesUndone);
            }
        }
        let known = old.map_or(0, |row| row.state.history.len());
        for entry in state.history.iter().skip(known) {
            let sight = match (entry.verb.split(' ').next().unwrap(), &entry.refused) {
                ("cancel", None) => Sight::CancelsApplied,
                ("cancel", Some(code)) if code == "past-pivot" => Sight::PivotRefusals,
                ("cancel", Some(_)) => Sight::CancelsRefused,
                ("reschedule", None) => Sight::Reschedules,
                ("reschedule", Some(_)) => Sight::ReschedulesRefused,
                ("resubmit", None) => Sight::Resubmits,
                ("retry-compensation", None) => Sight::RetryCompensations,
                ("abandon", None) => Sight::Abandons,
                ("compensate", None) if entry.by == "operator" => Sight::OperatorCompensations,
                (_, _) => continue,
            };
            self.seen.count(sight);
        }
    }
}

/// Whether the forward attempts have lost their meaning.
fn has_turned_round(old: &OperationState, new: &OperationState) -> bool {
    let is_forward = |state| matches!(state, ProcessState::Processing | ProcessState::Pending);
    is_forward(old.state)
        && matches!(
            new.state,
            ProcessState::Compensating
                | ProcessState::Compensated
                | ProcessState::Cancelled
                | ProcessState::CompensationFailed
        )
}

/// Whether all later steps are undone, or were: the undo is requested, or waits for no other step.
fn has_its_turn(progress: &StepProgress) -> bool {
    progress.state == StepState::Compensating
        && (progress.is_under_way() || progress.retry_at.is_some())
}

fn is_left_to_undo(progress: &StepProgress) -> bool {
    let failed = matches!(progress.state, StepState::Failed | StepState::TimedOut)
        && progress.action == Action::Compensate
        && progress.retry_at.is_none();
    (progress.state == StepState::Compensating || failed) && !progress.is_to_be_confirmed
}

fn describe(progress: &StepProgress) -> String {
    let (state, attempt) = (progress.state.as_str(), progress.attempt);
    let undoes = if progress.action == Action::Compensate && progress.is_under_way() {
        " undo"
    } else {
        ""
    };
    format!("{state} {attempt}{undoes}")
}
