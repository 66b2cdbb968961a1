//! Frees the disk space of finished requests and recoveries on the embedded broker.
//!
//! What must hold: **nothing else deletes them.** On the embedded broker these topics have no
//! retention by time or size, so that neither a clock nor a backlog deletes unfinished work. They
//! have a disk limit instead, above which the broker refuses records. Records below the checkpoint
//! are deleted except the last, because the next owner of the partition checks its fingerprint. On
//! Kafka, retention does this.
//!
//! Also: **a checkpoint is valid for its own log only.** Requests are deleted only if the record
//! below the checkpoint has the checkpoint's fingerprint. Recoveries have no fingerprint; the
//! supervisor's audit repeats lost ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_engine::{Offset, PartitionId, Source};
use waybill_kafka::{Admin, ClientError, KafkaSettings};
use waybill_kafka::{Identity, LogCheck, Mark};
use waybill_messages::Topics;
use waybill_store::{Layout, LeaseKey, Store, StoreError};

use crate::partition_map::PartitionMap;
use crate::shards;

/// The interval between checks of the checkpoints.
const INTERVAL: Duration = Duration::from_secs(10);

/// The maximum time for the broker to return the record below a checkpoint.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The topics whose records are deleted only here.
const SOURCES: [Source; 3] = [Source::Requests, Source::HighPriority, Source::Recoveries];

/// Deletes finished requests and recoveries until it is stopped. Safe to run in several processes.
///
/// # Errors
///
/// If the Kafka clients cannot be created.
pub async fn run(
    kafka: KafkaSettings,
    topics: Topics,
    partition_map: PartitionMap,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut trim = Trim::new(&kafka, topics, partition_map, store)?;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let passed = tokio::select! {
            passed = trim.pass() => passed,
            () = stop.cancelled() => return Ok(()),
        };
        if let Err(error) = passed {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not read checkpoints; deleting finished records later"
            );
        }
    }
}

struct Trim {
    admin: Admin,
    log: LogCheck,
    topics: Topics,
    partition_map: PartitionMap,
    store: Arc<dyn Store>,
    /// The offsets below which this process has deleted records.
    trimmed: [BTreeMap<PartitionId, Offset>; SOURCES.len()],
    /// Partitions for which the log already reported that their records are kept.
    kept: BTreeSet<(Source, PartitionId)>,
}

impl Trim {
    fn new(
        kafka: &KafkaSettings,
        topics: Topics,
        partition_map: PartitionMap,
        store: Arc<dyn Store>,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            admin: Admin::new(kafka, "waybill-trim")?,
            log: LogCheck::new(kafka.clone(), "waybill-trim-log", TIMEOUT),
            topics,
            partition_map,
            store,
            trimmed: Default::default(),
            kept: BTreeSet::new(),
        })
    }

    /// Deletes finished records.
    async fn pass(&mut self) -> Result<(), StoreError> {
        let layout = shards::layout(&*self.store, self.partition_map.partitions()).await?;
        // During a repartition, shards may begin at lower offsets than their predecessors.
        if layout.becomes().is_some() {
            return Ok(());
        }
        for (index, source) in SOURCES.into_iter().enumerate() {
            let mut below = Vec::new();
            for partition in self.partition_map.all_ever() {
                let done = keep_from(&*self.store, &layout, source, partition).await?;
                let trimmed = self.trimmed[index].get(&partition).copied();
                if done.keep_from > trimmed.unwrap_or_default()
                    && self.is_of_this_log(source, partition, done.mark).await
                {
                    below.push((partition, done.keep_from));
                }
            }
            if below.is_empty() {
                continue;
            }
            let stored = shards::layout(&*self.store, self.partition_map.partitions()).await?;
            if stored.generation() != layout.generation() {
                self.trimmed[index].clear();
                continue;
            }
            let topic = self.topics.of(source);
            match self.admin.delete_records(topic, &below).await {
                Ok(_) => self.trimmed[index].extend(below),
                Err(error) => {
                    tracing::warn!(%error, topic, "could not delete finished records; retrying later");
                }
            }
        }
        Ok(())
    }

    /// Whether the checkpoint belongs to the current log of a partition.
    async fn is_of_this_log(
        &mut self,
        source: Source,
        partition: PartitionId,
        mark: Option<Mark>,
    ) -> bool {
        let Some(mark) = mark else {
            return true;
        };
        let topic = self.topics.of(source);
        match self.log.identity(topic, partition, mark).await {
            Ok(Identity::Same) => {
                self.kept.remove(&(source, partition));
                true
            }
            Ok(Identity::Unknown) => false,
            Ok(Identity::Another) => {
                if self.kept.insert((source, partition)) {
                    tracing::warn!(
                        topic,
                        %partition,
                        "keeping finished records: the checkpoint belongs to another log of this \
                         partition (topic recreated)"
                    );
                }
                false
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    topic,
                    %partition,
                    "deleting finished records later: cannot read the last one"
                );
                false
            }
        }
    }
}

