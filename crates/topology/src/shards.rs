//! The state of the shards in the state store: the current sharding scheme, the progress of each
//! shard, and how to change the scheme.
//!
//! Deliberately absent: how a shard begins. A candidate acquires its lease, and ends its
//! predecessors (`waybill-scheduler-core`).

pub mod show;

use anyhow::Context as _;
use waybill_engine::{
    Offset, PartitionId, Priority, ShardId, ShardingScheme, Source, TopicOffsets,
};
use waybill_store::{CurrentLeases, Layout, LayoutGeneration, Lease, LeaseKey, Store, StoreError};

/// The current layout.
pub async fn layout(store: &dyn Store, partitions: u32) -> Result<Layout, StoreError> {
    let stored = store.layout().await?;
    Ok(stored.unwrap_or(Layout::first(partitions)))
}

/// The layout at a scheduler's start. A new store gets the configured one. An existing layout
/// stays, and the log reports a difference from the configuration.
///
/// # Errors
///
/// If the store fails.
pub async fn layout_at_start(store: &dyn Store, wanted: ShardingScheme) -> anyhow::Result<Layout> {
    let found = store
        .layout()
        .await
        .context("cannot read the shard layout")?;
    if found.is_none() {
        let first = Layout::first(wanted.partitions);
        let begins = match wanted != first.scheme() && is_new(store, &first).await? {
            true => first.successor(wanted)?,
            false => first,
        };
        // Another process may store it first. A different one is reported below.
        if store.set_layout(None, begins.clone()).await? {
            tracing::info!(layout = %begins, "stored the first shard layout");
        }
    }
    let layout = layout(store, wanted.partitions).await?;
    let scheme = layout.scheme();
    let (is, configured) = (scheme.shards_per_partition, wanted.shards_per_partition);
    if is != configured && layout.becomes().is_none() {
        tracing::warn!(
            shards_per_partition = is,
            configured,
            "scheduler.shardsPerPartition differs from the state store, which takes precedence: \
             run `waybill shards set {configured}`, or set scheduler.shardsPerPartition to {is}"
        );
    }
    Ok(layout)
}

/// A shard that has not begun under this layout, if there is one.
///
/// # Errors
///
/// If the store fails.
pub async fn unbegun(store: &dyn Store, layout: &Layout) -> Result<Option<ShardId>, StoreError> {
    for shard in layout.scheme().all() {
        let key = LeaseKey::scheduler(layout.generation(), shard);
        if store.lease(key).await?.is_none() {
            return Ok(Some(shard));
        }
    }
    Ok(None)
}

/// The first shard that has not completed a repartition: it has not begun, or still reads records
/// before the change. Returns its partition and the offsets that it must reach.
///
/// # Errors
///
/// If the store fails.
pub async fn unmoved(
    store: &dyn Store,
    layout: &Layout,
) -> Result<Option<(ShardId, PartitionId, TopicOffsets)>, StoreError> {
    let generation = layout.generation();
    for shard in layout.scheme().all() {
        let partition = layout.scheme().partition_of(shard);
        let key = LeaseKey::scheduler(generation, shard);
        let boundary = layout
            .boundary_of(generation, partition)
            .map(|boundary| boundary.ends);
        match (store.lease(key).await?, boundary) {
            (Some(lease), Some(boundary)) if !lease.checkpoint.at.reach(&boundary) => {
                return Ok(Some((shard, partition, boundary)));
            }
            (Some(_), _) => {}
            // A shard that has not begun waits for its predecessors.
            (None, _) => {
                let before = generation.previous();
                let left = before.and_then(|before| {
                    let partition = layout.of(before)?.partition_of(shard);
                    Some((partition, layout.end_of(before, shard)?))
                });
                let (partition, end) = left.unwrap_or((partition, boundary.unwrap_or_default()));
                return Ok(Some((shard, partition, end)));
            }
        }
    }
    Ok(None)
}

/// Whether no shard ever read a partition.
async fn is_new(store: &dyn Store, first: &Layout) -> Result<bool, StoreError> {
    for shard in first.scheme().all() {
        let key = LeaseKey::scheduler(first.generation(), shard);
        if store.lease(key).await?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The lease of a shard. Before the shard has begun, the lease with which it would begin if its
/// predecessors ended at their current offsets. Changes nothing.
///
/// # Errors
///
/// If the store fails.
pub async fn current_lease(
    store: &dyn Store,
    layout: &Layout,
    generation: LayoutGeneration,
    shard: ShardId,
) -> Result<Lease, StoreError> {
    let mut leases = CurrentLeases::default();
    loop {
        let key = match leases.of(layout, generation, shard) {
            Ok(lease) => return Ok(lease.clone()),
            Err(key) => key,
        };
        leases.learn(key, store.lease(key).await?);
    }
}

/// The lowest offset of a request of the partition that some shard has not consumed durably.
pub async fn consumed(
    store: &dyn Store,
    layout: &Layout,
    priority: Priority,
    partition: PartitionId,
) -> Result<Offset, StoreError> {
    let consumed = |lease: &Lease| (lease.consumed[priority], None);
    let lowest = lowest(store, layout, priority.source(), partition, consumed).await?;
    Ok(offset_or_end(lowest))
}

/// The lowest offset of a record of the partition that some shard has not finished.
pub async fn done(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
) -> Result<Offset, StoreError> {
    Ok(offset_or_end(
        last_done(store, layout, source, partition).await?,
    ))
}

/// The same, with the fingerprint of the record before it if the shard has one; `None` if no shard
/// reads the partition any more.
pub async fn last_done(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
) -> Result<Option<(Offset, Option<u64>)>, StoreError> {
    let done = |lease: &Lease| {
        let fingerprint = source
            .priority()
            .and_then(|priority| lease.checkpoint.fingerprints[priority]);
        (lease.checkpoint.on(source), fingerprint)
    };
    lowest(store, layout, source, partition, done).await
}

/// If all shards have left the partition, none waits for its records.
fn offset_or_end(lowest: Option<(Offset, Option<u64>)>) -> Offset {
    lowest.map_or(Offset(i64::MAX), |(offset, _)| offset)
}

/// The lowest offset among the shards that read a partition, with its fingerprint.
async fn lowest(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
    offset: impl Fn(&Lease) -> (Offset, Option<u64>),
) -> Result<Option<(Offset, Option<u64>)>, StoreError> {
    // An announced partition that no shard reads yet.
    if (layout.scheme().partitions..layout.partitions_written()).contains(&partition.0) {
        return Ok(Some((Offset(0), None)));
    }
    let mut lowest: Option<(Offset, Option<u64>)> = None;
    let own = layout.scheme().of_partition(partition);
    let own = own.map(|shard| (layout.generation(), shard));
    for (generation, shard) in own.chain(layout.left(partition)) {
        let lease = current_lease(store, layout, generation, shard).await?;
        // A shard that has left the partition has finished its part.
        if generation != layout.generation() && lease.is_ended {
            continue;
        }
        let one = offset(&lease);
        lowest = Some(lowest.filter(|lowest| lowest.0 <= one.0).unwrap_or(one));
    }
    // Beyond the cut, records belong to other shards, which have not begun.
    if let (Some(lowest), Some(begin)) = (&mut lowest, layout.to_begin(partition))
        && begin.on(source) < lowest.0
    {
        *lowest = (begin.on(source), None);
    }
    Ok(lowest)
}

#[cfg(test)]
mod tests;
