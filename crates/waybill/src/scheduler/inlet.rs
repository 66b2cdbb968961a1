//! The two consumers: `requests`, which reads only while there is room, and `inbox`, which is
//! always read, because the replies in it are what makes room.
//!
//! Each is polled by a thread of its own, which also decodes, so that the loop sees values only.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use waybill_engine::{Offset, PartitionId, Source};
use waybill_kafka::{
    ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits, RecordRef,
};
use waybill_messages::Topics;
use waybill_store::Checkpoint;

use super::credit::{Amount, Credit};
use super::decode::Decoder;
use super::input::{AcquireError, Arrived, Generation, Input, Inputs, LogEnds, LostCause};
use super::upkeep::StartOffsets;

/// How much one poll takes at most.
const POLL_MAX: Amount = Amount {
    records: 2_000,
    bytes: 4 * 1024 * 1024,
};
/// How long a thread waits for records, or for room, before it looks after orders again.
const PATIENCE: Duration = Duration::from_millis(50);
/// The longest that a fetch may wait for records. librdkafka takes a partition that was just added
/// into its next fetch only.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(100);
/// The consumer group that shows the checkpoints to lag tools.
const GROUP_FOR_LAG: &str = "waybill-scheduler";
/// How long a broker may take to tell where a log ends.
const ENDS_TIMEOUT: Duration = Duration::from_secs(10);

/// Both consumers.
pub(super) struct Inlets {
    requests: Inlet,
    inbox: Inlet,
}

/// One consumer and the thread that polls it.
struct Inlet {
    credit: Arc<Credit>,
    orders: Sender<Order>,
    consumer: Arc<PartitionConsumer>,
    topic: Arc<str>,
    thread: JoinHandle<()>,
}

/// What the loop tells a consumer's thread.
enum Order {
    Add {
        partition: PartitionId,
        generation: Generation,
        start: Offset,
        verify: Option<(Offset, u64)>,
    },
    Remove(PartitionId),
    Stop,
}

impl Inlets {
    /// Starts both consumers, with nothing assigned.
    ///
    /// # Errors
    ///
    /// If a client or a thread cannot be made.
    pub(super) fn start(
        kafka: &KafkaSettings,
        topics: &Topics,
        partitions: u32,
        sender: &Inputs,
    ) -> anyhow::Result<Self> {
        let start = |source, topic: &str, client_id: &str| {
            Inlet::start(kafka, source, topic, client_id, partitions, sender.clone())
        };
        Ok(Self {
            requests: start(
                Source::Requests,
                topics.requests(),
                "waybill-scheduler-requests",
            )?,
            inbox: start(
                Source::Replies,
                topics.step_replies(),
                "waybill-scheduler-inbox",
            )?,
        })
    }

    fn inlet(&self, source: Source) -> &Inlet {
        match source {
            Source::Requests => &self.requests,
            Source::Replies => &self.inbox,
        }
    }

    /// The allowance of a consumer.
    pub(super) fn credit(&self, source: Source) -> &Credit {
        &self.inlet(source).credit
    }

    /// Begins to read a partition.
    pub(super) fn add(&self, partition: PartitionId, generation: Generation, start: &StartOffsets) {
        self.inbox.order(Order::Add {
            partition,
            generation,
            start: start.replies,
            verify: None,
        });
        self.requests.order(Order::Add {
            partition,
            generation,
            start: start.requests,
            verify: start.verify,
        });
    }

    /// Ends reading a partition.
    pub(super) fn remove(&self, partition: PartitionId) {
        self.requests.order(Order::Remove(partition));
        self.inbox.order(Order::Remove(partition));
    }

    /// Copies a checkpoint to the consumer group that lag tools look at. Nothing reads it back.
    pub(super) fn copy_checkpoint(&self, partition: PartitionId, checkpoint: &Checkpoint) {
        for (inlet, offset) in [
            (&self.requests, checkpoint.requests),
            (&self.inbox, checkpoint.replies),
        ] {
            inlet
                .consumer
                .commit_copy(&[(&inlet.topic, partition, offset)]);
        }
    }

