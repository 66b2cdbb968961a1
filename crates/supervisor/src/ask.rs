//! Publishes recoveries, dead letters and rerouted records, paced and acknowledged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use waybill_engine::{PartitionId, Recovery};
use waybill_kafka::{
    ClientError, KafkaSettings, OutRecord, ProduceError, Producer, ProducerOptions, RawRecord,
    Settlement, dead_letter, enqueue, publish, publish_dead_letters,
};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, EncodeError, Topics};
use waybill_topology::partition_map::PartitionMap;

use super::metrics::SupervisorMetrics;

/// Maximum number of recoveries in flight.
const CHUNK_MAX: usize = 500;
/// A chunk of recoveries is as many as the maximum rate allows in this time, so that pauses between
/// chunks stay short.
const CHUNK_TIME: Duration = Duration::from_millis(250);

/// Why a record was not published.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// The recovery does not fit into a record.
    #[error("cannot write a recovery")]
    Encode(#[from] EncodeError),
    /// The broker did not acknowledge it.
    #[error("a recovery was not acknowledged")]
    Produce(#[from] ProduceError),
    /// The supervisor stopped while recoveries waited for their turn. They are not lost: what
    /// caused them is read again.
    #[error("the supervisor is stopping")]
    Stopping,
}

/// Publishes recoveries to the topic that the schedulers read.
#[derive(Debug)]
pub(super) struct Asker {
    producer: Producer<Arc<Settlement>>,
    topics: Topics,
    partition_map: PartitionMap,
    pace: Mutex<Pace>,
    /// How many recoveries are published at once.
    chunk: usize,
    metrics: Arc<SupervisorMetrics>,
    stop: CancellationToken,
}

impl Asker {
    pub(super) fn new(
        kafka: &KafkaSettings,
        topics: &Topics,
        partition_map: PartitionMap,
        per_second_max: u32,
        metrics: Arc<SupervisorMetrics>,
        stop: CancellationToken,
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
            chunk: chunk_of(per_second_max),
            metrics,
            stop,
        })
    }

    /// Publishes all recoveries; returns once the broker has acknowledged the last, or once the
    /// supervisor stops and the next ones would have to wait for their turn.
    pub(super) async fn ask(&self, recoveries: &[Recovery]) -> Result<(), AskError> {
        for chunk in recoveries.chunks(self.chunk) {
            self.wait_for_turn(chunk.len()).await?;
            let (settlement, settled) = Settlement::channel(chunk.len());
            for recovery in chunk {
                self.send(recovery, &settlement).await?;
            }
            drop(settlement);
            match settled.await {
                Ok(result) => result?,
                Err(_) => unreachable!("a settlement says what became of its records"),
            }
            self.metrics.asked(chunk);
        }
        Ok(())
    }

    /// Publishes dead letters; returns once the broker has acknowledged each, or has rejected it
    /// for good.
    pub(super) async fn publish_dead_letters(
        &self,
        dead_letters: &[RawRecord],
    ) -> Result<(), AskError> {
        Ok(publish_dead_letters(&self.producer, dead_letters).await?)
    }

    /// Forwards records unchanged; returns once the broker has acknowledged each. A record that the
    /// broker rejects for good goes to the dead-letter topic of `came_from`, the partition that it
    /// was read from.
    pub(super) async fn send_on(
        &self,
        records: &[RawRecord],
        came_from: PartitionId,
    ) -> Result<(), AskError> {
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
    ) -> Result<(), AskError> {
        let key = recovery.operation.key();
        let mut value = Vec::with_capacity(256);
        self.topics.framing().encode(recovery, &mut value)?;
        let partition = self.partition_map.partition_of(recovery.operation);
        let record = OutRecord::new(self.topics.recovery(), partition, &key, &value);
        Ok(enqueue(&self.producer, &record, settlement).await?)
    }

    async fn wait_for_turn(&self, recoveries: usize) -> Result<(), AskError> {
        let wait = {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.take(recoveries, Instant::now())
        };
        if wait.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = self.stop.cancelled() => Err(AskError::Stopping),
        }
    }
}

fn chunk_of(per_second_max: u32) -> usize {
    let chunk = f64::from(per_second_max) * CHUNK_TIME.as_secs_f64();
    (chunk as usize).clamp(1, CHUNK_MAX)
}

/// Spreads recoveries evenly: after a burst of `n`, the next one waits as long as `n` take at the
/// maximum rate.
#[derive(Debug)]
struct Pace {
    per_second_max: u32,
    free_at: Option<Instant>,
}

impl Pace {
    fn new(per_second_max: u32) -> Self {
        Self {
            per_second_max: per_second_max.max(1),
            free_at: None,
        }
    }

    /// Reserves slots for `recoveries`; returns how long to wait before the first.
    fn take(&mut self, recoveries: usize, now: Instant) -> Duration {
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        let lasts = Duration::from_secs_f64(recoveries as f64 / f64::from(self.per_second_max));
        self.free_at = Some(begins + lasts);
        begins - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_waits_for_the_previous_one_and_a_pause_earns_no_credit() {
        let mut pace = Pace::new(1_000);
        let start = Instant::now();
        assert_eq!(pace.take(500, start), Duration::ZERO);
        assert_eq!(pace.take(500, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(5);
        assert_eq!(pace.take(1, later), Duration::ZERO);
    }

    #[test]
    fn a_chunk_is_what_may_be_published_in_a_quarter_of_a_second() {
        let chunks = [1, 4, 100, 2_000, u32::MAX].map(chunk_of);
        assert_eq!(chunks, [1, 1, 25, CHUNK_MAX, CHUNK_MAX]);
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait_for_a_turn() {
        let stop = CancellationToken::new();
        let asker = Asker::new(
            &KafkaSettings::new("127.0.0.1:1"),
            &Topics::default(),
            PartitionMap::fixed(1),
            1,
            Arc::new(SupervisorMetrics::new()),
            stop.clone(),
        )
        .unwrap();
        asker.wait_for_turn(3_600).await.unwrap();
        let (turn, ()) = tokio::join!(asker.wait_for_turn(1), async { stop.cancel() });
        assert!(matches!(turn, Err(AskError::Stopping)));
    }
}
