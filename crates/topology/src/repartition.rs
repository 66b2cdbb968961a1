//! Changes the number of partitions without downtime.
//!
//! 1. The layout records the intended number. From then on roles accept topics with the old or the
//!    new number.
//! 2. To grow, the topics get the partitions, and clients get time to refresh their metadata. To
//!    shrink, the layout records the boundaries of the remaining partitions, and every
//!    shard starts to use that layout: beyond the cuts other shards will read, too.
//! 3. The layout announces the new number: writers distribute operations over that many partitions.
//!    All shards of the new layout exist already and share the old partitions.
//! 4. When no writer can use the old number any more, the layout records where the old partitions
//!    ended. A shard with a new partition reads its old one up to there, and then begins.
//! 5. When all shards have begun, the layout drops these offsets.
//!
//! What must hold: each step is durable before the next one begins, and may be repeated. If the
//! process stops in the middle, operations continue, and a repeated command resumes the change.
//! Schedulers resume it too ([`finish`]), because operations may wait in the new partitions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use waybill_engine::{
    Offset, PartitionId, ShardId, ShardingScheme, Source, TopicOffsets, Workflows,
};
use waybill_kafka::{Admin, AdminError, ClientError, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::{Layout, LayoutError, Lease, LeaseKey, Retired, Store, StoreError};
use waybill_telemetry::chain;

use crate::partition_map::PartitionMap;
use crate::shards;
use crate::topics::{DISK_BOUND, names_with_partitions_of_operations};
use crate::{PARTITIONS_MAX, TopologySettings};

/// The interval between checks whether shards have begun.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The interval between checks for an unfinished change.
const FINISH_EVERY: Duration = Duration::from_secs(2);
/// How long a step may make no progress, in addition to two settle times, before another process
/// resumes it.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// How long to wait for shards. They begin whether or not the command waits.
const READERS_PATIENCE: Duration = Duration::from_secs(20);

/// Why the number of partitions was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RepartitionError {
    /// The store failed.
    #[error("cannot access the state store")]
    Store(#[from] StoreError),
    /// The brokers failed or refused the request.
    #[error("a request to the brokers failed")]
    Brokers(#[from] AdminError),
    /// The client could not be made.
    #[error("cannot create a Kafka client")]
    Client(#[from] ClientError),
    /// The layout does not allow this number.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The number is above the limit.
    #[error("the number of partitions must be at most {PARTITIONS_MAX}, not {0}")]
    TooMany(u32),
    /// No scheduler has stored a layout yet, so there is nothing to change.
    #[error(
        "the state store has no layout yet: start a scheduler, which creates one with `partitions` \
         of its configuration"
    )]
    NotBegun,
    /// The new number is in use, but a shard has not moved to its new partition yet.
    #[error(
        "the new number of partitions is in use, but shard {shard} has not yet read partition \
         {partition} to its end (requests {}, high-priority requests {}, replies {}, recoveries \
         {}). The shard continues without this command",
        .end.requests, .end.high_priority, .end.replies, .end.recoveries
    )]
    Unmoved {
        /// A shard that has not moved.
        shard: ShardId,
        /// The partition that it still reads.
        partition: PartitionId,
        /// The end up to which it must read.
        end: TopicOffsets,
    },
    /// To shrink, every shard must run under the new layout, and one does not.
    #[error(
        "shard {0} is not running, and every shard must run before the number of partitions can be \
         reduced: start a scheduler with this shard, or start the shard if it was stopped (`PUT \
         /schedulers/{0}` on the admin port)"
    )]
    Unbegun(ShardId),
    /// Another change replaced this one.
    #[error("another command changed the number of partitions to a different value")]
    Replaced,
    /// A topic does not exist.
    #[error("topic {0} does not exist: create it with `waybill topics create`")]
    NoTopic(String),
    /// A broker does not know all partitions of a topic yet.
    #[error(
        "a broker reports {has} partitions of topic {topic}, but at least {expected} exist: repeat \
         the command"
    )]
    Unknown {
        /// The topic.
        topic: String,
        /// How many the broker knows.
        has: u32,
        /// The minimum number that exists.
        expected: u32,
    },
    /// The disk limit on the embedded broker is too small for this number.
    #[error(
        "topic {topic} has segments of {segment} bytes and a disk limit of {bound} bytes: with \
         {partitions} partitions, the active segments alone would fill half of the limit"
    )]
    Disk {
        /// The topic.
        topic: String,
        /// How many partitions were asked for.
        partitions: u32,
        /// The size of its segments, in bytes.
        segment: u64,
        /// The disk limit of all its partitions together, in bytes.
        bound: u64,
    },
    /// A topic has more partitions than requested.
    #[error(
        "topic {topic} has {has} partitions, more than requested: run `waybill topics grow \
         {has}`"
    )]
    TooFew {
        /// The topic.
        topic: String,
        /// How many it has.
        has: u32,
    },
}

