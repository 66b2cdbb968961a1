//! From the alerts' topic to a receiver.
//!
//! Each receiver has a consumer group of its own, and so a place of its own in the topic: whoever is
//! away finds everything when it is back, and keeps nobody else waiting. The first time, a group
//! begins at the beginning.
//!
//! What must hold:
//!
//! * **No alert is passed over**: an offset is committed only once the receiver had, or will not
//!   have, every alert before it. What a stop left undone is read again.
//! * **Reading ahead is bounded**: `queueMax` and `foldedMax` together. Beyond it the topic is the
//!   queue; the group is served all the same.
//!
//! A record that cannot be read goes to the topic's dead-letter topic, by the first of its followers (in the
//! order of their names), so that it lies there once. Where another becomes the first, it keeps what is
//! before it, be it for the second time.
//!
//! Two processes share a receiver's partitions. One that takes a partition over tells again of what
//! the other was telling of; alerts have ids.

mod reader;

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use waybill_kafka::{
    Consumed, GroupConsumer, GroupOptions, KafkaSettings, Producer, ProducerOptions, Settlement,
};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, Topics};

use self::reader::Reader;
pub(super) use self::reader::{Followed, Read};
use super::alert::Alert;
use super::metrics::FollowerMetrics;
use super::notifier::{Notifier, Receipt, Undeliverable};
use super::worker::Worker;
use super::{ReceiverError, receivers};
use crate::config::AlertsConfig;

/// Alerts between the polling thread and the notifier: a batch, so that neither waits for the other
/// at every single one.
const BATCH_MAX: usize = 64;
/// Prefetched records of one receiver: alerts are small.
const PREFETCH_KIB_MAX: u32 = 1024;

/// A record of the topic that is followed.
pub(super) type Source = Consumed<()>;

/// Where alerts are read from.
#[derive(Clone, Debug)]
pub struct AlertSource {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The names of the topics.
    pub topics: Topics,
    /// A name that stays the same over restarts of this process, so that it gets its partitions back
    /// at once after it was killed; `None` to join as somebody new at each start.
    pub instance_id: Option<String>,
    /// How long an attempt that is under way at a stop may go on. One that is cut off is made again
    /// after the next start, and may then be the second that succeeds.
    pub stop_within: Duration,
}

/// Tells one receiver of the alerts, once it [runs](Follower::run).
#[must_use = "without its follower a receiver gets nothing"]
pub struct Follower {
    notifier: Notifier,
    worker: Worker,
    source: AlertSource,
    max_age: Duration,
    ahead_max: usize,
    publishes_dead_letters: bool,
}

/// Makes a follower for every receiver of the configuration, in the order of their names.
///
/// # Errors
///
/// If a receiver cannot work as it is configured.
pub fn followers(
    config: &AlertsConfig,
    source: &AlertSource,
) -> Result<Vec<Follower>, ReceiverError> {
    let follower = |(nth, (notifier, worker))| Follower {
        publishes_dead_letters: nth == 0,
        notifier,
        worker,
        source: source.clone(),
        max_age: config.max_age,
        ahead_max: config.queue_max.saturating_add(config.folded_max),
    };
    let receivers = receivers(config)?.into_iter().enumerate();
    Ok(receivers.map(follower).collect())
}

impl Follower {
    /// The receiver's name in the configuration.
    #[must_use]
    pub fn receiver(&self) -> &str {
        self.notifier.name()
    }

    /// Tells the receiver of alerts until it is stopped.
    ///
    /// # Errors
    ///
    /// If the topic cannot be read. A receiver that cannot be reached is no error.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let receiver = self.receiver().to_owned();
        let Self {
            notifier,
            worker,
            source,
            max_age,
            ahead_max,
            publishes_dead_letters,
        } = self;
        let stop_within = source.stop_within;
        let reading = Reading {
            name: receiver.clone(),
            group: format!("{}.alerts.{receiver}", source.topics.prefix()),
            topic: source.topics.operator_alerts().to_owned(),
            metrics: FollowerMetrics::new(&receiver),
            source,
            max_age,
            ahead_max,
            publishes_dead_letters,
        };
        let may_go_on = stop.clone();
        read_with(reading, stop, |read, settled| async move {
            let serving = worker.run(may_go_on.clone());
            tokio::join!(
                unless_too_late(serving, &may_go_on, stop_within, &receiver),
                hand_over(read, notifier, settled),
            );
        })
        .await
    }
}

