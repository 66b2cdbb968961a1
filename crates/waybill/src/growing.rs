//! Going over to more partitions while everything goes on.
//!
//! 1. The layout says that it is intended: from then on roles start on topics that have the old number or the new.
//! 2. The topics get the partitions, and clients the time to hear of them.
//! 3. The layout announces them: whoever writes spreads operations over all of them from then on. There are
//!    already as many readers as will be needed, and they share the old partitions.
//! 4. When no writer can still go by the old number, the layout says where the old partitions ended. Readers that
//!    have a new one read their old one to there, and then begin.
//! 5. When all have, the layout says that they need not know any more.
//!
//! What must hold: each step is durable before the next begins, and may be repeated; who stops in the middle
//! leaves everything going, and asking again goes on from there. Schedulers go on with it, too ([`finish`]), for
//! operations may wait in the new partitions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use waybill_engine::{PartitionId, Places, ReaderId, Workflows};
use waybill_kafka::{Admin, AdminError, ClientError, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::{Layout, LayoutError, Store, StoreError};

use crate::chain::chain;
use crate::config::{Config, PARTITIONS_MAX};
use crate::readers;
use crate::roles::topics::{DISK_BOUND, names_with_partitions_of_operations};
use crate::spread::Spread;

/// How often it is looked whether readers have begun.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is looked whether somebody has left something to be finished.
const FINISH_EVERY: Duration = Duration::from_secs(2);
/// How long a step may stand still, besides the time that two of them wait, before others go on with it.
const STANDS_STILL_AFTER: Duration = Duration::from_secs(10);
/// How long readers are waited for. They begin without anybody who waits.
const READERS_PATIENCE: Duration = Duration::from_secs(20);

/// Why there are not more partitions.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The store failed.
    #[error("the state store cannot be asked")]
    Store(#[from] StoreError),
    /// The brokers failed, or refused it.
    #[error("the brokers cannot be asked for more partitions")]
    Brokers(#[from] AdminError),
    /// No client can be made.
    #[error("the brokers cannot be reached")]
    Client(#[from] ClientError),
    /// There cannot be so many.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There would be too many.
    #[error("{PARTITIONS_MAX} partitions are the most, and {0} are asked for")]
    TooMany(u32),
    /// Nobody has begun to read, so that there is nothing to change.
    #[error(
        "no scheduler has begun on this store: the first one begins with the `partitions` of its configuration"
    )]
    NotBegun,
    /// There are more, and not every reader has gone over yet.
    #[error(
        "more partitions are read; reader {reader} has yet to read partition {partition} to where it ended \
         (requests {}, replies {}, recoveries {}). That goes on by itself",
        .end.requests, .end.replies, .end.recoveries
    )]
    Unmoved {
        /// One that is behind.
        reader: ReaderId,
        /// What it reads.
        partition: PartitionId,
        /// To where it has to.
        end: Places,
    },
    /// A topic is not there.
    #[error("there is no topic {0}: `waybill topics create` makes it")]
    NoTopic(String),
    /// The bound on disk of the embedded broker is too small for so many.
    #[error(
        "topic {topic} was made with segments of {segment} bytes and a bound of {bound} bytes on disk: of {partitions} \
         partitions, those alone that are being written would fill half of it"
    )]
    Disk {
        /// The topic.
        topic: String,
        /// How many partitions were asked for.
        partitions: u32,
        /// The size of its segments, in bytes.
        segment: u64,
        /// The bound on disk of all its partitions, in bytes.
        bound: u64,
    },
    /// A topic has more than is asked for.
    #[error("topic {topic} has {has} partitions already: ask for as many")]
    TooFew {
        /// The topic.
        topic: String,
        /// How many it has.
        has: u32,
    },
}

/// What makes more partitions of the operation topics.
#[derive(Clone, Debug)]
pub struct Growing {
    store: Arc<dyn Store>,
    kafka: KafkaSettings,
    topics: Topics,
    /// Those that have as many partitions as operations are spread over.
    names: Vec<String>,
    settle: Duration,
    stands: Arc<Mutex<Option<GrowthView>>>,
}

/// How a growing stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrowthView {
    /// How many partitions were asked for.
    pub partitions: u32,
    /// What is being done, or was done last.
    pub step: String,
    /// Whether it goes on.
    pub is_under_way: bool,
    /// Why it has ended early.
    pub error: Option<String>,
}

