//! Checks the whole run at its end.

use waybill_engine::{
    Amendment, ByPriority, OperationRequest, OperationRow, Priority, ProcessState, RecoveryVerb,
    StepState, Undo, Workflow,
};

use super::is_undone;
use crate::history::Rule;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Record;

impl Run {
    /// Checks every accepted operation, and every request about it.
    pub fn judge_the_end(&mut self) {
        let accepted: Vec<_> = self
            .judge
            .accepted
            .iter()
            .map(|(id, accepted)| (*id, accepted.create))
            .collect();
        let partitions = 0..self.store.logs.len();
        let refused: Vec<bool> = partitions
            .map(|partition| self.is_refused(partition))
            .collect();
        if refused.contains(&true) {
            self.seen.count(Sight::Refused);
        }
        for (id, creates) in &accepted {
            // A person sees that the partition is refused, and why.
            if refused[self.home_of(*id)] {
                continue;
            }
            let Some(row) = self.store.row(*id).cloned() else {
                return self.fail(Rule::Lost, *id, || "it has no row".to_owned());
            };
            let was_unreadable = self.judge.was_unreadable(*id);
            // Requests of different priorities may be applied in any order.
            let mut first = Priority::ALL
                .into_iter()
                .filter_map(|priority| creates[priority]);
            let is_first = creates == &ByPriority::default()
                || first.any(|hash| hash == row.created.request_hash);
            if !is_first && !was_unreadable {
                self.fail(Rule::Lost, *id, || {
                    "another request took its place".to_owned()
                });
            }
            self.judge_announcements(&row);
            // An alert was raised: a person handles the events that were dropped.
            if was_unreadable {
                continue;
            }
            self.judge_effects(&row);
            self.judge_amendments(&row);
            self.judge_operators(&row);
        }
        if self.store.rows().count() != accepted.len() && !refused.contains(&true) {
            self.fail(Rule::Contract, None, || "rows without a request".to_owned());
        }
    }

    fn judge_announcements(&mut self, row: &OperationRow) {
        let (id, state) = (row.id, &row.state);
        let sight = match state.state {
            ProcessState::Processed => Sight::EndedProcessed,
            ProcessState::Error => Sight::EndedError,
            ProcessState::Compensated => Sight::EndedCompensated,
            ProcessState::Cancelled => Sight::EndedCancelled,
            ProcessState::CompensationFailed => Sight::EndedCompensationFailed,
            ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating => {
                return self.fail(Rule::Lost, id, || format!("{state:?} is not final"));
            }
        };
        self.seen.count(sight);
        let skipped = state
            .steps
            .iter()
            .filter(|step| step.state == StepState::Skipped);
        skipped.for_each(|_| self.seen.count(Sight::SkippedSteps));
        if self.judge.may_be_silent(row) && !self.judge.is_announced(row) {
            return;
        }
        let event = |what: &str, number: u32| id.event_id(&format!("{what}-{number}"));
        let status = self.judge.statuses.get(&event("status", state.sequence));
        if status.is_none_or(|status| status.state != state.state) {
            self.fail(Rule::NotAnnounced, id, || format!("{state:?}"));
        }
        let has_an_owner = !row.created.notify.is_empty();
        let notice = self.judge.notices.get(&event("owner", state.sequence));
        if has_an_owner && notice.is_none_or(|notice| notice.state != state.state) {
            self.fail(Rule::OwnerNotNotified, id, || format!("{state:?}"));
        }
        let failed = event("failed", state.failed_count);
        if state.error.is_some() && !self.judge.failed.contains_key(&failed) {
            self.fail(Rule::NoFailedRecord, id, || format!("{state:?}"));
        }
        let mut listed = self.store.attention.iter();
        let is_listed = listed.any(|(_, entry)| entry.operation == id);
        if (state.state.is_parked() || state.handed_off || state.failed_count > 0) && !is_listed {
            self.fail(Rule::NotVisible, id, || format!("{state:?}"));
        }
        if !state.state.is_parked() {
            return;
        }
        let reason = match state.state {
            ProcessState::CompensationFailed => &state.undo_error,
            _ => &state.error,
        };
        if reason
            .as_ref()
            .is_none_or(|reason| reason.error.code.is_empty())
        {
            self.fail(Rule::NoReason, id, || format!("{state:?}"));
        }
        if !self
            .judge
            .alerts
            .contains_key(&event("parked", state.sequence))
        {
            self.fail(Rule::NoAlert, id, || format!("{state:?}"));
        }
    }

