//! Delivers alerts from their topic to a receiver.
//!
//! Each receiver has its own consumer group, and therefore its own position in the topic: a
//! receiver that was unreachable gets everything later, and delays no other. A new group begins at
//! the start of the topic.
//!
//! What must hold:
//!
//! * **No alert is skipped**: an offset is committed only once every alert before it is settled,
//!   that is, delivered or given up. Unsettled alerts are read again after a stop.
//! * **Reading ahead is bounded** by `queueMax` and `foldedMax` together. Beyond it the alerts wait
//!   in the topic, and the consumer stays in its group.
//!
//! A record that cannot be read goes to the topic's dead-letter topic. Only the first follower, in
//! the order of their names, publishes it, so that it is published once. If another becomes the
//! first, it publishes the records that it reads from then on, some of them possibly again.
//!
//! Two processes share a receiver's partitions. A process that takes over a partition may deliver
//! alerts again that the other was delivering; alerts have ids.

mod reader;

use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use waybill_engine::Consumed;
use waybill_kafka::{
    GroupConsumer, GroupOptions, KafkaSettings, Producer, ProducerOptions, Settlement,
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
/// at every alert.
const BATCH_MAX: usize = 64;
/// Prefetched records of one receiver: alerts are small.
const PREFETCH_KIB_MAX: u32 = 1024;

/// A record of the followed topic.
pub(super) type Source = Consumed<()>;

/// The source of alerts.
#[derive(Clone, Debug)]
pub struct AlertSource {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The names of the topics.
    pub topics: Topics,
    /// A name that stays the same over restarts of this process, so that it gets its partitions
    /// back immediately after it was killed; `None` to join as a new member at each start.
    pub instance_id: Option<String>,
    /// How long an attempt in progress at a stop may continue. An attempt that is cut off is
    /// repeated after the next start, and the receiver may then get the alert twice.
    pub stop_within: Duration,
}

/// Delivers alerts to one receiver, once it [runs](Follower::run).
#[must_use = "without its follower a receiver gets nothing"]
pub struct Follower {
    notifier: Notifier,
    worker: Worker,
    source: AlertSource,
    max_age: Duration,
    ahead_max: usize,
    publishes_dead_letters: bool,
}

/// Creates a follower for every receiver of the configuration, in the order of their names.
///
/// # Errors
///
/// If the configuration of a receiver is invalid.
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

    /// Delivers alerts to the receiver until it is stopped.
    ///
    /// # Errors
    ///
    /// If the topic cannot be read. An unreachable receiver is no error.
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

/// What to read for one receiver, and how far ahead.
pub(super) struct Reading {
    /// The receiver's name.
    pub(super) name: String,
    /// Its consumer group.
    pub(super) group: String,
    /// The topic.
    pub(super) topic: String,
    pub(super) source: AlertSource,
    /// Older records are skipped.
    pub(super) max_age: Duration,
    /// How far to read ahead of the settled records, in records.
    pub(super) ahead_max: usize,
    /// Whether it publishes dead letters: only one of several followers of a topic does.
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

/// Reads on its own thread until it is stopped. `deliver` sends the items that were read, and
/// reports which are settled.
pub(super) async fn read_with<T: Followed, F: Future<Output = ()>>(
    reading: Reading,
    stop: CancellationToken,
    deliver: impl FnOnce(mpsc::Receiver<Read<T>>, std_mpsc::Sender<Source>) -> F,
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
            // The receiver is gone only if this future was dropped.
            _ = end.send(reader.run(reads, &settling, &runtime, &stop));
        })
        .context("a thread that reads alerts cannot be started")?;
    let mut reading = std::pin::pin!(async {
        ended
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that reads alerts panicked")))
    });
    tokio::select! {
        // The reader ends first only if it failed.
        result = &mut reading => return result,
        () = deliver(read, settled) => {}
    }
    // Everything is settled now, or never will be.
    reading.await
}

/// Runs `sending` to its end, but after a stop for `stop_within` at most.
pub(super) async fn unless_too_late(
    sending: impl Future<Output = ()>,
    stop: &CancellationToken,
    stop_within: Duration,
    receiver: &str,
) {
    let too_late = async {
        stop.cancelled().await;
        sleep(stop_within).await;
    };
    tokio::select! {
        () = sending => {}
        () = too_late => {
            tracing::warn!(receiver, "aborted unfinished deliveries at the stop");
        }
    }
}

/// Passes alerts to the notifier and reports which are settled, until the input ends and none is
/// open.
async fn hand_over(
    mut read: mpsc::Receiver<Read<Alert>>,
    notifier: Notifier,
    settled: std_mpsc::Sender<Source>,
) {
    // Unbounded: the worker already bounds the alerts that it accepts.
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
                    // If the reader has ended, it reads the record again after the next start.
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