impl Growing {
    /// Of the topics and the store of this configuration.
    #[must_use]
    pub fn new(
        config: &Config,
        store: Arc<dyn Store>,
        kafka: KafkaSettings,
        topics: Topics,
        workflows: &Workflows,
    ) -> Self {
        Self {
            names: names_with_partitions_of_operations(config, workflows),
            store,
            kafka,
            topics,
            settle: config.kafka.grow_settle,
            stands: Arc::default(),
        }
    }

    /// Whether the store is other processes' as well.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !self.store.is_exclusive()
    }

    /// How the last one stands that was begun in this process.
    #[must_use]
    pub fn view(&self) -> Option<GrowthView> {
        self.stands().clone()
    }

    /// Begins in the background, or follows one to the same number that is under way.
    ///
    /// # Errors
    ///
    /// One to another number that is under way.
    pub fn begin(&self, partitions: u32) -> Result<GrowthView, GrowthView> {
        let mut stands = self.stands();
        if let Some(under_way) = stands.as_ref().filter(|view| view.is_under_way) {
            return match under_way.partitions == partitions {
                true => Ok(under_way.clone()),
                false => Err(under_way.clone()),
            };
        }
        let view = GrowthView {
            partitions,
            step: "beginning".to_owned(),
            is_under_way: true,
            error: None,
        };
        *stands = Some(view.clone());
        drop(stands);
        let growing = self.clone();
        tokio::spawn(async move {
            let mut ending = Ending {
                growing: &growing,
                error: Some("it stopped in the middle".to_owned()),
            };
            let tell = |step: String| {
                if let Some(view) = growing.stands().as_mut() {
                    view.step = step;
                }
            };
            let ended = growing.run(partitions, &tell).await;
            ending.error = ended.err().map(|error| chain(&error));
        });
        Ok(view)
    }

    fn stands(&self) -> std::sync::MutexGuard<'_, Option<GrowthView>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes so many partitions of the operation topics, and has them read. `tell` hears what is being done.
    /// Somebody else may do the same.
    ///
    /// # Errors
    ///
    /// If there cannot be so many, or the store or the brokers fail. What was done until then holds.
    pub async fn run(
        &self,
        partitions: u32,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<(), GrowError> {
        if partitions > PARTITIONS_MAX {
            return Err(GrowError::TooMany(partitions));
        }
        let admin = Admin::new(&self.kafka, "waybill-growing")?;
        loop {
            let layout = self.store.layout().await?.ok_or(GrowError::NotBegun)?;
            match self.next_step(&layout, partitions, &admin, tell).await? {
                None => break,
                // If somebody else was quicker, it is looked what is next now.
                Some(next) => {
                    let seen = Some(layout);
                    if self.store.set_layout(seen, next.clone()).await? {
                        tracing::info!(layout = %next, "the layout of readers was changed");
                    }
                }
            }
        }
        tell(format!("{partitions} partitions are read"));
        Ok(())
    }

    /// Does what leads to the next layout, and returns that; `None` where there is nothing more to do.
    async fn next_step(
        &self,
        layout: &Layout,
        partitions: u32,
        admin: &Admin,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<Option<Layout>, GrowError> {
        let settle = self.settle;
        if layout.is_announced() && layout.partitions_written() == partitions {
            tell(format!(
                "announced; waiting {settle:?} for what is being written"
            ));
            tokio::time::sleep(settle).await;
            let ends = self.ends(admin, layout.division().partitions).await?;
            return Ok(Some(layout.moved(ends)?));
        }
        if layout.is_moving() && layout.partitions_written() == partitions {
            self.wait_for_readers(layout, tell).await?;
            return Ok(Some(layout.settled()?));
        }
        if layout.partitions_written() == partitions {
            self.add_partitions(admin, partitions, tell).await?;
            // What was intended beyond is taken back, for no topic has more.
            let is_more_intended = layout.partitions_intended().is_some();
            return Ok(is_more_intended.then(|| layout.withdrawn()).transpose()?);
        }
        if layout.partitions_intended() == Some(partitions) {
            self.add_partitions(admin, partitions, tell).await?;
            return Ok(Some(layout.announced()?));
        }
        // Refuses what cannot be before anything is done.
        let intended = layout.intended(partitions)?;
        self.lacking(admin, partitions).await?;
        self.refuse_full_disk(admin, partitions).await?;
        Ok(Some(intended))
    }

    /// The topics that have fewer.
    async fn lacking(&self, admin: &Admin, partitions: u32) -> Result<Vec<&str>, GrowError> {
        let mut lacking = Vec::new();
        for topic in &self.names {
            let no_topic = || GrowError::NoTopic(topic.clone());
            let has = admin.topic_partitions(topic).await?.ok_or_else(no_topic)?;
            if has > partitions {
                let topic = topic.clone();
                return Err(GrowError::TooFew { topic, has });
            }
            if has < partitions {
                lacking.push(topic.as_str());
            }
        }
        Ok(lacking)
    }

    /// The embedded broker bounds what requests take on disk, and gives space back by whole segments.
    async fn refuse_full_disk(&self, admin: &Admin, partitions: u32) -> Result<(), GrowError> {
        let topic = self.topics.requests();
        let settings = admin.topic_settings(&[topic]).await?;
        let number = |key: &str| settings.get(topic)?.get(key)?.parse::<u64>().ok();
        match (number(DISK_BOUND), number("segment.bytes")) {
            (Some(bound), Some(segment)) if segment * u64::from(partitions) > bound / 2 => {
                Err(GrowError::Disk {
                    topic: topic.to_owned(),
                    partitions,
                    segment,
                    bound,
                })
            }
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }

    /// Gives the topics what they lack, and clients the time to hear of it.
    async fn add_partitions(
        &self,
        admin: &Admin,
        partitions: u32,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<(), GrowError> {
        let lacking = self.lacking(admin, partitions).await?;
        if lacking.is_empty() {
            return Ok(());
        }
        admin.add_partitions(&lacking, partitions).await?;
        let settle = self.settle;
        tell(format!(
            "the topics have {partitions} partitions; waiting {settle:?} for clients to hear of them"
        ));
        tokio::time::sleep(settle).await;
        Ok(())
    }

    /// Where each of the first partitions ends.
    async fn ends(&self, admin: &Admin, partitions: u32) -> Result<Vec<Places>, GrowError> {
        let partitions: Vec<PartitionId> = (0..partitions).map(PartitionId).collect();
        let [requests, replies, recoveries] = [
            admin.offsets(self.topics.requests(), &partitions).await?,
            admin
                .offsets(self.topics.step_replies(), &partitions)
                .await?,
            admin.offsets(self.topics.recovery(), &partitions).await?,
        ];
        let ends = requests.into_iter().zip(replies).zip(recoveries);
        let ends = ends.map(|(((_, requests), (_, replies)), (_, recoveries))| Places {
            requests,
            replies,
            recoveries,
        });
        Ok(ends.collect())
    }

    async fn wait_for_readers(
        &self,
        layout: &Layout,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<(), GrowError> {
        let began = Instant::now();
        while let Some((reader, partition, end)) = readers::unmoved(&*self.store, layout).await? {
            if began.elapsed() >= READERS_PATIENCE {
                return Err(GrowError::Unmoved {
                    reader,
                    partition,
                    end,
                });
            }
            tell(format!("waiting for reader {reader}"));
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// Says how one ended that was begun in the background, also if it panics.
struct Ending<'a> {
    growing: &'a Growing,
    error: Option<String>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(view) = self.growing.stands().as_mut() {
            view.is_under_way = false;
            view.error = self.error.take();
        }
    }
}

/// Goes on with what was begun and stands still, because whoever began it has gone.
pub(crate) async fn finish(
    growing: Growing,
    spread: Spread,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let patience = growing.settle * 2 + STANDS_STILL_AFTER;
    let mut seen = (spread.layout().generation(), Instant::now());
    loop {
        tokio::select! {
            () = tokio::time::sleep(FINISH_EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let layout = spread.layout();
        if layout.generation() != seen.0 {
            seen = (layout.generation(), Instant::now());
        }
        let is_left = layout.is_announced() || layout.is_moving();
        if is_left && seen.1.elapsed() >= patience {
            let partitions = layout.partitions_written();
            tracing::warn!(
                partitions,
                "going on to more partitions, which somebody has begun"
            );
            let tell = |step: String| tracing::info!(step, "going on to more partitions");
            let going_on = growing.run(partitions, &tell);
            let ended = tokio::select! {
                ended = going_on => ended,
                () = stop.cancelled() => return Ok(()),
            };
            match ended {
                // Readers go on by themselves.
                Ok(()) | Err(GrowError::Unmoved { .. }) => {}
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "there are not more partitions yet");
                }
            }
            seen.1 = Instant::now();
        }
    }
}
