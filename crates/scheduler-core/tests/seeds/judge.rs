//! Judges a run from outside: what is in the store and on the topics, whatever the processes know.

use std::collections::{BTreeMap, BTreeSet};

use waybill_engine::{Message, OperationId, OperationRow, Source, StatusKind};
use waybill_state::Lease;

use crate::world::Logs;

#[derive(Default)]
pub struct Judge {
    /// The operations whose final state is on the status topic.
    announced: BTreeSet<OperationId>,
}

impl Judge {
    pub fn announced(&mut self, operation: OperationId) {
        self.announced.insert(operation);
    }

    pub fn is_announced(&self, operation: OperationId) -> bool {
        self.announced.contains(&operation)
    }

    /// A message is sent while the store has this lease for its shard.
    pub fn sent(
        &self,
        lease: &Lease,
        message: &Message,
        rows: &BTreeMap<OperationId, OperationRow>,
    ) {
        match message {
            Message::Step(request) => {
                assert_eq!(
                    request.epoch, lease.epoch,
                    "sent after the lease ended: {request:?}"
                );
                let row = &rows[&request.operation];
                let mut names = row.created.step_names.iter();
                let index = names.position(|name| *name == request.step).unwrap();
                let step = &row.state.steps[index];
                assert!(
                    step.attempt >= request.attempt,
                    "sent before its row: {request:?}, {step:?}"
                );
            }
            Message::Status(status) if status.kind == StatusKind::Final => {
                let row = &rows[&status.operation];
                assert!(
                    row.state.state.is_final(),
                    "sent before its row: {status:?}"
                );
            }
            _ => {}
        }
    }

    /// A lease is written: every request below its checkpoint is done.
    pub fn checkpoint(
        &self,
        lease: &Lease,
        logs: &Logs,
        rows: &BTreeMap<OperationId, OperationRow>,
    ) {
        let done = usize::try_from(lease.checkpoint.on(Source::Requests).0).unwrap();
        for request in &logs.requests[..done] {
            let operation = request.operation;
            let row = rows.get(&operation);
            assert!(
                row.is_some_and(|row| row.state.state.is_final()),
                "the checkpoint passed unfinished operation {operation}: {row:?}"
            );
            assert!(
                self.is_announced(operation),
                "the checkpoint passed operation {operation}, whose end was not acknowledged"
            );
        }
    }
}
