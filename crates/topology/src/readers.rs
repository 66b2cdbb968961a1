//! The readers of partitions, as the state store tells of them: which division is in force, where each
//! reader stands, and how it is changed.
//!
//! What must hold: **readers follow one another whole**. A reader of a new layout begins only when all
//! whom it follows were taken from their owners for good, by conditional writes, so that none of them can
//! write, send or commit any more; and it begins where they stood then. Where a reader gets another
//! partition, whom it follows has read the old one to its end.

pub mod show;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use waybill_engine::{Division, Offset, OwnerId, PartitionId, Places, Priority, ReaderId, Source};
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
pub async fn layout_at_start(store: &dyn Store, wanted: Division) -> anyhow::Result<Layout> {
    let found = store
        .layout()
        .await
        .context("the layout of readers cannot be read")?;
    if found.is_none() {
        let first = Layout::first(wanted.partitions);
        let begins = match wanted != first.division() && is_new(store, &first).await? {
            true => first.successor(wanted)?,
            false => first,
        };
        // Whoever is quicker says the same, or else it is told below.
        if store.set_layout(None, begins.clone()).await? {
            tracing::info!(layout = %begins, "the store begins with this layout of readers");
        }
    }
    let layout = layout(store, wanted.partitions).await?;
    let stands = layout.division();
    let (is, configured) = (stands.readers_per_partition, wanted.readers_per_partition);
    if is != configured && layout.becomes().is_none() {
        tracing::warn!(
            readers_per_partition = is,
            configured,
            "the state store says how many readers share a partition, and not the configuration: \
             `waybill readers set {configured}` changes it, or set scheduler.readersPerPartition to {is}"
        );
    }
    Ok(layout)
}

/// Under which generation a reader is to run now: the layout's own, or the one before it, while the reader
/// has not read a partition to its end that it is to leave.
///
/// # Errors
///
/// If the store fails.
pub async fn generation_to_run(
    store: &dyn Store,
    layout: &Layout,
    reader: ReaderId,
) -> Result<LayoutGeneration, StoreError> {
    let generation = layout.generation();
    let Some(before) = generation.previous() else {
        return Ok(generation);
    };
    let Some(end) = layout.end_of(before, reader) else {
        return Ok(generation);
    };
    let key = LeaseKey::scheduler(generation, reader);
    if store.lease(key).await?.is_some() {
        return Ok(generation);
    }
    let stands = standing(store, layout, before, reader).await?;
    Ok(match stands.checkpoint.at.reach(&end) {
        true => generation,
        false => before,
    })
}

/// A reader that nobody has begun under this layout, if there is one.
///
/// # Errors
///
/// If the store fails.
pub async fn unbegun(store: &dyn Store, layout: &Layout) -> Result<Option<ReaderId>, StoreError> {
    for reader in layout.division().all() {
        let key = LeaseKey::scheduler(layout.generation(), reader);
        if store.lease(key).await?.is_none() {
            return Ok(Some(reader));
        }
    }
    Ok(None)
}

/// What is left of going over to another number of partitions: of readers that have not begun, or still read what was there
/// before it, one, and what it has yet to reach.
///
/// # Errors
///
/// If the store fails.
pub async fn unmoved(
    store: &dyn Store,
    layout: &Layout,
) -> Result<Option<(ReaderId, PartitionId, Places)>, StoreError> {
    let generation = layout.generation();
    for reader in layout.division().all() {
        let partition = layout.division().partition_of(reader);
        let key = LeaseKey::scheduler(generation, reader);
        let cut = layout.cut_of(generation, partition).map(|cut| cut.ends);
        match (store.lease(key).await?, cut) {
            (Some(lease), Some(cut)) if !lease.checkpoint.at.reach(&cut) => {
                return Ok(Some((reader, partition, cut)));
            }
            (Some(_), _) => {}
            // Who has not begun waits for whom it follows.
            (None, _) => {
                let before = generation.previous();
                let left = before.and_then(|before| {
                    let partition = layout.of(before)?.partition_of(reader);
                    Some((partition, layout.end_of(before, reader)?))
                });
                let (partition, end) = left.unwrap_or((partition, cut.unwrap_or_default()));
                return Ok(Some((reader, partition, end)));
            }
        }
    }
    Ok(None)
}

/// Whether nobody has ever read a partition.
async fn is_new(store: &dyn Store, first: &Layout) -> Result<bool, StoreError> {
    for reader in first.division().all() {
        let key = LeaseKey::scheduler(first.generation(), reader);
        if store.lease(key).await?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where a reader stands: its lease, or, before it has begun, what it would go on from if those whom it
/// follows stood where they are now. Changes nothing.
pub async fn standing(
    store: &dyn Store,
    layout: &Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
) -> Result<Lease, StoreError> {
    standing_of(store, layout, generation, reader, &mut HashMap::new()).await
}

/// The same, and remembers those whom several readers of unbegun layouts follow.
fn standing_of<'a>(
    store: &'a dyn Store,
    layout: &'a Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
    known: &'a mut HashMap<LeaseKey, Lease>,
) -> BoxFuture<'a, Result<Lease, StoreError>> {
    async move {
        let step = Step::of(layout, generation, reader);
        if let Some(lease) = known.get(&step.key) {
            return Ok(lease.clone());
        }
        let lease = match store.lease(step.key).await? {
            Some(lease) => lease,
            None => {
                let mut followed = Vec::new();
                for (before, division, parent) in step.parents() {
                    let lease = standing_of(store, layout, before, parent, known).await?;
                    followed.push(Followed::new(lease, division));
                }
                step.following(&followed)
            }
        };
        known.insert(step.key, lease.clone());
        Ok(lease)
    }
    .boxed()
}

