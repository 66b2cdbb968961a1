//! When a candidate may take another owner's lease.
//!
//! What must hold: **a silent owner is waited for.** A candidate takes another owner's lease only
//! after it has seen it unchanged for its duration and the margin, on a clock that also counts the
//! time for which the machine was suspended. An exclusive store needs no waiting, since no older
//! owner can live.

use std::time::Duration;

use waybill_engine::{BootTime, OwnerId};

use crate::lease::Lease;

/// A candidate's observations of a lease that another owner may hold.
#[derive(Debug)]
pub struct LeaseWatch {
    margin: Duration,
    is_exclusive: bool,
    me: Option<OwnerId>,
    /// The lease as it was first read, and when that read returned.
    seen: Option<(Lease, BootTime)>,
}

/// Whether a candidate may take a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseStatus {
    /// It has no owner, or one that cannot live.
    Free,
    /// Its owner has not renewed it in time.
    Expired,
    /// It has an owner that may be alive.
    Held,
}

impl LeaseWatch {
    /// How often a candidate reads a lease that another owner has.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// Begins to watch a lease in a store that is exclusive to this process, or not. A lease of
    /// `me`, if that is given, has a living owner even if the store is exclusive.
    #[must_use]
    pub fn new(margin: Duration, is_exclusive: bool, me: Option<OwnerId>) -> Self {
        Self {
            margin,
            is_exclusive,
            me,
            seen: None,
        }
    }

    /// Whether the lease may be taken, according to a read that has just returned.
    pub fn observe(&mut self, lease: Option<&Lease>, now: BootTime) -> LeaseStatus {
        let Some(lease) = lease else {
            return LeaseStatus::Free;
        };
        let is_mine = self.me.is_some() && lease.owner == self.me;
        if lease.owner.is_none() || (self.is_exclusive && !is_mine) {
            return LeaseStatus::Free;
        }
        let unchanged_since = match &self.seen {
            Some((seen, since)) if seen == lease => *since,
            Some(_) | None => {
                self.seen = Some((lease.clone(), now));
                now
            }
        };
        match now.since(unchanged_since) >= lease.duration + self.margin {
            true => LeaseStatus::Expired,
            false => LeaseStatus::Held,
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::PartitionId;

    use super::*;
    use crate::lease::LeaseKey;

    const MARGIN: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> BootTime {
        BootTime::new(Duration::from_secs(seconds))
    }

    fn held(renewal: u64) -> Lease {
        let partition = PartitionId(0);
        Lease {
            owner: Some(OwnerId(Uuid::from_u128(1))),
            renewal,
            duration: Duration::from_secs(10),
            ..Lease::new(LeaseKey::supervisor(partition), partition)
        }
    }

    #[test]
    fn a_lease_that_was_never_taken_or_was_released_is_free() {
        let mut watch = LeaseWatch::new(MARGIN, false, None);
        assert_eq!(watch.observe(None, at(0)), LeaseStatus::Free);
        let released = Lease {
            owner: None,
            ..held(1)
        };
        assert_eq!(watch.observe(Some(&released), at(0)), LeaseStatus::Free);
    }

    #[test]
    fn an_owner_is_waited_for_until_it_was_silent_for_its_lease_and_the_margin() {
        let mut watch = LeaseWatch::new(MARGIN, false, None);
        assert_eq!(watch.observe(Some(&held(1)), at(5)), LeaseStatus::Held);
        assert_eq!(watch.observe(Some(&held(1)), at(16)), LeaseStatus::Held);
        assert_eq!(watch.observe(Some(&held(2)), at(17)), LeaseStatus::Held);
        assert_eq!(watch.observe(Some(&held(2)), at(28)), LeaseStatus::Held);
        assert_eq!(watch.observe(Some(&held(2)), at(29)), LeaseStatus::Expired);
    }

    #[test]
    fn in_an_exclusive_store_only_a_lease_of_this_process_has_a_living_owner() {
        let mut watch = LeaseWatch::new(MARGIN, true, None);
        assert_eq!(watch.observe(Some(&held(1)), at(0)), LeaseStatus::Free);
        let mut watch = LeaseWatch::new(MARGIN, true, held(1).owner);
        assert_eq!(watch.observe(Some(&held(1)), at(0)), LeaseStatus::Held);
    }
}
