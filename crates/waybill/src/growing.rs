//! Going over to more partitions while everything goes on.
//!
//! 1. The topics get the partitions, and clients the time to hear of them.
//! 2. The layout announces them: whoever writes spreads operations over all of them from then on. There are
//!    already as many readers as will be needed, and they share the old partitions.
//! 3. When no writer can still go by the old number, the layout says where the old partitions ended. Readers that
//!    have a new one read their old one to there, and then begin.
//!
//! What must hold: each step is durable before the next begins, and may be repeated; who stops in the middle
//! leaves everything going, and asking again goes on from there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use waybill_engine::{PartitionId, Places, ReaderId, Workflows};
use waybill_kafka::{Admin, AdminError, ClientError, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::{Layout, LayoutError, Store, StoreError};

use crate::chain::chain;
use crate::config::{Config, PARTITIONS_MAX};
use crate::readers;
use crate::roles::topics::names_with_partitions_of_operations;

/// How often it is looked whether readers have begun.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long readers are waited for. They begin without anybody who waits.
const READERS_PATIENCE: Duration = Duration::from_secs(30);

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
    /// The last growing has not come to its end.
    #[error(
        "reader {reader} has yet to read partition {partition} to where it ended when there were made more \
         (requests {}, replies {}, recoveries {}): ask again when it has",
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
    /// Somebody else changed the layout at the same moment.
    #[error("somebody else has changed the layout meanwhile: look at it, and ask again")]
    Changed,
    /// A topic is not there.
    #[error("there is no topic {0}: `waybill topics create` makes it")]
    NoTopic(String),
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

    /// Begins in the background, unless one is under way.
    ///
    /// # Errors
    ///
    /// The one that is under way.
    pub fn begin(&self, partitions: u32) -> Result<GrowthView, GrowthView> {
        let mut stands = self.stands();
        if let Some(under_way) = stands.as_ref().filter(|view| view.is_under_way) {
            return Err(under_way.clone());
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
            let tell = |step: String| {
                if let Some(view) = growing.stands().as_mut() {
                    view.step = step;
                }
            };
            let ended = growing.run(partitions, &tell).await;
            if let Some(view) = growing.stands().as_mut() {
                view.is_under_way = false;
                view.error = ended.err().map(|error| chain(&error));
            }
        });
        Ok(view)
    }

    fn stands(&self) -> std::sync::MutexGuard<'_, Option<GrowthView>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes so many partitions of the operation topics, and has them read. `tell` hears what is being done.
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
        let mut layout = self.store.layout().await?.ok_or(GrowError::NotBegun)?;
        let admin = Admin::new(&self.kafka, "waybill-growing")?;
        if layout.partitions_written() != partitions {
            // Refuses what cannot be before anything is done.
            let announced = layout.announced(partitions)?;
            self.refuse_unmoved(&layout).await?;
            self.add_partitions(&admin, partitions, tell).await?;
            layout = self.replace(layout, announced).await?;
            tracing::info!(%layout, "operations are spread over more partitions");
        } else {
            self.add_partitions(&admin, partitions, tell).await?;
        }
        if layout.is_growing() {
            let settle = self.settle;
            tell(format!(
                "announced; waiting {settle:?} for what is being written"
            ));
            tokio::time::sleep(settle).await;
            let ends = self.ends(&admin, layout.division().partitions).await?;
            let moved = layout.moved(ends)?;
            layout = self.replace(layout, moved).await?;
            tracing::info!(%layout, "more partitions are read");
        }
        self.wait_for_readers(&layout, tell).await
    }

    /// Gives the topics what they lack, and clients the time to hear of it.
    async fn add_partitions(
        &self,
        admin: &Admin,
        partitions: u32,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<(), GrowError> {
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

    async fn replace(&self, seen: Layout, next: Layout) -> Result<Layout, GrowError> {
        match self.store.set_layout(Some(seen), next.clone()).await? {
            true => Ok(next),
            false => Err(GrowError::Changed),
        }
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

    async fn refuse_unmoved(&self, layout: &Layout) -> Result<(), GrowError> {
        match readers::unmoved(&*self.store, layout).await? {
            Some((reader, partition, end)) => Err(GrowError::Unmoved {
                reader,
                partition,
                end,
            }),
            None => Ok(()),
        }
    }

    async fn wait_for_readers(
        &self,
        layout: &Layout,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<(), GrowError> {
        let partitions = layout.partitions_written();
        let began = Instant::now();
        loop {
            match self.refuse_unmoved(layout).await {
                Ok(()) => {
                    tell(format!("{partitions} partitions are read"));
                    return Ok(());
                }
                Err(GrowError::Unmoved { reader, .. }) if began.elapsed() < READERS_PATIENCE => {
                    tell(format!("waiting for reader {reader}"));
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
