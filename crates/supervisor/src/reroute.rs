//! Reroutes records of partitions that are no longer in use.
//!
//! Topics keep their partitions: a client that takes the number from Kafka, with the usual
//! partitioner, still writes to partitions that the partition map has dropped. The supervisor that
//! owns an index shard reroutes the records of the partition with that number.
//!
//! What must hold: the lease of the index shard stores the progress, which never passes an
//! unacknowledged record. A record that is rerouted twice still counts as one request, reply or
//! recovery.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use waybill_engine::{KeyHash, Offset, PartitionId, Source, TopicOffsets};
use waybill_kafka::{
    Admin, AdminError, ClientError, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError,
    PollLimits, RawRecord, RequestError,
};
use waybill_messages::Topics;
use waybill_store::Retired;
use waybill_topology::partition_map::PartitionMap;

use super::ask::{AskError, Asker};
use super::metrics::SupervisorMetrics;

/// Maximum amount of one poll.
const LIMITS: PollLimits = PollLimits {
    records: 500,
    bytes: 4 * 1024 * 1024,
};
/// Maximum duration of one poll.
const PATIENCE: Duration = Duration::from_millis(500);
/// After this long the next topic follows: the lease must be renewed, and the index shard swept.
const READ_TIME_MAX: Duration = Duration::from_millis(500);
/// How many partitions are rerouted concurrently, each by its own client.
const READS_AT_ONCE: usize = 8;

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
    Ask(#[from] AskError),
    #[error("the thread that reads the records panicked")]
    Thread(#[from] tokio::task::JoinError),
}

/// Reroutes the records of partitions that are no longer in use.
#[derive(Debug)]
pub(super) struct Rerouter {
    admin: Admin,
    kafka: KafkaSettings,
    topics: Topics,
    partition_map: PartitionMap,
    asker: Arc<Asker>,
    metrics: Arc<SupervisorMetrics>,
    permits: Semaphore,
}

impl Rerouter {
    pub(super) fn new(
        kafka: &KafkaSettings,
        topics: &Topics,
        partition_map: PartitionMap,
        asker: Arc<Asker>,
        metrics: Arc<SupervisorMetrics>,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            admin: Admin::new(kafka, "waybill-reroute")?,
            kafka: kafka.clone(),
            topics: topics.clone(),
            partition_map,
            asker,
            metrics,
            permits: Semaphore::new(READS_AT_ONCE),
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
        let times: Vec<&Retired> = retired.filter(|of| of.partition == partition).collect();
        // Limits how many partitions are rerouted concurrently.
        let permit = self.permits.try_acquire();
        let (mut now, mut first) = (done, Ok(()));
        if times.is_empty() || permit.is_err() {
            return (now, first);
        }
        for source in Source::ALL {
            let at = now.on_mut(source);
            let by = Instant::now() + READ_TIME_MAX;
            for retired in &times {
                let sent = self.one_time(retired, source, at, by).await;
                first = first.and(sent);
                // This period is not finished; the next one is later.
                if !retired.is_over(source, *at) {
                    break;
                }
            }
        }
        (now, first)
    }

    /// Reroutes the records of one topic from `at` on, and advances `at`.
    async fn one_time(
        &self,
        retired: &Retired,
        source: Source,
        at: &mut Offset,
        by: Instant,
    ) -> Result<(), RerouteError> {
        *at = retired.from.on(source).max(*at);
        if retired.is_over(source, *at) {
            return Ok(());
        }
        let topic = self.topics.of(source);
        let partition = retired.partition;
        // A topic created after the partition was dropped need not have the partition.
        let has = self.admin.topic_partitions(topic).await?;
        if has.is_none_or(|has| partition.0 >= has) {
            return Ok(());
        }
        let offsets = self.admin.offsets(topic, &[partition]).await?;
        let Some(&(first, end)) = offsets.first() else {
            return Ok(());
        };
        let end = retired.until.map_or(end, |until| end.min(until.on(source)));
        *at = first.max(*at);
        if *at >= end {
            return Ok(());
        }
        let consumer =
            PartitionConsumer::new(&self.kafka, &ConsumerOptions::new("waybill-reroute"))?;
        consumer.add(&[(topic, partition, *at)])?;
        let consumer = Arc::new(consumer);
        while *at < end && Instant::now() < by {
            let reading = consumer.clone();
            let read = tokio::task::spawn_blocking(move || read(&reading, end));
            let (records, read_to) = read.await??;
            let (count, partitions) = (records.len(), self.partition_map.partitions());
            let rerouted = records.into_iter();
            let rerouted: Vec<_> = rerouted
                .map(|record| to_own_partition(record, partitions))
                .collect();
            self.asker.send_on(&rerouted, partition).await?;
            if count > 0 {
                self.metrics.rerouted.increment(count as u64);
                tracing::info!(
                    topic,
                    %partition,
                    count,
                    "rerouted records that were written to a partition that is no longer in use"
                );
            }
            *at = read_to.max(*at);
        }
        // Dropping the consumer may block on the brokers.
        tokio::task::spawn_blocking(move || drop(consumer));
        Ok(())
    }
}

/// Reads records below `end`. Returns the offset reached, at most `end`.
fn read(consumer: &PartitionConsumer, end: Offset) -> Result<(Vec<RawRecord>, Offset), PollError> {
    let mut records = Vec::new();
    let (mut position, mut at_end) = (Offset(0), Offset(0));
    consumer.poll_with_positions(
        LIMITS,
        PATIENCE,
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
