//! Reads the final states from the status topic into the results, on its own thread.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::oneshot;
use waybill_engine::{Offset, OperationStatus, PartitionId, StatusKind};
use waybill_kafka::{
    Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits, RecordRef,
};
use waybill_messages::{Framing, Topics};

use super::processes::{Watched, subjects_are_gone};
use crate::results::{End, RunResults};

const POLL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time that a fetch waits for records. librdkafka includes a new partition only in its
/// next fetch, and every partition must have been fetched before a run begins.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(100);
/// How often the number of partitions is checked.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Follows the status topic from its end at the time of creation.
#[derive(Clone)]
pub struct Statuses {
    shared: Arc<Shared>,
}

struct Shared {
    results: Arc<RunResults>,
    framing: Framing,
    /// The number of partitions of the topic.
    partitions: AtomicU32,
    stop: AtomicBool,
    follower: Mutex<Option<JoinHandle<anyhow::Result<()>>>>,
}

impl Statuses {
    /// Reads the topic into `results`. Returns once every partition was fetched, so that later ends
    /// are seen without delay.
    ///
    /// # Errors
    ///
    /// If the topic does not exist, or no broker is reachable.
    pub async fn follow(
        settings: &KafkaSettings,
        topics: &Topics,
        results: Arc<RunResults>,
    ) -> anyhow::Result<Self> {
        let topic = topics.operation_status().to_owned();
        let admin = Admin::new(settings, "waybill-loadtest-admin")?;
        let partitions = admin
            .topic_partitions(&topic)
            .await?
            .context("the status topic does not exist")?;
        let options = ConsumerOptions {
            fetch_wait_max: FETCH_WAIT_MAX,
            ..ConsumerOptions::new("waybill-loadtest")
        };
        let consumer = PartitionConsumer::new(settings, &options)?;
        let mut ends = Vec::new();
        for partition in (0..partitions).map(PartitionId) {
            let (_, end) = consumer.watermarks(&topic, partition, TIMEOUT)?;
            ends.push((topic.as_str(), partition, end));
        }
        consumer.add(&ends)?;
        let shared = Arc::new(Shared {
            results,
            framing: topics.framing().clone(),
            partitions: AtomicU32::new(partitions),
            stop: AtomicBool::new(false),
            follower: Mutex::default(),
        });
        tokio::spawn(count_partitions(
            Arc::downgrade(&shared),
            admin,
            topic.clone(),
        ));
        let following = shared.clone();
        let (all_read, reads) = oneshot::channel();
        let follower = std::thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || {
                following.follow(Following {
                    consumer,
                    topic,
                    partitions,
                    unread: (0..partitions).map(PartitionId).collect(),
                    all_read: Some(all_read),
                })
            })?;
        let statuses = Self { shared };
        *statuses.shared.follower() = Some(follower);
        match tokio::time::timeout(TIMEOUT, reads).await {
            Ok(Ok(())) => Ok(statuses),
            Ok(Err(_)) => Err(statuses
                .stop()
                .err()
                .unwrap_or_else(|| anyhow::anyhow!("the status topic is no longer followed"))),
            Err(_) => {
                statuses.shared.stop.store(true, Ordering::Relaxed);
                anyhow::bail!("not every partition of the status topic was read within {TIMEOUT:?}")
            }
        }
    }

    /// Waits until every accepted operation has ended or `deadline` is reached. Also ends if the
    /// topic is not followed any more, or all measured `processes` have ended.
    pub async fn wait_until(&self, deadline: Instant, processes: &[Watched]) {
        while Instant::now() < deadline
            && self.is_followed()
            && !self.shared.results.all_ended()
            && !subjects_are_gone(processes)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops following.
    ///
    /// # Errors
    ///
    /// If following the topic has failed.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let follower = self.shared.follower().take();
        let Some(follower) = follower else {
            return Ok(());
        };
        match follower.join() {
            Ok(followed) => followed.context("the status topic could not be followed to the end"),
            Err(_) => anyhow::bail!("the thread that follows the status topic panicked"),
        }
    }

    fn is_followed(&self) -> bool {
        let follower = self.shared.follower();
        follower
            .as_ref()
            .is_some_and(|follower| !follower.is_finished())
    }
}

/// Checks for new partitions of the topic while it is followed.
async fn count_partitions(shared: Weak<Shared>, admin: Admin, topic: String) {
    loop {
        tokio::time::sleep(COUNT_EVERY).await;
        let found = admin.topic_partitions(&topic).await;
        let Some(shared) = shared.upgrade() else {
            // Dropping it takes a tenth of a second, which could delay requests of the next run.
            tokio::task::spawn_blocking(move || drop(admin));
            return;
        };
        if let Ok(Some(partitions)) = found {
            shared.partitions.fetch_max(partitions, Ordering::Relaxed);
        }
    }
}

/// The state of the thread that follows the topic.
struct Following {
    consumer: PartitionConsumer,
    topic: String,
    /// The number of partitions that it reads.
    partitions: u32,
    /// The initial partitions that no fetch has covered yet.
    unread: HashSet<PartitionId>,
    /// Notified when `unread` is empty.
    all_read: Option<oneshot::Sender<()>>,
}

impl Following {
    /// Polls. While partitions are unread, also records which of them were fetched.
    fn poll(&mut self, on_record: &mut dyn FnMut(RecordRef<'_>)) -> Result<(), PollError> {
        const WAIT: Duration = Duration::from_millis(100);
        if self.all_read.is_none() {
            return self.consumer.poll(POLL, WAIT, on_record).map(|_| ());
        }
        let unread = RefCell::new(&mut self.unread);
        self.consumer.poll_with_positions(
            POLL,
            WAIT,
            &mut |record| {
                unread.borrow_mut().remove(&record.partition());
                on_record(record);
            },
            &mut |_, partition, _| {
                unread.borrow_mut().remove(&partition);
            },
        )?;
        if self.unread.is_empty()
            && let Some(all_read) = self.all_read.take()
        {
            let _ = all_read.send(());
        }
        Ok(())
    }
}

impl Shared {
    /// Reads the initial partitions from their ends, and later ones from their beginning.
    fn follow(&self, mut following: Following) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.partitions.load(Ordering::Relaxed);
            let new = (following.partitions..now)
                .map(|new| (following.topic.as_str(), PartitionId(new), Offset(0)));
            let new: Vec<_> = new.collect();
            if !new.is_empty() {
                following.consumer.add(&new)?;
                following.partitions = now;
            }
            let mut arrived = Vec::new();
            following.poll(&mut |record| {
                let decoded = record.value().map(|value| self.framing.decode(value));
                if let Some(Ok::<OperationStatus, _>(status)) = decoded
                    && status.kind == StatusKind::Final
                {
                    arrived.push((status.operation, status.state, status.sequence));
                }
            })?;
            let at = Instant::now();
            self.results
                .ended(arrived.into_iter().map(|(id, state, sequence)| {
                    let end = End {
                        state,
                        sequence,
                        at,
                    };
                    (id, end)
                }));
        }
        Ok(())
    }

    fn follower(&self) -> MutexGuard<'_, Option<JoinHandle<anyhow::Result<()>>>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
