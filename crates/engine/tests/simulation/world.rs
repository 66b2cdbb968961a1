//! What outlives a crash: logs, store, deadline index, lease, and what was delivered. It checks
//! every write and every message against what must hold at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use waybill_engine::{
    Command, CreateRequest, Epoch, IdOrigin, Message, Offset, OperationId, OperationRow,
    OperationStatus, Outcome, PartitionId, ProcessState, RequestHash, RowChange, Source, Stamp,
    StatusKind, StepReply, StepRequest, StepState, Timestamp, Workflows,
};

pub const PARTITION: PartitionId = PartitionId(3);

#[derive(Clone, Debug)]
pub enum Record {
    Create {
        request: Box<CreateRequest>,
        rerouted: bool,
    },
    Poison,
    Misplaced {
        already_rerouted: bool,
    },
}

#[derive(Clone, Copy, Debug, Default)]
pub struct DurableCheckpoint {
    pub requests: usize,
    pub replies: usize,
    /// Buckets of the deadline index below this one were swept.
    pub bucket: i64,
}

#[derive(Debug)]
pub struct World {
    pub workflows: Workflows,
    pub requests: Vec<Record>,
    pub replies: Vec<StepReply>,
    pub rows: BTreeMap<OperationId, OperationRow>,
    /// Entries of the deadline index, in the order in which they were written.
    pub index: Vec<(Timestamp, OperationId)>,
    pub attention: BTreeSet<OperationId>,
    pub checkpoint: DurableCheckpoint,
    pub epoch: Epoch,
    pub stamp_limit: Stamp,
    /// What rows have said that may be asked for: operation, step, attempt, complete-by.
    intents: BTreeSet<(OperationId, usize, u32, Timestamp)>,
    pub announced: BTreeMap<OperationId, OperationStatus>,
    pub failed_announced: BTreeSet<OperationId>,
    rejected: BTreeSet<Offset>,
    dead: BTreeSet<Offset>,
    homes: usize,
    /// Where the replies ended when the present owner took its lease.
    pub replies_end: usize,
    /// Operations whose rows were also written by an owner that had lost its lease.
    pub touched_late: BTreeSet<OperationId>,
}

pub fn bucket_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

impl World {
    pub fn new(workflows: Workflows, start: Timestamp) -> Self {
        Self {
            workflows,
            requests: Vec::new(),
            replies: Vec::new(),
            rows: BTreeMap::new(),
            index: Vec::new(),
            attention: BTreeSet::new(),
            checkpoint: DurableCheckpoint {
                bucket: bucket_of(start),
                ..DurableCheckpoint::default()
            },
            epoch: Epoch(0),
            stamp_limit: Stamp(0),
            intents: BTreeSet::new(),
            announced: BTreeMap::new(),
            failed_announced: BTreeSet::new(),
            rejected: BTreeSet::new(),
            dead: BTreeSet::new(),
            homes: 0,
            replies_end: 0,
            touched_late: BTreeSet::new(),
        }
    }

    /// The request that an id belongs to: the first in the log.
    pub fn accepted(&self) -> BTreeMap<OperationId, RequestHash> {
        let mut accepted = BTreeMap::new();
        for record in &self.requests {
            if let Record::Create { request, .. } = record {
                accepted
                    .entry(request.operation)
                    .or_insert(request.request_hash);
            }
        }
        accepted
    }

    pub fn persist(&mut self, change: RowChange, late: bool) {
        let id = change.id;
        let stamp = change.stamp;
        if late {
            self.touched_late.insert(id);
        } else {
            assert!(stamp < self.stamp_limit, "{id}: stamp at or past the limit");
            let settled = change.state.locked_by.is_some()
                || change.state.state.is_final()
                || change.state.handed_off;
            assert!(settled, "{id}: nobody holds it");
            assert_eq!(
                change.state.epoch, self.epoch,
                "{id}: written under another epoch"
            );
        }
        if !self.touched_late.contains(&id)
            && let Some(old) = self.rows.get(&id)
        {
            self.check_succession(old, &change);
        }
        self.check_order(&change);
        self.check_ends_of_attempts(&change, late);
        for (index, step) in change.state.steps.iter().enumerate() {
            if step.state == StepState::Running && !change.state.state.is_final() {
                let by = step.complete_by.expect("a running step has a complete-by");
                self.intents.insert((id, index, step.attempt.0, by));
            }
        }
        if change.state.state.is_final() {
            assert!(
                change.keep_for.is_some() && change.created.is_some(),
                "{id}"
            );
            assert_eq!(
                change.state.next_due, None,
                "{id}: final, yet something is due"
            );
        } else {
            assert_eq!(change.keep_for, None, "{id}: a live row would expire");
            assert!(
                change.state.next_due.is_some(),
                "{id}: live, yet nothing is due"
            );
        }
        match self.rows.get_mut(&id) {
            Some(row) => {
                assert_ne!(row.stamp, stamp, "{id}: two writes with one stamp");
                if stamp > row.stamp {
                    row.state = change.state;
                    row.stamp = stamp;
                    row.created = change.created.unwrap_or_else(|| row.created.clone());
                }
            }
            None => {
                self.rows.insert(
                    id,
                    OperationRow {
                        id,
                        created: change.created.expect("the first write has all columns"),
                        state: change.state,
                        stamp,
                    },
                );
            }
        }
    }

