//! An engine with a map as its store, and a time that advances only when a test advances it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, AmendRequest, Amendment, Attempt, Batch, BatchNumber, ByPriority, Command,
    CompensationDefinition, CreateRequest, EngineConfig, Epoch, Event, Held, IdOrigin, LayoutShard,
    Message, Offset, OperationId, OperationRequest, OperationRow, OperationState, Outcome, OwnerId,
    Ownership, PartitionEngine, PartitionId, Priority, Recovery, RecoveryVerb, RequestHash,
    RetryPolicy, Room, Stamp, StepDefinition, StepError, StepReply, StepState, Supervision,
    Timestamp, TopicOffsets, Workflow, WorkflowDefinition, Workflows,
};

pub const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);
pub const PARTITION: PartitionId = PartitionId(3);
pub const SHARD: LayoutShard = LayoutShard {
    layout: 2,
    number: 5,
};
pub const EPOCH: Epoch = Epoch(5);
pub const HASH: RequestHash = RequestHash([1; 16]);
pub const OTHER_HASH: RequestHash = RequestHash([2; 16]);

pub fn owner(epoch: Epoch) -> OwnerId {
    OwnerId(Uuid::from_u128(0xabc0 + u128::from(epoch.0)))
}

pub fn id(number: u128) -> OperationId {
    OperationId(Uuid::from_u128(number))
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn request(operation: OperationId) -> CreateRequest {
    CreateRequest {
        operation,
        id_origin: IdOrigin::Server,
        workflow: "pair".to_owned(),
        tenant: "acme".to_owned(),
        caller_id: Some("order-1".to_owned()),
        input: br#"{"weight":3}"#.to_vec(),
        deadline: Some(T0 + ms(60_000)),
        reply_to: None,
        request_hash: HASH,
        verify_hash: false,
        requested_at: T0 - ms(3),
        traceparent: Some("00-1-1-01".to_owned()),
        resubmission_of: None,
        notify: Vec::new(),
    }
}

/// A step whose service refuses to perform it after its undo.
pub fn step(name: &str) -> StepDefinition {
    StepDefinition {
        retry: RetryPolicy {
            max_attempts: Some(2),
            ..RetryPolicy::default()
        },
        compensation: Some(CompensationDefinition {
            tombstones: true,
            ..CompensationDefinition::default()
        }),
        ..StepDefinition::new(name, format!("{name}-agent"))
    }
}

/// `pair`: a, then b. `twins`: a parallel to b. `old`: as `pair`, in versions 1 and 2.
pub fn workflows() -> Workflows {
    let workflow = |name: &str, version, steps| {
        Workflow::try_from(WorkflowDefinition::new(name, version, steps)).unwrap()
    };
    let beside = |name| StepDefinition {
        after: Some(Vec::new()),
        ..step(name)
    };
    Workflows::new(vec![
        workflow("pair", 1, vec![step("a"), step("b")]),
        workflow("twins", 1, vec![beside("a"), beside("b")]),
        workflow("old", 1, vec![step("a")]),
        workflow("old", 2, vec![step("a"), step("b")]),
    ])
    .unwrap()
}

pub fn ownership(epoch: Epoch) -> Ownership {
    Ownership {
        partition: PARTITION,
        shard: SHARD,
        owner: owner(epoch),
        epoch,
        next: TopicOffsets::default(),
        requests_end: ByPriority::default(),
        replies_end: Offset(0),
        stamp_floor: Stamp(0),
        stamp_limit: Stamp(i64::MAX),
    }
}

pub fn success(step: &str, attempt: u32) -> (String, u32, Outcome) {
    let outputs = vec![("made".to_owned(), format!("{step}-1"))];
    (step.to_owned(), attempt, Outcome::Success { outputs })
}

pub fn error(code: &str) -> StepError {
    StepError {
        code: code.to_owned(),
        message: "because".to_owned(),
    }
}

pub struct Fixture {
    pub engine: PartitionEngine,
    workflows: Arc<Workflows>,
    pub now: Timestamp,
    pub rows: BTreeMap<OperationId, OperationRow>,
    /// Ids that the engine requested from the store.
    pub loaded: Vec<OperationId>,
    /// The next offset of each topic.
    next: TopicOffsets,
    epoch: Epoch,
    /// The room for admission; unlimited by default.
    pub room: Room,
}

const NO_BOUND: Room = Room {
    operations: usize::MAX,
    bytes: usize::MAX,
};

impl Fixture {
    pub fn new() -> Self {
        Self::with(EngineConfig::default(), ownership(EPOCH))
    }

    /// The fixture with other workflows.
    pub fn with_workflows(self, workflows: Workflows) -> Self {
        let workflows = Arc::new(workflows);
        Self {
            engine: PartitionEngine::new(Arc::default(), Arc::clone(&workflows), ownership(EPOCH)),
            workflows,
            ..self
        }
    }

    pub fn with(config: EngineConfig, ownership: Ownership) -> Self {
        let workflows = Arc::new(workflows());
        Self {
            next: ownership.next,
            epoch: ownership.epoch,
            room: NO_BOUND,
            engine: PartitionEngine::new(Arc::new(config), Arc::clone(&workflows), ownership),
            workflows,
            now: T0,
            rows: BTreeMap::new(),
            loaded: Vec::new(),
        }
    }

    /// The engine dies; the next owner starts from these offsets with the stored rows.
    pub fn restart(&mut self, requests_next: i64, replies_next: i64) {
        self.epoch = self.epoch.next();
        let epoch = self.epoch;
        let ownership = Ownership {
            next: TopicOffsets {
                requests: Offset(requests_next),
                replies: Offset(replies_next),
                ..TopicOffsets::default()
            },
            requests_end: self.next.on_requests(),
            replies_end: self.next.replies,
            ..ownership(epoch)
        };
        self.next = ownership.next;
        self.loaded.clear();
        self.engine = PartitionEngine::new(Arc::default(), Arc::clone(&self.workflows), ownership);
    }

    /// The same, with other workflows for the next owner.
    pub fn restart_knowing(&mut self, workflows: Workflows) {
        self.workflows = Arc::new(workflows);
        self.restart(self.next.requests.0, self.next.replies.0);
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
        self.room = self.engine.admit(self.room, self.now);
    }

    /// Admits up to this many waiting operations.
    pub fn admit(&mut self, operations: usize) {
        let bytes = usize::MAX;
        self.room = self.engine.admit(Room { operations, bytes }, self.now);
    }

    fn next(&mut self, priority: Priority) -> Offset {
        let next = self.next.on_mut(priority.source());
        let offset = *next;
        *next = offset.next();
        offset
    }

    pub fn request(&mut self, request: CreateRequest) -> Offset {
        self.request_with(request, false)
    }

    pub fn request_with(&mut self, request: CreateRequest, rerouted: bool) -> Offset {
        self.request_by(Priority::Normal, request, rerouted)
    }

    pub fn high_priority(&mut self, request: CreateRequest) -> Offset {
        self.request_by(Priority::High, request, false)
    }

    fn request_by(&mut self, priority: Priority, request: CreateRequest, rerouted: bool) -> Offset {
        let offset = self.next(priority);
        self.apply(Event::Request {
            priority,
            offset,
            fingerprint: offset.0.unsigned_abs() + 100,
            bytes: 200,
            rerouted,
            request: OperationRequest::Create(request),
        });
        offset
    }

    pub fn amend(&mut self, number: u128, amendment: Amendment) -> Offset {
        let request = self.amendment(number, amendment);
        self.amend_by(Priority::Normal, request)
    }

    pub fn amend_by(&mut self, priority: Priority, request: AmendRequest) -> Offset {
        let offset = self.next(priority);
        self.apply(Event::Request {
            priority,
            offset,
            fingerprint: offset.0.unsigned_abs() + 100,
            bytes: 200,
            rerouted: false,
            request: OperationRequest::Amend(request),
        });
        offset
    }

    /// A change of the operation that most tests use.
    pub fn amendment(&self, number: u128, amendment: Amendment) -> AmendRequest {
        AmendRequest {
            id: Uuid::from_u128(number),
            operation: id(1),
            tenant: "acme".to_owned(),
            caller_id: Some("order-1".to_owned()),
            amendment,
            reason: "changed my mind".to_owned(),
            asked_by: String::new(),
            requested_at: self.now,
        }
    }

    pub fn cancel(&mut self, number: u128) -> Offset {
        let workflow = "pair".to_owned();
        self.amend(number, Amendment::Cancel { workflow })
    }

    pub fn reply(&mut self, operation: OperationId, reply: (String, u32, Outcome)) -> Offset {
        self.reply_to(operation, Action::Run, reply)
    }

    /// Applies a reply to an attempt at undoing a step.
    pub fn undo_reply(&mut self, operation: OperationId, reply: (String, u32, Outcome)) -> Offset {
        self.reply_to(operation, Action::Compensate, reply)
    }

    pub fn reply_to(
        &mut self,
        operation: OperationId,
        action: Action,
        reply: (String, u32, Outcome),
    ) -> Offset {
        let offset = self.next.replies;
        self.next.replies = offset.next();
        let reply = step_reply(operation, action, reply);
        self.apply(Event::Reply { offset, reply });
        offset
    }

    /// Applies a reply to an attempt at performing a step, without a record.
    pub fn reply_directly(&mut self, operation: OperationId, reply: (String, u32, Outcome)) {
        self.apply(Event::DirectReply(step_reply(
            operation,
            Action::Run,
            reply,
        )));
    }

    /// An index entry comes up, and the supervisor sends its recovery.
    pub fn hint(&mut self, due: Timestamp, operation: OperationId) -> Offset {
        self.recover(1_000, operation, Some(due), RecoveryVerb::Wake)
    }

    pub fn recover(
        &mut self,
        number: u128,
        operation: OperationId,
        due: Option<Timestamp>,
        verb: RecoveryVerb,
    ) -> Offset {
        let offset = self.next.recoveries;
        self.next.recoveries = offset.next();
        self.apply(Event::Recovery {
            offset,
            recovery: Box::new(Recovery {
                id: Uuid::from_u128(number),
                operation,
                asked_by: "ada".to_owned(),
                reason: "because".to_owned(),
                asked_at: self.now,
                due,
                verb,
            }),
        });
        offset
    }

    /// The supervisor's decision about the failure in these commands.
    pub fn decision(&self, commands: &[Command]) -> Recovery {
        let supervision = Supervision {
            name: "supervisor",
            workflows: &self.workflows,
            timeout_grace: ms(500),
        };
        let failed = commands.iter().find_map(|command| match command {
            Command::Send(Message::Failed(failed)) => Some(failed),
            _ => None,
        });
        let failed = failed.expect("it failed for good");
        let recovery = supervision.failed(failed, self.now);
        recovery.expect("it awaits a decision")
    }

    /// Applies the supervisor's decision.
    pub fn decide(&mut self, commands: &[Command]) {
        let recovery = Box::new(self.decision(commands));
        let offset = self.next.recoveries;
        self.next.recoveries = offset.next();
        self.apply(Event::Recovery { offset, recovery });
    }

    /// Answers all requested loads from the map.
    pub fn load(&mut self) {
        for operation in self.engine.loads() {
            self.loaded.push(operation);
            let row = self.rows.get(&operation).cloned().map(Box::new);
            self.apply(Event::Loaded { operation, row });
        }
    }

    /// Advances the time, and applies a tick.
    pub fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.apply(Event::Tick);
    }

    /// Takes a batch and writes its rows, without settling it.
    pub fn take(&mut self) -> Option<Batch> {
        let batch = self.engine.take_batch(self.now)?;
        for command in &batch.commands {
            let Command::Persist(change) = command else {
                continue;
            };
            let created = change.created.clone().or_else(|| {
                self.rows
                    .get(&change.id)
                    .map(|row| Arc::clone(&row.created))
            });
            let row = OperationRow {
                id: change.id,
                created: created.expect("the first write has all columns"),
                state: change.state.clone(),
                stamp: change.stamp,
            };
            self.rows.insert(change.id, row);
        }
        Some(batch)
    }

    pub fn settle(&mut self, batch: BatchNumber) {
        self.apply(Event::Settled { batch });
    }

    /// Takes a batch, settles it and returns its commands.
    pub fn round(&mut self) -> Vec<Command> {
        let Some(batch) = self.take() else {
            return Vec::new();
        };
        self.settle(batch.number);
        batch.commands
    }

    pub fn state(&self, operation: OperationId) -> &OperationState {
        &self.rows[&operation].state
    }

    /// The operation that holds the checkpoint of normal-priority requests.
    pub fn oldest_held(&self) -> Option<Held> {
        self.engine.oldest_held(Priority::Normal)
    }

    pub fn requests_checkpoint(&self) -> i64 {
        self.engine.checkpoint().at.requests.0
    }

    pub fn replies_checkpoint(&self) -> i64 {
        self.engine.checkpoint().at.replies.0
    }
}

