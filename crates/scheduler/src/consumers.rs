//! The three consumers of a scheduler. Each priority of requests has one, which reads no more than
//! may wait. The third is `inbox` (replies and recoveries), which is always read, because its
//! records free room. The priorities are separate so that a backlog of one never blocks the other,
//! not even in a client's queue.
//!
//! Each consumer is polled by its own thread, which also decodes, so that the loop receives values
//! only.

mod consumed_topic;
mod ends;
mod poller;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use waybill_api::form::Forms;
use waybill_engine::{ByPriority, Offset, PartitionId, Priority, ShardFilter, ShardId, Source};
use waybill_kafka::{ConsumerOptions, KafkaSettings, PartitionConsumer};
use waybill_messages::Topics;
use waybill_scheduler_core::{Assignment, Input, Task};
use waybill_state::Checkpoint;

pub(super) use self::ends::EndsReader;
use self::poller::{Order, Poller};
use super::credit::Credit;
use super::decode::Decoder;
use super::incoming::Inputs;
use super::nonces::Nonces;
use super::tasks::report_panic;

/// Maximum time that a fetch waits for records. librdkafka includes a newly added partition only in
/// its next fetch.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(100);
/// The consumer group that lag tools read the checkpoints from.
fn group_for_lag(kafka: &KafkaSettings) -> String {
    format!("{}-scheduler", kafka.group_prefix)
}

/// All consumers.
pub(super) struct Consumers {
    requests: ByPriority<PolledConsumer>,
    inbox: PolledConsumer,
}

/// One consumer and the thread that polls it.
struct PolledConsumer {
    credit: Arc<Credit>,
    orders: Sender<Order>,
    client: Arc<PartitionConsumer>,
    topics: Vec<(Source, Arc<str>)>,
    thread: JoinHandle<()>,
}

impl Consumers {
    /// Starts all consumers, with nothing assigned.
    ///
    /// # Errors
    ///
    /// If a client or a thread cannot be created.
    pub(super) fn start(
        kafka: &KafkaSettings,
        topics: &Topics,
        nonces: &Nonces,
        forms: &Forms,
        sender: &Inputs,
    ) -> anyhow::Result<Self> {
        let framing = topics.framing().clone();
        let decoder = |source| Decoder::new(source, framing.clone(), nonces.clone(), forms.clone());
        let start = |sources: &[Source], client_id: &str| {
            let of = |&source| (source, topics.of(source));
            let topics: Vec<_> = sources.iter().map(of).collect();
            PolledConsumer::start(kafka, &topics, client_id, &decoder, sender.clone())
        };
        Ok(Self {
            requests: ByPriority {
                normal: start(&[Source::Requests], "waybill-scheduler-requests")?,
                high: start(&[Source::HighPriority], "waybill-scheduler-high-priority")?,
            },
            inbox: start(
                &[Source::Replies, Source::Recoveries],
                "waybill-scheduler-inbox",
            )?,
        })
    }

    fn consumer(&self, source: Source) -> &PolledConsumer {
        match source {
            Source::Requests => &self.requests.normal,
            Source::HighPriority => &self.requests.high,
            Source::Replies | Source::Recoveries => &self.inbox,
        }
    }

    fn all(&self) -> [&PolledConsumer; 3] {
        [&self.requests.normal, &self.requests.high, &self.inbox]
    }

    /// The credit of a consumer.
    pub(super) fn credit(&self, source: Source) -> &Credit {
        &self.consumer(source).credit
    }

    /// Starts reading for a shard.
    pub(super) fn add(&self, assignment: &Assignment) {
        let Assignment {
            shard,
            partition,
            generation,
            ref filter,
            ref start,
            ref ends,
        } = *assignment;
        for source in [
            Source::Replies,
            Source::Recoveries,
            Source::HighPriority,
            Source::Requests,
        ] {
            self.consumer(source).order(Order::Add {
                source,
                partition,
                shard,
                generation,
                filter: filter.clone(),
                start: start.at.on(source),
                verify: source
                    .priority()
                    .and_then(|priority| start.verify[priority]),
                end: ends.next.on(source),
            });
        }
    }