    fn check_succession(&self, old: &OperationRow, new: &RowChange) {
        let id = new.id;
        assert!(new.stamp > old.stamp, "{id}: the stamp fell");
        assert!(!old.state.state.is_final(), "{id}: a final row was changed");
        assert!(
            new.state.handed_off || !old.state.handed_off,
            "{id}: its hand-off was forgotten"
        );
        for (old, new) in old.state.steps.iter().zip(&new.state.steps) {
            assert!(new.attempt >= old.attempt, "{id}: an attempt's number fell");
            assert!(
                new.failure_count >= old.failure_count,
                "{id}: a failure was forgotten"
            );
            if matches!(old.state, StepState::Completed | StepState::Skipped) {
                assert_eq!(old, new, "{id}: a step that had ended changed");
            }
        }
    }

    /// No step runs before all that it waits for have ended.
    fn check_order(&self, change: &RowChange) {
        let Some(workflow) = self.workflow_of(change) else {
            return;
        };
        let ended = |index: usize| {
            matches!(
                change.state.steps[index].state,
                StepState::Completed | StepState::Skipped
            )
        };
        for (index, step) in workflow.steps().iter().enumerate() {
            if change.state.steps[index].state != StepState::NotStarted {
                assert!(
                    step.after.iter().all(ended),
                    "{}: {index} ran too early",
                    change.id
                );
            }
        }
    }

    /// An attempt ends by a reply to that very attempt, or by a time-out for want of one.
    fn check_ends_of_attempts(&self, change: &RowChange, late: bool) {
        let old = self.rows.get(&change.id);
        let created = change.created.as_ref().or(old.map(|row| &row.created));
        let names = &created.expect("the first write has all columns").step_names;
        for (index, step) in change.state.steps.iter().enumerate() {
            let before = old.map(|row| &row.state.steps[index]);
            if before.is_some_and(|old| (old.state, old.attempt) == (step.state, step.attempt)) {
                continue;
            }
            let mut replies = self.replies.iter().enumerate().filter(|(_, reply)| {
                reply.operation == change.id
                    && *reply.step == *names[index]
                    && reply.attempt == step.attempt
            });
            let fits = match step.state {
                StepState::Completed => {
                    replies.any(|(_, reply)| matches!(reply.outcome, Outcome::Success { .. }))
                }
                StepState::Failed => replies.next().is_some(),
                StepState::TimedOut => {
                    late || self.touched_late.contains(&change.id)
                        || replies.all(|(offset, _)| offset >= self.replies_end)
                }
                StepState::NotStarted | StepState::Running | StepState::Skipped => true,
            };
            assert!(
                fits,
                "{}: no reply has led to {}: {step:?}",
                change.id, names[index]
            );
        }
    }

    /// Whoever takes an operation over asks again for what runs, with its first write of the row.
    pub fn check_taken_over(&self, commands: &[Command], written: &mut BTreeSet<OperationId>) {
        for command in commands {
            let Command::Persist(change) = command else {
                continue;
            };
            let Some(row) = self.rows.get(&change.id) else {
                continue;
            };
            let is_first = written.insert(change.id);
            if !is_first || row.state.epoch == self.epoch || change.state.state.is_final() {
                continue;
            }
            let steps = change.state.steps.iter().zip(&row.created.step_names);
            for (step, name) in steps.filter(|(step, _)| step.state == StepState::Running) {
                let asked = commands.iter().any(|command| {
                    matches!(command, Command::Send(Message::Step(request))
                        if request.operation == change.id
                            && request.step == *name
                            && request.attempt == step.attempt)
                });
                assert!(
                    asked,
                    "{}: {name} was taken over and not asked for",
                    change.id
                );
            }
        }
    }

