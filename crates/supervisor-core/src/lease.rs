//! The lease of one index shard while this process holds it.

use std::time::Duration;

use waybill_engine::{BootTime, OwnerId, PartitionId, TopicOffsets};
use waybill_state::{Checkpoint, Lease, LeaseKey};

/// A lease that this process has taken, and may have lost since.
#[derive(Debug)]
pub(crate) struct HeldLease {
    row: Lease,
    margin: Duration,
    valid_until: BootTime,
}

impl HeldLease {
    /// The row to write in order to take a lease that was read as `seen`.
    pub(crate) fn taking(
        seen: Option<&Lease>,
        index_shard: PartitionId,
        owner: OwnerId,
        duration: Duration,
    ) -> Lease {
        let new = || Lease::new(LeaseKey::supervisor(index_shard), index_shard);
        let before = seen.cloned().unwrap_or_else(new);
        Lease {
            owner: Some(owner),
            epoch: before.epoch.next(),
            renewal: 0,
            duration,
            ..before
        }
    }

    /// The lease whose row was written by a request sent at `sent`.
    pub(crate) fn new(row: Lease, margin: Duration, sent: BootTime) -> Self {
        let valid_until = sent + row.duration.saturating_sub(margin);
        Self {
            row,
            margin,
            valid_until,
        }
    }

    /// Whether its owner may act.
    pub(crate) fn is_valid(&self, now: BootTime) -> bool {
        now < self.valid_until
    }

    /// How long until it must be renewed: when a third of it has passed.
    pub(crate) fn renewal_due_in(&self, now: BootTime) -> Duration {
        let third = self.row.duration / 3;
        let rest = self.row.duration * 2 / 3 - self.margin.min(third);
        self.valid_until.since(now).saturating_sub(rest)
    }

    /// The offsets up to which the partition of the index shard was rerouted.
    pub(crate) fn rerouted(&self) -> TopicOffsets {
        self.row.checkpoint.at
    }

    /// The row that renews it.
    pub(crate) fn renewal(&self) -> Lease {
        Lease {
            renewal: self.row.renewal + 1,
            ..self.row.clone()
        }
    }

    /// The row that renews it and stores how far the partition was rerouted.
    pub(crate) fn renewal_with(&self, rerouted: TopicOffsets) -> Lease {
        Lease {
            checkpoint: Checkpoint::at(rerouted),
            ..self.renewal()
        }
    }

    /// The row that replaces it, as it is stored, when it is released.
    pub(crate) fn release(&self) -> (Lease, Lease) {
        let released = Lease {
            owner: None,
            ..self.renewal()
        };
        (self.row.clone(), released)
    }

    /// A renewal sent at `sent` was written.
    pub(crate) fn renewed(&mut self, row: Lease, sent: BootTime) {
        *self = Self::new(row, self.margin, sent);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(seconds: u64) -> BootTime {
        BootTime::new(Duration::from_secs(seconds))
    }

    fn held(duration: u64, margin: u64) -> HeldLease {
        let owner = OwnerId(Uuid::from_u128(1));
        let lease = Duration::from_secs(duration);
        let row = HeldLease::taking(None, PartitionId(3), owner, lease);
        HeldLease::new(row, Duration::from_secs(margin), at(100))
    }

    #[test]
    fn an_owner_may_act_until_the_margin_before_its_lease_ends() {
        let lease = held(12, 3);
        assert!(lease.is_valid(at(108)));
        assert!(!lease.is_valid(at(109)));
    }

    #[test]
    fn a_lease_is_renewed_when_a_third_of_it_has_passed() {
        let lease = held(12, 3);
        assert_eq!(lease.renewal_due_in(at(100)), Duration::from_secs(4));
        assert_eq!(lease.renewal_due_in(at(104)), Duration::ZERO);
        assert_eq!(lease.renewal_due_in(at(200)), Duration::ZERO);
        // A margin above a third counts as a third, so that the owner has time to act.
        assert_eq!(held(12, 6).renewal_due_in(at(100)), Duration::from_secs(2));
    }

    #[test]
    fn a_new_owner_gets_the_next_epoch_and_its_predecessors_progress() {
        let mut before = held(12, 3).renewal();
        before.checkpoint.at.replies.0 = 7;
        let owner = OwnerId(Uuid::from_u128(2));
        let lease = Duration::from_secs(9);
        let row = HeldLease::taking(Some(&before), PartitionId(3), owner, lease);
        let expected = Lease {
            owner: Some(owner),
            epoch: before.epoch.next(),
            renewal: 0,
            duration: lease,
            ..before
        };
        assert_eq!(row, expected);
    }
}
