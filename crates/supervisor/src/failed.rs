//! Consumes failed-operations and sends the supervisor's decision about each record to its
//! scheduler.
//!
//! All supervisors share the topic through one consumer group. The offset of a record is committed
//! only once the broker has acknowledged the resulting recovery. A record that cannot be decoded
//! goes to the dead-letter topic and holds nothing up. For records that no client can decode, a dead
//! letter with their position does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use waybill_clock::wall_clock;
use waybill_engine::{FailedOperation, Offset, PartitionId, Recovery, Supervision};
use waybill_kafka::{
    DamagedLog, GroupConsumer, GroupHandler, GroupOptions, PollLimits, RawRecord, RecordRef,
    TopicPartition, dead_letter, undecodable_dead_letter,
};
use waybill_messages::{DecodeError, SchemaId};
use waybill_telemetry::chain;

use super::ask::{AskError, Asker};
use super::metrics::SupervisorMetrics;
use super::{SupervisorParts, SupervisorSettings};

/// The consumer group of all supervisors of an installation, without the topics' prefix.
const GROUP: &str = "supervisors";
const POLL_WAIT: Duration = Duration::from_millis(200);
const POLL_LIMITS: PollLimits = PollLimits {
    records: 500,
    bytes: 4 * 1024 * 1024,
};
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before recoveries that could not be published are published again.
const REST: Duration = Duration::from_secs(1);

/// The consumer of the topic.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) name: Arc<str>,
    pub(super) settings: SupervisorSettings,
    pub(super) parts: SupervisorParts,
    pub(super) asker: Arc<Asker>,
    pub(super) metrics: Arc<SupervisorMetrics>,
}

impl Following {
    /// Consumes the topic on its own thread until it is stopped.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let topics = &self.parts.topics;
        let options = GroupOptions {
            instance_id: self.settings.instance_id.clone(),
            ..GroupOptions::new(format!("{}.{GROUP}", topics.prefix()), "waybill-supervisor")
        };
        let mut consumer = GroupConsumer::new(&self.parts.kafka, &options)
            .context("cannot create the supervisor's consumer")?;
        consumer
            .subscribe(&[topics.failed_operations()])
            .context("cannot read the failed operations")?;
        let runtime = Handle::current();
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("waybill-supervisor-failed".to_owned())
            .spawn(move || {
                let result = self.follow(consumer, &runtime, &stop);
                _ = end.send(result);
            })
            .context("cannot start the supervisor's polling thread")?;
        ended
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the supervisor's polling thread panicked")))
    }

    fn follow(
        self,
        mut consumer: GroupConsumer,
        runtime: &Handle,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let topic = self.parts.topics.failed_operations().to_owned();
        let mut intake = Intake::default();
        while !stop.is_cancelled() {
            consumer.poll(POLL_LIMITS, POLL_WAIT, &mut intake)?;
            if intake.is_empty() {
                // Records that waited for a schema may belong to another supervisor by now.
                hold(&consumer, false)?;
                continue;
            }
            let decided = self.decide(&intake.records);
            // Keeps polling while it waits for a schema: a consumer that does not poll leaves the
            // group.
            hold(&consumer, decided.is_err())?;
            let Ok(Decided {
                recoveries,
                mut dead_letters,
            }) = decided
            else {
                continue;
            };
            dead_letters.extend(
                intake
                    .undecodable
                    .iter()
                    .map(|(dead_letter, _)| dead_letter.clone()),
            );
            self.metrics.unreadable.increment(dead_letters.len() as u64);
            let publish = async || {
                self.asker.publish_dead_letters(&dead_letters).await?;
                self.asker.ask(&recoveries).await
            };
            while let Err(error) = runtime.block_on(publish()) {
                if !matches!(error, AskError::Stopping) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "could not write the decisions on failed operations; retrying"
                    );
                }
                let until = Instant::now() + REST;
                while Instant::now() < until && !stop.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                if stop.is_cancelled() {
                    consumer.close(CLOSE_TIMEOUT, &mut intake);
                    return Ok(());
                }
            }
            let next = intake.take_next();
            let commits: Vec<(&str, PartitionId, Offset)> = next
                .iter()
                .map(|(partition, offset)| (topic.as_str(), *partition, *offset))
                .collect();
            if let Err(error) = consumer.commit(&commits) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not commit offsets of failed operations; they will be read again"
                );
            }
        }
        consumer.close(CLOSE_TIMEOUT, &mut intake);
        Ok(())
    }

    /// The recoveries for these records, or the schema that must be fetched first.
    fn decide(&self, records: &[RawRecord]) -> Result<Decided, SchemaId> {
        let framing = self.parts.topics.framing();
        let supervision = Supervision {
            name: &self.name,
            workflows: &self.parts.workflows,
            timeout_grace: self.settings.timeout_grace,
        };
        let now = wall_clock();
        let decoded: Vec<Result<FailedOperation, DecodeError>> = records
            .iter()
            .map(|record| framing.decode(record.value.as_deref().unwrap_or_default()))
            .collect();
        let mut errors = decoded.iter().filter_map(|decoded| decoded.as_ref().err());
        if let Some(schema) = errors.find_map(DecodeError::waits_for) {
            return Err(schema);
        }
        let mut recoveries = Vec::with_capacity(records.len());
        let mut dead_letters = Vec::new();
        for (record, decoded) in records.iter().zip(decoded) {
            match decoded {
                Ok(failed) => recoveries.extend(supervision.failed(&failed, now)),
                Err(error) => {
                    tracing::error!(
                        partition = %record.partition,
                        offset = %record.offset,
                        error = &error as &dyn std::error::Error,
                        "could not decode a record of failed-operations; sending it to the \
                         dead-letter topic (the deadline index still has its operation)"
                    );
                    dead_letters.push(dead_letter(record.clone(), "supervisor", &chain(&error)));
                }
            }
        }
        self.metrics.decided.increment(recoveries.len() as u64);
        Ok(Decided {
            recoveries,
            dead_letters,
        })
    }
}