    fn workflow_of(&self, change: &RowChange) -> Option<&waybill_engine::Workflow> {
        let created = match (&change.created, self.rows.get(&change.id)) {
            (Some(created), _) => created,
            (None, Some(row)) => &row.created,
            (None, None) => panic!("{}: the first write lacks its columns", change.id),
        };
        let workflow = self
            .workflows
            .get(&created.workflow, created.workflow_version)?;
        Some(workflow)
    }

    /// Takes a message in; gives back the step request that an agent has to see to.
    pub fn send(&mut self, message: Message) -> Option<StepRequest> {
        match message {
            Message::Step(request) => {
                let workflow = self.workflows.newest(&request.workflow).unwrap();
                let index = workflow.step_index(&request.step).unwrap();
                let intent = (
                    request.operation,
                    index,
                    request.attempt.0,
                    request.complete_by,
                );
                assert!(
                    self.intents.contains(&intent),
                    "sent without a durable intent: {request:?}"
                );
                assert_eq!(request.agent, workflow.steps()[index].agent);
                assert_eq!(request.reply_partition, PARTITION);
                Some(request)
            }
            Message::Status(status) => {
                self.take_status(*status);
                None
            }
            Message::Failed(failed) => {
                assert_eq!(
                    self.stored_state(failed.operation),
                    Some(ProcessState::Error),
                    "announced without a durable row"
                );
                self.failed_announced.insert(failed.operation);
                None
            }
            Message::Home { source, .. } => {
                assert_eq!(source, Source::Requests);
                self.homes += 1;
                None
            }
            Message::DeadLetter { source, offset, .. } => {
                assert_eq!(source, Source::Requests);
                self.dead.insert(offset);
                None
            }
        }
    }

    fn stored_state(&self, id: OperationId) -> Option<ProcessState> {
        self.rows.get(&id).map(|row| row.state.state)
    }

    fn take_status(&mut self, status: OperationStatus) {
        let id = status.operation;
        if status.kind == StatusKind::Rejected {
            self.rejected.insert(status.request.offset);
            return;
        }
        assert_eq!(
            self.stored_state(id),
            Some(status.state),
            "{id}: announced without a durable row"
        );
        match self.announced.get(&id) {
            Some(before) if !self.touched_late.contains(&id) => {
                assert_eq!(*before, status, "{id}: announced differently");
            }
            Some(_) | None => {
                self.announced.insert(id, status);
            }
        }
    }

    pub fn index(&mut self, due: Timestamp, operation: OperationId) {
        self.index.push((due, operation));
    }

    /// Moves the durable checkpoint, if what lies below it is done.
    pub fn commit(&mut self, checkpoint: DurableCheckpoint) {
        assert!(checkpoint.requests >= self.checkpoint.requests);
        assert!(checkpoint.replies >= self.checkpoint.replies);
        assert!(checkpoint.bucket >= self.checkpoint.bucket);
        self.checkpoint = checkpoint;
        self.check_checkpoint();
    }

    /// Nothing below the checkpoint is unfinished.
    pub fn check_checkpoint(&self) {
        let accepted = self.accepted();
        let mut homes = 0;
        for (offset, record) in self.requests[..self.checkpoint.requests].iter().enumerate() {
            let offset = Offset(i64::try_from(offset).unwrap());
            match record {
                Record::Create { request, .. } => {
                    let id = request.operation;
                    if accepted[&id] == request.request_hash {
                        assert!(
                            self.is_safe(id),
                            "the checkpoint passed request {offset} of {id}: {:?}",
                            self.rows.get(&id)
                        );
                    } else {
                        assert!(self.rejected.contains(&offset), "{id}: silently rejected");
                    }
                }
                Record::Poison => assert!(self.dead.contains(&offset), "{offset} was dropped"),
                Record::Misplaced {
                    already_rerouted: true,
                } => assert!(self.dead.contains(&offset), "{offset} was dropped"),
                Record::Misplaced {
                    already_rerouted: false,
                } => homes += 1,
            }
        }
        assert!(self.homes >= homes, "a misplaced record was dropped");
        for reply in &self.replies[..self.checkpoint.replies] {
            let Some(row) = self.rows.get(&reply.operation) else {
                continue;
            };
            let index = row
                .created
                .step_names
                .iter()
                .position(|name| **name == *reply.step);
            let step = &row.state.steps[index.unwrap()];
            let awaited = !row.state.state.is_final()
                && step.state == StepState::Running
                && step.attempt == reply.attempt;
            assert!(
                !awaited,
                "the checkpoint passed a reply that is still awaited: {reply:?}"
            );
        }
    }

