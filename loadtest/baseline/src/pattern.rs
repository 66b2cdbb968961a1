//! The records and rows of a delivery, made once by the real engine and then copied.
//!
//! Before the measurement, two deliveries (a remote one and one by drone) run through
//! [`PartitionEngine`]. The encoded records and rows are kept, so that a copy has the size of
//! Waybill's own. Copies differ only in the operation's ID, which is inserted at its offsets.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use uuid::Uuid;
use waybill_engine::{
    ByPriority, Command, CreateRequest, Created, EngineConfig, Epoch, Event, IdOrigin, LayoutShard,
    Message, Offset, OperationId, OperationRequest, OperationState, Outcome, OwnerId, Ownership,
    PartitionEngine, PartitionId, Priority, RequestHash, Room, Stamp, StepReply, StepRequest,
    Timestamp, TopicOffsets, Workflow, WorkflowDefinition, Workflows,
};
use waybill_messages::{Framing, Record};
use waybill_store::RowWrite;

use super::calls::Step;
use crate::delivery::Delivery;

/// How long Waybill keeps the row of a final operation.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A delivery's number with the typical number of digits, and a multiple of five.
const SAMPLE: usize = 12_345;
/// The deadline in the body of every delivery, which ingestion uses as the operation's deadline.
const DEADLINE: Timestamp = Timestamp::from_millis(1_893_520_800_000);

/// An encoded record.
#[derive(Debug)]
pub struct Template {
    bytes: Vec<u8>,
    /// The places of the operation's ID.
    ids: Vec<Range<usize>>,
}

/// The records of a step.
#[derive(Debug)]
pub struct StepPattern {
    /// The step request.
    pub request: Template,
    /// The reply.
    pub reply: Template,
}

/// One write of a row.
#[derive(Debug)]
pub struct RowPattern {
    created: Option<Arc<Created>>,
    state: OperationState,
    keep_for: Option<Duration>,
}

/// All records and rows of one delivery.
#[derive(Debug)]
pub struct Pattern {
    /// The request to the scheduler.
    pub request: Template,
    /// The row that the request creates.
    pub created: RowPattern,
    /// The steps of the delivery, by [`Step`]; `None` for a skipped one.
    steps: [Option<StepPattern>; 5],
    /// The row after each step.
    rows: [Option<RowPattern>; 5],
    /// The final status.
    pub status: Template,
}

/// The patterns of both kinds of deliveries.
#[derive(Debug)]
pub struct Patterns {
    flown: Pattern,
    remote: Pattern,
}

impl Patterns {
    /// Runs both deliveries through the engine.
    ///
    /// # Errors
    ///
    /// If a delivery does not end as expected.
    pub fn new(framing: &Framing) -> anyhow::Result<Self> {
        Ok(Self {
            flown: Pattern::of(Delivery::new(SAMPLE + 1), framing)?,
            remote: Pattern::of(Delivery::new(SAMPLE), framing)?,
        })
    }

    /// The pattern of a delivery.
    pub fn of(&self, delivery: Delivery) -> &Pattern {
        match delivery.is_remote() {
            true => &self.remote,
            false => &self.flown,
        }
    }
}

impl Pattern {
    fn of(delivery: Delivery, framing: &Framing) -> anyhow::Result<Self> {
        let operation = OperationId(Uuid::now_v7());
        let encoded = Encoder { framing, operation };
        let create = create(operation, delivery);
        let request = encoded.record(&OperationRequest::Create(create.clone()))?;
        let mut engine = engine()?;
        engine.apply(
            Event::Request {
                priority: Priority::Normal,
                offset: Offset(0),
                fingerprint: 0,
                bytes: create.input.len(),
                rerouted: false,
                request: OperationRequest::Create(create),
            },
            now(),
        );
        let one = Room {
            operations: 1,
            bytes: usize::MAX,
        };
        engine.admit(one, now());
        let (created, message) = decided(&mut engine)?;
        let mut steps = [const { None }; 5];
        let mut rows = [const { None }; 5];
        let mut message = message;
        let status = loop {
            let asked = match message {
                Message::Step(asked) => asked,
                Message::Status(status) => break encoded.record(&*status)?,
                other => anyhow::bail!("a delivery produced {other:?}"),
            };
            let step = Step::named(asked.step.as_bytes()).context("a step of another workflow")?;
            let reply = answer(step, delivery, &asked);
            steps[step as usize] = Some(StepPattern {
                request: encoded.record(&asked)?,
                reply: encoded.record(&reply)?,
            });
            let offset = Offset(i64::from(step as u8));
            engine.apply(Event::Reply { offset, reply }, now());
            let (row, next) = decided(&mut engine)?;
            rows[step as usize] = Some(row);
            message = next;
        };
        Ok(Self {
            request,
            created,
            steps,
            rows,
            status,
        })
    }