/// The commands in short form, one per line.
pub fn summary(commands: &[Command]) -> Vec<String> {
    commands.iter().map(describe).collect()
}

fn describe(command: &Command) -> String {
    match command {
        Command::Index { due, .. } => format!("index {}", at(*due)),
        Command::Attention { at: since, .. } => format!("attention {}", at(*since)),
        Command::Persist(change) => tell_row(&change.state, change.created.is_some()),
        Command::Send(Message::Step(request)) => format!(
            "{} {}#{} by {}",
            match request.action {
                Action::Run => "ask",
                Action::Compensate => "undo",
                Action::Probe => "probe",
            },
            request.step,
            request.attempt,
            at(request.complete_by)
        ),
        Command::Send(Message::Status(status)) => {
            let mut text = format!("status {} {:?}", status.sequence, status.kind);
            match &status.step {
                Some((step, state)) => write!(text, " {step}:{}", state.as_str()).unwrap(),
                None => write!(text, " {}", status.state.as_str()).unwrap(),
            }
            if let Some(error) = &status.error {
                write!(text, " {}", error.code).unwrap();
            }
            text
        }
        Command::Send(Message::Alert(alert)) => {
            let error = alert.error.as_ref().map_or("", |error| &error.code);
            format!("alert {} {error}", alert.kind.as_str())
        }
        Command::Send(Message::Owner(notice)) => format!("owner {}", notice.state.as_str()),
        Command::Send(Message::Failed(failed)) => format!("failed {}", failed.error.code),
        Command::Send(Message::Reroute { partition, .. }) => format!("reroute {partition}"),
        Command::Send(Message::DeadLetter { offset, .. }) => format!("dead letter {offset}"),
    }
}

