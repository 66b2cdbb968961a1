//! Giving back the disk that finished requests and recoveries take on the embedded broker.
//!
//! What must hold: **nothing else removes them.** On the embedded broker these topics have no retention
//! by time or by size, so that neither a clock nor a backlog deletes work that is not done. They have a
//! bound on disk instead, past which the broker refuses records. Records below the checkpoint are
//! deleted, all but the last, whose fingerprint the next owner of the partition checks. On Kafka
//! retention does this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_engine::{Offset, PartitionId, Source};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_messages::Topics;
use waybill_node::readers;
use waybill_node::spread::Spread;
use waybill_store::{Layout, LeaseKey, Store, StoreError};

/// How often the checkpoints are looked at.
const INTERVAL: Duration = Duration::from_secs(10);

/// The topics whose records nothing else removes.
const SOURCES: [Source; 3] = [Source::Requests, Source::Expedited, Source::Recoveries];

/// Deletes finished requests and recoveries until it is stopped. Several processes may do it at once.
pub(super) async fn run(
    kafka: KafkaSettings,
    topics: Topics,
    spread: Spread,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let admin = Admin::new(&kafka, "waybill-trim")?;
    let mut trimmed: [BTreeMap<PartitionId, Offset>; SOURCES.len()] = Default::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let passed = pass(&admin, &topics, &spread, &*store, &mut trimmed).await;
        if let Err(error) = passed {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "checkpoints could not be read; finished records are deleted later"
            );
        }
    }
}

/// Deletes what is finished by now.
async fn pass(
    admin: &Admin,
    topics: &Topics,
    spread: &Spread,
    store: &dyn Store,
    trimmed: &mut [BTreeMap<PartitionId, Offset>; SOURCES.len()],
) -> Result<(), StoreError> {
    let layout = readers::layout(store, spread.partitions()).await?;
    // Readers may have to begin again further back than those stand whom they follow.
    if layout.becomes().is_some() {
        return Ok(());
    }
    for (source, trimmed) in SOURCES.into_iter().zip(trimmed) {
        let mut below = Vec::new();
        for partition in spread.all_ever() {
            let keep_from = keep_from(store, &layout, source, partition).await?;
            if keep_from > trimmed.get(&partition).copied().unwrap_or_default() {
                below.push((partition, keep_from));
            }
        }
        if below.is_empty() {
            continue;
        }
        let stands = readers::layout(store, spread.partitions()).await?;
        if stands.generation() != layout.generation() {
            trimmed.clear();
            continue;
        }
        let topic = topics.of(source);
        match admin.delete_records(topic, &below).await {
            Ok(_) => trimmed.extend(below),
            Err(error) => {
                tracing::warn!(%error, topic, "finished records could not be deleted; trying again later");
            }
        }
    }
    Ok(())
}

/// Below what nobody needs a partition's records any more.
async fn keep_from(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
) -> Result<Offset, StoreError> {
    let done = readers::done(store, layout, source, partition).await?;
    let read = Offset(done.0 - 1);
    let retired = layout.retired().iter();
    let times: Vec<_> = retired.filter(|of| of.partition == partition).collect();
    if times.is_empty() {
        return Ok(read);
    }
    // What was written while it was left over is sent home by whoever looks after its shard.
    let shard = store.lease(LeaseKey::supervisor(partition)).await?;
    let sent_home = shard.map_or(Offset(0), |lease| lease.checkpoint.on(source));
    let mut left = times.iter().filter(|of| !of.is_over(source, sent_home));
    Ok(match left.next() {
        Some(oldest) => read.min(oldest.from.on(source).max(sent_home)),
        None => read,
    })
}

#[cfg(test)]
mod tests {
    use waybill_engine::Places;
    use waybill_store::{Checkpoint, EmbeddedConfig, EmbeddedStore, Lease};

    use super::*;

    #[tokio::test]
    async fn of_a_partition_that_is_left_over_what_was_not_sent_home_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let at = |requests| Places {
            requests: Offset(requests),
            expedited: Offset(requests + 100),
            recoveries: Offset(requests + 200),
            ..Places::default()
        };
        let layout = Layout::first(2).intended(1).unwrap().cut(vec![at(0)]);
        let layout = layout.unwrap().announced(Vec::new()).unwrap();
        let layout = layout.moved(vec![at(30), at(40)]).unwrap();
        let layout = layout.settled(&[]).unwrap();
        let left_over = PartitionId(1);
        let kept = async |source| keep_from(&store, &layout, source, left_over).await.unwrap();
        let done = kept(Source::Requests).await;
        assert_eq!(done, Offset(40), "what was read there is done");
        assert_eq!(kept(Source::Expedited).await, Offset(140));
        assert_eq!(kept(Source::Recoveries).await, Offset(240));
        let shard = Lease {
            checkpoint: Checkpoint::at(at(45)),
            ..Lease::new(LeaseKey::supervisor(left_over), left_over)
        };
        assert!(store.take_lease(None, shard).await.unwrap());
        assert_eq!(kept(Source::Requests).await, Offset(45));
        assert_eq!(kept(Source::Expedited).await, Offset(145));
        assert_eq!(kept(Source::Recoveries).await, Offset(245));
    }

    #[tokio::test]
    async fn of_each_topic_the_last_record_below_the_checkpoint_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let layout = Layout::first(1);
        let reader = layout.division().all().next().unwrap();
        let places = Places {
            requests: Offset(10),
            expedited: Offset(20),
            recoveries: Offset(30),
            replies: Offset(40),
        };
        let held = Lease {
            checkpoint: Checkpoint::at(places),
            ..Lease::new(
                LeaseKey::scheduler(layout.generation(), reader),
                PartitionId(0),
            )
        };
        assert!(store.take_lease(None, held).await.unwrap());
        let mut kept = Vec::new();
        for source in SOURCES {
            let from = keep_from(&store, &layout, source, PartitionId(0)).await;
            kept.push((source, from.unwrap()));
        }
        assert_eq!(
            kept,
            [
                (Source::Requests, Offset(9)),
                (Source::Expedited, Offset(19)),
                (Source::Recoveries, Offset(29)),
            ]
        );
    }
}
