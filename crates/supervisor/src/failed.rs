//! Drives the consumer of failed-operations: polls the topic and performs the effects of its state
//! machine.
//!
//! All supervisors share the topic through one consumer group. For records that no client can
//! decode, a dead letter has their position.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use waybill_clock::clocks;
use waybill_engine::{FailedOperation, Offset, PartitionId};
use waybill_kafka::{
    DamagedLog, GroupConsumer, GroupHandler, GroupOptions, PollLimits, RawRecord, RecordRef,
    TopicPartition, dead_letter, undecodable_dead_letter,
};
use waybill_messages::DecodeError;
use waybill_supervisor_core::failed::{Content, Effect, Event, Notice, Output, Uncommitted};
use waybill_supervisor_core::{FailedOperations, FailedSettings};
use waybill_telemetry::chain;

use super::metrics::SupervisorMetrics;
use super::publisher::{PublishError, Publisher};
use super::{SupervisorParts, SupervisorSettings};

/// The consumer group of all supervisors of an installation, without the topics' prefix.
const GROUP: &str = "supervisors";
const POLL_WAIT: Duration = Duration::from_millis(200);
const POLL_RECORDS_MAX: usize = 500;
const POLL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long the recoveries of one poll may take at the maximum rate. A consumer that does not poll
/// for five minutes leaves its group, and another one would begin with the same records.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The consumer of the topic.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) name: Arc<str>,
    pub(super) settings: SupervisorSettings,
    pub(super) parts: SupervisorParts,
    pub(super) publisher: Arc<Publisher>,
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
        consumer: GroupConsumer,
        runtime: &Handle,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut machine = FailedOperations::new(FailedSettings {
            name: self.name.clone(),
            workflows: self.parts.workflows.clone(),
            timeout_grace: self.settings.timeout_grace,
            chunk: self.publisher.chunk(),
        });
        let mut session = Session {
            following: &self,
            consumer,
            limits: limits(self.settings.recoveries_per_second_max),
            intake: Intake::default(),
            unreadable: Vec::new(),
            dead_letters: Vec::new(),
        };
        let mut failure = None;
        let mut event = Event::Started;
        loop {
            if stop.is_cancelled() {
                machine.stop();
            }
            let output = machine.handle(event, clocks());
            let Output { notices, effect } = output.context("the consumer of failed operations")?;
            for notice in notices {
                match notice {
                    Notice::Decided { recoveries, .. } => session.decided(recoveries),
                    Notice::PublishFailed => tracing::warn!(
                        error = failure
                            .as_ref()
                            .map(|error: &PublishError| error as &dyn Error),
                        "could not write the decisions on failed operations; retrying"
                    ),
                }
            }
            if effect == Effect::End {
                session.close();
                return Ok(());
            }
            let performed = match effect {
                Effect::Poll { is_paused } => Ok(session.poll(is_paused)?),
                effect => runtime.block_on(session.perform(effect, stop)),
            };
            event = performed.unwrap_or_else(|error| {
                failure = Some(error);
                Event::Failed
            });
        }
    }
}

/// The consumer, and its records that are not committed.
struct Session<'a> {
    following: &'a Following,
    consumer: GroupConsumer,
    /// Of one poll.
    limits: PollLimits,
    intake: Intake,
    /// The records of the intake that cannot be decoded.
    unreadable: Vec<(RawRecord, DecodeError)>,
    /// The dead letters of the decision in progress.
    dead_letters: Vec<RawRecord>,
}

