//! The orchestrator of the textbook design: a request or a reply in, a row changed, a step request
//! or a status out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use rdkafka::Message as _;
use rdkafka::consumer::StreamConsumer;
use rdkafka::message::OwnedMessage;
use rdkafka::producer::FutureProducer;
use tokio::task::JoinSet;
use uuid::Uuid;
use waybill_engine::{
    Attempt, Created, Offset, OperationId, OperationState, PartitionId, Position, Priority,
    ProcessState, RequestHash, Stamp, StepProgress, StepState, Timestamp,
};
use waybill_store::{RowWrite, WriteBatch};

use super::messages::{DeliveryRequest, Status, StepReply, StepRequest};
use super::{consumer, part, producer, send};
use crate::calls::Step;
use crate::installation::Installation;

/// How long rows of finished deliveries are kept.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

struct Orchestrator {
    installation: Arc<Installation>,
    producer: FutureProducer,
    /// The topic of each step's agent.
    of_agent: [String; 5],
}

/// Starts the orchestrator, and returns its consumer.
pub fn start(
    installation: &Arc<Installation>,
    parts: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Arc<StreamConsumer>> {
    let topics = [
        installation.topics.requests(),
        installation.topics.step_replies(),
    ];
    let consumer = Arc::new(consumer(installation, "orchestrator", &topics)?);
    let orchestrator = Arc::new(Orchestrator {
        installation: Arc::clone(installation),
        producer: producer(installation)?,
        of_agent: Step::ALL.map(|step| installation.topics.step_requests(step.name())),
    });
    let handle = move |message| handle(Arc::clone(&orchestrator), message);
    part::start(Arc::clone(&consumer), handle, parts);
    Ok(consumer)
}

async fn handle(orchestrator: Arc<Orchestrator>, message: OwnedMessage) -> anyhow::Result<()> {
    let value = message.payload().unwrap_or_default();
    if message.topic() == orchestrator.installation.topics.requests() {
        let request = serde_json::from_slice(value)?;
        orchestrator.begin(request, &message).await
    } else {
        orchestrator
            .handle_reply(serde_json::from_slice(value)?)
            .await
    }
}

impl Orchestrator {
    async fn begin(&self, request: DeliveryRequest, message: &OwnedMessage) -> anyhow::Result<()> {
        let now = now();
        let input = serde_json::to_vec(&request)?;
        let created = Arc::new(created(input, message, now));
        let mut state = OperationState {
            state: ProcessState::Processing,
            steps: vec![StepProgress::default(); Step::ALL.len()],
            ..OperationState::default()
        };
        run(&mut state, Step::Account, now);
        self.write(request.operation, Some(created), state, None)
            .await?;
        self.ask(Step::Account, request, BTreeMap::new()).await
    }

    async fn handle_reply(&self, reply: StepReply) -> anyhow::Result<()> {
        let ids = vec![OperationId(reply.operation)];
        let found = self.installation.store.get_many(ids).await?;
        let row = found.into_iter().next().context("no answer")??;
        let row = row.with_context(|| format!("{} has no row", reply.operation))?;
        let (mut state, now) = (row.state, now());
        let step = Step::named(reply.step.as_bytes()).context("a reply to no step")?;
        let progress = &mut state.steps[step as usize];
        progress.state = StepState::Completed;
        progress.complete_by = None;
        progress.succeeded = Some(progress.attempt);
        progress.changed_at = now;
        progress.outputs = reply.outputs.into_iter().collect();
        let transport = &state.steps[Step::ThirdParty as usize].outputs;
        let is_remote = transport.iter().any(|(_, required)| required == "true");
        match step.next(is_remote) {
            Some(next) => {
                if is_remote && next == Step::Delivery {
                    state.steps[Step::Drone as usize].state = StepState::Skipped;
                }
                run(&mut state, next, now);
                let results = results(&state);
                self.write(reply.operation, None, state, None).await?;
                let request = serde_json::from_slice(&row.created.input)?;
                self.ask(next, request, results).await
            }
            None => {
                state.state = ProcessState::Processed;
                state.updated_at = now;
                let created = Some(row.created);
                self.write(reply.operation, created, state, Some(RETENTION))
                    .await?;
                let status = Status {
                    operation: reply.operation,
                    state: ProcessState::Processed.as_str().to_owned(),
                };
                let topic = self.installation.topics.operation_status();
                send(&self.producer, topic, status.operation, &status).await
            }
        }
    }

    async fn ask(
        &self,
        step: Step,
        request: DeliveryRequest,
        results: BTreeMap<String, String>,
    ) -> anyhow::Result<()> {
        let request = StepRequest {
            operation: request.operation,
            index: request.index,
            step: step.name().to_owned(),
            idempotency_key: format!("{}/{}", request.operation, step.name()),
            input: request.input,
            results,
        };
        let topic = &self.of_agent[step as usize];
        send(&self.producer, topic, request.operation, &request).await
    }

    async fn write(
        &self,
        operation: Uuid,
        created: Option<Arc<Created>>,
        state: OperationState,
        keep_for: Option<Duration>,
    ) -> anyhow::Result<()> {
        let row = RowWrite {
            id: OperationId(operation),
            created,
            state,
            stamp: Stamp(now().as_micros()),
            keep_for,
        };
        let batch = WriteBatch {
            rows: vec![row],
            ..WriteBatch::default()
        };
        self.installation.store.write(batch).await?;
        Ok(())
    }
}

/// Records in the state that a step is requested.
fn run(state: &mut OperationState, step: Step, now: Timestamp) {
    let complete_by = now + Duration::from_secs(5);
    state.steps[step as usize] = StepProgress {
        state: StepState::Running,
        attempt: Attempt(1),
        complete_by: Some(complete_by),
        changed_at: now,
        ..StepProgress::default()
    };
    state.next_due = Some(complete_by);
    state.updated_at = now;
}

/// The results of the steps, by step and name.
fn results(state: &OperationState) -> BTreeMap<String, String> {
    let steps = Step::ALL.iter().zip(&state.steps);
    let outputs = steps.flat_map(|(step, progress)| {
        let named =
            |(name, value): &(String, String)| (format!("{}.{name}", step.name()), value.clone());
        progress.outputs.iter().map(named)
    });
    outputs.collect()
}

fn created(input: Vec<u8>, message: &OwnedMessage, now: Timestamp) -> Created {
    Created {
        workflow: "drone-delivery".into(),
        workflow_version: 1,
        step_names: Step::ALL.map(|step| step.name().into()).to_vec(),
        tenant: "".into(),
        caller_id: None,
        input: input.into(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        request: Position {
            priority: Priority::Normal,
            partition: PartitionId(message.partition().unsigned_abs()),
            offset: Offset(message.offset()),
        },
        requested_at: now,
        created_at: now,
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    }
}

fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since_epoch.unwrap_or_default().as_micros();
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}