/// What one receiver is told of, and how far its topic is read ahead.
pub(super) struct Reading {
    /// The receiver's name.
    pub(super) name: String,
    /// Its consumer group.
    pub(super) group: String,
    /// The topic.
    pub(super) topic: String,
    pub(super) source: AlertSource,
    /// What is older is not told of.
    pub(super) max_age: Duration,
    /// How far to read ahead of what is settled, in records.
    pub(super) ahead_max: usize,
    /// Whether what cannot be read is its to keep: of several that follow one topic, one does.
    pub(super) publishes_dead_letters: bool,
    pub(super) metrics: FollowerMetrics,
}

impl Reading {
    fn reader(self) -> anyhow::Result<Reader> {
        let options = GroupOptions {
            instance_id: self.source.instance_id,
            queue_kib_max: PREFETCH_KIB_MAX,
            ..GroupOptions::new(self.group, "waybill-alerts")
        };
        let mut consumer = GroupConsumer::new(&self.source.kafka, &options)
            .with_context(|| format!("the consumer for {} cannot be made", self.name))?;
        consumer
            .subscribe(&[&self.topic])
            .with_context(|| format!("{} cannot be followed", self.topic))?;
        let publisher = match self.publishes_dead_letters {
            true => Some(publisher(&self.source.kafka)?),
            false => None,
        };
        Ok(Reader {
            publisher,
            receiver: self.name,
            topic: self.topic,
            consumer,
            max_age: self.max_age,
            ahead_max: self.ahead_max,
            framing: self.source.topics.framing().clone(),
            metrics: self.metrics,
        })
    }
}

fn publisher(kafka: &KafkaSettings) -> anyhow::Result<Producer<Arc<Settlement>>> {
    let options = ProducerOptions {
        message_bytes_max: DEAD_LETTER_BYTES_MAX,
        ..ProducerOptions::new("waybill-alerts")
    };
    Producer::new(kafka, &options).context("the producer for dead letters cannot be made")
}

/// Reads on a thread of its own until it is stopped, with somebody who tells of what is read and says
/// what is settled.
pub(super) async fn read_with<T: Followed, F: Future<Output = ()>>(
    reading: Reading,
    stop: CancellationToken,
    tell: impl FnOnce(mpsc::Receiver<Read<T>>, std_mpsc::Sender<Source>) -> F,
) -> anyhow::Result<()> {
    let name = format!("waybill-alerts-{}", reading.name);
    let reader = reading.reader()?;
    let (reads, read) = mpsc::channel(BATCH_MAX);
    let (settled, settling) = std_mpsc::channel();
    let (end, ended) = oneshot::channel();
    let runtime = Handle::current();
    std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            // Nobody is left to be told where the process was cut off.
            _ = end.send(reader.run(reads, &settling, &runtime, &stop));
        })
        .context("a thread that reads alerts cannot be started")?;
    let mut reading = std::pin::pin!(async {
        ended
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that reads alerts panicked")))
    });
    tokio::select! {
        // It ends first only where it failed.
        result = &mut reading => return result,
        () = tell(read, settled) => {}
    }
    // By now everything is settled, or will not be.
    reading.await
}

/// Lets somebody tell of alerts until the end, or for as long as that may take after a stop.
pub(super) async fn unless_too_late(
    telling: impl Future<Output = ()>,
    stop: &CancellationToken,
    stop_within: Duration,
    receiver: &str,
) {
    let too_late = async {
        stop.cancelled().await;
        sleep(stop_within).await;
    };
    tokio::select! {
        () = telling => {}
        () = too_late => {
            tracing::warn!(receiver, "what was being sent at the stop is cut off");
        }
    }
}

/// Hands over what is read, and says what is settled, until nothing more is read and nothing is
/// open.
async fn hand_over(
    mut read: mpsc::Receiver<Read<Alert>>,
    notifier: Notifier,
    settled: std_mpsc::Sender<Source>,
) {
    // As many as the worker takes: it bounds them.
    let (handed, mut receipts) = mpsc::unbounded_channel();
    let handing = async move {
        while let Some(Read { source, item }) = read.recv().await {
            let receipt = notifier.submit(item).await;
            if handed.send((source, receipt)).is_err() {
                return;
            }
        }
    };
    let settling = async move {
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some((source, receipt)) = receipts.recv() => open.push(outcome(source, receipt)),
                Some((source, result)) = open.next() => {
                    // A reader that has ended reads it again after the next start.
                    if result != Err(Undeliverable::Stopped) && settled.send(source).is_err() {
                        return;
                    }
                }
                else => return,
            }
        }
    };
    tokio::join!(handing, settling);
}

async fn outcome(source: Source, receipt: Receipt) -> (Source, Result<(), Undeliverable>) {
    (source, receipt.await)
}
