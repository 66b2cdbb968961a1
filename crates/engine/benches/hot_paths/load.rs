//! Deliveries through an engine with simulated surroundings: agents reply in the batch after the
//! request, and rows are durable immediately.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, AttemptSeen, ByPriority, Command, CompensationDefinition, CreateRequest, EngineConfig,
    Epoch, Event, FailedOperation, IdOrigin, LayoutShard, Message, Offset, OperationId,
    OperationRequest, Outcome, OwnerId, Ownership, PartitionEngine, PartitionId, Priority,
    Recovery, RecoveryVerb, RequestHash, Room, Stamp, StepDefinition, StepError, StepReply,
    StepRequest, Timestamp, TopicOffsets, Workflow, WorkflowDefinition, Workflows,
};

const STEPS: [&str; 5] = ["account", "package", "transport", "drone", "delivery"];

/// The step that is refused when deliveries are undone.
const REFUSED: &str = "transport";

/// Maximum number of events of each kind in a batch, as in a poll.
const BATCH: usize = 200;

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// How a load's deliveries end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every step succeeds.
    Processed,
    /// A step is refused, and the earlier ones are undone.
    Compensated,
}

/// Deliveries, and the engine that runs them.
pub struct Load {
    engine: PartitionEngine,
    now: Timestamp,
    ending: Ending,
    /// How many deliveries may be in flight.
    window: usize,
    deliveries: usize,
    finished: usize,
    /// Requests not yet given to the engine.
    requests: VecDeque<Event>,
    replies: VecDeque<StepReply>,
    recoveries: VecDeque<Recovery>,
    next_reply: Offset,
    next_recovery: Offset,
}

impl Load {
    /// A new engine, and the requests for it.
    pub fn new(deliveries: usize, window: usize, ending: Ending) -> Self {
        let numbers = 0_u32..;
        Self {
            engine: engine(),
            now: START,
            ending,
            window,
            deliveries,
            finished: 0,
            requests: numbers.take(deliveries).map(request).collect(),
            replies: VecDeque::new(),
            recoveries: VecDeque::new(),
            next_reply: Offset(0),
            next_recovery: Offset(0),
        }
    }

    /// Runs all deliveries until they have ended.
    ///
    /// # Panics
    ///
    /// If a delivery does not end as expected: the count would be of something else.
    pub fn run(mut self) -> Self {
        while self.finished < self.deliveries {
            self.now = self.now + Duration::from_micros(500);
            self.bring_events();
            let batch = self
                .engine
                .take_batch(self.now)
                .expect("something always follows while deliveries are in progress");
            for command in batch.commands {
                self.execute(command);
            }
            let batch = batch.number;
            self.engine.apply(Event::Settled { batch }, self.now);
        }
        let done = self.engine.checkpoint().at.requests.0;
        assert_eq!(usize::try_from(done), Ok(self.deliveries), "all are done");
        let stats = self.engine.take_stats();
        let ended = match self.ending {
            Ending::Processed => stats.processed,
            Ending::Compensated => stats.undone,
        };
        assert_eq!(usize::try_from(ended), Ok(self.deliveries), "all ended so");
        self
    }

    fn bring_events(&mut self) {
        let in_flight = self.deliveries - self.requests.len() - self.finished;
        let room = (self.window - in_flight).min(BATCH);
        for request in self.requests.drain(..room.min(self.requests.len())) {
            self.engine.apply(request, self.now);
        }
        let room = Room {
            operations: room,
            bytes: usize::MAX,
        };
        if room.operations > 0 {
            self.engine.admit(room, self.now);
        }
        for reply in self.replies.drain(..BATCH.min(self.replies.len())) {
            let offset = self.next_reply;
            self.next_reply = offset.next();
            self.engine.apply(Event::Reply { offset, reply }, self.now);
        }
        for recovery in self.recoveries.drain(..BATCH.min(self.recoveries.len())) {
            let offset = self.next_recovery;
            self.next_recovery = offset.next();
            let recovery = Box::new(recovery);
            let event = Event::Recovery { offset, recovery };
            self.engine.apply(event, self.now);
        }
        self.engine.apply(Event::Tick, self.now);
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Send(Message::Step(step)) => {
                let reply = answer(&step, self.ending);
                self.replies.push_back(reply);
            }
            Command::Send(Message::Failed(failed)) => {
                self.recoveries.push_back(compensate(*failed, self.now));
            }
            Command::Send(Message::Status(_)) => self.finished += 1,
            Command::Send(other) => panic!("nothing leads to {other:?}"),
            Command::Persist(_) | Command::Index { .. } | Command::Attention { .. } => {}
        }
    }
}

/// An agent's reply.
fn answer(step: &StepRequest, ending: Ending) -> StepReply {
    let refused =
        ending == Ending::Compensated && step.action == Action::Run && &*step.step == REFUSED;
    let outcome = if refused {
        Outcome::Permanent {
            error: StepError {
                code: "no-transport".to_owned(),
                message: "nothing goes there".to_owned(),
            },
        }
    } else {
        Outcome::Success {
            outputs: vec![("id".to_owned(), "x-1".to_owned())],
        }
    };
    StepReply {
        operation: step.operation,
        step: step.step.to_string(),
        attempt: step.attempt,
        epoch: step.epoch,
        action: step.action,
        nonce: step.nonce,
        outcome,
    }
}

/// The supervisor's decision about a delivery that failed for good.
fn compensate(failed: FailedOperation, now: Timestamp) -> Recovery {
    Recovery {
        id: failed.event_id,
        operation: failed.operation,
        asked_by: "supervisor".to_owned(),
        reason: String::new(),
        asked_at: now,
        due: None,
        verb: RecoveryVerb::Compensate {
            seen: failed.failing_step.map(|step| AttemptSeen {
                step,
                action: failed.failing_action,
                attempt: failed.failing_attempt,
            }),
        },
    }
}

fn engine() -> PartitionEngine {
    // Like those of the real workflow, whose services refuse late requests after an undo.
    let steps = STEPS.map(|name| StepDefinition {
        compensation: Some(CompensationDefinition {
            tombstones: true,
            ..CompensationDefinition::default()
        }),
        ..StepDefinition::new(name, name)
    });
    let definition = WorkflowDefinition::new("drone-delivery", 1, steps.into());
    let workflow = Workflow::try_from(definition).expect("the steps are well formed");
    let workflows = Workflows::new(vec![workflow]).expect("there is only one");
    PartitionEngine::new(
        Arc::new(EngineConfig::default()),
        Arc::new(workflows),
        Ownership {
            partition: PartitionId(0),
            shard: LayoutShard::default(),
            owner: OwnerId(Uuid::from_u128(1)),
            epoch: Epoch(1),
            next: TopicOffsets::default(),
            requests_end: ByPriority::default(),
            replies_end: Offset(0),
            stamp_floor: Stamp(0),
            stamp_limit: Stamp(i64::MAX),
        },
    )
}

fn request(number: u32) -> Event {
    let number = u64::from(number);
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Event::Request {
        priority: Priority::Normal,
        offset: Offset(number.cast_signed()),
        fingerprint: mixed,
        bytes: 600,
        rerouted: false,
        request: OperationRequest::Create(CreateRequest {
            operation: OperationId(Uuid::from_u64_pair(0x0198_0000_0000_7000 + number, mixed)),
            id_origin: IdOrigin::Server,
            workflow: "drone-delivery".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: vec![b' '; 400],
            deadline: None,
            reply_to: None,
            request_hash: RequestHash([7; 16]),
            verify_hash: false,
            requested_at: START,
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        }),
    }
}
