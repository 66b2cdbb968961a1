//! The polling thread of one receiver: it reads ahead within its limit, and commits settled
//! records.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use waybill_clock::wall_clock;
use waybill_engine::{GroupProgress, Offset, OperatorAlert, PartitionId, Timestamp};
use waybill_kafka::{
    DamagedLog, GroupConsumer, GroupHandler, PollLimits, ProduceError, Producer, RawRecord,
    RecordRef, Settlement, TopicPartition, dead_letter, publish_dead_letters,
    undecodable_dead_letter,
};
use waybill_messages::{DecodeError, Framing};
use waybill_telemetry::chain;

use super::Source;
use crate::alert::Alert;
use crate::metrics::FollowerMetrics;

/// How long a poll waits, and how long it waits for room: together the longest time until a stop or
/// a settled alert is noticed.
const POLL_WAIT: Duration = Duration::from_millis(200);
const POLL_BYTES_MAX: usize = 1024 * 1024;
/// How many dead letters may wait to be published before no more records are polled.
const DEAD_LETTERS_MAX: usize = 16;
/// How long each try to publish dead letters may delay alerts.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The items of a followed topic.
pub(crate) trait Followed: Sized + Send + 'static {
    /// Decodes a record.
    fn read(value: &[u8], framing: &Framing) -> Result<Self, DecodeError>;

    /// When the event of the item happened.
    fn at(&self) -> Timestamp;
}

impl Followed for Alert {
    fn read(value: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let alert: OperatorAlert = framing.decode(value)?;
        Ok(Self::from(alert).clipped())
    }

    fn at(&self) -> Timestamp {
        Timestamp(self.at.as_microsecond())
    }
}

/// A decoded record on its way to the notifier.
#[derive(Debug)]
pub(crate) struct Read<T> {
    pub(crate) source: Source,
    pub(crate) item: T,
}

/// Reads a topic for one receiver.
pub(super) struct Reader {
    pub(super) receiver: String,
    pub(super) topic: String,
    pub(super) consumer: GroupConsumer,
    pub(super) max_age: Duration,
    /// How far to read ahead of the settled records, in records.
    pub(super) ahead_max: usize,
    pub(super) framing: Framing,
    pub(super) metrics: FollowerMetrics,
    /// Publishes dead letters; `None` if another follower of the topic does.
    pub(super) publisher: Option<Producer<Arc<Settlement>>>,
}

impl Reader {
    /// Reads until it is stopped. Then waits until everything that it has read is settled, or until
    /// all senders of `settled` are dropped.
    pub(super) fn run<T: Followed>(
        mut self,
        reads: mpsc::Sender<Read<T>>,
        settled: &std_mpsc::Receiver<Source>,
        runtime: &Handle,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut intake = Intake {
            progress: GroupProgress::default(),
            reads,
            oldest: Timestamp::default(),
            skipped: 0,
            waiting: Vec::new(),
            dead_letters: Vec::new(),
            publishes_dead_letters: self.publisher.is_some(),
            topic: &self.topic,
            framing: &self.framing,
            receiver: &self.receiver,
            metrics: &self.metrics,
        };
        while !stop.is_cancelled() {
            intake.read_waiting();
            let room = self.room(&intake, runtime);
            // It polls even without room: a consumer that does not poll leaves its group.
            self.consumer
                .hold(room == 0)
                .context("could not pause or resume the consumer")?;
            let limits = PollLimits {
                records: room.max(1),
                bytes: POLL_BYTES_MAX,
            };
            intake.oldest = wall_clock() - self.max_age;
            self.consumer.poll(limits, POLL_WAIT, &mut intake)?;
            intake.report_skipped();
            self.publish_dead_letters(&mut intake, runtime, stop);
            for source in settled.try_iter() {
                intake.progress.done(source);
            }
            self.commit(&mut intake.progress);
        }
        let mut progress = intake.progress;
        drop(intake.reads);
        for source in settled {
            progress.done(source);
        }
        self.consumer
            .close(CLOSE_TIMEOUT, &mut Closing { progress });
        Ok(())
    }

    /// How many records may be read. Waits briefly if there is no room for any.
    fn room<T: Followed>(&self, intake: &Intake<'_, T>, runtime: &Handle) -> usize {
        if !intake.waiting.is_empty() || intake.dead_letters.len() >= DEAD_LETTERS_MAX {
            return 0;
        }
        let reads = &intake.reads;
        if reads.capacity() == 0 {
            // The capacity below shows whether room became free in time.
            _ = runtime.block_on(async { timeout(POLL_WAIT, reads.reserve()).await.map(drop) });
        }
        let ahead = intake.progress.ahead();
        self.metrics.waiting.set(ahead as f64);
        self.ahead_max.saturating_sub(ahead).min(reads.capacity())
    }