    fn judge_effects(&mut self, row: &OperationRow) {
        let created = &row.created;
        let workflow = self
            .plan
            .workflows
            .get(&created.workflow, created.workflow_version)
            .cloned();
        let Some(workflow) = workflow else {
            return;
        };
        match row.state.state {
            ProcessState::Processed => self.judge_processed(row, &workflow),
            state if is_undone(state) => self.judge_undone(row, &workflow),
            _ => {}
        }
    }

    fn judge_processed(&mut self, row: &OperationRow, workflow: &Workflow) {
        for (index, progress) in row.state.steps.iter().enumerate() {
            let exists = self.services.exists(row.id, index);
            let has_effect = workflow.steps()[index].undo != Undo::Nothing;
            let should = progress.state == StepState::Completed && has_effect;
            let is_right = matches!(progress.state, StepState::Completed | StepState::Skipped)
                && exists == should;
            if !is_right {
                self.fail(Rule::WrongEffects, row.id, || {
                    format!("step {index}, whose effect exists: {exists}, is {progress:?}")
                });
            }
        }
    }

    fn judge_undone(&mut self, row: &OperationRow, workflow: &Workflow) {
        let standing = self.services.of(row.id).find(|effect| {
            // For a step that cannot be undone, a refusal counts as the truth, although another
            // copy of the request may have taken effect. That is a known limit of such steps,
            // unless that copy has reported its success.
            let is_known = row.state.steps[effect.step].late_success.is_some();
            let is_excused = workflow.steps()[effect.step].undo == Undo::Impossible
                && effect.has_copies
                && !is_known;
            effect.exists && !is_excused
        });
        if let Some(step) = standing.map(|effect| effect.step) {
            let state = row.state.clone();
            self.fail(Rule::EffectStands, row.id, || {
                format!("step {step} of {state:?}")
            });
        }
    }

    /// A cancel ends in `Cancelled`, or its refusal was answered; every reschedule was answered.
    fn judge_amendments(&mut self, row: &OperationRow) {
        let partition = self.home_of(row.id);
        let requests = &self.store.logs[partition].requests;
        let amendments: Vec<_> = Priority::ALL
            .into_iter()
            .flat_map(|priority| &requests[priority])
            .filter_map(|record| match record {
                Record::Request { request, .. } => match &**request {
                    OperationRequest::Amend(amend) if amend.operation == row.id => Some(amend),
                    OperationRequest::Amend(_) | OperationRequest::Create(_) => None,
                },
                Record::Poison => None,
            })
            .map(|amend| {
                (
                    amend.id,
                    matches!(amend.amendment, Amendment::Cancel { .. }),
                )
            })
            .collect();
        for (request, is_cancel) in amendments {
            let answer = row.id.event_id(&format!("answer-{request}"));
            let is_answered = self.judge.statuses.contains_key(&answer);
            if is_cancel && !is_answered && !row.state.cancelled {
                let state = row.state.clone();
                self.fail(Rule::CancelForgotten, row.id, || format!("{state:?}"));
            }
            if !is_cancel && !is_answered {
                self.fail(Rule::NotAnswered, row.id, || {
                    format!("reschedule {request}")
                });
            }
        }
    }

    /// Every request of an operator is in the history, applied or refused.
    fn judge_operators(&mut self, row: &OperationRow) {
        let asked = self.judge.asked_by_operators.iter();
        let forgotten = asked
            .filter(|recovery| recovery.operation == row.id)
            .find(|recovery| {
                // These two always have a meaning: they are applied, or refused.
                matches!(
                    recovery.verb,
                    RecoveryVerb::Resubmit | RecoveryVerb::RetryCompensation
                ) && !Self::is_noted(row, recovery)
            });
        if let Some(recovery) = forgotten.cloned() {
            self.fail(Rule::NotAnswered, row.id, || format!("{recovery:?}"));
        }
    }
}