    /// Changes the filter of a shard.
    pub(super) fn set_filter(&self, shard: ShardId, filter: &ShardFilter) {
        for consumer in self.all() {
            let filter = filter.clone();
            consumer.order(Order::SetFilter { shard, filter });
        }
    }

    /// Requests a report once the replies of a shard were read to `end`, even if the last records
    /// below it are never delivered.
    pub(super) fn read_to(&self, shard: ShardId, end: Offset) {
        self.inbox.order(Order::ReadTo { shard, end });
    }

    /// Stops reading for a shard.
    pub(super) fn remove(&self, shard: ShardId) {
        for consumer in self.all() {
            consumer.order(Order::Remove(shard));
        }
    }

    /// Copies a checkpoint to the consumer group that lag tools read. The scheduler never resumes
    /// from it.
    pub(super) fn copy_checkpoint(&self, partition: PartitionId, checkpoint: &Checkpoint) {
        for consumer in self.all() {
            for (source, topic) in &consumer.topics {
                let offset = checkpoint.on(*source);
                consumer.client.commit_copy(&[(topic, partition, offset)]);
            }
        }
    }

    /// The end of a partition's requests, as of the last fetch.
    pub(super) fn known_end(&self, priority: Priority, partition: PartitionId) -> Option<Offset> {
        let consumer = &self.requests[priority];
        let (_, topic) = consumer.topics.first()?;
        consumer.client.known_end(topic, partition)
    }

    /// Reads the beginnings and ends of logs from the broker.
    pub(super) fn ends_reader(&self) -> EndsReader {
        EndsReader {
            consumer: self.inbox.client.clone(),
            topics: self
                .all()
                .into_iter()
                .flat_map(|consumer| consumer.topics.iter().cloned())
                .collect(),
        }
    }

    /// Stops the threads and closes the consumers.
    pub(super) fn stop(self) {
        let ByPriority { normal, high } = self.requests;
        for consumer in [normal, high, self.inbox] {
            consumer.order(Order::Stop);
            if consumer.thread.join().is_err() {
                tracing::error!(topics = ?consumer.topics, "the consumer's thread panicked");
            }
        }
    }
}

impl PolledConsumer {
    fn start(
        kafka: &KafkaSettings,
        topics: &[(Source, &str)],
        client_id: &str,
        decoder: &dyn Fn(Source) -> Decoder,
        sender: Inputs,
    ) -> anyhow::Result<Self> {
        let options = ConsumerOptions {
            group_for_lag: Some(group_for_lag(kafka)),
            fetch_wait_max: FETCH_WAIT_MAX,
            ..ConsumerOptions::new(client_id)
        };
        let client = Arc::new(PartitionConsumer::new(kafka, &options)?);
        let credit = Arc::new(Credit::default());
        let topics: Vec<(Source, Arc<str>)> = topics
            .iter()
            .map(|(source, topic)| (*source, Arc::from(*topic)))
            .collect();
        let (orders, inbox) = mpsc::channel();
        let panics = sender.clone();
        let poller = Poller::new(client.clone(), &topics, decoder, credit.clone(), sender);
        let thread = std::thread::Builder::new()
            .name(client_id.to_owned())
            .spawn(move || {
                let polling = AssertUnwindSafe(|| poller.run(&inbox));
                if let Err(payload) = std::panic::catch_unwind(polling) {
                    // The send fails only after the loop has ended.
                    let panicked = report_panic(Task::Consume, &*payload);
                    let _ = panics.send(Input::Panicked(panicked).into());
                }
            })?;
        Ok(Self {
            credit,
            orders,
            client,
            topics,
            thread,
        })
    }

    /// Fails only if the thread has panicked, which it has reported to the loop.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }
}
