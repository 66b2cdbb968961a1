//! The agents of the floor: step requests in, calls to the services, replies out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use hyper::header::HeaderValue;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use waybill_engine::{OperationId, partition_for};
use waybill_kafka::{OutRecord, PartitionConsumer, PollLimits, Producer};

use super::calling::{Services, complete_by};
use super::{
    Arguments, RunState, TIMEOUT, consumer, delivery_of, index_of, operation_of, producer, send,
};
use crate::calls::{Call, Step};
use crate::installation::Installation;
use crate::pattern::Patterns;

/// The maximum number of replies sent together.
const REPLIES_MAX: usize = 2_000;

/// The polling thread's state.
pub struct Agents {
    consumer: PartitionConsumer,
    limits: PollLimits,
    topics: [String; 5],
    shared: Arc<Shared>,
    services: Option<Services>,
}

/// The state that the polling thread and the calls share.
struct Shared {
    producer: Producer<Arc<RunState>>,
    patterns: Arc<Patterns>,
    run_state: Arc<RunState>,
    replies: String,
    partitions: u32,
    gather: Duration,
    /// The number in the drone's ID of each delivery, from the service's answer.
    drones: Vec<AtomicU64>,
}

/// A requested step.
type Asked = (Step, OperationId);

impl Agents {
    /// Creates one consumer for the topics of all agents, at their beginning. Without services,
    /// each step is answered immediately.
    pub fn new(
        arguments: &Arguments,
        installation: &Installation,
        patterns: &Arc<Patterns>,
        run_state: &Arc<RunState>,
        services: Option<Services>,
    ) -> anyhow::Result<Self> {
        let topics = Step::ALL.map(|step| installation.topics.step_requests(step.name()));
        let assigned = topics
            .each_ref()
            .map(|topic| (topic.as_str(), installation.step_partitions));
        let drones = (0..arguments.common.count).map(|_| AtomicU64::new(0));
        Ok(Self {
            consumer: consumer(installation, "floor-agents", &assigned)?,
            limits: arguments.poll_limits(),
            shared: Arc::new(Shared {
                producer: producer(installation, "floor-replies")?,
                patterns: Arc::clone(patterns),
                run_state: Arc::clone(run_state),
                replies: installation.topics.step_replies().to_owned(),
                partitions: installation.partitions,
                gather: Duration::from_millis(arguments.gather_ms),
                drones: drones.collect(),
            }),
            topics,
            services,
        })
    }

    /// Polls step requests and has them performed.
    pub fn run(self) -> anyhow::Result<()> {
        let Self {
            consumer,
            limits,
            topics,
            shared,
            services,
        } = self;
        let calls = services.map(|services| {
            let (calls, asked) = unbounded_channel();
            tokio::spawn(call_all(asked, services, Arc::clone(&shared)));
            calls
        });
        let mut asked = Vec::new();
        let mut value = Vec::new();
        while !shared.run_state.is_over() {
            let mut failure = None;
            consumer.poll(limits, TIMEOUT, &mut |record| {
                let topic = topics.iter().position(|topic| *topic == record.topic());
                match (topic, operation_of(record.key())) {
                    (Some(step), Ok(operation)) => asked.push((Step::ALL[step], operation)),
                    (_, Err(error)) => failure = Some(error),
                    (None, Ok(_)) => failure = Some(anyhow::anyhow!("a record of another topic")),
                }
            })?;
            if let Some(error) = failure {
                return Err(error);
            }
            hand_over(&mut asked, calls.as_ref(), &shared, &mut value)?;
        }
        Ok(())
    }
}

/// Passes all polled requests to the calls at the same time, or answers them without services.
fn hand_over(
    asked: &mut Vec<Asked>,
    calls: Option<&UnboundedSender<Vec<Asked>>>,
    shared: &Arc<Shared>,
    value: &mut Vec<u8>,
) -> anyhow::Result<()> {
    match calls {
        Some(_) if asked.is_empty() => Ok(()),
        Some(calls) => calls
            .send(std::mem::take(asked))
            .context("the task that makes the calls has ended"),
        None => asked
            .drain(..)
            .try_for_each(|(step, operation)| shared.reply(step, operation, value)),
    }
}

/// Makes calls as they arrive, all concurrently: the window limits them.
async fn call_all(
    mut asked: UnboundedReceiver<Vec<Asked>>,
    services: Services,
    shared: Arc<Shared>,
) {
    let services = Arc::new(services);
    let (done, answered) = unbounded_channel();
    tokio::spawn(reply_all(answered, Arc::clone(&shared)));
    while let Some(asked) = asked.recv().await {
        // Requests of one poll were mostly decided together, and then have one complete-by.
        let complete_by = match complete_by() {
            Ok(complete_by) => complete_by,
            Err(error) => return shared.run_state.fail(error),
        };
        for (step, operation) in asked {
            let (services, shared) = (Arc::clone(&services), Arc::clone(&shared));
            let (complete_by, done) = (complete_by.clone(), done.clone());
            tokio::spawn(async move {
                match shared.call(&services, step, operation, complete_by).await {
                    // The receiver is gone only after the end.
                    Ok(()) => drop(done.send((step, operation))),
                    Err(error) => shared.run_state.fail(error),
                }
            });
        }
    }
}

/// Sends replies in groups, for as long as commits gather. A single reply would wake the producer's
/// thread and cost a request to the broker.
async fn reply_all(mut answered: UnboundedReceiver<Asked>, shared: Arc<Shared>) {
    let mut replies = Vec::new();
    let mut value = Vec::new();
    while answered.recv_many(&mut replies, REPLIES_MAX).await > 0 {
        for (step, operation) in replies.drain(..) {
            if let Err(error) = shared.reply(step, operation, &mut value) {
                return shared.run_state.fail(error);
            }
        }
        tokio::time::sleep(shared.gather).await;
    }
}

impl Shared {
    async fn call(
        &self,
        services: &Services,
        step: Step,
        operation: OperationId,
        complete_by: HeaderValue,
    ) -> anyhow::Result<()> {
        let delivery = delivery_of(operation);
        let drone = &self.drones[index_of(operation) as usize];
        let flies = step == Step::Delivery && !delivery.is_remote();
        let name = flies.then(|| format!("drone-{:012x}", drone.load(Ordering::Relaxed)));
        let call = Call::new(step, operation, delivery, name.as_deref());
        let answer = services.call(step, call, complete_by).await?;
        if step == Step::Drone {
            drone.store(drone_of(&answer)?, Ordering::Relaxed);
        }
        Ok(())
    }

    fn reply(&self, step: Step, operation: OperationId, value: &mut Vec<u8>) -> anyhow::Result<()> {
        let key = operation.key();
        let pattern = self.patterns.of(delivery_of(operation));
        pattern.step(step).reply.copy(&key, value);
        let partition = partition_for(operation, self.partitions);
        let record = OutRecord::new(&self.replies, partition, &key, value);
        send(&self.producer, &record, &self.run_state)
    }
}

/// The number in `{"droneId":"drone-…"}`.
fn drone_of(answer: &[u8]) -> anyhow::Result<u64> {
    let text = std::str::from_utf8(answer)?;
    let number = text.strip_prefix(r#"{"droneId":"drone-"#);
    let number = number.and_then(|rest| rest.strip_suffix(r#""}"#));
    let number = number.with_context(|| format!("{text:?} contains no drone id"))?;
    Ok(u64::from_str_radix(number, 16)?)
}
