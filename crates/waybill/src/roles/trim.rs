//! Giving back the disk that finished requests take on the embedded broker.
//!
//! The topics of requests have a bound on disk, past which ingestion answers 503. What is done must not
//! count against it: records below the checkpoint are deleted, all but the last, whose fingerprint
//! the next owner of the partition checks. On Kafka retention does this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_engine::{ByLane, Lane, Offset, PartitionId};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::{Layout, LeaseKey, Store, StoreError};

use crate::readers;
use crate::spread::Spread;

/// How often the checkpoints are looked at.
const INTERVAL: Duration = Duration::from_secs(10);

/// Deletes finished requests until it is stopped.
pub(super) async fn run(
    kafka: KafkaSettings,
    topics: Topics,
    spread: Spread,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let admin = Admin::new(&kafka, "waybill-trim")?;
    let mut trimmed: ByLane<BTreeMap<PartitionId, Offset>> = ByLane::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let layout = readers::layout(&*store, spread.partitions()).await?;
        // Readers may have to begin again further back than those stand whom they follow.
        if layout.becomes().is_some() {
            continue;
        }
        for lane in Lane::ALL {
            let trimmed = &mut trimmed[lane];
            let mut below = Vec::new();
            for partition in spread.all_ever() {
                let trimmed = trimmed.entry(partition).or_default();
                let keep_from = keep_from(&*store, &layout, lane, partition).await?;
                if keep_from > *trimmed {
                    *trimmed = keep_from;
                    below.push((partition, keep_from));
                }
            }
            if below.is_empty() {
                continue;
            }
            let stands = readers::layout(&*store, spread.partitions()).await?;
            if stands.generation() != layout.generation() {
                trimmed.clear();
                continue;
            }
            if let Err(error) = admin.delete_records(topics.of_lane(lane), &below).await {
                tracing::warn!(%error, "finished requests could not be deleted; trying again later");
                trimmed.clear();
            }
        }
    }
}

/// Below what nobody needs a partition's requests any more.
async fn keep_from(
    store: &dyn Store,
    layout: &Layout,
    lane: Lane,
    partition: PartitionId,
) -> Result<Offset, StoreError> {
    let source = lane.source();
    let done = readers::requests_done(store, layout, lane, partition).await?;
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
            ..Places::default()
        };
        let layout = Layout::first(2).intended(1).unwrap().cut(vec![at(0)]);
        let layout = layout.unwrap().announced(Vec::new()).unwrap();
        let layout = layout.moved(vec![at(30), at(40)]).unwrap();
        let layout = layout.settled(&[]).unwrap();
        let left_over = PartitionId(1);
        let kept = async |lane| keep_from(&store, &layout, lane, left_over).await.unwrap();
        let done = kept(Lane::Ordinary).await;
        assert_eq!(done, Offset(40), "what was read there is done");
        assert_eq!(kept(Lane::Expedited).await, Offset(140));
        let shard = Lease {
            checkpoint: Checkpoint::at(at(45)),
            ..Lease::new(LeaseKey::supervisor(left_over), left_over)
        };
        assert!(store.take_lease(None, shard).await.unwrap());
        assert_eq!(kept(Lane::Ordinary).await, Offset(45));
        assert_eq!(kept(Lane::Expedited).await, Offset(145));
    }
}