    /// Whether an operation whose request is behind the checkpoint will come to its end.
    fn is_safe(&self, id: OperationId) -> bool {
        let Some(row) = self.rows.get(&id) else {
            return false;
        };
        // An entry at or before what is due next, or soon after it was written.
        let soon = row.state.updated_at + Duration::from_secs(5);
        let by = row.state.next_due.map(|due| due.max(soon));
        let in_time = |due| by.is_none_or(|by| due <= by) || self.touched_late.contains(&id);
        let indexed = self.index.iter().any(|(due, entry)| {
            *entry == id && bucket_of(*due) >= self.checkpoint.bucket && in_time(*due)
        });
        let announced = row.state.state.is_final() && self.announced.contains_key(&id);
        announced || (row.state.handed_off && indexed)
    }

    /// Whether every operation has ended and was announced: one may have been ended by a late
    /// write of a dead owner, and still wait for its hint.
    pub fn is_at_rest(&self) -> bool {
        let ended = |row: &OperationRow| row.state.state.is_final();
        self.rows
            .values()
            .all(|row| ended(row) && self.announced.contains_key(&row.id))
    }

    /// What must hold once everything has come to rest.
    pub fn judge(&self, effects: &BTreeMap<String, u32>) {
        for (id, hash) in self.accepted() {
            let row = self
                .rows
                .get(&id)
                .unwrap_or_else(|| panic!("{id} was lost"));
            assert_eq!(row.created.request_hash, hash, "{id}: the wrong twin won");
            let status = self.announced.get(&id).expect("every end is announced");
            assert_eq!(status.state, row.state.state, "{id}: announced otherwise");
            match row.state.state {
                ProcessState::Processed => self.judge_processed(row, effects),
                ProcessState::Error => {
                    let error = row.state.error.as_ref().expect("an error has a reason");
                    assert!(!error.error.code.is_empty());
                    assert!(
                        self.failed_announced.contains(&id),
                        "{id}: not on the dead letters"
                    );
                    assert!(self.attention.contains(&id), "{id}: nobody can see it");
                }
                ProcessState::Pending | ProcessState::Processing => panic!("{id} is not final"),
            }
        }
        assert_eq!(
            self.accepted().len(),
            self.rows.len(),
            "rows that nobody asked for"
        );
    }

    fn judge_processed(&self, row: &OperationRow, effects: &BTreeMap<String, u32>) {
        for (name, step) in row.created.step_names.iter().zip(&row.state.steps) {
            let made = effects.get(&format!("{}/{name}", row.id));
            match step.state {
                StepState::Completed => assert_eq!(made, Some(&1), "{}/{name}", row.id),
                StepState::Skipped => assert_eq!(made, None, "{}/{name}", row.id),
                state => panic!("{}: processed with {name} {state:?}", row.id),
            }
        }
    }
}

/// Commands come in the order of durability, one row per operation, one stamp per batch.
pub fn check_batch(commands: &[Command], last_stamp: &mut Stamp) {
    let rank = |command: &Command| match command {
        Command::Index { .. } => 0,
        Command::Attention { .. } => 1,
        Command::Persist(_) => 2,
        Command::Send(_) => 3,
    };
    assert!(
        commands.is_sorted_by_key(rank),
        "out of order: {commands:?}"
    );
    let mut ids = BTreeSet::new();
    let mut stamps = BTreeSet::new();
    for command in commands {
        if let Command::Persist(change) = command {
            assert!(ids.insert(change.id), "two rows for {}", change.id);
            stamps.insert(change.stamp);
        }
    }
    assert!(stamps.len() <= 1, "two stamps in one batch");
    if let Some(stamp) = stamps.first() {
        assert!(stamp > last_stamp, "stamps must grow");
        *last_stamp = *stamp;
    }
}

pub fn create(
    operation: OperationId,
    id_origin: IdOrigin,
    workflow: &str,
    hash: u8,
    now: Timestamp,
) -> CreateRequest {
    CreateRequest {
        operation,
        id_origin,
        workflow: workflow.to_owned(),
        tenant: String::new(),
        caller_id: None,
        input: b"{}".to_vec(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([hash; 16]),
        requested_at: now,
        traceparent: None,
    }
}
