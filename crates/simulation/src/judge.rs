//! The judge: checks the invariants at every event, and the whole run at its end. It sees the logs,
//! the store and the services, but not the engine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;
use waybill_engine::{
    Amendment, Attempt, ByPriority, Epoch, FailedOperation, OWNER_SUPERSEDED, OperationId,
    OperationRequest, OperationRow, OperationStatus, OperatorAlert, Outcome, OwnerNotice, Priority,
    ProcessState, Recovery, RecoveryVerb, RequestHash, Source, StepReply, StepState, Timestamp,
};

use crate::run::Run;
use crate::schedulers::messages::Intent;
use crate::workload::Record;

mod checkpoints;
mod end;
mod messages;
mod rows;
mod supervisors;

/// A request that created an operation, or a cancel that wrote its placeholder.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    partition: usize,
    /// The first record about the operation in each priority, if there is one.
    at: ByPriority<Option<usize>>,
    /// The first create in each priority; `None` if there was only a cancel.
    create: ByPriority<Option<RequestHash>>,
}

/// The position of a reply without a record: no checkpoint ever passes it.
const NOWHERE: usize = usize::MAX;

/// A reply in the judge's memory.
#[derive(Clone, Copy, Debug)]
struct Reply {
    /// Its position, or [`NOWHERE`].
    at: usize,
    step: usize,
    attempt: Attempt,
    undoes: bool,
    /// The owner whom an agent refused as superseded. Newer owners ignore this reply.
    refused: Option<Epoch>,
}

impl Reply {
    /// Whether it means something to this owner.
    fn counts_for(&self, owner: Epoch) -> bool {
        self.refused.is_none_or(|refused| refused == owner)
    }
}

