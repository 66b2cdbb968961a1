//! Judges a run from outside: what is in the store and on the topics, whatever the processes know.

use std::collections::{BTreeMap, BTreeSet};

use waybill_engine::{Message, OperationId, OperationRow, Source, StatusKind};
use waybill_state::Lease;

use crate::world::Logs;

/// What must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// No message before its row.
    RowsFirst,
    /// No message after its sender's lease has ended.
    OneOwner,
    /// A checkpoint never passes unfinished work.
    NothingPassed,
    /// Once faults have stopped, every shard runs, unless its log has lost unfinished requests, and
    /// every operation ends.
    AllEnd,
}

/// A rule that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    pub rule: Rule,
    pub what: String,
}

#[derive(Default)]
pub struct Judge {
    /// The operations whose final state is on the status topic.
    announced: BTreeSet<OperationId>,
    /// The first rule that did not hold.
    broken: Option<Broken>,
}

impl Judge {
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    pub fn require(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            let what = what();
            self.broken = Some(Broken { rule, what });
        }
    }

    pub fn announced(&mut self, operation: OperationId) {
        self.announced.insert(operation);
    }

    pub fn is_announced(&self, operation: OperationId) -> bool {
        self.announced.contains(&operation)
    }

    /// A message is sent while the store has this lease for its shard.
    pub fn sent(
        &mut self,
        lease: &Lease,
        message: &Message,
        rows: &BTreeMap<OperationId, OperationRow>,
    ) {
        match message {
            Message::Step(request) => {
                self.require(request.epoch == lease.epoch, Rule::OneOwner, || {
                    format!("{request:?} after the lease was taken: {lease:?}")
                });
                let attempt = rows.get(&request.operation).and_then(|row| {
                    let mut names = row.created.step_names.iter();
                    let index = names.position(|name| *name == request.step)?;
                    Some(row.state.steps[index].attempt)
                });
                let is_intended = attempt.is_some_and(|attempt| attempt >= request.attempt);
                self.require(is_intended, Rule::RowsFirst, || {
                    format!("{request:?}, {attempt:?}")
                });
            }
            Message::Status(status) if status.kind == StatusKind::Final => {
                let row = rows.get(&status.operation);
                let is_final = row.is_some_and(|row| row.state.state.is_final());
                self.require(is_final, Rule::RowsFirst, || format!("{status:?}, {row:?}"));
            }
            _ => {}
        }
    }

    /// A lease is written: every request below its checkpoint is done.
    pub fn checkpoint(
        &mut self,
        lease: &Lease,
        logs: &Logs,
        rows: &BTreeMap<OperationId, OperationRow>,
    ) {
        let done = usize::try_from(lease.checkpoint.on(Source::Requests).0).unwrap();
        for request in &logs.requests[..done] {
            let operation = request.operation;
            let row = rows.get(&operation);
            let is_final = row.is_some_and(|row| row.state.state.is_final());
            self.require(is_final, Rule::NothingPassed, || {
                format!("operation {operation} is unfinished: {row:?}")
            });
            self.require(self.is_announced(operation), Rule::NothingPassed, || {
                format!("the end of operation {operation} is not acknowledged")
            });
        }
    }
}