/// Changes the number of partitions of the operation topics.
#[derive(Clone, Debug)]
pub struct Repartition {
    store: Arc<dyn Store>,
    kafka: KafkaSettings,
    topics: Topics,
    /// The topics with as many partitions as operations are distributed over.
    names: Vec<String>,
    settle: Duration,
    progress: Arc<Mutex<Option<RepartitionView>>>,
}

/// The progress of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepartitionView {
    /// The requested number of partitions.
    pub partitions: u32,
    /// The current or last step.
    pub step: String,
    /// Whether the change is running.
    pub is_under_way: bool,
    /// Why the change ended early.
    pub error: Option<String>,
}

impl Repartition {
    /// For the topics and the store of this configuration.
    #[must_use]
    pub fn new(
        topology: &TopologySettings,
        store: Arc<dyn Store>,
        kafka: KafkaSettings,
        topics: Topics,
        workflows: &Workflows,
    ) -> Self {
        Self {
            names: names_with_partitions_of_operations(topology, workflows),
            store,
            kafka,
            topics,
            settle: topology.kafka.repartition_settle,
            progress: Arc::default(),
        }
    }

    /// Whether other processes use the store as well.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !self.store.is_exclusive()
    }

    /// The progress of the last change that this process began.
    #[must_use]
    pub fn view(&self) -> Option<RepartitionView> {
        self.progress().clone()
    }

    /// Begins a change in the background, or returns the running one if it has the same number.
    ///
    /// # Errors
    ///
    /// The running change, if it has another number.
    pub fn begin(&self, partitions: u32) -> Result<RepartitionView, RepartitionView> {
        let mut progress = self.progress();
        if let Some(under_way) = progress.as_ref().filter(|view| view.is_under_way) {
            return match under_way.partitions == partitions {
                true => Ok(under_way.clone()),
                false => Err(under_way.clone()),
            };
        }
        let view = RepartitionView {
            partitions,
            step: "beginning".to_owned(),
            is_under_way: true,
            error: None,
        };
        *progress = Some(view.clone());
        drop(progress);
        let repartition = self.clone();
        tokio::spawn(async move {
            let mut ending = Ending {
                repartition: &repartition,
                error: Some("the change stopped unexpectedly".to_owned()),
            };
            let report = |step: String| {
                if let Some(view) = repartition.progress().as_mut() {
                    view.step = step;
                }
            };
            let ended = repartition.run(partitions, &report).await;
            ending.error = ended.err().map(|error| chain(&error));
        });
        Ok(view)
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Option<RepartitionView>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the number of partitions, and waits until shards read them. `report` receives each
    /// step. Other processes may run the same change concurrently.
    ///
    /// # Errors
    ///
    /// If the number is not possible, or the store or the brokers fail. Completed steps remain.
    pub async fn run(
        &self,
        partitions: u32,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<(), RepartitionError> {
        if partitions > PARTITIONS_MAX {
            return Err(RepartitionError::TooMany(partitions));
        }
        self.drive(partitions, false, report).await
    }

    /// Resumes the change, or begins it unless `begun`. A change that was begun is never begun
    /// again, because another process may have finished it and then begun a different one.
    ///
    /// The future is boxed, so that this crate compiles it rather than the crates that await it.
    fn drive<'a>(
        &'a self,
        partitions: u32,
        begun: bool,
        report: &'a (dyn Fn(String) + Sync),
    ) -> BoxFuture<'a, Result<(), RepartitionError>> {
        Box::pin(self.driven(partitions, begun, report))
    }

    async fn driven(
        &self,
        partitions: u32,
        mut begun: bool,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<(), RepartitionError> {
        let admin = Admin::new(&self.kafka, "waybill-repartition")?;
        loop {
            let layout = self
                .store
                .layout()
                .await?
                .ok_or(RepartitionError::NotBegun)?;
            let is_under_way = layout.becomes() == Some(partitions);
            if begun && !is_under_way {
                let ShardingScheme {
                    partitions: read,
                    shards_per_partition: shards,
                } = layout.scheme();
                if read != partitions {
                    return Err(RepartitionError::Replaced);
                }
                report(format!(
                    "done: set `partitions` to {read} and `scheduler.shardsPerPartition` to {shards}; \
                     `waybill shards show` says when every shard has started"
                ));
                return Ok(());
            }
            begun |= is_under_way;
            let Some(next) = self.next_step(&layout, partitions, &admin, report).await? else {
                begun = true;
                continue;
            };
            // If another process stored a layout first, the loop continues from that one.
            if self.store.set_layout(Some(layout), next.clone()).await? {
                tracing::info!(layout = %next, "changed the shard layout");
                begun = true;
            }
        }
    }

    /// Performs the next step and returns the layout after it; `None` if nothing is left to do.
    async fn next_step(
        &self,
        layout: &Layout,
        partitions: u32,
        admin: &Admin,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<Option<Layout>, RepartitionError> {
        let settle = self.settle;
        if layout.is_announced() && layout.partitions_written() == partitions {
            report(format!(
                "new number announced; waiting {settle:?} for pending writes"
            ));
            tokio::time::sleep(settle).await;
            let bounds = self.bounds(admin, layout, layout.scheme().partitions);
            let bounds = bounds.await?;
            let ends = bounds.into_iter().map(|(_, end)| end).collect();
            return Ok(Some(layout.moved(ends)?));
        }
        if layout.is_moving() && layout.partitions_written() == partitions {
            self.wait_for_shards(layout, report).await?;
            return Ok(Some(layout.settled(&self.through(layout).await?)?));
        }
        let most = layout.partitions_ever().into_iter().max();
        let most = most.unwrap_or_default().max(partitions);
        if layout.has_boundaries() && layout.becomes() == Some(partitions) {
            self.wait_until_all_run(layout, report).await?;
            return Ok(Some(layout.announced(Vec::new())?));
        }
        if layout.partitions_intended() == Some(partitions) {
            let is_more = partitions > layout.scheme().partitions;
            self.add_partitions(admin, partitions, most, report).await?;
            if !is_more {
                // Wait while the change can still be withdrawn.
                self.wait_until_all_run(layout, report).await?;
            }
            let begins = self.begins(admin, layout, partitions).await?;
            return Ok(Some(match is_more {
                true => layout.announced(begins)?,
                false => layout.with_boundaries(begins)?,
            }));
        }
        if layout.partitions_written() == partitions {
            self.add_partitions(admin, partitions, most, report).await?;
            // Withdraws an intended change.
            let is_intended = layout.becomes().is_some();
            return Ok(is_intended.then(|| layout.withdrawn()).transpose()?);
        }
        // Refuses impossible changes before it does anything.
        let intended = layout.intended(partitions)?;
        self.lacking(admin, partitions, most).await?;
        self.refuse_full_disk(admin, partitions).await?;
        Ok(Some(intended))
    }

    /// The start offsets: for more partitions those of the new ones, for fewer those of the
    /// remaining ones.
    async fn begins(
        &self,
        admin: &Admin,
        layout: &Layout,
        partitions: u32,
    ) -> Result<Vec<TopicOffsets>, RepartitionError> {
        let now = layout.scheme().partitions;
        let bounds = self.bounds(admin, layout, now.max(partitions)).await?;
        if partitions < now {
            let stay = bounds.into_iter().take(partitions as usize);
            return Ok(stay.map(|(_, end)| end).collect());
        }
        let come = (0..).map(PartitionId).zip(bounds).skip(now as usize);
        let begins = come.map(|(partition, (begin, end))| {
            // A retired partition was read or rerouted to its end. Others were never read.
            let mut retired = layout.retired().iter();
            match retired.any(|of| of.partition == partition) {
                true => end,
                false => begin,
            }
        });
        Ok(begins.collect())
    }

    /// The retired partitions whose records were all rerouted.
    async fn through(&self, layout: &Layout) -> Result<Vec<Retired>, RepartitionError> {
        let mut through = Vec::new();
        for retired in layout.retired() {
            let key = LeaseKey::supervisor(retired.partition);
            let lease = self.store.lease(key).await?;
            let lease = lease.unwrap_or(Lease::new(key, retired.partition));
            // Partitions that this change retires are kept until rerouting is done there.
            let begin = layout.begin_of(layout.generation(), retired.partition);
            if retired.until != Some(begin) && retired.is_over_below(&lease.checkpoint.at) {
                through.push(*retired);
            }
        }
        Ok(through)
    }

    /// Waits until every shard runs under this layout.
    async fn wait_until_all_run(
        &self,
        layout: &Layout,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<(), RepartitionError> {
        let (began, mut reported) = (Instant::now(), None);
        while let Some(shard) = shards::unbegun(&*self.store, layout).await? {
            if began.elapsed() >= READERS_PATIENCE {
                return Err(RepartitionError::Unbegun(shard));
            }
            if reported.replace(shard) != Some(shard) {
                report(format!(
                    "waiting until shard {shard} runs under the new layout"
                ));
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        Ok(())
    }

    /// The topics with fewer partitions.
    async fn lacking(
        &self,
        admin: &Admin,
        partitions: u32,
        most: u32,
    ) -> Result<Vec<&str>, RepartitionError> {
        let mut lacking = Vec::new();
        for topic in &self.names {
            let has = self.has(admin, topic).await?;
            if has > most {
                let topic = topic.clone();
                return Err(RepartitionError::TooFew { topic, has });
            }
            if has < partitions {
                lacking.push(topic.as_str());
            }
        }
        Ok(lacking)
    }

    /// Refuses a change for which the disk limit is too small. The embedded broker limits the disk
    /// space of requests and recoveries, and frees it by whole segments.
    async fn refuse_full_disk(
        &self,
        admin: &Admin,
        partitions: u32,
    ) -> Result<(), RepartitionError> {
        let topics = [self.topics.requests(), self.topics.recovery()];
        let settings = admin.topic_settings(&topics).await?;
        for topic in topics {
            let number = |key: &str| settings.get(topic)?.get(key)?.parse::<u64>().ok();
            if let (Some(bound), Some(segment)) = (number(DISK_BOUND), number("segment.bytes"))
                && segment * u64::from(partitions) > bound / 2
            {
                return Err(RepartitionError::Disk {
                    topic: topic.to_owned(),
                    partitions,
                    segment,
                    bound,
                });
            }
        }
        Ok(())
    }

    /// Adds missing partitions, and gives clients time to refresh their metadata.
    async fn add_partitions(
        &self,
        admin: &Admin,
        partitions: u32,
        most: u32,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<(), RepartitionError> {
        let lacking = self.lacking(admin, partitions, most).await?;
        if lacking.is_empty() {
            return Ok(());
        }
        admin.add_partitions(&lacking, partitions).await?;
        let settle = self.settle;
        report(format!(
            "the topics have {partitions} partitions; waiting {settle:?} until clients refresh \
             their metadata"
        ));
        tokio::time::sleep(settle).await;
        Ok(())
    }

    /// Begin and end of each partition: 0 if the topics never had it.
    async fn bounds(
        &self,
        admin: &Admin,
        layout: &Layout,
        partitions: u32,
    ) -> Result<Vec<(TopicOffsets, TopicOffsets)>, RepartitionError> {
        let of = async |topic| {
            let had = layout.partitions_ever().into_iter().max();
            let has = self.has(admin, topic).await?;
            // A broker that does not know all partitions cannot return their ends.
            let expected = had.unwrap_or_default().min(partitions);
            if has < expected {
                let topic = topic.to_owned();
                return Err(RepartitionError::Unknown {
                    topic,
                    has,
                    expected,
                });
            }
            let there: Vec<PartitionId> = (0..has.min(partitions)).map(PartitionId).collect();
            let mut bounds = admin.offsets(topic, &there).await?;
            bounds.resize(partitions as usize, <(Offset, Offset)>::default());
            Ok(bounds)
        };
        let mut bounds = vec![<(TopicOffsets, TopicOffsets)>::default(); partitions as usize];
        for source in Source::ALL {
            let found = of(self.topics.of(source));
            for ((begins, ends), (begin, end)) in bounds.iter_mut().zip(found.await?) {
                *begins.on_mut(source) = begin;
                *ends.on_mut(source) = end;
            }
        }
        Ok(bounds)
    }

    /// The number of partitions of a topic.
    async fn has(&self, admin: &Admin, topic: &str) -> Result<u32, RepartitionError> {
        let has = admin.topic_partitions(topic).await?;
        has.ok_or_else(|| RepartitionError::NoTopic(topic.to_owned()))
    }

    async fn wait_for_shards(
        &self,
        layout: &Layout,
        report: &(dyn Fn(String) + Sync),
    ) -> Result<(), RepartitionError> {
        let (began, mut reported) = (Instant::now(), None);
        while let Some((shard, partition, end)) = shards::unmoved(&*self.store, layout).await? {
            if began.elapsed() >= READERS_PATIENCE {
                return Err(RepartitionError::Unmoved {
                    shard,
                    partition,
                    end,
                });
            }
            if reported.replace(shard) != Some(shard) {
                report(format!(
                    "waiting until shard {shard} runs under the new layout"
                ));
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        Ok(())
    }
}

/// Records the end of a change in the background, also after a panic.
struct Ending<'a> {
    repartition: &'a Repartition,
    error: Option<String>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(view) = self.repartition.progress().as_mut() {
            view.is_under_way = false;
            view.error = self.error.take();
        }
    }
}

/// Resumes a change that makes no progress because the process that began it has stopped.
pub async fn finish(
    repartition: Repartition,
    partition_map: PartitionMap,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // No other process can drive the change on an exclusive store.
    let patience = match repartition.is_shared() {
        true => repartition.settle * 2 + STALLED_AFTER,
        false => Duration::ZERO,
    };
    let mut seen = (partition_map.layout().generation(), Instant::now());
    loop {
        tokio::select! {
            () = tokio::time::sleep(FINISH_EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let layout = partition_map.layout();
        if layout.generation() != seen.0 {
            seen = (layout.generation(), Instant::now());
        }
        let is_driven_here = repartition.view().is_some_and(|view| view.is_under_way);
        if let Some(partitions) = layout.becomes()
            && !is_driven_here
            && seen.1.elapsed() >= patience
        {
            // The followed layout may be outdated: another process may just have finished the
            // change.
            let stored = repartition.store.layout().await.ok().flatten();
            if stored.is_none_or(|stored| stored.generation() != layout.generation()) {
                continue;
            }
            tracing::warn!(
                partitions,
                "resuming an interrupted change of the number of partitions"
            );
            let report = |step: String| tracing::info!(step, "changing the number of partitions");
            let going_on = repartition.drive(partitions, true, &report);
            let ended = tokio::select! {
                ended = going_on => ended,
                () = stop.cancelled() => return Ok(()),
            };
            match ended {
                // The shards continue on their own, or another process continues the change.
                Ok(()) | Err(RepartitionError::Unmoved { .. } | RepartitionError::Replaced) => {}
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "could not complete the change of the \
                                                            number of partitions; retrying");
                }
            }
            seen.1 = Instant::now();
        }
    }
}
