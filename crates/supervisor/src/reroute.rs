//! Reroutes records of partitions that are no longer in use.
//!
//! Topics keep their partitions: a client that uses Kafka's partition count and the default
//! partitioner still writes to partitions that the partition map has dropped. The supervisor that
//! owns an index shard reroutes the records of the partition with that number.
//!
//! [`Reroute`] decides what is read, and this driver performs it. A record that is rerouted twice
//! still counts as one request, reply or recovery.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use waybill_clock::clocks;
use waybill_engine::{KeyHash, Offset, PartitionId, Source, TopicOffsets};
use waybill_kafka::{
    Admin, AdminError, ClientError, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError,
    PollLimits, RawRecord, RequestError,
};
use waybill_messages::Topics;
use waybill_store::Retired;
use waybill_supervisor_core::reroute::{Effect, Event, Output};
use waybill_supervisor_core::{Reroute, UnexpectedEvent};
use waybill_topology::partition_map::PartitionMap;

use super::metrics::SupervisorMetrics;
use super::publisher::{PublishError, Publisher};

/// Maximum size of one poll.
const LIMITS: PollLimits = PollLimits {
    records: 500,
    bytes: 4 * 1024 * 1024,
};
/// Maximum duration of one poll.
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// How many partitions are rerouted concurrently, each by its own client.
const CONCURRENT_REROUTES_MAX: usize = 8;

