//! The shards of partitions, as the state store tells of them: which sharding scheme is in force, where each
//! shard stands, and how it is changed.
//!
//! What must hold: **shards follow one another whole**. A shard of a new layout begins only when all
//! that it follows were taken from their owners for good, by conditional writes, so that none of them can
//! write, send or commit any more; and it begins where they ended. Where a shard gets another
//! partition, those that it follows have read the old one to its end.

pub mod show;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use waybill_engine::{
    Offset, OwnerId, PartitionId, Priority, ShardId, ShardingScheme, Source, TopicOffsets,
};
use waybill_store::{
    Begins, Followed, Layout, LayoutGeneration, Lease, LeaseKey, Store, StoreError, takeable,
};

/// The layout that is in force.
pub async fn layout(store: &dyn Store, partitions: u32) -> Result<Layout, StoreError> {
    let stored = store.layout().await?;
    Ok(stored.unwrap_or(Layout::first(partitions)))
}

/// The layout that a scheduler begins with. A new store gets what is configured; of any other it stands,
/// and what differs from the configuration is told.
///
/// # Errors
///
/// If the store fails.
pub async fn layout_at_start(store: &dyn Store, wanted: ShardingScheme) -> anyhow::Result<Layout> {
    let found = store
        .layout()
        .await
        .context("the layout of shards cannot be read")?;
    if found.is_none() {
        let first = Layout::first(wanted.partitions);
        let begins = match wanted != first.scheme() && is_new(store, &first).await? {
            true => first.successor(wanted)?,
            false => first,
        };
        // Whoever is quicker says the same, or else it is told below.
        if store.set_layout(None, begins.clone()).await? {
            tracing::info!(layout = %begins, "the store begins with this layout of shards");
        }
    }
    let layout = layout(store, wanted.partitions).await?;
    let stands = layout.scheme();
    let (is, configured) = (stands.shards_per_partition, wanted.shards_per_partition);
    if is != configured && layout.becomes().is_none() {
        tracing::warn!(
            shards_per_partition = is,
            configured,
            "the state store says how many shards a partition has, and not the configuration: \
             `waybill shards set {configured}` changes it, or set scheduler.shardsPerPartition to {is}"
        );
    }
    Ok(layout)
}

/// Under which generation a shard is to run now: the layout's own, or the one before it, while the shard
/// has not read a partition to its end that it is to leave.
///
/// # Errors
///
/// If the store fails.
pub async fn generation_to_run(
    store: &dyn Store,
    layout: &Layout,
    shard: ShardId,
) -> Result<LayoutGeneration, StoreError> {
    let generation = layout.generation();
    let Some(before) = generation.previous() else {
        return Ok(generation);
    };
    let Some(end) = layout.end_of(before, shard) else {
        return Ok(generation);
    };
    let key = LeaseKey::scheduler(generation, shard);
    if store.lease(key).await?.is_some() {
        return Ok(generation);
    }
    let stands = standing(store, layout, before, shard).await?;
    Ok(match stands.checkpoint.at.reach(&end) {
        true => generation,
        false => before,
    })
}

/// A shard that nobody has begun under this layout, if there is one.
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

/// What is left of going over to another number of partitions: of shards that have not begun, or still read what was there
/// before it, one, and what it has yet to reach.
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
            // One that has not begun waits for those that it follows.
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

/// Whether nobody has ever read a partition.
async fn is_new(store: &dyn Store, first: &Layout) -> Result<bool, StoreError> {
    for shard in first.scheme().all() {
        let key = LeaseKey::scheduler(first.generation(), shard);
        if store.lease(key).await?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where a shard stands: its lease, or, before it has begun, what it would go on from if those that it
/// follows ended where they are now. Changes nothing.
pub async fn standing(
    store: &dyn Store,
    layout: &Layout,
    generation: LayoutGeneration,
    shard: ShardId,
) -> Result<Lease, StoreError> {
    standing_of(store, layout, generation, shard, &mut HashMap::new()).await
}

/// The same, and remembers those that several shards of unbegun layouts follow.
fn standing_of<'a>(
    store: &'a dyn Store,
    layout: &'a Layout,
    generation: LayoutGeneration,
    shard: ShardId,
    known: &'a mut HashMap<LeaseKey, Lease>,
) -> BoxFuture<'a, Result<Lease, StoreError>> {
    async move {
        let step = Step::of(layout, generation, shard);
        if let Some(lease) = known.get(&step.key) {
            return Ok(lease.clone());
        }
        let lease = match store.lease(step.key).await? {
            Some(lease) => lease,
            None => {
                let mut followed = Vec::new();
                for (before, scheme, parent) in step.parents() {
                    let lease = standing_of(store, layout, before, parent, known).await?;
                    followed.push(Followed::new(lease, scheme));
                }
                step.following(&followed)
            }
        };
        known.insert(step.key, lease.clone());
        Ok(lease)
    }
    .boxed()
}