    /// The records of a step.
    ///
    /// # Panics
    ///
    /// If the delivery has no such step, so that its record should not exist.
    pub fn step(&self, step: Step) -> &StepPattern {
        let pattern = self.steps[step as usize].as_ref();
        pattern.expect("only executed steps are requested")
    }

    /// The final row.
    pub fn last_row(&self) -> &RowPattern {
        self.rows.iter().flatten().last().unwrap_or(&self.created)
    }

    /// The row after a step.
    ///
    /// # Panics
    ///
    /// As [`Pattern::step`].
    pub fn row(&self, step: Step) -> &RowPattern {
        let pattern = self.rows[step as usize].as_ref();
        pattern.expect("only executed steps are answered")
    }
}

impl RowPattern {
    /// The row of an operation.
    pub fn write(&self, id: OperationId, stamp: Stamp) -> RowWrite {
        RowWrite {
            id,
            created: self.created.clone(),
            state: self.state.clone(),
            stamp,
            keep_for: self.keep_for,
        }
    }
}

impl Template {
    /// Replaces `out` with the record for the operation with this key.
    pub fn copy(&self, key: &[u8; 36], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.bytes);
        for id in &self.ids {
            out[id.clone()].copy_from_slice(key);
        }
    }
}

/// Encodes the records of one operation.
struct Encoder<'a> {
    framing: &'a Framing,
    operation: OperationId,
}

impl Encoder<'_> {
    fn record(&self, record: &impl Record) -> anyhow::Result<Template> {
        let mut bytes = Vec::new();
        self.framing.encode(record, &mut bytes)?;
        let key = self.operation.key();
        let places = bytes.windows(key.len()).enumerate();
        let ids = places.filter(|(_, window)| *window == key);
        let ids = ids.map(|(at, _)| at..at + key.len()).collect();
        Ok(Template { bytes, ids })
    }
}

/// The engine's decision: one row and one message.
fn decided(engine: &mut PartitionEngine) -> anyhow::Result<(RowPattern, Message)> {
    let batch = engine.take_batch(now()).context("nothing was decided")?;
    let (mut row, mut sent) = (None, None);
    for command in batch.commands {
        match command {
            Command::Persist(change) => {
                let pattern = RowPattern {
                    created: change.created,
                    state: change.state,
                    keep_for: change.keep_for,
                };
                anyhow::ensure!(row.replace(pattern).is_none(), "two rows were written");
            }
            Command::Send(message) => {
                anyhow::ensure!(sent.replace(message).is_none(), "two messages were sent");
            }
            other => anyhow::bail!("a delivery produced {other:?}"),
        }
    }
    engine.apply(
        Event::Settled {
            batch: batch.number,
        },
        now(),
    );
    row.zip(sent).context("a row or a message is missing")
}

fn engine() -> anyhow::Result<PartitionEngine> {
    let definition: WorkflowDefinition =
        serde_saphyr::from_str(waybill_drone_delivery::WORKFLOW_YAML)?;
    let workflow = Workflow::try_from(definition)?;
    let config = EngineConfig {
        retention: RETENTION,
        ..EngineConfig::default()
    };
    Ok(PartitionEngine::new(
        Arc::new(config),
        Arc::new(Workflows::new(vec![workflow])?),
        Ownership {
            partition: PartitionId(0),
            shard: LayoutShard::default(),
            owner: OwnerId(Uuid::new_v4()),
            epoch: Epoch(1),
            next: TopicOffsets::default(),
            requests_end: ByPriority::default(),
            replies_end: Offset(0),
            stamp_floor: Stamp(0),
            stamp_limit: Stamp(i64::MAX),
        },
    ))
}

/// The request as ingestion writes it. Its input begins with the delivery's ID.
fn create(operation: OperationId, delivery: Delivery) -> CreateRequest {
    let body = delivery.body();
    let input = format!(r#"{{"deliveryId":"{operation}",{}"#, &body[1..]);
    CreateRequest {
        operation,
        id_origin: IdOrigin::Server,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: None,
        input: input.into_bytes(),
        deadline: Some(DEADLINE),
        reply_to: None,
        request_hash: RequestHash([7; 16]),
        verify_hash: false,
        requested_at: now(),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    }
}

/// The reply of an agent whose call succeeded.
fn answer(step: Step, delivery: Delivery, asked: &StepRequest) -> StepReply {
    let outputs = match step {
        Step::Account | Step::Package | Step::Delivery => Vec::new(),
        Step::ThirdParty => vec![("required".to_owned(), delivery.is_remote().to_string())],
        Step::Drone => vec![("droneId".to_owned(), "drone-0123456789ab".to_owned())],
    };
    StepReply {
        operation: asked.operation,
        step: asked.step.to_string(),
        attempt: asked.attempt,
        epoch: asked.epoch,
        action: asked.action,
        nonce: asked.nonce,
        outcome: Outcome::Success { outputs },
    }
}

fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since_epoch.unwrap_or_default().as_micros();
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}