/// What a reader goes on from that nobody has begun yet. Takes those whom it follows for good, and waits
/// for as long as their owners keep them. `me` is this process, whose own readers give their leases back
/// by themselves.
pub fn beginning<'a>(
    store: &'a dyn Store,
    layout: &'a Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
    me: OwnerId,
    margin: Duration,
) -> BoxFuture<'a, Result<Lease, StoreError>> {
    async move {
        let step = Step::of(layout, generation, reader);
        // All at once: one that is silent is waited for once, however many were its.
        let parents = step.parents().into_iter();
        let ended = parents.map(|(before, division, parent)| async move {
            let lease = end(store, layout, before, parent, me, margin).await?;
            Ok::<_, StoreError>(Followed::new(lease, division))
        });
        Ok(step.following(&try_join_all(ended).await?))
    }
    .boxed()
}

/// Takes a reader of an earlier layout for good, from whom it has been let go by, or has gone silent.
async fn end(
    store: &dyn Store,
    layout: &Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
    me: OwnerId,
    margin: Duration,
) -> Result<Lease, StoreError> {
    let key = LeaseKey::scheduler(generation, reader);
    loop {
        let seen = takeable(store, key, margin, Some(me)).await?;
        let stands = match &seen {
            Some(lease) if lease.is_ended => return Ok(lease.clone()),
            Some(lease) => lease.clone(),
            None => beginning(store, layout, generation, reader, me, margin).await?,
        };
        let ended = stands.ended();
        if store.take_lease(seen, ended.clone()).await? {
            tracing::info!(lease = %key, checkpoint = %ended.checkpoint.at.requests, "taken for good");
            return Ok(ended);
        }
    }
}

/// A reader, and whom it follows.
struct Step {
    key: LeaseKey,
    reader: ReaderId,
    division: Division,
    begins: Begins,
    before: Option<(LayoutGeneration, Division)>,
}

impl Step {
    fn of(layout: &Layout, generation: LayoutGeneration, reader: ReaderId) -> Self {
        let of = |generation| layout.of(generation).unwrap_or(layout.division());
        let partition = of(generation).partition_of(reader);
        Self {
            key: LeaseKey::scheduler(generation, reader),
            reader,
            division: of(generation),
            begins: Begins {
                cut: layout.cut_into(generation, partition),
                unread: layout.begin_of(generation, partition),
            },
            before: generation.previous().map(|before| (before, of(before))),
        }
    }

    fn parents(&self) -> Vec<(LayoutGeneration, Division, ReaderId)> {
        let Some((generation, division)) = self.before else {
            return Vec::new();
        };
        let parents = self.division.follows(division, self.reader).into_iter();
        parents
            .map(|parent| (generation, division, parent))
            .collect()
    }

    fn following(&self, followed: &[Followed]) -> Lease {
        let partition = self.division.partition_of(self.reader);
        Lease::following(self.key, partition, self.begins, followed)
    }
}

/// The first request of a partition that not all of its readers have durably consumed.
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

/// The first record of a partition that is not done by all of its readers.
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

/// The same, with the fingerprint of the record before it as far as its reader has one; `None` where nobody reads the
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

/// The lowest of the offsets of those who read a partition, with the fingerprint that goes with it.
async fn lowest(
    store: &dyn Store,
    layout: &Layout,
    source: Source,
    partition: PartitionId,
    offset: impl Fn(&Lease) -> (Offset, Option<u64>),
) -> Result<Option<(Offset, Option<u64>)>, StoreError> {
    // One that was announced, and that nobody reads yet.
    if (layout.division().partitions..layout.partitions_written()).contains(&partition.0) {
        return Ok(Some((Offset(0), None)));
    }
    let mut lowest: Option<(Offset, Option<u64>)> = None;
    let own = layout.division().of_partition(partition);
    let own = own.map(|reader| (layout.generation(), reader));
    for (generation, reader) in own.chain(layout.left(partition)) {
        let lease = standing(store, layout, generation, reader).await?;
        // Who has left has done its part of the partition.
        if generation != layout.generation() && lease.is_ended {
            continue;
        }
        let one = offset(&lease);
        lowest = Some(lowest.filter(|lowest| lowest.0 <= one.0).unwrap_or(one));
    }
    // Beyond there they leave things to others, who have not begun.
    if let (Some(lowest), Some(begin)) = (&mut lowest, layout.to_begin(partition))
        && begin.on(source) < lowest.0
    {
        *lowest = (begin.on(source), None);
    }
    Ok(lowest)
}

#[cfg(test)]
mod tests;
