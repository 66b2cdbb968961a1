//! The polling thread of one receiver: it reads as far ahead as it may, and commits what is settled.

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use waybill_clock::wall_clock;
use waybill_engine::{Offset, OperatorAlert, PartitionId, Timestamp};
use waybill_kafka::{
    GroupConsumer, GroupHandler, GroupProgress, PollLimits, ProduceError, Producer, RawRecord,
    RecordRef, Settlement, TopicPartition, dead_letter, publish_dead_letters,
};
use waybill_messages::{DecodeError, Framing};
use waybill_telemetry::chain;

use super::Source;
use crate::alert::Alert;
use crate::metrics::FollowerMetrics;

/// How long a poll waits, and how long room is waited for: together the longest that a stop, or an
/// alert that is settled, goes unnoticed.
const POLL_WAIT: Duration = Duration::from_millis(200);
const POLL_BYTES_MAX: usize = 1024 * 1024;
/// How many dead letters may wait to be published before no more records are polled.
const DEAD_LETTERS_MAX: usize = 16;
/// How long alerts may wait for them to be published, each time that is tried.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What is followed, as it is handed on.
pub(crate) trait Followed: Sized + Send + 'static {
    /// Reads a record.
    fn read(value: &[u8], framing: &Framing) -> Result<Self, DecodeError>;

    /// When it came about.
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

/// A record on its way from the topic to whoever tells of it.
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
    /// How far to read ahead of what is settled, in records.
    pub(super) ahead_max: usize,
    pub(super) framing: Framing,
    pub(super) metrics: FollowerMetrics,
    /// What keeps records that cannot be read; `None` where another follower of the topic keeps them.
    pub(super) publisher: Option<Producer<Arc<Settlement>>>,
}

impl Reader {
    /// Reads until it is stopped; then waits until everything that it has read is settled, or never
    /// will be: until nobody can say so to `settled` any more.
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
            // Without room it polls all the same: who does not poll leaves the group.
            self.consumer
                .hold(room == 0)
                .context("records that wait cannot be left in their topic")?;
            let limits = PollLimits {
                records: room.max(1),
                bytes: POLL_BYTES_MAX,
            };
            intake.oldest = wall_clock() - self.max_age;
            self.consumer.poll(limits, POLL_WAIT, &mut intake)?;
            intake.tell_of_skipped();
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

    /// How many records may be taken. Waits a little where there is no place for a single one.
    fn room<T: Followed>(&self, intake: &Intake<'_, T>, runtime: &Handle) -> usize {
        if !intake.waiting.is_empty() || intake.dead_letters.len() >= DEAD_LETTERS_MAX {
            return 0;
        }
        let reads = &intake.reads;
        if reads.capacity() == 0 {
            // Whether there was a place in time shows below.
            _ = runtime.block_on(async { timeout(POLL_WAIT, reads.reserve()).await.map(drop) });
        }
        let ahead = intake.progress.ahead();
        self.metrics.waiting.set(ahead as f64);
        self.ahead_max.saturating_sub(ahead).min(reads.capacity())
    }

    /// Keeps what could not be read. What cannot be kept now is tried again after the next poll, or read
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
                "a record that cannot be read is not kept yet; trying again"
            ),
            Some(Err(_)) => tracing::warn!(
                receiver = self.receiver,
                "a record that cannot be read is not kept in time; trying again"
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

/// Takes records in while the reader polls.
struct Intake<'a, T> {
    progress: GroupProgress<()>,
    reads: mpsc::Sender<Read<T>>,
    /// What happened before this is not told of any more.
    oldest: Timestamp,
    skipped: u64,
    /// Records whose schema the registry has not told yet. While there are some, no more are polled.
    waiting: Vec<(Source, RawRecord)>,
    /// Records that cannot be read, as they are to be kept. Once there are many, no more are polled.
    dead_letters: Vec<(Source, RawRecord)>,
    /// Whether they are this follower's to keep.
    publishes_dead_letters: bool,
    topic: &'a str,
    framing: &'a Framing,
    receiver: &'a str,
    metrics: &'a FollowerMetrics,
}

impl<T> Intake<'_, T> {
    fn tell_of_skipped(&mut self) {
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
    /// Reads again what could not be read yet.
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
                // No more is polled than there is place for. Where nobody takes records any more, it
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
                    "a record cannot be read and is not delivered"
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
        let begun = self
            .progress
            .begin((), record.partition(), record.offset(), self.topic);
        if let Some(source) = begun {
            let value = record.value().unwrap_or_default();
            self.take(source, value, || record.to_raw());
        }
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.progress.assign((), at.partition);
        }
    }

    fn revoked(&mut self, gone: &[TopicPartition], _lost: bool) -> Vec<(TopicPartition, Offset)> {
        give_up(&mut self.progress, gone)
    }
}

/// Says how far the receiver had the alerts when the reader leaves its group.
struct Closing {
    progress: GroupProgress<()>,
}

impl GroupHandler for Closing {
    /// Nothing is taken any more; what comes is read again after the next start.
    fn record(&mut self, _record: RecordRef<'_>) {}

    fn assigned(&mut self, _partitions: &[TopicPartition]) {}

    fn revoked(&mut self, gone: &[TopicPartition], _lost: bool) -> Vec<(TopicPartition, Offset)> {
        give_up(&mut self.progress, gone)
    }
}

/// Whoever gets the partitions reads again what the receiver has not had.
fn give_up(
    progress: &mut GroupProgress<()>,
    gone: &[TopicPartition],
) -> Vec<(TopicPartition, Offset)> {
    gone.iter()
        .filter_map(|at| Some((at.clone(), progress.revoke((), at.partition)?)))
        .collect()
}