    /// Publishes the dead letters. Those that fail are tried again after the next poll, or read
    /// again after the next start.
    fn publish_dead_letters<T>(
        &self,
        intake: &mut Intake<'_, T>,
        runtime: &Handle,
        stop: &CancellationToken,
    ) {
        let Some(publisher) = &self.publisher else {
            return;
        };
        if intake.dead_letters.is_empty() {
            return;
        }
        let Intake {
            dead_letters,
            progress,
            ..
        } = intake;
        let keep_all = async {
            while let Some((source, dead_letter)) = dead_letters.last() {
                publish_dead_letters(publisher, std::slice::from_ref(dead_letter)).await?;
                progress.done(*source);
                dead_letters.pop();
            }
            Ok::<_, ProduceError>(())
        };
        let publishing = async { timeout(PUBLISH_TIMEOUT, keep_all).await };
        match runtime.block_on(stop.run_until_cancelled(publishing)) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => tracing::warn!(
                receiver = self.receiver,
                error = &error as &dyn std::error::Error,
                "could not write an undecodable record to the dead-letter topic; retrying"
            ),
            Some(Err(_)) => tracing::warn!(
                receiver = self.receiver,
                "writing an undecodable record to the dead-letter topic timed out; retrying"
            ),
        }
    }

    fn commit(&self, progress: &mut GroupProgress<()>) {
        let commits = progress.take_commits();
        let commits: Vec<(&str, PartitionId, Offset)> = commits
            .iter()
            .map(|((), partition, offset)| (self.topic.as_str(), *partition, *offset))
            .collect();
        if let Err(error) = self.consumer.commit(&commits) {
            tracing::warn!(
                receiver = self.receiver,
                error = &error as &dyn std::error::Error,
                "could not commit offsets of delivered records; a restart may deliver them again"
            );
        }
    }
}

/// Handles records while the reader polls.
struct Intake<'a, T> {
    progress: GroupProgress<()>,
    reads: mpsc::Sender<Read<T>>,
    /// Items from before this time are skipped.
    oldest: Timestamp,
    skipped: u64,
    /// Records whose schema the registry has not sent yet. While there are any, polling pauses.
    waiting: Vec<(Source, RawRecord)>,
    /// Dead letters to publish. While there are many, polling pauses.
    dead_letters: Vec<(Source, RawRecord)>,
    /// Whether this follower publishes dead letters.
    publishes_dead_letters: bool,
    topic: &'a str,
    framing: &'a Framing,
    receiver: &'a str,
    metrics: &'a FollowerMetrics,
}

impl<T> Intake<'_, T> {
    fn report_skipped(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            self.metrics.skipped.increment(skipped);
            let receiver = self.receiver;
            tracing::warn!(
                receiver,
                skipped,
                "skipped records that are older than alerts.maxAge"
            );
        }
    }
}

impl<T: Followed> Intake<'_, T> {
    /// Decodes the waiting records again.
    fn read_waiting(&mut self) {
        for (source, record) in std::mem::take(&mut self.waiting) {
            let value = record.value.as_deref().unwrap_or_default();
            self.take(source, value, || record.clone());
        }
    }

    fn take(&mut self, source: Source, value: &[u8], record: impl FnOnce() -> RawRecord) {
        match T::read(value, self.framing) {
            Ok(item) if item.at() < self.oldest => {
                self.skipped += 1;
                self.progress.done(source);
            }
            Ok(item) => {
                // The poll was limited to the available room. If the channel is closed, the record
                // is not settled, and is read again after the next start.
                _ = self.reads.try_send(Read { source, item });
            }
            Err(error) if error.waits_for().is_some() => {
                self.waiting.push((source, record()));
            }
            Err(error) => {
                self.metrics.unreadable.increment(1);
                tracing::error!(
                    receiver = self.receiver,
                    topic = self.topic,
                    partition = %source.partition,
                    offset = %source.offset,
                    error = &error as &dyn std::error::Error,
                    "could not decode a record; not delivering it"
                );
                match self.publishes_dead_letters {
                    true => {
                        let dead_letter = dead_letter(record(), "alerts", &chain(&error));
                        self.dead_letters.push((source, dead_letter));
                    }
                    false => self.progress.done(source),
                }
            }
        }
    }
}