/// What a shard goes on from that nobody has begun yet. Takes those that it follows for good, and waits
/// for as long as their owners keep them. `me` is this process, whose own shards give their leases back
/// by themselves.
pub fn beginning<'a>(
    store: &'a dyn Store,
    layout: &'a Layout,
    generation: LayoutGeneration,
    shard: ShardId,
    me: OwnerId,
    margin: Duration,
) -> BoxFuture<'a, Result<Lease, StoreError>> {
    async move {
        let step = Step::of(layout, generation, shard);
        // All at once: one that is silent is waited for once, however many were its.
        let parents = step.parents().into_iter();
        let ended = parents.map(|(before, scheme, parent)| async move {
            let lease = end(store, layout, before, parent, me, margin).await?;
            Ok::<_, StoreError>(Followed::new(lease, scheme))
        });
        Ok(step.following(&try_join_all(ended).await?))
    }
    .boxed()
}

/// Takes a shard of an earlier layout for good, once its owner has released it or has gone silent.
async fn end(
    store: &dyn Store,
    layout: &Layout,
    generation: LayoutGeneration,
    shard: ShardId,
    me: OwnerId,
    margin: Duration,
) -> Result<Lease, StoreError> {
    let key = LeaseKey::scheduler(generation, shard);
    loop {
        let seen = takeable(store, key, margin, Some(me)).await?;
        let stands = match &seen {
            Some(lease) if lease.is_ended => return Ok(lease.clone()),
            Some(lease) => lease.clone(),
            None => beginning(store, layout, generation, shard, me, margin).await?,
        };
        let ended = stands.ended();
        if store.take_lease(seen, ended.clone()).await? {
            tracing::info!(lease = %key, checkpoint = %ended.checkpoint.at.requests, "taken for good");
            return Ok(ended);
        }
    }
}

/// A shard, and those that it follows.
struct Step {
    key: LeaseKey,
    shard: ShardId,
    scheme: ShardingScheme,
    begins: Begins,
    before: Option<(LayoutGeneration, ShardingScheme)>,
}

impl Step {
    fn of(layout: &Layout, generation: LayoutGeneration, shard: ShardId) -> Self {
        let of = |generation| layout.of(generation).unwrap_or(layout.scheme());
        let partition = of(generation).partition_of(shard);
        Self {
            key: LeaseKey::scheduler(generation, shard),
            shard,
            scheme: of(generation),
            begins: Begins {
                boundary: layout.boundary_into(generation, partition),
                unread: layout.begin_of(generation, partition),
            },
            before: generation.previous().map(|before| (before, of(before))),
        }
    }

    fn parents(&self) -> Vec<(LayoutGeneration, ShardingScheme, ShardId)> {
        let Some((generation, scheme)) = self.before else {
            return Vec::new();
        };
        let parents = self.scheme.follows(scheme, self.shard).into_iter();
        parents.map(|parent| (generation, scheme, parent)).collect()
    }

    fn following(&self, followed: &[Followed]) -> Lease {
        let partition = self.scheme.partition_of(self.shard);
        Lease::following(self.key, partition, self.begins, followed)
    }
}

/// The first request of a partition that not all of its shards have durably consumed.
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

/// The first record of a partition that is not done by all of its shards.
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

/// The same, with the fingerprint of the record before it as far as its shard has one; `None` where nobody reads the
/// partition any more.
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

/// Nobody waits for what lies in a partition that all have left.
fn offset_or_end(lowest: Option<(Offset, Option<u64>)>) -> Offset {
    lowest.map_or(Offset(i64::MAX), |(offset, _)| offset)
}

/// The lowest of the offsets of the shards that read a partition, with the fingerprint that goes with it.
async fn lowest(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
    offset: impl Fn(&Lease) -> (Offset, Option<u64>),
) -> Result<Option<(Offset, Option<u64>)>, StoreError> {
    // One that was announced, and that nobody reads yet.
    if (layout.scheme().partitions..layout.partitions_written()).contains(&partition.0) {
        return Ok(Some((Offset(0), None)));
    }
    let mut lowest: Option<(Offset, Option<u64>)> = None;
    let own = layout.scheme().of_partition(partition);
    let own = own.map(|shard| (layout.generation(), shard));
    for (generation, shard) in own.chain(layout.left(partition)) {
        let lease = standing(store, layout, generation, shard).await?;
        // Who has left has done its part of the partition.
        if generation != layout.generation() && lease.is_ended {
            continue;
        }
        let one = offset(&lease);
        lowest = Some(lowest.filter(|lowest| lowest.0 <= one.0).unwrap_or(one));
    }
    // Beyond there they leave things to others, which have not begun.
    if let (Some(lowest), Some(begin)) = (&mut lowest, layout.to_begin(partition))
        && begin.on(source) < lowest.0
    {
        *lowest = (begin.on(source), None);
    }
    Ok(lowest)
}

#[cfg(test)]
mod tests;
