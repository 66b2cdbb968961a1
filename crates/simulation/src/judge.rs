//! The judge: checks the invariants at every event, and the whole run at its end. It sees the logs,
//! the store and the services, but not the engine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;
use waybill_engine::{
    AlertKind, Amendment, Attempt, ByPriority, FailedOperation, OWNER_SUPERSEDED, OperationId,
    OperationRequest, OperationRow, OperationStatus, OperatorAlert, Outcome, OwnerNotice, Priority,
    ProcessState, Recovery, RecoveryVerb, RequestHash, Source, StatusKind, StepReply, StepRequest,
    StepState, Timestamp, TopicOffsets,
};
use waybill_state::Lease;

use crate::agents::describe;
use crate::history::Rule;
use crate::run::Run;
use crate::schedulers::messages::Intent;
use crate::seen::Sight;
use crate::store::{FINGERPRINT_BASE, position, topic_of};
use crate::workload::{Record, contacts_of};

mod end;
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
    /// An agent refused the sender as superseded. The newer owner ignores this reply.
    refuses_owner: bool,
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
    /// Operations that nothing but an audit may wake: an entry of the deadline index, or a recovery,
    /// was lost.
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
    /// The fingerprints in a lease are those of the last records that are done, or of the topics.
    pub fn check_fingerprints(&mut self, lease: &Lease) {
        let is_right = |priority: Priority| {
            let source = priority.source();
            let done = position(&lease.checkpoint.at, source) as u64;
            let expected = match done {
                0 => topic_of(source).head(),
                done => done - 1 + FINGERPRINT_BASE,
            };
            let found = lease.checkpoint.fingerprints[priority];
            found.is_none_or(|found| found == expected)
                && lease.consumed[priority] >= lease.checkpoint.on(source)
        };
        if !Priority::ALL.into_iter().all(is_right) {
            self.fail(Rule::Contract, None, || format!("{lease:?}"));
        }
    }

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
        if let Some(step) = names.position(|name| **name == *reply.step) {
            let replies = self.judge.replies.entry(reply.operation).or_default();
            replies.push(Reply {
                at,
                step,
                attempt: reply.attempt,
                undoes: reply.action == waybill_engine::Action::Compensate,
                refuses_owner: matches!(
                    &reply.outcome,
                    Outcome::NotAttempted { error, .. } if error.code == OWNER_SUPERSEDED
                ),
            });
        }
    }

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
                describe(request)
            )
        });
        if !self.judge.intents.contains(&intent) {
            self.fail(Rule::MessageBeforeRow, request.operation, || {
                format!(
                    "{} was requested without a row that intends it",
                    describe(request)
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

    /// No record below a checkpoint is unfinished.
    pub fn check_checkpoint(&mut self, partition: usize) {
        let accepted = self.judge.accepted.iter();
        let unsafe_one = accepted
            .filter(|(_, accepted)| accepted.partition == partition)
            .map(|(id, accepted)| (*id, accepted, self.store.reached_of(partition, *id)))
            .filter(|(id, accepted, reached)| match self.store.row(*id) {
                // The row's own request is the one that would be read again.
                Some(row) => {
                    let made_by = row.created.request;
                    made_by.offset < reached.on(made_by.priority.source())
                }
                None => Priority::ALL.into_iter().any(|priority| {
                    accepted.at[priority]
                        .is_some_and(|at| at < position(reached, priority.source()))
                }),
            })
            .find(|(id, _, reached)| !self.is_safe(*id, partition, *reached));
        if let Some((id, _, reached)) = unsafe_one {
            let state = self.store.row(id).map(|row| row.state.clone());
            let cursor = self.store.logs[partition].cursor;
            self.fail(Rule::CheckpointAhead, id, || {
                format!("{reached:?} and cursor {cursor:?} have passed {state:?}")
            });
        }
        for priority in Priority::ALL {
            self.check_records_below(priority, partition);
        }
        self.check_replies_below(partition);
    }

    /// Whether an operation whose request is below the checkpoint is certain to end.
    fn is_safe(&self, id: OperationId, partition: usize, checkpoint: TopicOffsets) -> bool {
        let Some(row) = self.store.row(id) else {
            return false;
        };
        // An audit will wake it. Later hand-offs could be judged, but nothing tells them apart.
        if self.judge.lost_wakes.contains(&id) {
            return true;
        }
        let logs = &self.store.logs[partition];
        let mut recoveries = logs.recoveries[position(&checkpoint, Source::Recoveries)..].iter();
        let is_hinted_at =
            logs.will_find(id) || recoveries.any(|recovery| recovery.operation == id);
        // Any record that is still to be read loads the row: then the operation goes on, and its end is
        // announced if that has not happened.
        let mut replies = logs.replies[position(&checkpoint, Source::Replies)..]
            .iter()
            .flatten();
        let requests = |priority: Priority| {
            logs.requests[priority][position(&checkpoint, priority.source())..].iter()
        };
        let mut requests = Priority::ALL.into_iter().flat_map(requests);
        let will_be_loaded = is_hinted_at
            || replies.any(|reply| reply.operation == id)
            || requests.any(|record| record.operation() == Some(id));
        match row.state.state.is_final() {
            true => will_be_loaded || self.judge.is_announced(row),
            false => will_be_loaded && (row.state.handed_off || self.judge.was_unreadable(id)),
        }
    }

    /// Records without an operation are on a dead-letter topic or were rerouted; a cancel is noted.
    fn check_records_below(&mut self, priority: Priority, partition: usize) {
        let logs = &self.store.logs[partition];
        let records = logs.requests[priority].iter().enumerate();
        let mut below = records.filter(|(at, record)| {
            let reached = self.store.reached(partition, record.key(*at));
            *at < position(&reached, priority.source())
        });
        let lost = below.find(|(at, _)| !self.is_seen_to(priority, partition, *at));
        let lost = lost.map(|(at, _)| at);
        if let Some(at) = lost {
            let record = self.store.logs[partition].requests[priority][at].clone();
            self.fail(Rule::NotAnswered, record.operation(), || {
                format!("{at}: {record:?}")
            });
        }
    }

    fn is_seen_to(&self, priority: Priority, partition: usize, at: usize) -> bool {
        let place = (priority.source(), partition, at);
        let Record::Request {
            request,
            is_rerouted,
        } = &self.store.logs[partition].requests[priority][at]
        else {
            return self.judge.dead_letters.contains(&place);
        };
        let id = request.operation();
        if self.home_of(id) != partition {
            return if *is_rerouted {
                self.judge.dead_letters.contains(&place)
            } else {
                self.judge.rerouted.contains(&place)
            };
        }
        if self.judge.was_unreadable(id) {
            return true;
        }
        let row = self.store.row(id);
        match &**request {
            OperationRequest::Create(create) => {
                let priority = match priority {
                    Priority::Normal => "",
                    Priority::High => "high-priority-",
                };
                let rejected = || id.event_id(&format!("rejected-{priority}{partition}-{at}"));
                row.is_some_and(|row| row.created.request_hash == create.request_hash)
                    || self.judge.statuses.contains_key(&rejected())
            }
            OperationRequest::Amend(amend) => {
                let answer = id.event_id(&format!("answer-{}", amend.id));
                let is_noted = |row: &OperationRow| {
                    let mut history = row.state.history.iter();
                    history.any(|entry| entry.id == amend.id && entry.refused.is_none())
                };
                let is_void = |row: &OperationRow| row.state.cancelled;
                match amend.amendment {
                    Amendment::Cancel { .. } => {
                        row.is_some_and(|row| is_noted(row) || is_void(row))
                            || self.judge.statuses.contains_key(&answer)
                    }
                    Amendment::Reschedule { .. } => self.judge.statuses.contains_key(&answer),
                }
            }
        }
    }

    /// No row still awaits a reply below the checkpoint.
    fn check_replies_below(&mut self, partition: usize) {
        let awaited = self.store.rows().find_map(|row| {
            let replies = self.judge.replies.get(&row.id)?;
            let is_ours = self.home_of(row.id) == partition && !row.state.state.is_final();
            let end = position(&self.store.reached_of(partition, row.id), Source::Replies);
            let reply = replies.iter().find(|reply| {
                let step = &row.state.steps[reply.step];
                reply.at < end
                    && !reply.refuses_owner
                    && step.is_under_way()
                    && step.attempt == reply.attempt
                    && (step.action == waybill_engine::Action::Compensate) == reply.undoes
            })?;
            let is_excused =
                self.judge.branched.contains(&row.id) || self.judge.was_unreadable(row.id);
            (is_ours && !is_excused).then_some((row.id, end, *reply))
        });
        if let Some((id, end, reply)) = awaited {
            self.fail(Rule::CheckpointAhead, id, || {
                format!("the checkpoint of replies, {end}, has passed {reply:?}")
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

/// Whether a step has ended in forward progress.
fn has_ended(state: StepState) -> bool {
    matches!(state, StepState::Completed | StepState::Skipped)
}

/// Whether an operation in this state must not have any effects left.
fn is_undone(state: ProcessState) -> bool {
    matches!(state, ProcessState::Compensated | ProcessState::Cancelled)
}
