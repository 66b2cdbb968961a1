//! The final states, as the status topic tells them: a thread of its own reads it into the book.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_engine::{Offset, OperationStatus, PartitionId, StatusKind};
use waybill_kafka::{Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_messages::{Framing, Topics};

use super::book::{Book, End};

const POLL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked how many partitions the topic has.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Follows the status topic from where it ended when this was made.
#[derive(Clone)]
pub struct Statuses {
    shared: Arc<Shared>,
}

struct Shared {
    book: Arc<Book>,
    framing: Framing,
    /// How many partitions the topic has.
    partitions: AtomicU32,
    stop: AtomicBool,
    follower: Mutex<Option<JoinHandle<anyhow::Result<()>>>>,
}

impl Statuses {
    /// Follows it into `book`.
    ///
    /// # Errors
    ///
    /// If there is no such topic, or no broker.
    pub async fn follow(brokers: &str, topics: &Topics, book: Arc<Book>) -> anyhow::Result<Self> {
        let settings = KafkaSettings::new(brokers);
        let topic = topics.operation_status().to_owned();
        let admin = Admin::new(&settings, "waybill-loadtest-admin")?;
        let partitions = admin
            .topic_partitions(&topic)
            .await?
            .context("there is no status topic")?;
        let consumer =
            PartitionConsumer::new(&settings, &ConsumerOptions::new("waybill-loadtest"))?;
        let mut ends = Vec::new();
        for partition in (0..partitions).map(PartitionId) {
            let (_, end) = consumer.watermarks(&topic, partition, TIMEOUT)?;
            ends.push((topic.as_str(), partition, end));
        }
        consumer.add(&ends)?;
        let shared = Arc::new(Shared {
            book,
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
        let follower = std::thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || following.follow(&consumer, &topic, partitions))?;
        *shared
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(follower);
        Ok(Self { shared })
    }

    /// Waits until every accepted operation has ended, `deadline` has come, or nothing can be learnt
    /// any more.
    pub async fn wait_until(&self, deadline: Instant) {
        while Instant::now() < deadline && self.is_followed() && !self.shared.book.all_ended() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops following.
    ///
    /// # Errors
    ///
    /// If the topic could not be followed until now.
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

/// Looks whether the topic has got more partitions, for as long as anybody follows it.
async fn count_partitions(shared: Weak<Shared>, admin: Admin, topic: String) {
    loop {
        tokio::time::sleep(COUNT_EVERY).await;
        let found = admin.topic_partitions(&topic).await;
        let Some(shared) = shared.upgrade() else {
            // Its end takes a tenth of a second, in which the next run's requests may have to leave.
            tokio::task::spawn_blocking(move || drop(admin));
            return;
        };
        if let Ok(Some(partitions)) = found {
            shared.partitions.fetch_max(partitions, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Reads the first `partitions` of the topic, and those that come later from their beginning.
    fn follow(
        &self,
        consumer: &PartitionConsumer,
        topic: &str,
        mut partitions: u32,
    ) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.partitions.load(Ordering::Relaxed);
            let new = (partitions..now).map(|new| (topic, PartitionId(new), Offset(0)));
            let new: Vec<_> = new.collect();
            if !new.is_empty() {
                consumer.add(&new)?;
                partitions = now;
            }
            let mut arrived = Vec::new();
            consumer.poll(POLL, Duration::from_millis(100), &mut |record| {
                let decoded = record.value().map(|value| self.framing.decode(value));
                if let Some(Ok::<OperationStatus, _>(status)) = decoded
                    && status.kind == StatusKind::Final
                {
                    arrived.push((status.operation, status.state, status.sequence));
                }
            })?;
            let at = Instant::now();
            self.book
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