/// Why records were not rerouted.
#[derive(Debug, thiserror::Error)]
pub(super) enum RerouteError {
    #[error("cannot read the partitions and offsets")]
    Admin(#[from] AdminError),
    #[error("cannot create the consumer")]
    Client(#[from] ClientError),
    #[error("cannot assign the partition")]
    Request(#[from] RequestError),
    #[error("cannot read the records")]
    Poll(#[from] PollError),
    #[error("could not write the rerouted records")]
    Ask(#[from] PublishError),
    #[error("the thread that reads the records panicked")]
    Thread(#[from] tokio::task::JoinError),
    #[error("the driver and the state machine disagree")]
    Unexpected(#[from] UnexpectedEvent),
}

/// Reroutes the records of partitions that are no longer in use.
#[derive(Debug)]
pub(super) struct Rerouter {
    admin: Admin,
    kafka: KafkaSettings,
    topics: Topics,
    partition_map: PartitionMap,
    publisher: Arc<Publisher>,
    metrics: Arc<SupervisorMetrics>,
    permits: Semaphore,
}

impl Rerouter {
    pub(super) fn new(
        kafka: &KafkaSettings,
        topics: &Topics,
        partition_map: PartitionMap,
        publisher: Arc<Publisher>,
        metrics: Arc<SupervisorMetrics>,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            admin: Admin::new(kafka, "waybill-reroute")?,
            kafka: kafka.clone(),
            topics: topics.clone(),
            partition_map,
            publisher,
            metrics,
            permits: Semaphore::new(CONCURRENT_REROUTES_MAX),
        })
    }

    /// Reroutes records that were written to a partition while it was not in use, from `done` on,
    /// for a limited time. Returns the offsets reached, and the error that stopped it.
    pub(super) async fn reroute(
        &self,
        partition: PartitionId,
        done: TopicOffsets,
    ) -> (TopicOffsets, Result<(), RerouteError>) {
        let layout = self.partition_map.layout();
        let retired = layout.retired().iter();
        let periods: Vec<Retired> = retired
            .filter(|of| of.partition == partition)
            .copied()
            .collect();
        // Limits how many partitions are rerouted concurrently.
        let permit = self.permits.try_acquire();
        if periods.is_empty() || permit.is_err() {
            return (done, Ok(()));
        }
        let mut reroute = Reroute::new(partition, periods, done);
        let mut reading = None;
        let mut first_error = None;
        let mut event = Event::Started;
        loop {
            let Output { closes, effect } = match reroute.handle(event, clocks()) {
                Ok(output) => output,
                Err(error) => return (done, Err(first_error.unwrap_or_else(|| error.into()))),
            };
            if closes && let Some(reading) = reading.take() {
                // Dropping the consumer may block on the brokers.
                tokio::task::spawn_blocking(move || drop(reading));
            }
            if let Effect::End(reached) = effect {
                return (reached, first_error.map_or(Ok(()), Err));
            }
            let result = self.perform(partition, effect, &mut reading).await;
            event = result.unwrap_or_else(|error| {
                first_error.get_or_insert(error);
                Event::Failed
            });
        }
    }

    async fn perform(
        &self,
        partition: PartitionId,
        effect: Effect,
        reading: &mut Option<Reading>,
    ) -> Result<Event, RerouteError> {
        Ok(match effect {
            Effect::ReadPartitions(source) => {
                let topic = self.topics.of(source);
                Event::Partitions(self.admin.topic_partitions(topic).await?)
            }
            Effect::ReadOffsets(source) => {
                let topic = self.topics.of(source);
                let offsets = self.admin.offsets(topic, &[partition]).await?;
                Event::Offsets(offsets.first().copied())
            }
            Effect::Open(source, at) => {
                let options = ConsumerOptions::new("waybill-reroute");
                let consumer = PartitionConsumer::new(&self.kafka, &options)?;
                consumer.add(&[(self.topics.of(source), partition, at)])?;
                *reading = Some(Reading {
                    consumer: Arc::new(consumer),
                    source,
                    records: Vec::new(),
                });
                Event::Opened
            }
            Effect::Read(end) => {
                let Some(reading) = reading else {
                    unreachable!("records are read once the consumer is open");
                };
                let consumer = reading.consumer.clone();
                let read = tokio::task::spawn_blocking(move || read(&consumer, end));
                let (records, read_to) = read.await??;
                reading.records = records;
                Event::Read(read_to)
            }
            Effect::Forward => {
                if let Some(reading) = reading {
                    self.forward(partition, reading).await?;
                }
                Event::Forwarded
            }
            Effect::End(_) => unreachable!("the caller returns"),
        })
    }

    /// Forwards the records that were read to their own partitions.
    async fn forward(
        &self,
        partition: PartitionId,
        reading: &mut Reading,
    ) -> Result<(), RerouteError> {
        let partitions = self.partition_map.partitions();
        let rerouted = std::mem::take(&mut reading.records).into_iter();
        let rerouted: Vec<_> = rerouted
            .map(|record| to_own_partition(record, partitions))
            .collect();
        self.publisher.send_on(&rerouted, partition).await?;
        let count = rerouted.len();
        if count > 0 {
            self.metrics.rerouted.increment(count as u64);
            tracing::info!(
                topic = self.topics.of(reading.source),
                %partition,
                count,
                "rerouted records that were written to a partition that is no longer in use"
            );
        }
        Ok(())
    }
}

/// The consumer of a partition that is no longer in use, and the records of its last read.
struct Reading {
    consumer: Arc<PartitionConsumer>,
    source: Source,
    records: Vec<RawRecord>,
}

/// Reads records below `end`. Returns the offset reached, at most `end`.
fn read(consumer: &PartitionConsumer, end: Offset) -> Result<(Vec<RawRecord>, Offset), PollError> {
    let mut records = Vec::new();
    let (mut position, mut at_end) = (Offset(0), Offset(0));
    consumer.poll_with_positions(
        LIMITS,
        POLL_TIMEOUT,
        &mut |record| {
            position = position.max(record.offset().next());
            if record.offset() < end {
                records.push(record.to_raw());
            }
        },
        &mut |_, _, read_to| at_end = at_end.max(read_to),
    )?;
    Ok((records, position.max(at_end).min(end)))
}

/// The record, addressed to the partition of its key. It carries no reroute mark: its scheduler may
/// have to reroute it once more, if the key is not that of its operation or the number of
/// partitions has changed by then.
fn to_own_partition(record: RawRecord, partitions: u32) -> RawRecord {
    let hash = KeyHash::of(record.key.as_deref().unwrap_or_default());
    RawRecord {
        partition: hash.partition(partitions),
        ..record
    }
}

#[cfg(test)]
mod tests;
