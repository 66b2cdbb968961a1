//! Acquires the lease of a shard.
//!
//! What must hold here:
//!
//! * **The owner is a nonce of this process**, never a host or pod name.
//! * **A candidate waits for a silent owner.** It takes another owner's lease only after it has
//!   seen it unchanged for its duration plus the margin. An exclusive store needs no wait, since no
//!   older owner can be running.
//! * **A new owner reads first**: it reads checkpoint, end offsets and rows only after it has the
//!   lease.

use std::sync::Arc;

use waybill_clock::{clocks, wall_clock};
use waybill_engine::{OwnerId, PartitionId, ShardId};
use waybill_scheduler_core::{HeldLease, LeaseTerms, remember_topics};
use waybill_state::{DueBucket, Layout, LayoutGeneration, LeaseKey};
use waybill_store::{Store, StoreError, takeable};
use waybill_topology::shards;

use super::acquire_error::AcquireError;
use super::foreign_state::FirstOwner;

/// Acquires the lease of a shard of a generation of `layout`. Waits for the lease of a silent owner
/// to expire, and for the owners of the shards that it follows. Returns early only if the store
/// fails, or has another layout by then.
///
/// The very first owner stores where the logs begin, and the IDs of their topics, in the same write
/// that takes the lease. So a log that later loses its beginning, or is recreated, is never
/// mistaken for a new one.
pub(super) async fn acquire(
    store: Arc<dyn Store>,
    layout: &Layout,
    generation: LayoutGeneration,
    shard: ShardId,
    owner: OwnerId,
    terms: LeaseTerms,
    first_owner: &FirstOwner,
) -> Result<HeldLease, AcquireError> {
    let margin = terms.margin;
    let key = LeaseKey::scheduler(generation, shard);
    loop {
        let seen = takeable(&*store, key, margin, None).await?;
        let current = shards::layout(&*store, layout.scheme().partitions).await?;
        if current.generation() != layout.generation()
            || seen.as_ref().is_some_and(|lease| lease.is_ended)
        {
            return Err(waybill_scheduler_core::AcquireError::LayoutChanged.into());
        }
        let begun = match &seen {
            Some(lease) => lease.clone(),
            None => shards::beginning(&*store, layout, generation, shard, owner, margin).await?,
        };
        let partition = begun.partition;
        let begun = match begun.is_begun {
            true => begun,
            false => {
                let ends = first_owner.beginnings(partition).await?;
                let mut begun = begun.beginning_at(ends.first);
                remember_topics(&mut begun, &ends);
                begun
            }
        };
        let held = HeldLease::taking(begun, owner, terms, clocks());
        if !store.take_lease(seen, held.row.clone()).await? {
            tracing::info!(
                %shard,
                "another owner took the lease first; waiting for it to be released or to expire"
            );
            continue;
        }
        begin_index(&*store, partition).await?;
        return Ok(held);
    }
}

/// Ensures that the sweep of a shard begins no later than now: stores a cursor if there is none,
/// before any entry is written.
pub async fn begin_index(store: &dyn Store, shard: PartitionId) -> Result<(), StoreError> {
    // Read the clock first: another process may set the cursor and write entries in the meantime.
    let cursor = DueBucket::of(wall_clock());
    match store.due_cursor(shard).await? {
        Some(_) => Ok(()),
        None => store.advance_due_cursor(shard, cursor).await,
    }
}