/// The judge's memory.
#[derive(Debug, Default)]
pub struct Judge {
    accepted: BTreeMap<OperationId, Accepted>,
    replies: BTreeMap<OperationId, Vec<Reply>>,
    /// Attempts that rows intend to request.
    intents: BTreeSet<Intent>,
    /// Attempts that were requested.
    asked: BTreeSet<Intent>,
    /// Final states in rows, with the number of their status record.
    finals: BTreeSet<(OperationId, u32, &'static str)>,
    /// The failures for good according to rows, counted by operation.
    failures: BTreeSet<(OperationId, u32)>,
    statuses: BTreeMap<Uuid, OperationStatus>,
    failed: BTreeMap<Uuid, FailedOperation>,
    alerts: BTreeMap<Uuid, OperatorAlert>,
    /// Operations with the alert that their row could not be read.
    unreadable: BTreeSet<OperationId>,
    /// Ends that were announced, each with the number of its status record: they remain announced.
    announced: RefCell<BTreeSet<(OperationId, u32, &'static str)>>,
    notices: BTreeMap<Uuid, OwnerNotice>,
    /// Requests that were rerouted: partition and offset.
    pub rerouted: Vec<(Source, usize, usize)>,
    /// Requests on the dead-letter topic: partition and offset.
    pub dead_letters: Vec<(Source, usize, usize)>,
    pub asked_by_operators: Vec<Recovery>,
    /// The ids of all recoveries on the logs.
    recoveries: BTreeSet<Uuid>,
    /// The index entries that recoveries on the logs are about.
    woken: BTreeSet<(Timestamp, OperationId)>,
    /// Operations that nothing but an audit may wake: an entry of the deadline index, or a
    /// recovery, was lost.
    pub lost_wakes: BTreeSet<OperationId>,
    /// Operations whose stored row is of an earlier ownership and was never read.
    branched: BTreeSet<OperationId>,
    /// A digest of the course of events.
    pub digest: u64,
}

impl Judge {
    /// Whether an operation has ended, and its end was announced to all whom it concerns.
    pub fn is_announced(&self, row: &OperationRow) -> bool {
        let state = &row.state;
        if !state.state.is_final() {
            return false;
        }
        let end = (row.id, state.sequence, state.state.as_str());
        if self.announced.borrow().contains(&end) {
            return true;
        }
        let event = |what: &str| row.id.event_id(&format!("{what}-{}", state.sequence));
        let has_owner = !row.created.notify.is_empty();
        let is_announced = self.statuses.contains_key(&event("status"))
            && (!has_owner || self.notices.contains_key(&event("owner")))
            && (!state.state.is_parked() || self.alerts.contains_key(&event("parked")));
        if is_announced {
            self.announced.borrow_mut().insert(end);
        }
        is_announced
    }

    /// Whether an operation has ended, and its end may remain without records: what would have
    /// loaded it once more, after a crash between the row and its records, was lost.
    pub fn may_be_silent(&self, row: &OperationRow) -> bool {
        row.state.state.is_final() && self.lost_wakes.contains(&row.id)
    }

    /// Whether an alert was raised that events of an operation were dropped, because its row could
    /// not be read.
    pub fn was_unreadable(&self, operation: OperationId) -> bool {
        self.unreadable.contains(&operation)
    }

    /// Whether a row has ever intended this attempt.
    pub fn knows(&self, intent: &Intent) -> bool {
        let of = |intent: &Intent| (intent.operation, intent.step, intent.attempt);
        self.intents.iter().any(|known| of(known) == of(intent))
    }
}

impl Run {
    /// A request was appended to the log: it now counts as accepted.
    pub fn judge_request(&mut self, priority: Priority, partition: usize, record: &Record) {
        let Record::Request { request, .. } = record else {
            return;
        };
        let operation = request.operation();
        let hash = match &**request {
            OperationRequest::Create(create) => Some(create.request_hash),
            OperationRequest::Amend(amend) => match amend.amendment {
                Amendment::Cancel { .. } => None,
                Amendment::Reschedule { .. } => return,
            },
        };
        if partition != self.home_of(operation) {
            return;
        }
        let at = self.store.logs[partition].requests[priority].len();
        let accepted = self.judge.accepted.entry(operation).or_insert(Accepted {
            partition,
            at: ByPriority::default(),
            create: ByPriority::default(),
        });
        accepted.at[priority].get_or_insert(at);
        accepted.create[priority] = accepted.create[priority].or(hash);
    }

    /// A reply was given: on the log that it is about to be appended to, or without one.
    pub fn judge_reply(&mut self, partition: Option<usize>, reply: &StepReply) {
        let at = partition.map_or(NOWHERE, |log| self.store.logs[log].replies.len());
        let row = self.store.row(reply.operation);
        let names = row.map(|row| &row.created.step_names);
        let mut names = names.into_iter().flatten();
        let refuses_owner = matches!(
            &reply.outcome,
            Outcome::NotAttempted { error, .. } if error.code == OWNER_SUPERSEDED
        );
        if let Some(step) = names.position(|name| **name == *reply.step) {
            let replies = self.judge.replies.entry(reply.operation).or_default();
            replies.push(Reply {
                at,
                step,
                attempt: reply.attempt,
                undoes: reply.action == waybill_engine::Action::Compensate,
                refused: refuses_owner.then_some(reply.epoch),
            });
        }
    }

    /// Whether a recovery is noted as refused or applied.
    fn is_noted(row: &OperationRow, recovery: &Recovery) -> bool {
        let is_kept = !matches!(
            recovery.verb,
            RecoveryVerb::Wake | RecoveryVerb::Retry { .. }
        );
        let mut history = row.state.history.iter();
        !is_kept || history.any(|entry| entry.id == recovery.id)
    }
}

/// Whether a step has ended in forward progress.
fn has_ended(state: StepState) -> bool {
    matches!(state, StepState::Completed | StepState::Skipped)
}

/// Whether an operation in this state must not have any effects left.
fn is_undone(state: ProcessState) -> bool {
    matches!(state, ProcessState::Compensated | ProcessState::Cancelled)
}
