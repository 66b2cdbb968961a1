//! Callers and operators: their requests arrive early, late, twice, and in states where they make
//! no sense.

use std::time::Duration;

use waybill_engine::{
    Action, OperationId, OperationRequest, OperationRow, Priority, ProcessState, Recovery,
    RecoveryVerb, StepState,
};

use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Record;

impl Run {
    /// A caller's record reaches the log.
    pub fn ask(&mut self, index: usize) {
        let ask = self.plan.asks[index].clone();
        self.request_arrives(ask.priority, ask.partition, ask.record);
    }

    pub fn request_arrives(&mut self, priority: Priority, partition: usize, record: Record) {
        if let Record::Request { request, .. } = &record {
            let what = match &**request {
                OperationRequest::Create(create) => format!("create {}", create.workflow),
                OperationRequest::Amend(amend) => format!("{:?}", amend.amendment),
            };
            let at = self.store.logs[partition].requests[priority].len();
            self.note(request.operation(), || {
                format!("request: {what}, {priority:?} offset {at} of partition {partition}")
            });
        }
        self.judge_request(priority, partition, &record);
        self.store.logs[partition].requests[priority].push(record);
        self.wake_schedulers(partition, priority.source());
    }

    /// An operator looks at the operations and sends a request, usually one that fits.
    pub fn operate(&mut self) {
        let all: Vec<OperationId> = self.store.rows().map(|row| row.id).collect();
        let is_parked = |row: &&OperationRow| row.state.state.is_parked();
        let parked: Vec<_> = self
            .store
            .rows()
            .filter(is_parked)
            .map(|row| row.id)
            .collect();
        let from = if self.rng.chance(80) && !parked.is_empty() {
            parked
        } else {
            all
        };
        if from.is_empty() {
            return;
        }
        let operation = from[self.rng.index(from.len())];
        let verb = self.verb_for(operation);
        let recovery = Recovery {
            id: self.rng.uuid(),
            operation,
            asked_by: "operator".to_owned(),
            reason: "because".to_owned(),
            asked_at: self.now,
            due: None,
            verb,
        };
        self.judge.asked_by_operators.push(recovery.clone());
        let partition = self.home_of(operation);
        for _ in 0..if self.rng.chance(30) { 2 } else { 1 } {
            let after = Duration::from_micros(self.rng.below(1_000_000));
            let recovery = Box::new(recovery.clone());
            self.queue.push(
                self.now + after,
                What::Recovery {
                    partition,
                    recovery,
                    receipt: None,
                },
            );
        }
    }

    fn verb_for(&mut self, operation: OperationId) -> RecoveryVerb {
        let choice = self.rng.below(100);
        let as_operation = OperationId(self.rng.uuid());
        let row = self.store.row(operation).expect("it was just listed");
        let undo_failed = row.state.steps.iter().position(|step| {
            step.action == Action::Compensate
                && matches!(step.state, StepState::Failed | StepState::TimedOut)
                && step.retry_at.is_none()
        });
        let step = undo_failed.unwrap_or(0);
        let name = row.created.step_names.get(step).map(ToString::to_string);
        match (row.state.state, choice) {
            (ProcessState::CompensationFailed, 0..=49) if undo_failed.is_some() => {
                self.undo_by_hand(operation, step);
                RecoveryVerb::Undone {
                    step: name.unwrap_or_default(),
                }
            }
            (ProcessState::CompensationFailed, 50..=83) => RecoveryVerb::RetryCompensation,
            (ProcessState::Error, 0..=39) => RecoveryVerb::Resubmit,
            (ProcessState::Error, 40..=74) => RecoveryVerb::Compensate { seen: None },
            (_, 75..=79) => RecoveryVerb::Abandon,
            (_, 80..=83) => RecoveryVerb::Resubmitted { as_operation },
            (_, 84..=87) => RecoveryVerb::Resubmit,
            (_, 88..=91) => RecoveryVerb::RetryCompensation,
            (_, 92..=94) => RecoveryVerb::Wake,
            (_, _) => RecoveryVerb::Compensate { seen: None },
        }
    }

    fn undo_by_hand(&mut self, operation: OperationId, step: usize) {
        self.seen.count(Sight::ManualUndos);
        self.services.effect(operation, step).undo_by_hand();
        self.note(operation, || {
            format!("operator: step {step} undone by hand")
        });
    }
}