    /// What asks the broker where the logs begin and end.
    pub(super) fn ends_reader(&self) -> EndsReader {
        EndsReader {
            requests: (self.requests.consumer.clone(), self.requests.topic.clone()),
            inbox: (self.inbox.consumer.clone(), self.inbox.topic.clone()),
        }
    }

    /// Stops both threads and closes the consumers.
    pub(super) fn stop(self) {
        for inlet in [self.requests, self.inbox] {
            inlet.order(Order::Stop);
            if inlet.thread.join().is_err() {
                tracing::error!(topic = %inlet.topic, "the consumer's thread panicked");
            }
        }
    }
}

impl Inlet {
    fn start(
        kafka: &KafkaSettings,
        source: Source,
        topic: &str,
        client_id: &str,
        partitions: u32,
        sender: Inputs,
    ) -> anyhow::Result<Self> {
        let options = ConsumerOptions {
            group_for_lag: Some(GROUP_FOR_LAG.to_owned()),
            fetch_wait_max: FETCH_WAIT_MAX,
            ..ConsumerOptions::new(client_id)
        };
        let consumer = Arc::new(PartitionConsumer::new(kafka, &options)?);
        let credit = Arc::new(Credit::default());
        let topic: Arc<str> = topic.into();
        let (orders, inbox) = mpsc::channel();
        let poller = Poller {
            source,
            topic: topic.clone(),
            consumer: consumer.clone(),
            credit: credit.clone(),
            decoder: Decoder::new(source, partitions),
            assigned: HashMap::new(),
            sender,
        };
        let thread = std::thread::Builder::new()
            .name(client_id.to_owned())
            .spawn(move || poller.run(&inbox))?;
        Ok(Self {
            credit,
            orders,
            consumer,
            topic,
            thread,
        })
    }

    /// Fails only when the thread has panicked, which [`Inlets::stop`] reports.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }
}

/// A partition as the polling thread knows it.
struct Assigned {
    generation: Generation,
    verify: Option<(Offset, u64)>,
    /// Behind the last record that was handed over.
    next: Offset,
}

struct Poller {
    source: Source,
    topic: Arc<str>,
    consumer: Arc<PartitionConsumer>,
    credit: Arc<Credit>,
    decoder: Decoder,
    assigned: HashMap<PartitionId, Assigned>,
    sender: Inputs,
}

