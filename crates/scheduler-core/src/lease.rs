//! The lease that a shard runs under: its renewals, and when it has ended.
//!
//! What must hold: **time is counted from before the request was sent.** A lease ends `duration -
//! margin` after the instant at which its last successful renewal was *sent*, on a clock that also
//! counts suspended time. A commit that is acknowledged later than that does not count.

use std::time::Duration;

use waybill_engine::{BootTime, ByPriority, Now, Offset, OwnerId, Priority, Stamp, Timestamp};
use waybill_state::{Checkpoint, Lease};

use crate::task::Panicked;

/// How long leases last.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// How long an owner may act after a renewal.
    pub duration: Duration,
    /// The allowance for clock drift and delay on both sides.
    pub margin: Duration,
}

impl LeaseTerms {
    /// Until when an owner may act after a write that began at `now`.
    fn valid_until(self, now: Now) -> BootTime {
        now.boot + self.duration.saturating_sub(self.margin)
    }
}

/// A lease that this process holds.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldLease {
    /// The row as it was last written.
    pub row: Lease,
    /// The lower bound of this ownership's stamps.
    pub stamp_floor: Stamp,
    /// Until when this owner may act.
    pub valid_until: BootTime,
}

/// A renewal and its effect.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    /// The row to write.
    pub row: Lease,
    /// Until when the owner may act if it succeeds.
    pub valid_until: BootTime,
}

/// Why a lease could not be acquired.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AcquireError {
    /// The shard has run before according to its log, but the store has no record of it.
    #[error(
        "the state store has no record of this partition, but {sign}: check that this is the right \
         store (keyspace, data directory) and that no accepted request is missing from the log; to \
         start with the records that the log still has, set scheduler.startWithoutState: true"
    )]
    StateElsewhere {
        /// The sign.
        sign: String,
    },
    /// The layout has changed since.
    #[error("the shard layout changed")]
    LayoutChanged,
    /// The store or the broker failed, or the task panicked: the error with its causes.
    #[error("{0}")]
    Failed(String),
}

impl From<Panicked> for AcquireError {
    fn from(panicked: Panicked) -> Self {
        Self::Failed(panicked.to_string())
    }
}

impl HeldLease {
    /// The lease with which `owner` takes over from `before`, which nobody holds any more. The
    /// write that takes it begins at `now`.
    #[must_use]
    pub fn taking(before: Lease, owner: OwnerId, terms: LeaseTerms, now: Now) -> Self {
        let stamp_floor = before.stamp_limit;
        Self {
            row: Lease {
                owner: Some(owner),
                epoch: before.epoch.next(),
                renewal: 0,
                duration: terms.duration,
                stamp_limit: first_limit(stamp_floor, now.wall, terms.duration),
                ..before
            },
            stamp_floor,
            valid_until: terms.valid_until(now),
        }
    }

    /// The lease without an owner.
    pub(crate) fn without_owner(&self) -> Lease {
        Lease {
            owner: None,
            renewal: self.row.renewal + 1,
            ..self.row.clone()
        }
    }

    /// The renewal that stores `checkpoint` and `consumed`; with `release`, the last one, after
    /// which the shard has no owner. `last_stamp` is the engine's.
    pub(crate) fn renewal(
        &self,
        terms: LeaseTerms,
        now: Now,
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
        row.stamp_limit = raised_limit(row.stamp_limit, last_stamp, now.wall, terms.duration);
        if release {
            row.owner = None;
        }
        Renewal {
            row,
            valid_until: terms.valid_until(now),
        }
    }

    /// Adopts a successful renewal.
    pub(crate) fn renewed(&mut self, renewal: Renewal) {
        self.row = renewal.row;
        self.valid_until = renewal.valid_until;
    }

    /// Whether this owner may still act.
    pub(crate) fn is_valid(&self, now: BootTime) -> bool {
        now < self.valid_until
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

#[cfg(test)]
mod tests {
    use waybill_engine::{PartitionId, ShardId};
    use waybill_state::{LayoutGeneration, LeaseKey};

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const STARTED: BootTime = BootTime::from_micros(60_000_000);

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
        let now = Now {
            wall: now,
            boot: STARTED,
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
    fn an_owner_suspended_past_its_lease_stops() {
        let lease = held(STARTED + Duration::from_secs(9));
        assert!(lease.is_valid(STARTED + Duration::from_secs(8)));
        // The machine was suspended for an hour right after the renewal, and its monotonic clock
        // was stopped.
        assert!(!lease.is_valid(STARTED + Duration::from_secs(3_600)));
    }

    #[test]
    fn stamps_remain_available_after_the_clock_was_set_back() {
        let (day, now) = (Duration::from_secs(86_400), Timestamp(1_000_000_000_000));
        let mut lease = held(STARTED);
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