impl Session<'_> {
    fn poll(&mut self, is_paused: bool) -> anyhow::Result<Event> {
        self.consumer
            .hold(is_paused)
            .context("could not pause or resume the consumer")?;
        self.consumer
            .poll(self.limits, POLL_WAIT, &mut self.intake)?;
        Ok(Event::Polled(self.uncommitted()))
    }

    /// Performs an effect other than a poll.
    async fn perform(
        &mut self,
        effect: Effect,
        stop: &CancellationToken,
    ) -> Result<Event, PublishError> {
        let publisher = &self.following.publisher;
        Ok(match effect {
            Effect::PublishDeadLetters => {
                publisher.publish_dead_letters(&self.dead_letters).await?;
                Event::Published
            }
            Effect::TakeTurn(recoveries) => Event::Turn(publisher.take_turn(recoveries)),
            Effect::Wait(time) => {
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    () = stop.cancelled() => {}
                }
                Event::Waited
            }
            Effect::Publish(recoveries) => {
                publisher.publish(&recoveries).await?;
                Event::Published
            }
            Effect::Commit(next) => {
                self.commit(&next);
                Event::Committed
            }
            Effect::Poll { .. } | Effect::End => unreachable!("the caller performs it"),
        })
    }

    /// What the records say that are not committed. Remembers those that cannot be decoded.
    fn uncommitted(&mut self) -> Vec<Uncommitted> {
        let framing = self.following.parts.topics.framing();
        self.unreadable.clear();
        let mut uncommitted = Vec::with_capacity(self.intake.records.len());
        for record in &self.intake.records {
            let value = record.value.as_deref().unwrap_or_default();
            let decoded: Result<FailedOperation, DecodeError> = framing.decode(value);
            let content = match decoded {
                Ok(failed) => Content::Failed(Box::new(failed)),
                Err(error) if error.waits_for().is_some() => Content::WaitsForSchema,
                Err(error) => {
                    self.unreadable.push((record.clone(), error));
                    Content::Undecodable
                }
            };
            uncommitted.push(Uncommitted {
                partition: record.partition,
                next: record.offset.next(),
                content,
            });
        }
        let runs = self.intake.undecodable.iter();
        uncommitted.extend(runs.map(|(dead_letter, behind)| Uncommitted {
            partition: dead_letter.partition,
            next: *behind,
            content: Content::Undecodable,
        }));
        uncommitted
    }

    /// The records were decided: logs those that cannot be decoded, and makes their dead letters.
    fn decided(&mut self, recoveries: usize) {
        self.dead_letters.clear();
        for (record, error) in self.unreadable.drain(..) {
            tracing::error!(
                partition = %record.partition,
                offset = %record.offset,
                error = &error as &dyn Error,
                "could not decode a record of failed-operations; sending it to the dead-letter \
                 topic (the deadline index still has its operation)"
            );
            let cause = chain(&error);
            self.dead_letters
                .push(dead_letter(record, "supervisor", &cause));
        }
        let runs = self.intake.undecodable.iter();
        self.dead_letters
            .extend(runs.map(|(dead_letter, _)| dead_letter.clone()));
        let metrics = &self.following.metrics;
        metrics.decided.increment(recoveries as u64);
        metrics.unreadable.increment(self.dead_letters.len() as u64);
    }

    /// Commits the offset at which each partition continues, and forgets the records.
    fn commit(&mut self, next: &[(PartitionId, Offset)]) {
        let topic = self.following.parts.topics.failed_operations();
        let commits: Vec<(&str, PartitionId, Offset)> = next
            .iter()
            .map(|(partition, offset)| (topic, *partition, *offset))
            .collect();
        if let Err(error) = self.consumer.commit(&commits) {
            tracing::warn!(
                error = &error as &dyn Error,
                "could not commit offsets of failed operations; they will be read again"
            );
        }
        self.intake.clear();
    }

    fn close(mut self) {
        self.consumer.close(CLOSE_TIMEOUT, &mut self.intake);
    }
}

/// How much one poll may take, so that its recoveries are published in time.
fn limits(recoveries_per_second_max: u32) -> PollLimits {
    let in_time = u64::from(recoveries_per_second_max.max(1)) * PUBLISHED_WITHIN.as_secs();
    let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
    PollLimits {
        records: in_time.min(POLL_RECORDS_MAX),
        bytes: POLL_BYTES_MAX,
    }
}

/// The records of one poll.
#[derive(Debug, Default)]
struct Intake {
    records: Vec<RawRecord>,
    /// A dead letter for each run of records that no client can decode, and the offset after it.
    undecodable: Vec<(RawRecord, Offset)>,
    /// The end of the last such run of each partition: the client may meet it again.
    passed: HashMap<PartitionId, Offset>,
}

impl Intake {
    /// Forgets the records. The client may still meet a run that no client can decode again.
    fn clear(&mut self) {
        self.records.clear();
        self.undecodable.clear();
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.undecodable.is_empty()
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
        assert_eq!(intake.undecodable[0].1, Offset(12));
        intake.clear();
        assert!(intake.is_empty());

        // The client meets them again.
        assert!(intake.undecodable(&log(7), Offset(12)));
        assert!(intake.is_empty());
    }

    #[test]
    fn a_poll_takes_what_is_published_before_the_next_one_is_due() {
        let records = [1, 5, 2_000, u32::MAX].map(|rate| limits(rate).records);
        assert_eq!(records, [60, 300, 500, 500]);
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
        assert!(intake.is_empty());
        intake.undecodable(&log(7), Offset(12));
        assert_eq!(intake.undecodable[0].1, Offset(12));
    }
}
