//! Ownership of a shard: acquiring its lease, renewing it, and knowing when it has ended.
//!
//! What must hold here:
//!
//! * **The owner is a nonce of this process**, never a host or pod name.
//! * **Time is counted from before the request was sent.** A lease ends `duration - margin` after
//!   the instant at which its last successful renewal was *sent*, on a clock that also counts
//!   suspended time. A commit that is acknowledged later than that does not count.
//! * **A candidate waits for a silent owner.** It takes another owner's lease only after it has
//!   seen it unchanged for its duration plus the margin. An exclusive store needs no wait, since no
//!   older owner can be running.
//! * **A new owner reads first**: it reads checkpoint, end offsets and rows only after it has the
//!   lease.

use std::sync::Arc;
use std::time::Duration;

use waybill_clock::{BootTime, wall_clock};
use waybill_engine::{
    ByPriority, Offset, OwnerId, PartitionId, Priority, ShardId, Stamp, Timestamp,
};
use waybill_store::{
    Checkpoint, DueBucket, Layout, LayoutGeneration, Lease, LeaseKey, Store, StoreError, takeable,
};
use waybill_topology::shards;

use super::checkpoint_check::remember_topics;
use super::foreign_state::FirstOwner;
use super::input::AcquireError;

/// How long leases last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    /// How long an owner may act after a renewal.
    pub duration: Duration,
    /// The allowance for clock drift and delay on both sides.
    pub margin: Duration,
}

/// A lease that this process holds.
#[derive(Clone, Debug)]
pub(super) struct HeldLease {
    /// The row as it was last written.
    pub row: Lease,
    /// The lower bound of this ownership's stamps.
    pub stamp_floor: Stamp,
    /// Until when this owner may act.
    pub valid_until: BootTime,
}

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
            return Err(AcquireError::LayoutChanged);
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
        let limit_before = begun.stamp_limit;
        let row = Lease {
            owner: Some(owner),
            epoch: begun.epoch.next(),
            renewal: 0,
            duration: terms.duration,
            stamp_limit: first_limit(limit_before, wall_clock(), terms.duration),
            ..begun
        };
        let sent = BootTime::now();
        if !store.take_lease(seen, row.clone()).await? {
            tracing::info!(
                %shard,
                "another owner took the lease first; waiting for it to be released or to expire"
            );
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

/// Ensures that the sweep of a shard begins no later than now: stores a cursor if there is none,
/// before any entry is written.
pub async fn begin_index(store: &dyn Store, shard: PartitionId) -> Result<(), StoreError> {
    // Read the clock first: another process may set the cursor and write entries meanwhile.
    let cursor = DueBucket::of(wall_clock());
    match store.due_cursor(shard).await? {
        Some(_) => Ok(()),
        None => store.advance_due_cursor(shard, cursor).await,
    }
}

/// The stamp limit of a new ownership: two lease durations above the old limit, which is its floor,
/// or above the current time, whichever is later.
fn first_limit(limit_before: Stamp, now: Timestamp, duration: Duration) -> Stamp {
    Stamp((Timestamp(limit_before.0).max(now) + duration * 2).as_micros())
}

/// The stamp limit of a renewed lease: two lease durations ahead of the time and of the last stamp,
/// and never lower than before. (After a backward step of the clock stamps continue from their last
/// value, however long the time takes to catch up.)
fn raised_limit(limit: Stamp, last: Stamp, now: Timestamp, duration: Duration) -> Stamp {
    Stamp(
        limit
            .0
            .max((now.max(Timestamp(last.0)) + duration * 2).as_micros()),
    )
}

/// A renewal and its effect.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    /// The row to write.
    pub row: Lease,
    /// Until when the owner may act if it succeeds.
    pub valid_until: BootTime,
}

impl HeldLease {
    /// The renewal that stores `checkpoint` and `consumed`; with `release`, the last one, after
    /// which the shard has no owner. `last_stamp` is the engine's.
    pub(super) fn renewal(
        &self,
        terms: LeaseTerms,
        now: Timestamp,
        last_stamp: Stamp,
        checkpoint: Checkpoint,
        consumed: ByPriority<Offset>,
        release: bool,
    ) -> Renewal {
        let mut row = self.row.clone();
        row.renewal += 1;
        row.checkpoint = checkpoint;
        row.handover.forget_below(|source| checkpoint.on(source));
        for priority in Priority::ALL {
            row.consumed[priority] = row.consumed[priority].max(consumed[priority]);
        }
        row.stamp_limit = raised_limit(row.stamp_limit, last_stamp, now, terms.duration);
        if release {
            row.owner = None;
        }
        Renewal {
            row,
            valid_until: BootTime::now() + terms.duration.saturating_sub(terms.margin),
        }
    }

    /// Adopts a successful renewal.
    pub(super) fn renewed(&mut self, renewal: Renewal) {
        self.row = renewal.row;
        self.valid_until = renewal.valid_until;
    }

    /// Whether this owner may still act.
    pub(super) fn is_valid(&self) -> bool {
        self.is_valid_at(BootTime::now())
    }

    fn is_valid_at(&self, now: BootTime) -> bool {
        now < self.valid_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn held(valid_until: BootTime) -> HeldLease {
        let key = LeaseKey::scheduler(LayoutGeneration(0), ShardId(0));
        HeldLease {
            row: Lease::new(key, PartitionId(0)),
            stamp_floor: Stamp(0),
            valid_until,
        }
    }

    fn renewal(lease: &HeldLease, now: Timestamp, last_stamp: Stamp) -> Renewal {
        let terms = LeaseTerms {
            duration: LEASE,
            margin: Duration::from_secs(1),
        };
        lease.renewal(
            terms,
            now,
            last_stamp,
            Checkpoint::default(),
            ByPriority::default(),
            false,
        )
    }

    #[test]
    fn an_owner_that_was_suspended_past_its_lease_acts_no_more() {
        let renewed_at = BootTime::from_micros(60_000_000);
        let lease = held(renewed_at + Duration::from_secs(9));
        assert!(lease.is_valid_at(renewed_at + Duration::from_secs(8)));
        // The machine was suspended for an hour right after the renewal, and its monotonic clock
        // was stopped.
        assert!(!lease.is_valid_at(renewed_at + Duration::from_secs(3_600)));
    }

    #[test]
    fn stamps_do_not_run_out_after_the_clock_was_set_back() {
        let (day, now) = (Duration::from_secs(86_400), Timestamp(1_000_000_000_000));
        let mut lease = held(BootTime::now());
        let mut last = Stamp((now + day).as_micros());
        lease.row.stamp_limit = Stamp(last.0 + 1);
        for _ in 0..3 {
            let renewal = renewal(&lease, now, last);
            assert_eq!(renewal.row.stamp_limit, Stamp(last.0 + 20_000_000));
            last = Stamp(renewal.row.stamp_limit.0 - 1);
            lease.row = renewal.row;
        }
        let far = renewal(&lease, now + day + day, last).row.stamp_limit;
        assert_eq!(far, Stamp((now + day + day + 2 * LEASE).as_micros()));
    }
}