impl Poller {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            while let Ok(order) = orders.try_recv() {
                if !self.obey(order) {
                    return;
                }
            }
            if self.assigned.is_empty() {
                let Ok(order) = orders.recv() else { return };
                if !self.obey(order) {
                    return;
                }
                continue;
            }
            if let Some(amount) = self.credit.take(POLL_MAX, PATIENCE) {
                self.poll(amount);
            }
        }
    }

    /// Follows an order. Returns whether to go on.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Stop => return false,
            Order::Remove(partition) => {
                if self.assigned.remove(&partition).is_some()
                    && let Err(error) = self.consumer.remove(&[(&self.topic, partition)])
                {
                    tracing::warn!(%partition, %error, "a partition could not be unassigned");
                }
            }
            Order::Add {
                partition,
                generation,
                start,
                verify,
            } => {
                let from = verify.map_or(start, |(below, _)| below);
                let assigned = Assigned {
                    generation,
                    verify,
                    next: from,
                };
                self.assigned.insert(partition, assigned);
                if let Err(error) = self.consumer.add(&[(&self.topic, partition, from)]) {
                    self.lost(partition, LostCause::Client(error.to_string()));
                }
            }
        }
        true
    }

    fn poll(&mut self, limits: Amount) {
        let limits = PollLimits {
            records: limits.records,
            bytes: limits.bytes,
        };
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut mismatches = Vec::new();
        let (assigned, decoder) = (&mut self.assigned, &mut self.decoder);
        let mut on_record = |record: RecordRef<'_>| {
            let partition = record.partition();
            let Some(assigned) = assigned.get_mut(&partition) else {
                return;
            };
            assigned.next = record.offset().next();
            match verified(assigned, decoder, &record) {
                Verified::Below => {}
                Verified::Differs { expected, found } => {
                    mismatches.push((partition, LostCause::Fingerprint { expected, found }));
                }
                Verified::Go => {
                    let event = decoder.event(&record);
                    bytes += record.bytes();
                    records.push(Arrived {
                        generation: assigned.generation,
                        partition,
                        event,
                    });
                }
            }
        };
        let mut ends = Vec::new();
        let mut on_end = |_: &str, partition, position| ends.push((partition, position));
        let polled =
            self.consumer
                .poll_with_positions(limits, PATIENCE, &mut on_record, &mut on_end);
        self.credit.read(Amount {
            records: records.len(),
            bytes,
        });
        for (partition, cause) in mismatches {
            self.lost(partition, cause);
        }
        if !records.is_empty() {
            self.send(Input::Records {
                source: self.source,
                bytes,
                records,
            });
        }
        for (partition, position) in ends {
            self.reached(partition, position);
        }
        match polled {
            Ok(_) => {}
            Err(PollError::OffsetOutOfRange { partition, .. }) => {
                self.lost(partition, LostCause::OutOfRange);
            }
            Err(error) => {
                let cause = super::shell::chain(&error);
                for partition in self.assigned.keys().copied().collect::<Vec<_>>() {
                    self.lost(partition, LostCause::Client(cause.clone()));
                }
            }
        }
    }

    /// Tells the loop how far the inbox was read, where that is further than its last record.
    fn reached(&mut self, partition: PartitionId, position: Offset) {
        let Some(assigned) = self.assigned.get_mut(&partition) else {
            return;
        };
        if self.source == Source::Replies && position > assigned.next {
            assigned.next = position;
            let generation = assigned.generation;
            self.send(Input::InboxRead {
                partition,
                generation,
                position,
            });
        }
    }

    /// Tells the loop that a partition cannot be read, which makes it order its removal.
    fn lost(&mut self, partition: PartitionId, cause: LostCause) {
        if let Some(assigned) = self.assigned.get(&partition) {
            let generation = assigned.generation;
            self.send(Input::Lost {
                source: self.source,
                generation,
                partition,
                cause,
            });
        }
    }

    /// Fails only when the loop has ended, and then it orders this thread to stop.
    fn send(&self, input: Input) {
        let _ = self.sender.send(input);
    }
}

enum Verified {
    /// A record that belongs to an engine.
    Go,
    /// The record below the checkpoint, as it was.
    Below,
    /// Another record than the checkpoint saw.
    Differs { expected: u64, found: u64 },
}

/// Holds the first record of an assignment against the checkpoint's fingerprint, if it has one.
fn verified(assigned: &mut Assigned, decoder: &Decoder, record: &RecordRef<'_>) -> Verified {
    match assigned.verify {
        Some((below, _)) if record.offset() > below => {
            // The log has a gap below the checkpoint: compaction or a control record.
            assigned.verify = None;
            Verified::Go
        }
        Some((_, expected)) => {
            let found = decoder.fingerprint(record);
            if found == expected {
                assigned.verify = None;
                Verified::Below
            } else {
                Verified::Differs { expected, found }
            }
        }
        None => Verified::Go,
    }
}

/// Asks the broker where the logs of a partition begin and end.
#[derive(Clone)]
pub(super) struct EndsReader {
    requests: (Arc<PartitionConsumer>, Arc<str>),
    inbox: (Arc<PartitionConsumer>, Arc<str>),
}

impl EndsReader {
    pub(super) async fn read(&self, partition: PartitionId) -> Result<LogEnds, AcquireError> {
        let reader = self.clone();
        let read = move || -> Result<LogEnds, String> {
            let ends = |(consumer, topic): &(Arc<PartitionConsumer>, Arc<str>)| {
                consumer
                    .watermarks(topic, partition, ENDS_TIMEOUT)
                    .map_err(|error| super::shell::chain(&error))
            };
            Ok(LogEnds {
                requests: ends(&reader.requests)?,
                replies: ends(&reader.inbox)?,
            })
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(ends) => ends.map_err(AcquireError::Broker),
            Err(panicked) => Err(AcquireError::Broker(panicked.to_string())),
        }
    }
}