impl<T: Followed> GroupHandler for Intake<'_, T> {
    fn record(&mut self, record: RecordRef<'_>) {
        let begun = self.progress.begin((), record.partition(), record.offset());
        let Some(begun) = begun else {
            return;
        };
        if let Some(read_to) = begun.old_log_read_to {
            record.report_new_log(read_to);
        }
        let value = record.value().unwrap_or_default();
        self.take(begun.record, value, || record.to_raw());
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.progress.assign((), at.partition);
        }
    }

    fn revoked(&mut self, gone: &[TopicPartition], _lost: bool) -> Vec<(TopicPartition, Offset)> {
        give_up(&mut self.progress, gone)
    }

    fn takes_undecodable(&self) -> bool {
        true
    }

    fn undecodable(&mut self, log: &DamagedLog, next: Offset) -> bool {
        let begun = self
            .progress
            .begin_undecodable((), log.partition, log.offset);
        if let Some(source) = begun {
            self.metrics.unreadable.increment(1);
            match self.publishes_dead_letters {
                true => {
                    let dead_letter = undecodable_dead_letter(log, next, "alerts");
                    self.dead_letters.push((source, dead_letter));
                }
                false => self.progress.done(source),
            }
        }
        self.progress.pass((), log.partition, next);
        true
    }
}

/// Commits the settled offsets when the reader leaves its group.
struct Closing {
    progress: GroupProgress<()>,
}

impl GroupHandler for Closing {
    /// No more records are handled; they are read again after the next start.
    fn record(&mut self, _record: RecordRef<'_>) {}

    fn assigned(&mut self, _partitions: &[TopicPartition]) {}

    fn revoked(&mut self, gone: &[TopicPartition], _lost: bool) -> Vec<(TopicPartition, Offset)> {
        give_up(&mut self.progress, gone)
    }
}

/// Gives up revoked partitions. Their next owner reads the unsettled records again.
fn give_up(
    progress: &mut GroupProgress<()>,
    gone: &[TopicPartition],
) -> Vec<(TopicPartition, Offset)> {
    gone.iter()
        .filter_map(|at| Some((at.clone(), progress.revoke((), at.partition)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use waybill_kafka::DamageKind;

    use super::*;

    const P: PartitionId = PartitionId(2);

    fn intake<'a>(
        publishes_dead_letters: bool,
        framing: &'a Framing,
        metrics: &'a FollowerMetrics,
    ) -> Intake<'a, Alert> {
        let mut progress = GroupProgress::default();
        progress.assign((), P);
        Intake {
            progress,
            reads: mpsc::channel(1).0,
            oldest: Timestamp::default(),
            skipped: 0,
            waiting: Vec::new(),
            dead_letters: Vec::new(),
            publishes_dead_letters,
            topic: "waybill.operator-alerts.v1",
            framing,
            receiver: "pager",
            metrics,
        }
    }

    #[test]
    fn undecodable_records_get_one_dead_letter_and_the_partition_continues_behind_them() {
        let (framing, metrics) = (Framing::default(), FollowerMetrics::new("pager"));
        let log = DamagedLog {
            topic: "waybill.operator-alerts.v1".to_owned(),
            partition: P,
            offset: Offset(7),
            cause: "records at this offset cannot be parsed".to_owned(),
            kind: DamageKind::Undecodable,
            next: Some(Offset(12)),
        };
        let mut first = intake(true, &framing, &metrics);
        assert!(first.takes_undecodable());
        // The client may meet them again.
        for _ in 0..2 {
            assert!(first.undecodable(&log, Offset(12)));
        }
        assert_eq!(first.dead_letters.len(), 1);
        let (source, dead_letter) = first.dead_letters.remove(0);
        assert_eq!(dead_letter.topic, "waybill.operator-alerts.v1.dlq");
        // Nothing is committed before the broker has the dead letter.
        assert_eq!(first.progress.take_commits(), [((), P, Offset(7))]);
        first.progress.done(source);
        assert_eq!(first.progress.take_commits(), [((), P, Offset(12))]);

        let mut second = intake(false, &framing, &metrics);
        assert!(second.undecodable(&log, Offset(12)));
        assert!(second.dead_letters.is_empty());
        assert_eq!(second.progress.take_commits(), [((), P, Offset(12))]);
    }
}
