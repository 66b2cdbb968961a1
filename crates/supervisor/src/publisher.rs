//! Publishes recoveries, dead letters and rerouted records, until they are acknowledged, and keeps
//! the pace of all recoveries of the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waybill_clock::boot_clock;
use waybill_engine::{PartitionId, Recovery};
use waybill_kafka::{
    ClientError, KafkaSettings, OutRecord, ProduceError, Producer, ProducerOptions, RawRecord,
    Settlement, dead_letter, enqueue, publish, publish_dead_letters,
};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, EncodeError, Topics};
use waybill_supervisor_core::Pace;
use waybill_topology::partition_map::PartitionMap;

use super::metrics::SupervisorMetrics;

/// Why a record was not published.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    /// The recovery does not fit into a record.
    #[error("cannot write a recovery")]
    Encode(#[from] EncodeError),
    /// The broker did not acknowledge it.
    #[error("a recovery was not acknowledged")]
    Produce(#[from] ProduceError),
}

/// Publishes recoveries to the topic that the schedulers read.
#[derive(Debug)]
pub(super) struct Publisher {
    producer: Producer<Arc<Settlement>>,
    topics: Topics,
    partition_map: PartitionMap,
    pace: Mutex<Pace>,
    metrics: Arc<SupervisorMetrics>,
}

impl Publisher {
    pub(super) fn new(
        kafka: &KafkaSettings,
        topics: &Topics,
        partition_map: PartitionMap,
        per_second_max: u32,
        metrics: Arc<SupervisorMetrics>,
    ) -> Result<Self, ClientError> {
        let options = ProducerOptions {
            message_bytes_max: DEAD_LETTER_BYTES_MAX,
            ..ProducerOptions::new("waybill-supervisor")
        };
        Ok(Self {
            producer: Producer::new(kafka, &options)?,
            topics: topics.clone(),
            partition_map,
            pace: Mutex::new(Pace::new(per_second_max)),
            metrics,
        })
    }

    /// How many recoveries are published at once.
    pub(super) fn chunk(&self) -> usize {
        self.pace().chunk()
    }

    /// Reserves a turn for recoveries; returns how long to wait before they are published.
    pub(super) fn take_turn(&self, recoveries: usize) -> Duration {
        self.pace().take(recoveries, boot_clock())
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes recoveries whose turn has come; returns once the broker has acknowledged all.
    pub(super) async fn publish(&self, recoveries: &[Recovery]) -> Result<(), PublishError> {
        let (settlement, settled) = Settlement::channel(recoveries.len());
        for recovery in recoveries {
            self.send(recovery, &settlement).await?;
        }
        drop(settlement);
        match settled.await {
            Ok(result) => result?,
            Err(_) => unreachable!("a settlement says what became of its records"),
        }
        self.metrics.asked(recoveries);
        Ok(())
    }

    /// Publishes dead letters; returns once the broker has acknowledged each, or has rejected it
    /// for good.
    pub(super) async fn publish_dead_letters(
        &self,
        dead_letters: &[RawRecord],
    ) -> Result<(), PublishError> {
        Ok(publish_dead_letters(&self.producer, dead_letters).await?)
    }

    /// Forwards records unchanged; returns once the broker has acknowledged each. A record that the
    /// broker rejects for good goes to the dead-letter topic of `came_from`, the partition that it
    /// was read from.
    pub(super) async fn send_on(
        &self,
        records: &[RawRecord],
        came_from: PartitionId,
    ) -> Result<(), PublishError> {
        match publish(&self.producer, records).await {
            Err(error) if error.is_of_record() => {}
            sent => return Ok(sent?),
        }
        for record in records {
            match publish(&self.producer, std::slice::from_ref(record)).await {
                Err(error) if error.is_of_record() => {
                    let record = RawRecord {
                        partition: came_from,
                        ..record.clone()
                    };
                    let cause = format!("cannot send it: {error}");
                    self.publish_dead_letters(&[dead_letter(record, "supervisor", &cause)])
                        .await?;
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        recovery: &Recovery,
        settlement: &Arc<Settlement>,
    ) -> Result<(), PublishError> {
        let key = recovery.operation.key();
        let mut value = Vec::with_capacity(256);
        self.topics.framing().encode(recovery, &mut value)?;
        let partition = self.partition_map.partition_of(recovery.operation);
        let record = OutRecord::new(self.topics.recovery(), partition, &key, &value);
        Ok(enqueue(&self.producer, &record, settlement).await?)
    }
}
