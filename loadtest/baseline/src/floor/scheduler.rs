//! The scheduler of the floor: requests and replies in, rows to the store, step requests and
//! statuses out.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use tokio::runtime::Handle;
use waybill_engine::{OperationId, PartitionId, Stamp, partition_for};
use waybill_kafka::{OutRecord, PartitionConsumer, PollLimits, Producer, RecordRef};
use waybill_store::{Store, WriteBatch};

use super::{
    Arguments, POLL_BYTES_MAX, RunState, TIMEOUT, consumer, delivery_of, operation_of, producer,
    send,
};
use crate::calls::Step;
use crate::installation::Installation;
use crate::pattern::Patterns;

/// How long to wait for replies while requests may also arrive. Not shorter: rdkafka waits in whole
/// milliseconds, and the remainder of one would be spent polling.
const TURN: Duration = Duration::from_millis(20);
/// The bytes before the operation in a reply's value: marker and fingerprint of an Avro single
/// object, and the length of the ID.
const REPLY_HEAD: usize = 2 + 8 + 1;

/// The loop and its state.
pub struct Scheduler {
    requests: PartitionConsumer,
    inbox: PartitionConsumer,
    producer: Producer<Arc<RunState>>,
    store: Arc<dyn Store>,
    patterns: Arc<Patterns>,
    run_state: Arc<RunState>,
    /// The topic of each step's agent.
    of_agent: [String; 5],
    status: String,
    step_partitions: u32,
    limits: PollLimits,
    window: usize,
    gather: Duration,
    in_flight: usize,
    stamp: i64,
}

/// The decisions of one turn: rows, and the message that depends on each.
#[derive(Default)]
struct Turn {
    write: WriteBatch,
    messages: Vec<Next>,
}

/// A message that depends on its row.
struct Next {
    operation: OperationId,
    /// The operation's partition.
    partition: PartitionId,
    /// The requested step; `None` for the final status.
    step: Option<Step>,
}

impl Scheduler {
    /// Creates both consumers at the beginning of their topics.
    pub fn new(
        arguments: &Arguments,
        installation: &Installation,
        patterns: &Arc<Patterns>,
        run_state: &Arc<RunState>,
    ) -> anyhow::Result<Self> {
        let topics = &installation.topics;
        let requests = [(topics.requests(), installation.partitions)];
        let replies = [(topics.step_replies(), installation.partitions)];
        Ok(Self {
            requests: consumer(installation, "floor-requests", &requests)?,
            inbox: consumer(installation, "floor-inbox", &replies)?,
            producer: producer(installation, "floor-scheduler")?,
            store: Arc::clone(&installation.store),
            patterns: Arc::clone(patterns),
            run_state: Arc::clone(run_state),
            of_agent: Step::ALL.map(|step| topics.step_requests(step.name())),
            status: topics.operation_status().to_owned(),
            step_partitions: installation.step_partitions,
            limits: arguments.poll_limits(),
            window: arguments.window,
            gather: Duration::from_millis(arguments.gather_ms),
            in_flight: 0,
            stamp: 0,
        })
    }

    /// Polls records, writes their rows, sends the dependent messages, and repeats.
    ///
    /// While rows are synced this thread waits and the consumers' threads continue to fetch. The
    /// records that arrive in the meantime make the next commit.
    pub fn run(mut self) -> anyhow::Result<()> {
        let runtime = Handle::current();
        let mut value = Vec::new();
        let mut turn = Turn::default();
        while !self.run_state.is_over() {
            let began = Instant::now();
            self.take(&mut turn)?;
            if turn.messages.is_empty() {
                continue;
            }
            let write = std::mem::take(&mut turn.write);
            runtime.block_on(self.store.write(write))?;
            for next in turn.messages.drain(..) {
                self.send(&next, &mut value)?;
            }
            std::thread::sleep(self.gather.saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    /// Polls each consumer once, and waits for one from which records are due.
    fn take(&mut self, turn: &mut Turn) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let mut stamp = self.stamp.max(i64::try_from(now)?);
        let patterns = &*self.patterns;
        let mut failure = None;
        let mut ended = 0;
        if self.in_flight > 0 {
            let mut on_reply = |record: RecordRef<'_>| match replied(&record) {
                Ok((operation, step)) => {
                    let delivery = delivery_of(operation);
                    let row = patterns.of(delivery).row(step);
                    stamp += 1;
                    turn.write.rows.push(row.write(operation, Stamp(stamp)));
                    let step = step.next(delivery.is_remote());
                    ended += usize::from(step.is_none());
                    turn.messages.push(Next {
                        operation,
                        partition: record.partition(),
                        step,
                    });
                }
                Err(error) => failure = Some(error),
            };
            self.inbox.poll(self.limits, TURN, &mut on_reply)?;
        }
        self.in_flight -= ended;
        let room = self.window.saturating_sub(self.in_flight);
        if room > 0 {
            let limits = PollLimits {
                records: self.limits.records.min(room),
                bytes: POLL_BYTES_MAX,
            };
            let patience = match self.in_flight {
                0 if turn.messages.is_empty() => TIMEOUT,
                _ => Duration::ZERO,
            };
            let mut on_request = |record: RecordRef<'_>| match operation_of(record.key()) {
                Ok(operation) => {
                    let row = &patterns.of(delivery_of(operation)).created;
                    stamp += 1;
                    turn.write.rows.push(row.write(operation, Stamp(stamp)));
                    turn.messages.push(Next {
                        operation,
                        partition: record.partition(),
                        step: Some(Step::Account),
                    });
                }
                Err(error) => failure = Some(error),
            };
            let polled = self.requests.poll(limits, patience, &mut on_request)?;
            self.in_flight += polled.records;
        }
        self.stamp = stamp;
        failure.map_or(Ok(()), Err)
    }

    fn send(&self, next: &Next, value: &mut Vec<u8>) -> anyhow::Result<()> {
        let key = next.operation.key();
        let pattern = self.patterns.of(delivery_of(next.operation));
        let (topic, partition) = match next.step {
            Some(step) => {
                pattern.step(step).request.copy(&key, value);
                let partition = partition_for(next.operation, self.step_partitions);
                (&self.of_agent[step as usize], partition)
            }
            None => {
                pattern.status.copy(&key, value);
                (&self.status, next.partition)
            }
        };
        let record = OutRecord::new(topic, partition, &key, value);
        send(&self.producer, &record, &self.run_state)
    }
}

/// The operation and the step of a reply. The step's name is after the ID and its own length
/// (Avro's zigzag encoding: twice the number of its bytes).
fn replied(record: &RecordRef<'_>) -> anyhow::Result<(OperationId, Step)> {
    const KEY: usize = 36;
    let operation = operation_of(record.key())?;
    let value = record.value().unwrap_or_default();
    let (length, rest) = value
        .get(REPLY_HEAD + KEY..)
        .and_then(<[u8]>::split_first)
        .context("a reply is too short")?;
    let name = rest.get(..usize::from(length / 2));
    let step = name
        .and_then(Step::named)
        .context("a reply has no known step")?;
    Ok((operation, step))
}
