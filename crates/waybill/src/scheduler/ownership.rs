//! Owning a reader's work: taking its lease, keeping it, and knowing when it has ended.
//!
//! What must hold here:
//!
//! * **The owner is a nonce of this process**, never a host or pod name.
//! * **Time is counted from before the request left.** A lease ends `duration - margin` after the
//!   instant at which its last successful renewal was *sent*, on this process's monotonic clock. A
//!   commit that is acknowledged later than that does not count.
//! * **A silent owner is waited for.** A candidate takes a foreign lease only after it has seen it
//!   unchanged for its duration and the margin; an exclusive store needs no waiting, since no older
//!   owner can live.
//! * **The first act of an owner is reading**: checkpoint, end offsets and rows are read only after
//!   the lease was taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_engine::{ByLane, Lane, Offset, OwnerId, PartitionId, ReaderId, Stamp, Timestamp};
use waybill_store::{
    Checkpoint, DueBucket, Layout, LayoutGeneration, Lease, LeaseKey, Store, StoreError,
};

use super::input::AcquireError;
use crate::clock::wall_clock;
use crate::readers;

/// How often a candidate looks at a lease that another owner holds.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// How long leases last and how they are judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    /// How long an owner may act after a renewal.
    pub duration: Duration,
    /// What both sides allow for clock drift and delay.
    pub margin: Duration,
}

/// A lease that this process holds.
#[derive(Clone, Debug)]
pub(super) struct HeldLease {
    /// The row as it was last written.
    pub row: Lease,
    /// The stamps of this ownership lie above this.
    pub stamp_floor: Stamp,
    /// Until when this owner may act.
    pub valid_until: Instant,
}

/// Takes the lease of a reader of a generation of `layout`, waiting for a silent owner's to run out, and for
/// the owners of those whom it follows. Gives up only when the store fails, or has another layout by then. `told` is
/// the time that engines of this process were told last: it never goes back, though the wall clock may.
pub(super) async fn acquire(
    store: Arc<dyn Store>,
    layout: &Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
    owner: OwnerId,
    terms: LeaseTerms,
    told: Timestamp,
) -> Result<HeldLease, AcquireError> {
    let margin = terms.margin;
    let key = LeaseKey::scheduler(generation, reader);
    loop {
        let seen = takeable(&*store, key, margin, None).await?;
        let stands = readers::layout(&*store, layout.division().partitions).await?;
        if stands.generation() != layout.generation()
            || seen.as_ref().is_some_and(|lease| lease.is_ended)
        {
            return Err(AcquireError::LayoutChanged);
        }
        let begun = match &seen {
            Some(lease) => lease.clone(),
            None => readers::beginning(&*store, layout, generation, reader, owner, margin).await?,
        };
        let partition = begun.partition;
        let limit_before = begun.stamp_limit;
        let row = Lease {
            owner: Some(owner),
            epoch: begun.epoch.next(),
            renewal: 0,
            duration: terms.duration,
            stamp_limit: first_limit(limit_before, wall_clock().max(told), terms.duration),
            ..begun
        };
        let sent = Instant::now();
        if !store.take_lease(seen, row.clone()).await? {
            tracing::info!(%reader, "another owner took the lease first; watching it");
            continue;
        }
        begin_index(&*store, partition).await?;
        return Ok(HeldLease {
            row,
            stamp_floor: limit_before,
            valid_until: sent + terms.duration.saturating_sub(terms.margin),
        });
    }
}

/// Waits until the lease may be taken and returns it as it then stands. One of `me`, if that is given,
/// has a living owner even where no other process can have the store open.
pub(crate) async fn takeable(
    store: &dyn Store,
    key: LeaseKey,
    margin: Duration,
    me: Option<OwnerId>,
) -> Result<Option<Lease>, StoreError> {
    let mut seen = store.lease(key).await?;
    let mut unchanged_since = Instant::now();
    loop {
        let Some(lease) = &seen else { return Ok(None) };
        let is_mine = me.is_some() && lease.owner == me;
        if lease.owner.is_none() || (store.is_exclusive() && !is_mine) {
            return Ok(seen);
        }
        if unchanged_since.elapsed() >= lease.duration + margin {
            tracing::warn!(lease = %key, epoch = %lease.epoch, "the owner is silent; taking over");
            return Ok(seen);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now_stands = store.lease(key).await?;
        if now_stands != seen {
            seen = now_stands;
            unchanged_since = Instant::now();
        }
    }
}

/// Sees to it that the sweep of a shard begins no later than now: one that never had a cursor gets one,
/// durably, before anything is written that is to be found.
pub(crate) async fn begin_index(store: &dyn Store, shard: PartitionId) -> Result<(), StoreError> {
    // The time from before it is looked: somebody else may set it, and write entries, meanwhile.
    let cursor = DueBucket::of(wall_clock());
    match store.due_cursor(shard).await? {
        Some(_) => Ok(()),
        None => store.advance_due_cursor(shard, cursor).await,
    }
}

/// The stamp limit of a new ownership: two leases above the old limit, which is its floor, or above
/// the time, whichever is later.
fn first_limit(limit_before: Stamp, now: Timestamp, duration: Duration) -> Stamp {
    Stamp((Timestamp(limit_before.0).max(now) + duration * 2).as_micros())
}

/// The stamp limit of a renewed lease: two leases ahead, and never lowered.
fn raised_limit(limit: Stamp, now: Timestamp, duration: Duration) -> Stamp {
    Stamp(limit.0.max((now + duration * 2).as_micros()))
}

/// What a renewal writes.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    /// The row to write.
    pub row: Lease,
    /// Until when the owner may act if it succeeds.
    pub valid_until: Instant,
}

impl HeldLease {
    /// The renewal that moves the lease to `checkpoint` and `consumed`; with `release`, the last
    /// one, after which the partition has no owner. `now` is the time that the engines are told, which
    /// may lie ahead of the wall clock: their stamps have to stay below the limit.
    pub(super) fn renewal(
        &self,
        terms: LeaseTerms,
        now: Timestamp,
        checkpoint: Checkpoint,
        consumed: ByLane<Offset>,
        release: bool,
    ) -> Renewal {
        let mut row = self.row.clone();
        row.renewal += 1;
        row.checkpoint = checkpoint;
        row.handover.forget_below(|source| checkpoint.on(source));
        for lane in Lane::ALL {
            row.consumed[lane] = row.consumed[lane].max(consumed[lane]);
        }
        row.stamp_limit = raised_limit(row.stamp_limit, now, terms.duration);
        if release {
            row.owner = None;
        }
        Renewal {
            row,
            valid_until: Instant::now() + terms.duration.saturating_sub(terms.margin),
        }
    }

    /// Takes over what a successful renewal wrote.
    pub(super) fn renewed(&mut self, renewal: Renewal) {
        self.row = renewal.row;
        self.valid_until = renewal.valid_until;
    }

    /// Whether this owner may still act.
    pub(super) fn is_valid(&self) -> bool {
        Instant::now() < self.valid_until
    }
}
