//! The minimum cost of a delivery through the clients and the store that Waybill uses.
//!
//! The floor writes, sends and reads everything that Waybill does for a delivery without faults, in
//! the same order: request, row, step request, call, reply, row, and so on to the final row and its
//! status. A row is durable before the message that depends on it is sent. All other work is left
//! out. Records and rows are copies of what the engine made once ([`pattern`](super::pattern)).
//! Only the operation's ID is read from a record, and only the step from a reply; the next step is
//! known beforehand. There is no state of operations, offsets, time-outs or leases, and only ends
//! are counted.
//!
//! **The same as Waybill**: producers and consumers with their settings (`waybill-kafka`), one of
//! each per role, because roles may be separate processes: the sender of requests, the scheduler's
//! two consumers and its producer, the agents' consumer and producer, and the reader of the status
//! topic. The same store and writes. hyper's HTTP/2 client with one connection per service. One
//! group commit at a time for all partitions.
//!
//! **Batches as large as Waybill's**: a commit holds what the polls returned, at most `--batch`
//! records each (2,000 as in the scheduler's pollers) and `--window` deliveries in flight (4,000 as
//! `scheduler.inFlightMax`). It begins at the earliest `--gather-ms` after the previous one (1 as
//! in the scheduler). Replies are gathered for the same time.
//!
//! **Less than Waybill**: the agents' consumer has assigned partitions and joins no group. Offsets
//! and checkpoints (some requests per second) are not committed. The scheduler polls its consumers
//! from the loop's own thread. Agents have no queues, workers, templates, timers or breakers. The
//! drone's ID is not carried over row and request to the next call (its place in them is), but kept
//! in memory.
//!
//! **Not less**: the fixed cost of the libraries. A large part of the floor is HTTP/2 frames,
//! wake-ups of librdkafka's threads, and the embedded broker and store. The last two belong to the
//! project, so the floor does not show how close they are to their own minimum.

mod agents;
pub(super) mod calling;
mod scheduler;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;
use uuid::Uuid;
use waybill_engine::{Offset, OperationId, PartitionId, partition_for};
use waybill_kafka::{
    ConsumerOptions, DeliveredShared, Delivery as Delivered, OutRecord, PartitionConsumer,
    PollLimits, Producer, ProducerOptions,
};

use self::agents::Agents;
use self::calling::Services;
use self::scheduler::Scheduler;
use super::installation::Installation;
use super::pattern::Patterns;
use super::{Clock, Common, Outcome};
use crate::delivery::Delivery;

/// How long a thread waits for records before it checks whether to end.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long a producer may wait for space in its queue.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);
/// Time for all clients to find the broker.
const SETTLE: Duration = Duration::from_millis(500);
/// The maximum size of one poll, in bytes.
const POLL_BYTES_MAX: usize = 8 << 20;

/// How the floor is run.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Maximum records per poll.
    #[arg(long, default_value_t = 2_000)]
    pub batch: usize,
    /// Maximum deliveries in progress.
    #[arg(long, default_value_t = 4_000)]
    pub window: usize,
    /// Minimum time between the starts of two commits, and time to gather replies, in milliseconds.
    #[arg(long, default_value_t = 1)]
    pub gather_ms: u64,
    /// Threads of the runtime that serves the embedded broker and the calls.
    #[arg(long, default_value_t = 2)]
    pub workers: usize,
}

impl Arguments {
    fn poll_limits(&self) -> PollLimits {
        PollLimits {
            records: self.batch,
            bytes: POLL_BYTES_MAX,
        }
    }
}

/// Runs the deliveries.
///
/// # Errors
///
/// If the installation cannot be set up, or a part of it fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let services = arguments.common.services()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.workers.max(1))
        .enable_all()
        .build()?;
    let installation =
        Arc::new(runtime.block_on(Installation::open(&arguments.common.installation))?);
    let outcome = deliver(arguments, services, &installation, &runtime);
    // All threads have ended, so this is the last reference.
    if let Some(installation) = Arc::into_inner(installation) {
        runtime.block_on(installation.close())?;
    }
    outcome
}

fn deliver(
    arguments: &Arguments,
    services: Option<&str>,
    installation: &Arc<Installation>,
    runtime: &Runtime,
) -> anyhow::Result<Outcome> {
    let patterns = Arc::new(Patterns::new(installation.topics.framing())?);
    let run_state = Arc::new(RunState::default());
    let services = match services {
        Some(address) => Some(runtime.block_on(Services::connect(address))?),
        None => None,
    };
    let agents = Agents::new(arguments, installation, &patterns, &run_state, services)?;
    let scheduler = Scheduler::new(arguments, installation, &patterns, &run_state)?;
    let reader = StatusReader::new(installation, arguments, &run_state)?;
    let requests = producer(installation, "floor-ingestion")?;
    let runtime = runtime.handle();
    let threads = [
        run_state.thread("floor-agents", runtime, move || agents.run())?,
        run_state.thread("floor-scheduler", runtime, move || scheduler.run())?,
    ];
    let reading = run_state.thread("floor-status", runtime, move || reader.run())?;
    std::thread::sleep(SETTLE);
    let clock = Clock::start()?;
    let sent = send_requests(
        arguments.common.count,
        &requests,
        installation,
        &patterns,
        &run_state,
    );
    if let Err(error) = sent {
        run_state.fail(error);
    }
    let _ = reading.join();
    let outcome = clock.stop(run_state.ended.load(Ordering::Relaxed));
    run_state.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    run_state.end()?;
    outcome
}

