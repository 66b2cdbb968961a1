//! An engine with a store made of a map, at a time that stands still until it is told to go on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Attempt, Backoff, Batch, BatchNumber, Command, CreateRequest, EngineConfig, Epoch, Event,
    IdOrigin, Message, Offset, OperationId, OperationRow, OperationState, Outcome, OwnerId,
    Ownership, PartitionEngine, PartitionId, RequestHash, Stamp, StepDefinition, StepError,
    StepReply, StepState, Timestamp, Workflow, WorkflowDefinition, Workflows,
};

pub const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);
pub const PARTITION: PartitionId = PartitionId(3);
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
        reply_to: Some("acme.status".to_owned()),
        request_hash: HASH,
        requested_at: T0 - ms(3),
        traceparent: Some("00-1-1-01".to_owned()),
    }
}

pub fn step(name: &str) -> StepDefinition {
    StepDefinition {
        name: name.to_owned(),
        agent: format!("{name}-agent"),
        after: None,
        when: None,
        complete_by: ms(10_000),
        failures_max: 2,
        backoff: Backoff::default(),
    }
}

/// `pair`: a, then b. `twins`: a beside b. `old`: as `pair`, in versions 1 and 2.
pub fn workflows() -> Workflows {
    let workflow = |name: &str, version, steps| {
        let name = name.to_owned();
        Workflow::try_from(WorkflowDefinition {
            name,
            version,
            steps,
        })
        .unwrap()
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
        partitions: 8,
        owner: owner(epoch),
        epoch,
        requests_next: Offset(0),
        replies_next: Offset(0),
        requests_end: Offset(0),
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
    pub now: Timestamp,
    pub rows: BTreeMap<OperationId, OperationRow>,
    /// Ids that the engine asked the store for.
    pub loaded: Vec<OperationId>,
    next_request: Offset,
    next_reply: Offset,
    next_hint: u64,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(EngineConfig::default(), ownership(EPOCH))
    }

    pub fn with(config: EngineConfig, ownership: Ownership) -> Self {
        Self {
            next_request: ownership.requests_next,
            next_reply: ownership.replies_next,
            next_hint: 0,
            engine: PartitionEngine::new(Arc::new(config), Arc::new(workflows()), ownership),
            now: T0,
            rows: BTreeMap::new(),
            loaded: Vec::new(),
        }
    }

    /// The engine dies; the next owner starts from these offsets with what was written.
    pub fn restart(&mut self, requests_next: i64, replies_next: i64) {
        let epoch = EPOCH.next();
        let ownership = Ownership {
            requests_next: Offset(requests_next),
            replies_next: Offset(replies_next),
            requests_end: self.next_request,
            replies_end: self.next_reply,
            ..ownership(epoch)
        };
        let (now, rows) = (self.now, std::mem::take(&mut self.rows));
        *self = Self::with(EngineConfig::default(), ownership);
        self.now = now;
        self.rows = rows;
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
    }

    pub fn request(&mut self, request: CreateRequest) -> Offset {
        self.request_with(request, false)
    }

    pub fn request_with(&mut self, request: CreateRequest, rerouted: bool) -> Offset {
        let offset = self.next_request;
        self.next_request = offset.next();
        self.apply(Event::Request {
            offset,
            fingerprint: offset.0.unsigned_abs() + 100,
            bytes: 200,
            rerouted,
            request,
        });
        offset
    }

    pub fn reply(&mut self, operation: OperationId, reply: (String, u32, Outcome)) -> Offset {
        let offset = self.next_reply;
        self.next_reply = offset.next();
        let (step, attempt, outcome) = reply;
        self.apply(Event::Reply {
            offset,
            reply: StepReply {
                operation,
                step,
                attempt: Attempt(attempt),
                epoch: EPOCH,
                outcome,
            },
        });
        offset
    }

    pub fn hint(&mut self, due: Timestamp, operation: OperationId) -> u64 {
        let sequence = self.next_hint;
        self.next_hint += 1;
        self.apply(Event::Due {
            sequence,
            due,
            operation,
        });
        sequence
    }

    /// Answers all loads from the map.
    pub fn load(&mut self) {
        for operation in self.engine.loads() {
            self.loaded.push(operation);
            let row = self.rows.get(&operation).cloned().map(Box::new);
            self.apply(Event::Loaded { operation, row });
        }
    }

    /// Lets time pass, and the engine notice.
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

    /// Takes a batch, settles it and tells its commands.
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

    pub fn requests_checkpoint(&self) -> i64 {
        self.engine.checkpoint().requests.0
    }

    pub fn replies_checkpoint(&self) -> i64 {
        self.engine.checkpoint().replies.0
    }
}

/// The commands in short, one per line.
pub fn told(commands: &[Command]) -> Vec<String> {
    commands.iter().map(tell).collect()
}

fn tell(command: &Command) -> String {
    match command {
        Command::Index { due, .. } => format!("index {}", at(*due)),
        Command::Attention { at: since, .. } => format!("attention {}", at(*since)),
        Command::Persist(change) => tell_row(&change.state, change.created.is_some()),
        Command::Send(Message::Step(request)) => format!(
            "ask {}#{} by {}",
            request.step,
            request.attempt,
            at(request.complete_by)
        ),
        Command::Send(Message::Status(status)) => {
            let error = status.error.as_ref().map_or("", |error| &error.code);
            format!("status {:?} {:?} {error}", status.kind, status.state)
                .trim_end()
                .to_owned()
        }
        Command::Send(Message::Failed(failed)) => format!("failed {}", failed.error.code),
        Command::Send(Message::Home { partition, .. }) => format!("home {partition}"),
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
    }
    text
}

fn at(time: Timestamp) -> String {
    let millis = time.as_micros() - T0.as_micros();
    format!("{}", millis / 1_000)
}
