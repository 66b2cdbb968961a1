//! Checks what schedulers send: requests, status records, failures, alerts and notices.

use waybill_engine::{
    AlertKind, FailedOperation, OperationStatus, OperatorAlert, OwnerNotice, StatusKind,
    StepRequest,
};

use crate::agents::name_of;
use crate::history::Rule;
use crate::run::Run;
use crate::schedulers::messages::Intent;
use crate::seen::Sight;
use crate::workload::contacts_of;

impl Run {
    /// No step request leaves before a row that intends it.
    pub fn check_request(&mut self, index: usize, request: &StepRequest) {
        let intent = Intent {
            operation: request.operation,
            step: self.step_of(request),
            attempt: request.attempt,
            complete_by: request.complete_by,
            undoes: request.action == waybill_engine::Action::Compensate,
        };
        let epoch = request.epoch;
        self.note(request.operation, || {
            format!(
                "scheduler {index} (epoch {epoch}) asks for {}",
                name_of(request)
            )
        });
        if !self.judge.intents.contains(&intent) {
            self.fail(Rule::MessageBeforeRow, request.operation, || {
                format!(
                    "{} was requested without a row that intends it",
                    name_of(request)
                )
            });
        }
        self.judge.asked.insert(intent);
    }

    /// The attempts that a settled batch intends were requested.
    pub fn check_asked_for(&mut self, intents: &[Intent]) {
        for intent in intents {
            if !self.judge.asked.contains(intent) {
                self.fail(Rule::NotAskedFor, intent.operation, || {
                    format!("{intent:?}")
                });
            }
        }
    }

    pub fn take_status(&mut self, status: OperationStatus) {
        let id = status.operation;
        self.note(id, || {
            format!(
                "status: {:?} {:?} {}",
                status.kind, status.state, status.sequence
            )
        });
        if status.kind == StatusKind::Final {
            let is_final = (id, status.sequence, status.state.as_str());
            if !self.judge.finals.contains(&is_final) {
                self.fail(Rule::MessageBeforeRow, id, || format!("{status:?}"));
            }
        }
        match self.judge.statuses.get(&status.event_id) {
            Some(before) if !is_same_event(before, &status) => {
                let before = before.clone();
                self.fail(Rule::TwoVersions, id, || format!("{before:?}\n{status:?}"));
            }
            Some(_) => {}
            None => {
                self.judge.statuses.insert(status.event_id, status);
            }
        }
    }

    pub fn take_failed(&mut self, partition: usize, failed: FailedOperation) {
        let id = failed.operation;
        self.note(id, || format!("failed-operations: {}", failed.error.code));
        let mut counts = self.judge.failures.range((id, 0)..=(id, u32::MAX));
        let is_right =
            counts.any(|(_, count)| id.event_id(&format!("failed-{count}")) == failed.event_id);
        if !is_right {
            self.fail(Rule::MessageBeforeRow, id, || format!("{failed:?}"));
        }
        let known = self.judge.failed.get(&failed.event_id);
        if known.is_some_and(|before| {
            // The states of the steps are those at the time of sending, and may differ.
            (&before.failing_step, &before.error) != (&failed.failing_step, &failed.error)
        }) {
            let before = known.cloned();
            self.fail(Rule::TwoVersions, id, || format!("{before:?}\n{failed:?}"));
        }
        let record = std::rc::Rc::new(failed.clone());
        self.judge.failed.insert(failed.event_id, failed);
        self.store.logs[partition].failed.push(record);
        self.failure_appended(partition);
    }

    pub fn take_alert(&mut self, alert: OperatorAlert) {
        let id = alert.operation;
        self.note(id, || format!("alert: {}", alert.kind.as_str()));
        if alert.kind == AlertKind::Waiting {
            self.seen.count(Sight::Waits);
        }
        match self.judge.alerts.get(&alert.event_id) {
            // It is raised each time that the row is loaded.
            Some(_) if alert.kind == AlertKind::RowUnreadable => {}
            Some(before) if *before != alert => {
                let before = before.clone();
                self.fail(Rule::TwoVersions, id, || format!("{before:?}\n{alert:?}"));
            }
            Some(_) => {}
            None => {
                if alert.event_id == id.event_id("unloadable") {
                    self.judge.unreadable.insert(id);
                }
                self.judge.alerts.insert(alert.event_id, alert);
            }
        }
    }

    /// A notice reports an end that a row has had, and only if the request has contacts.
    pub fn take_owner_notice(&mut self, notice: OwnerNotice) {
        let id = notice.operation;
        self.note(id, || format!("owner: {:?}", notice.state));
        let mut ends = self.judge.finals.range((id, 0, "")..);
        let is_an_end =
            ends.by_ref()
                .take_while(|(of, _, _)| *of == id)
                .any(|(_, sequence, state)| {
                    *state == notice.state.as_str()
                        && id.event_id(&format!("owner-{sequence}")) == notice.event_id
                });
        if !is_an_end || notice.contacts != contacts_of(id) {
            self.fail(Rule::MessageBeforeRow, id, || format!("{notice:?}"));
        }
        match self.judge.notices.get(&notice.event_id) {
            Some(before) if *before != notice => {
                let before = before.clone();
                self.fail(Rule::TwoVersions, id, || format!("{before:?}\n{notice:?}"));
            }
            Some(_) => {}
            None => {
                self.judge.notices.insert(notice.event_id, notice);
            }
        }
    }
}

/// Whether two records with the same event id have the same contents. Records that are not about
/// the operation itself may show its newer state.
fn is_same_event(one: &OperationStatus, other: &OperationStatus) -> bool {
    match one.kind {
        StatusKind::Final | StatusKind::Received => one == other,
        // A caller who asked too early may ask again.
        StatusKind::Rescheduled | StatusKind::RescheduleRefused
            if is_unknown(one) || is_unknown(other) =>
        {
            true
        }
        StatusKind::Step
        | StatusKind::Rejected
        | StatusKind::CancelRefused
        | StatusKind::Rescheduled
        | StatusKind::RescheduleRefused => {
            (one.kind, one.sequence, &one.step, &one.error)
                == (other.kind, other.sequence, &other.step, &other.error)
        }
    }
}

fn is_unknown(status: &OperationStatus) -> bool {
    let error = status.error.as_ref();
    error.is_some_and(|error| error.code == "unknown-operation")
}