fn tell_row(state: &OperationState, with_created: bool) -> String {
    let mut text = format!("row {}", state.state.as_str());
    if with_created {
        text.push_str(" created");
    }
    match state.locked_by {
        Some(_) => text.push_str(" locked"),
        None => text.push_str(" free"),
    }
    if state.handed_off {
        text.push_str(" handed-off");
    }
    if let Some(due) = state.next_due {
        write!(text, " due {}", at(due)).unwrap();
    }
    for (step, name) in state.steps.iter().zip(["a", "b"]) {
        write!(text, " {name}:{}", step.state.as_str()).unwrap();
        if step.state != StepState::NotStarted || step.attempt > Attempt(0) {
            write!(text, "#{}", step.attempt).unwrap();
        }
        if step.failure_count > 0 {
            write!(text, "!{}", step.failure_count).unwrap();
        }
        if step.undo_failure_count > 0 {
            write!(text, "?{}", step.undo_failure_count).unwrap();
        }
    }
    text
}

fn at(time: Timestamp) -> String {
    let millis = time.as_micros() - T0.as_micros();
    format!("{}", millis / 1_000)
}

fn step_reply(
    operation: OperationId,
    action: Action,
    (step, attempt, outcome): (String, u32, Outcome),
) -> StepReply {
    StepReply {
        operation,
        step,
        attempt: Attempt(attempt),
        epoch: EPOCH,
        action,
        nonce: None,
        outcome,
    }
}

/// A reply in short form.
pub fn reply(step: &str, attempt: u32, outcome: Outcome) -> (String, u32, Outcome) {
    (step.to_owned(), attempt, outcome)
}

/// A fixture in which the workflow `pair` has these steps.
pub fn with_steps(steps: Vec<StepDefinition>) -> Fixture {
    let workflow = Workflow::try_from(WorkflowDefinition::new("pair", 1, steps)).unwrap();
    Fixture::new().with_workflows(Workflows::new(vec![workflow]).unwrap())
}
