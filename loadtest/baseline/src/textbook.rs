//! The same deliveries in the obvious design: an orchestrator consumes a record, changes the state
//! in the database, produces the next command, and commits the offset. It handles one record after
//! the other and awaits each step.
//!
//! Without faults it is at least once and loses nothing: the row is durable before the dependent
//! message, and the message is acknowledged before the offset is committed. Everything follows the
//! examples of the libraries:
//!
//! * **Consuming**: rdkafka's `StreamConsumer` in a consumer group, without automatic commits. Each
//!   consumer passes its records to one task per partition, which handles them one after the other
//!   and finally commits the record's offset (`CommitMode::Sync`).
//! * **Roles**: one consumer for the orchestrator (requests and replies), one for each of the five
//!   agents, and one for the status topic.
//! * **Producing**: one `FutureProducer` per role, with librdkafka's defaults and `acks=all`; each
//!   record is awaited. Each record therefore waits for the default `linger.ms=5`, which
//!   `--property linger.ms=0` removes.
//! * **State**: the row is written for each request, and read, changed and written for each reply,
//!   all awaited. Store and rows are Waybill's, so that the databases do not differ.
//! * **Payloads**: JSON by `serde_json`, from and to structs, the usual first choice in Rust. Avro
//!   would need schemas, and the usual path of `apache-avro` through its `Value` is slower than
//!   JSON.
//! * **Calls**: `reqwest` with its defaults (HTTP/1.1, pooled connections), one client for all
//!   agents. The answer is read, and parsed if later steps need a part of it.
//! * **Requests**: sent as an API would: each awaited, with as many concurrent ones as the load
//!   generator has connections (64).
//!
//! Blocking commits use `block_in_place`, as tokio's documentation recommends. Otherwise, as many
//! of them as there are threads would stop the whole process.
//!
//! Deliberately absent: the parts that make it a complete system (time-outs, retries, compensation,
//! duplicates, leases). They would add to its cost.

mod agent;
mod messages;
mod orchestrator;
mod part;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use self::messages::{DeliveryRequest, Status};
use super::installation::Installation;
use super::{Clock, Common, Outcome};
use crate::delivery::Delivery;

/// The number of concurrent requests.
const CONNECTIONS: usize = 64;
/// How long groups may take to assign partitions to each member.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);
/// After this long without a final state, no more are expected.
const STANDSTILL: Duration = Duration::from_secs(60);

/// How the textbook's design is run.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the deliveries.
///
/// # Errors
///
/// If the installation cannot be set up, or a part of it fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let services = arguments.common.services()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let installation = Arc::new(Installation::open(&arguments.common.installation).await?);
        let outcome = deliver(arguments.common.count, services, &installation).await;
        // All parts have ended, so this is the last reference.
        if let Some(installation) = Arc::into_inner(installation) {
            installation.close().await?;
        }
        outcome
    })
}

async fn deliver(
    count: u32,
    services: Option<&str>,
    installation: &Arc<Installation>,
) -> anyhow::Result<Outcome> {
    let mut parts = JoinSet::new();
    let orchestrator = orchestrator::start(installation, &mut parts)?;
    let agents = agent::start_all(installation, services, &mut parts)?;
    let statuses = consumer(
        installation,
        "statuses",
        &[installation.topics.operation_status()],
    )?;
    let statuses = Arc::new(statuses);
    // Started now, because a consumer joins no group before it is polled.
    let reading = AbortOnDropHandle::new(tokio::spawn(read_statuses(count, Arc::clone(&statuses))));
    joined(&orchestrator, 2 * installation.partitions).await?;
    for agent in &agents {
        joined(agent, installation.step_partitions).await?;
    }
    joined(&statuses, installation.partitions).await?;
    let producer = producer(installation)?;
    let clock = Clock::start()?;
    let sending = send_requests(count, &producer, installation);
    let reading = async { reading.await? };
    let working = async {
        match parts.join_next().await {
            Some(ended) => ended?.and_then(|()| anyhow::bail!("a task ended too early")),
            None => anyhow::bail!("there are no tasks"),
        }
    };
    let done = async { tokio::try_join!(sending, reading) };
    let ended: anyhow::Result<u32> = tokio::select! {
        done = done => done.map(|((), ended)| ended),
        failed = working => failed,
    };
    let outcome = ended.and_then(|ended| clock.stop(ended));
    parts.shutdown().await;
    outcome
}

async fn send_requests(
    count: u32,
    producer: &FutureProducer,
    installation: &Installation,
) -> anyhow::Result<()> {
    let topic = installation.topics.requests();
    let requests = (0..count).map(|index| async move {
        let operation = Uuid::now_v7();
        let input = serde_json::from_str(&Delivery::new(index as usize).body())?;
        let request = DeliveryRequest {
            operation,
            index,
            input,
        };
        send(producer, topic, operation, &request).await
    });
    stream::iter(requests)
        .buffer_unordered(CONNECTIONS)
        .try_collect()
        .await
}

/// Reads until each delivery has a final state. Returns how many have one.
async fn read_statuses(count: u32, consumer: Arc<StreamConsumer>) -> anyhow::Result<u32> {
    let mut states = BTreeMap::new();
    while states.len() < count as usize {
        let next = tokio::time::timeout(STANDSTILL, consumer.recv()).await;
        let message = next.with_context(|| format!("{} deliveries ended", states.len()))??;
        let status: Status = serde_json::from_slice(message.payload().unwrap_or_default())?;
        let again = states.insert(status.operation, status.state);
        anyhow::ensure!(again.is_none(), "{} ended twice", status.operation);
    }
    Ok(u32::try_from(states.len())?)
}

/// A consumer in the group of this name.
fn consumer(
    installation: &Installation,
    group: &str,
    topics: &[&str],
) -> anyhow::Result<StreamConsumer> {
    let consumer: StreamConsumer = client(installation)
        .set(
            "group.id",
            format!("{}-{group}", installation.topics.prefix()),
        )
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(topics)?;
    Ok(consumer)
}

fn producer(installation: &Installation) -> anyhow::Result<FutureProducer> {
    Ok(client(installation).set("acks", "all").create()?)
}

fn client(installation: &Installation) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &installation.kafka.brokers);
    for (name, value) in &installation.kafka.properties {
        config.set(name, value);
    }
    config
}

/// Sends a record to the partition of its key and waits for the acknowledgement.
async fn send(
    producer: &FutureProducer,
    topic: &str,
    operation: Uuid,
    message: &impl Serialize,
) -> anyhow::Result<()> {
    let key = operation.to_string();
    let value = serde_json::to_vec(message)?;
    let record = FutureRecord::to(topic).key(&key).payload(&value);
    let sent = producer.send(record, JOIN_PATIENCE).await;
    sent.map(drop).map_err(|(error, _)| error.into())
}

/// Waits until a consumer has this many partitions.
async fn joined(consumer: &StreamConsumer, partitions: u32) -> anyhow::Result<()> {
    let joined = async {
        while consumer.assignment()?.count() < partitions as usize {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let joined = tokio::time::timeout(JOIN_PATIENCE, joined).await;
    joined.context("a consumer got no partitions")?
}