/// What to publish for some records.
struct Decided {
    recoveries: Vec<Recovery>,
    /// Records that cannot be decoded, as stored in the dead-letter topic.
    dead_letters: Vec<RawRecord>,
}

fn hold(consumer: &GroupConsumer, held: bool) -> anyhow::Result<()> {
    consumer
        .hold(held)
        .context("could not pause or resume the consumer")
}

/// The records of one poll.
#[derive(Debug, Default)]
struct Intake {
    records: Vec<RawRecord>,
    /// A dead letter for each run of records that no client can decode, and the offset behind it.
    undecodable: Vec<(RawRecord, Offset)>,
    /// The end of the last such run of each partition: the client may meet it again.
    passed: HashMap<PartitionId, Offset>,
}

impl Intake {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.undecodable.is_empty()
    }

    /// Clears the records; returns the offset at which each partition continues.
    fn take_next(&mut self) -> Vec<(PartitionId, Offset)> {
        let mut next = std::collections::BTreeMap::new();
        for record in self.records.drain(..) {
            next.insert(record.partition, record.offset.next());
        }
        for (dead_letter, behind) in self.undecodable.drain(..) {
            let next = next.entry(dead_letter.partition).or_insert(behind);
            *next = behind.max(*next);
        }
        next.into_iter().collect()
    }
}

impl GroupHandler for Intake {
    fn record(&mut self, record: RecordRef<'_>) {
        self.records.push(record.to_raw());
    }

    fn assigned(&mut self, _partitions: &[TopicPartition]) {}

    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        _lost: bool,
    ) -> Vec<(TopicPartition, Offset)> {
        // The next owner of the partition reads them again from the committed offset.
        let is_gone = |partition| partitions.iter().any(|gone| gone.partition == partition);
        self.records.retain(|record| !is_gone(record.partition));
        self.undecodable
            .retain(|(dead_letter, _)| !is_gone(dead_letter.partition));
        self.passed.retain(|partition, _| !is_gone(*partition));
        Vec::new()
    }

    fn takes_undecodable(&self) -> bool {
        true
    }

    fn undecodable(&mut self, log: &DamagedLog, next: Offset) -> bool {
        if self.passed.insert(log.partition, next) != Some(next) {
            let dead_letter = undecodable_dead_letter(log, next, "supervisor");
            self.undecodable.push((dead_letter, next));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use waybill_kafka::DamageKind;

    use super::*;

    const P: PartitionId = PartitionId(2);

    fn log(offset: i64) -> DamagedLog {
        DamagedLog {
            topic: "waybill.failed-operations.v1".to_owned(),
            partition: P,
            offset: Offset(offset),
            cause: "records at this offset cannot be parsed".to_owned(),
            kind: DamageKind::Undecodable,
            next: Some(Offset(offset + 5)),
        }
    }

    fn record(offset: i64) -> RawRecord {
        RawRecord {
            topic: "waybill.failed-operations.v1".to_owned(),
            partition: P,
            offset: Offset(offset),
            timestamp_ms: None,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    #[test]
    fn undecodable_records_get_one_dead_letter_and_the_partition_continues_behind_them() {
        let mut intake = Intake::default();
        assert!(intake.takes_undecodable());
        intake.records.push(record(6));
        assert!(intake.undecodable(&log(7), Offset(12)));
        let (dead_letter, _) = &intake.undecodable[0];
        assert_eq!(dead_letter.topic, "waybill.failed-operations.v1.dlq");
        assert_eq!((dead_letter.partition, dead_letter.offset), (P, Offset(7)));
        let place = dead_letter.value.as_deref().unwrap_or_default();
        assert!(String::from_utf8_lossy(place).contains("\"nextOffset\":12"));
        assert_eq!(intake.take_next(), [(P, Offset(12))]);
        assert!(intake.is_empty());

        // The client meets them again.
        assert!(intake.undecodable(&log(7), Offset(12)));
        assert!(intake.is_empty());
        intake.records.push(record(12));
        assert_eq!(intake.take_next(), [(P, Offset(13))]);
    }

    #[test]
    fn the_next_owner_of_a_partition_handles_its_undecodable_records() {
        let mut intake = Intake::default();
        intake.undecodable(&log(7), Offset(12));
        let gone = TopicPartition {
            topic: log(7).topic,
            partition: P,
        };
        intake.revoked(std::slice::from_ref(&gone), false);
        assert_eq!(intake.take_next(), []);
        intake.undecodable(&log(7), Offset(12));
        assert_eq!(intake.take_next(), [(P, Offset(12))]);
    }
}