/// Sends all requests to their topic, as fast as it accepts them.
fn send_requests(
    count: u32,
    producer: &Producer<Arc<RunState>>,
    installation: &Installation,
    patterns: &Patterns,
    run_state: &Arc<RunState>,
) -> anyhow::Result<()> {
    let mut value = Vec::new();
    for index in 0..count {
        let id = id_of(index);
        let key = id.key();
        let delivery = Delivery::new(index as usize);
        patterns.of(delivery).request.copy(&key, &mut value);
        let partition = partition_for(id, installation.partitions);
        let record = OutRecord::new(installation.topics.requests(), partition, &key, &value);
        send(producer, &record, run_state)?;
    }
    Ok(())
}

/// An ID like the server's, with the delivery's number as its last random bits.
fn id_of(index: u32) -> OperationId {
    let mut bytes = *Uuid::now_v7().as_bytes();
    bytes[12..].copy_from_slice(&index.to_be_bytes());
    OperationId(Uuid::from_bytes(bytes))
}

/// The operation of a record, from its key.
fn operation_of(key: Option<&[u8]>) -> anyhow::Result<OperationId> {
    Ok(OperationId(Uuid::try_parse_ascii(key.unwrap_or_default())?))
}

/// The delivery of an operation.
fn delivery_of(id: OperationId) -> Delivery {
    Delivery::new(index_of(id) as usize)
}

fn index_of(id: OperationId) -> u32 {
    let [.., a, b, c, d] = *id.0.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn producer(
    installation: &Installation,
    client_id: &str,
) -> anyhow::Result<Producer<Arc<RunState>>> {
    let options = ProducerOptions::new(client_id);
    Ok(Producer::new(&installation.kafka, &options)?)
}

fn send(
    producer: &Producer<Arc<RunState>>,
    record: &OutRecord<'_>,
    run_state: &Arc<RunState>,
) -> anyhow::Result<()> {
    producer
        .send_or_wait(record, Arc::clone(run_state), ROOM_PATIENCE)
        .map_err(|refused| anyhow::Error::new(refused.into_parts().1))
}

/// A consumer of these topics from their beginning.
fn consumer(
    installation: &Installation,
    client_id: &str,
    topics: &[(&str, u32)],
) -> anyhow::Result<PartitionConsumer> {
    let options = ConsumerOptions {
        fetch_wait_max: TIMEOUT,
        ..ConsumerOptions::new(client_id)
    };
    let consumer = PartitionConsumer::new(&installation.kafka, &options)?;
    let all = topics.iter().flat_map(|&(topic, partitions)| {
        (0..partitions).map(move |partition| (topic, PartitionId(partition), Offset(0)))
    });
    consumer.assign(&all.collect::<Vec<_>>())?;
    Ok(consumer)
}

/// The state that all threads share: whether to continue, and the error that ended them.
#[derive(Debug, Default)]
struct RunState {
    stop: AtomicBool,
    failure: Mutex<Option<anyhow::Error>>,
    /// The number of finished deliveries.
    ended: AtomicU32,
}

impl DeliveredShared for RunState {
    fn delivered(&self, delivered: Delivered) {
        if let Err(error) = delivered.result {
            self.fail(error.into());
        }
    }
}

impl RunState {
    /// Runs a part until it ends. Its error ends all parts.
    fn thread(
        self: &Arc<Self>,
        name: &str,
        runtime: &tokio::runtime::Handle,
        part: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<JoinHandle<()>> {
        let (run_state, runtime) = (Arc::clone(self), runtime.clone());
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(thread.spawn(move || {
            let _entered = runtime.enter();
            if let Err(error) = part() {
                run_state.fail(error);
            }
        })?)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, error: anyhow::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn end(&self) -> anyhow::Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), Err)
    }
}

/// Reads the final states.
struct StatusReader {
    consumer: PartitionConsumer,
    limits: PollLimits,
    seen: Vec<bool>,
    run_state: Arc<RunState>,
}

impl StatusReader {
    fn new(
        installation: &Installation,
        arguments: &Arguments,
        run_state: &Arc<RunState>,
    ) -> anyhow::Result<Self> {
        let topics = [(
            installation.topics.operation_status(),
            installation.partitions,
        )];
        Ok(Self {
            consumer: consumer(installation, "floor-status", &topics)?,
            limits: arguments.poll_limits(),
            seen: vec![false; arguments.common.count as usize],
            run_state: Arc::clone(run_state),
        })
    }

    /// Runs until each delivery has exactly one final state.
    fn run(mut self) -> anyhow::Result<()> {
        let mut open = self.seen.len();
        while open > 0 && !self.run_state.is_over() {
            let mut wrong = None;
            self.consumer.poll(self.limits, TIMEOUT, &mut |record| {
                let of = operation_of(record.key()).map(|id| index_of(id) as usize);
                let place = of.ok().and_then(|index| self.seen.get_mut(index));
                match place.map(|seen| std::mem::replace(seen, true)) {
                    Some(false) => {
                        open -= 1;
                        self.run_state.ended.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(true) | None => wrong = Some(record.offset()),
                }
            })?;
            if let Some(offset) = wrong {
                anyhow::bail!("the status at {offset} belongs to no delivery in progress");
            }
        }
        Ok(())
    }
}