/// The progress of a partition.
struct Done {
    /// Records below this offset are not needed any more.
    keep_from: Offset,
    /// Identifies the log; `None` if no shard reads it any more, or a wrong deletion loses nothing.
    mark: Option<Mark>,
}

/// The progress of a partition, and the mark that identifies its log.
async fn keep_from(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
) -> Result<Done, StoreError> {
    let done = shards::last_done(store, layout, source, partition).await?;
    let offset = done.map_or(Offset(i64::MAX), |(offset, _)| offset);
    let read = Offset(offset.0 - 1);
    let mark = match done {
        Some((_, fingerprint)) if source.priority().is_some() => {
            Some(Mark::of(offset, fingerprint))
        }
        Some(_) | None => None,
    };
    let retired = layout.retired().iter();
    let times: Vec<_> = retired.filter(|of| of.partition == partition).collect();
    if times.is_empty() {
        return Ok(Done {
            keep_from: read,
            mark,
        });
    }
    // The supervisor that owns the index shard reroutes records written while the partition was
    // retired.
    let index_shard = store.lease(LeaseKey::supervisor(partition)).await?;
    let rerouted = index_shard.map_or(Offset(0), |lease| lease.checkpoint.on(source));
    let mut left = times.iter().filter(|of| !of.is_over(source, rerouted));
    let keep_from = match left.next() {
        Some(oldest) => read.min(oldest.from.on(source).max(rerouted)),
        None => read,
    };
    Ok(Done { keep_from, mark })
}

#[cfg(test)]
mod tests {
    use waybill_engine::TopicOffsets;
    use waybill_store::{Checkpoint, EmbeddedConfig, EmbeddedStore, Lease};

    use super::*;

    #[tokio::test]
    async fn a_partition_no_longer_in_use_keeps_records_that_were_not_rerouted() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let at = |requests| TopicOffsets {
            requests: Offset(requests),
            high_priority: Offset(requests + 100),
            recoveries: Offset(requests + 200),
            ..TopicOffsets::default()
        };
        let layout = Layout::first(2)
            .intended(1)
            .unwrap()
            .with_boundaries(vec![at(0)]);
        let layout = layout.unwrap().announced(Vec::new()).unwrap();
        let layout = layout.moved(vec![at(30), at(40)]).unwrap();
        let layout = layout.settled(&[]).unwrap();
        let left_over = PartitionId(1);
        let kept = async |source| {
            let done = keep_from(&store, &layout, source, left_over).await;
            done.unwrap().keep_from
        };
        let done = kept(Source::Requests).await;
        assert_eq!(done, Offset(40), "what was read there is done");
        assert_eq!(kept(Source::HighPriority).await, Offset(140));
        assert_eq!(kept(Source::Recoveries).await, Offset(240));
        let index_shard = Lease {
            checkpoint: Checkpoint::at(at(45)),
            ..Lease::new(LeaseKey::supervisor(left_over), left_over)
        };
        assert!(store.take_lease(None, index_shard).await.unwrap());
        assert_eq!(kept(Source::Requests).await, Offset(45));
        assert_eq!(kept(Source::HighPriority).await, Offset(145));
        assert_eq!(kept(Source::Recoveries).await, Offset(245));
    }

    #[tokio::test]
    async fn the_last_record_below_the_checkpoint_of_each_topic_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let layout = Layout::first(1);
        let shard = layout.scheme().all().next().unwrap();
        let offsets = TopicOffsets {
            requests: Offset(10),
            high_priority: Offset(20),
            recoveries: Offset(30),
            replies: Offset(40),
        };
        let held = Lease {
            checkpoint: Checkpoint::at(offsets),
            ..Lease::new(
                LeaseKey::scheduler(layout.generation(), shard),
                PartitionId(0),
            )
        };
        assert!(store.take_lease(None, held).await.unwrap());
        let mut kept = Vec::new();
        for source in SOURCES {
            let from = keep_from(&store, &layout, source, PartitionId(0)).await;
            kept.push((source, from.unwrap().keep_from));
        }
        assert_eq!(
            kept,
            [
                (Source::Requests, Offset(9)),
                (Source::HighPriority, Offset(19)),
                (Source::Recoveries, Offset(29)),
            ]
        );
    }
}
