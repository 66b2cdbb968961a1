//! Undecodable records on the topic of requests. Each must appear among the poison records
//! afterwards, with its original bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, ConsumerOptions, Delivered, Delivery, KafkaSettings, OutRecord, PartitionConsumer,
    PollLimits, Producer, ProducerOptions, SendError,
};
use waybill_messages::Topics;

use crate::scenario::Scenario;
use crate::scenario::draw::number;

const POLL: PollLimits = PollLimits {
    records: 1_000,
    bytes: 4 * 1024 * 1024,
};
/// How long to wait at the end of the topic before its number of partitions is checked.
const PAUSE: Duration = Duration::from_millis(200);

/// The records to send, or the sent ones.
#[derive(Clone)]
pub struct Garbage {
    shared: Arc<Shared>,
}

struct Shared {
    kafka: KafkaSettings,
    topic: String,
    dead_letters: String,
    /// The number of partitions of the topic.
    partitions: u32,
    /// The end of each partition of the dead-letter topic before the run.
    ends: Vec<Offset>,
    rate: f64,
    count: u64,
    seed: u64,
    run: String,
    /// The records that the broker acknowledged, by key.
    taken: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

/// An unacknowledged record.
struct Sent {
    key: Vec<u8>,
    value: Vec<u8>,
    shared: Arc<Shared>,
}

impl Delivered for Box<Sent> {
    fn delivered(self, outcome: Delivery) {
        if outcome.result.is_ok() {
            let mut taken = self
                .shared
                .taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            taken.insert(self.key, self.value);
        }
    }
}

impl Garbage {
    /// The garbage of a scenario, if it has any.
    ///
    /// # Errors
    ///
    /// If the topics cannot be read.
    pub async fn of(
        scenario: &Scenario,
        kafka: &KafkaSettings,
        topics: &Topics,
    ) -> anyhow::Result<Option<Self>> {
        if scenario.garbage_rate == 0.0 {
            return Ok(None);
        }
        let admin = Admin::new(kafka, "waybill-loadtest-admin")?;
        let partitions = admin.topic_partitions(topics.requests()).await?;
        let dead_letters = Topics::dead_letter(topics.requests());
        let ends = match admin.topic_partitions(&dead_letters).await? {
            None => Vec::new(),
            Some(count) => {
                let partitions: Vec<_> = (0..count).map(PartitionId).collect();
                let offsets = admin.offsets(&dead_letters, &partitions).await?;
                offsets.into_iter().map(|(_, end)| end).collect()
            }
        };
        let seconds = scenario.schedule().length().as_secs_f64();
        Ok(Some(Self {
            shared: Arc::new(Shared {
                kafka: kafka.clone(),
                topic: topics.requests().to_owned(),
                dead_letters,
                partitions: partitions.context("the topic of requests does not exist")?,
                ends,
                rate: scenario.garbage_rate,
                count: (scenario.garbage_rate * seconds).round() as u64,
                seed: scenario.seed,
                run: uuid::Uuid::new_v4().simple().to_string(),
                taken: Mutex::default(),
            }),
        }))
    }

    /// The number of records.
    pub fn count(&self) -> u64 {
        self.shared.count
    }

    /// Sends all records, evenly distributed from `began` on.
    pub(super) async fn send_all(self, began: Instant) {
        let shared = &self.shared;
        let settings = &shared.kafka;
        // The report shows records that were not sent as missing.
        let Ok(producer) =
            Producer::new(settings, &ProducerOptions::new("waybill-loadtest-garbage"))
        else {
            return;
        };
        for index in 0..shared.count {
            let after = Duration::from_secs_f64(index as f64 / shared.rate);
            tokio::time::sleep_until((began + after).into()).await;
            let key = format!("garbage-{}-{index}", shared.run).into_bytes();
            let value = bytes(shared.seed, index);
            let partition = PartitionId((index % u64::from(shared.partitions)) as u32);
            let record = OutRecord::new(&shared.topic, partition, &key, &value);
            let mut token = Box::new(Sent {
                key: key.clone(),
                value: value.clone(),
                shared: shared.clone(),
            });
            while let Err(SendError::QueueFull(back)) = producer.send(&record, token) {
                token = back;
                tokio::time::sleep(PAUSE).await;
            }
        }
        while producer.in_flight() > 0 {
            tokio::time::sleep(PAUSE / 10).await;
        }
    }

    /// Searches the dead-letter topic for the acknowledged records, byte for byte, until all are
    /// found or `deadline` is reached. Returns how many were found.
    ///
    /// # Errors
    ///
    /// If the topic cannot be read.
    pub async fn find(&self, deadline: Instant) -> anyhow::Result<u64> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.find(deadline)).await?
    }
}

impl Shared {
    fn find(&self, deadline: Instant) -> anyhow::Result<u64> {
        let mut missing = self
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let taken = missing.len() as u64;
        let settings = &self.kafka;
        let consumer =
            PartitionConsumer::new(settings, &ConsumerOptions::new("waybill-loadtest-garbage"))?;
        // The dead-letter topic has as many partitions as its source.
        let starts: Vec<_> = (0..self.partitions)
            .map(|number| {
                let end = self.ends.get(number as usize);
                let start = end.copied().unwrap_or(Offset(0));
                (self.dead_letters.as_str(), PartitionId(number), start)
            })
            .collect();
        consumer.assign(&starts)?;
        while !missing.is_empty() && Instant::now() < deadline {
            consumer.poll(POLL, PAUSE, &mut |record| {
                if let (Some(key), Some(value)) = (record.key(), record.value())
                    && missing.get(key).is_some_and(|sent| sent == value)
                {
                    missing.remove(key);
                }
            })?;
        }
        Ok(taken - missing.len() as u64)
    }
}

/// Undecodable values of four kinds: random bytes, no bytes, a frame with an unknown schema, and a
/// truncated frame.
fn bytes(seed: u64, index: u64) -> Vec<u8> {
    let random = number(seed ^ index, 4);
    let noise = |count: u64| {
        let bytes = (0..count).flat_map(|part| number(random, part).to_le_bytes());
        bytes.collect::<Vec<u8>>()
    };
    match random % 4 {
        0 => noise(1 + random % 32),
        1 => Vec::new(),
        2 => [&[0xc3, 0x01], noise(8).as_slice()].concat(),
        _ => vec![0xc3, 0x01, 0x00],
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::OperationRequest;
    use waybill_messages::Framing;

    use super::*;

    #[test]
    fn garbage_is_undecodable_and_reproducible_by_its_seed() {
        let framing = Framing::single_object();
        let all: Vec<Vec<u8>> = (0..200).map(|index| bytes(1, index)).collect();
        for bytes in &all {
            assert!(
                framing.decode::<OperationRequest>(bytes).is_err(),
                "{bytes:?}"
            );
        }
        assert!(all.iter().any(Vec::is_empty));
        assert!(all.iter().any(|bytes| bytes.len() == 3));
        assert_eq!(
            all,
            (0..200).map(|index| bytes(1, index)).collect::<Vec<_>>()
        );
    }
}
