//! The requests in flight, and those accepted so recently that they might not have a row yet.
//!
//! The scheduler's row is authoritative. Until it exists, this joins a repeat with its first
//! request, detects a conflict immediately, and lets a status without a token answer `Pending`. It
//! is an optimisation: bounded, the oldest forgotten first, and empty after a restart.
//!
//! What must hold: from the moment when a request with a caller's id is admitted until it is
//! forgotten, every other request with that id gets its outcome. The outcome moves from the
//! requests in flight to the accepted ones in one call.
//!
//! Not quick_cache or moka: they know nothing of the requests in flight, and they may evict a
//! request that was accepted just now, whose row is the one that does not exist yet.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use waybill_engine::{OperationId, RequestHash};

use crate::accepted::{Accepted, Settled};

/// A client that waits for the outcome of a request.
pub trait Waiter {
    /// Whether it no longer waits.
    fn is_gone(&self) -> bool;
}

/// Requests in flight, with the clients that wait for them, and requests accepted last.
#[derive(Debug)]
pub struct Claims<W> {
    /// How many accepted requests are remembered.
    accepted_max: usize,
    accepted: BTreeMap<OperationId, Box<Accepted>>,
    order: VecDeque<OperationId>,
    /// No more than the producer's queue has room for.
    in_flight: BTreeMap<OperationId, InFlight<W>>,
}

#[derive(Debug)]
struct InFlight<W> {
    hash: RequestHash,
    first: W,
    /// Equal requests, each held by its connection or its batch.
    sharing: Vec<W>,
}

/// The result of a claim of a caller's id.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The id is free, and belongs to the request until it is settled or abandoned.
    New,
    /// An equal request is in flight.
    Shared,
    /// An equal request was accepted.
    Accepted(Accepted),
    /// Another request has the id.
    Conflict,
}

impl<W: Waiter> Claims<W> {
    /// Remembers about `accepted_max` accepted requests.
    #[must_use]
    pub fn new(accepted_max: usize) -> Self {
        Self {
            accepted_max,
            accepted: BTreeMap::new(),
            order: VecDeque::new(),
            in_flight: BTreeMap::new(),
        }
    }

    /// The request accepted under `id`, if it is remembered.
    #[must_use]
    pub fn accepted(&self, id: OperationId) -> Option<&Accepted> {
        self.accepted.get(&id).map(AsRef::as_ref)
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What is known about an id, without a claim.
    pub(crate) fn look_up(&self, id: OperationId, hash: RequestHash) -> Claimed {
        if let Some(first) = self.in_flight.get(&id) {
            return match first.hash == hash {
                true => Claimed::Shared,
                false => Claimed::Conflict,
            };
        }
        match self.accepted.get(&id) {
            Some(accepted) if accepted.hash == hash => Claimed::Accepted(accepted.as_ref().clone()),
            Some(_) => Claimed::Conflict,
            None => Claimed::New,
        }
    }

    /// Adds a waiter to the request in flight that [`look_up`](Self::look_up) found.
    pub(crate) fn share(&mut self, id: OperationId, waiter: W) {
        if let Some(first) = self.in_flight.get_mut(&id) {
            if first.sharing.len() == first.sharing.capacity() {
                // Requests that stopped waiting make room before another is added.
                first.sharing.retain(|sharing| !sharing.is_gone());
            }
            first.sharing.push(waiter);
        }
    }

    /// Claims an id that is free.
    pub(crate) fn claim(&mut self, id: OperationId, hash: RequestHash, first: W) {
        let sharing = Vec::new();
        self.in_flight.insert(
            id,
            InFlight {
                hash,
                first,
                sharing,
            },
        );
    }

    /// Ends a claim, remembers an accepted request, and returns all that wait.
    pub(crate) fn settle(&mut self, id: OperationId, settled: &Settled) -> Vec<W> {
        if let Ok(accepted) = settled {
            self.remember(id, accepted);
        }
        self.abandon(id)
    }

    /// Ends a claim without an outcome, and returns all that wait.
    pub(crate) fn abandon(&mut self, id: OperationId) -> Vec<W> {
        let Some(ended) = self.in_flight.remove(&id) else {
            return Vec::new();
        };
        let mut waiters = ended.sharing;
        waiters.push(ended.first);
        waiters
    }

    /// Remembers an accepted request. Of two with one id, the first in the partition wins, as it
    /// does at the scheduler. Across two priorities either may be first there: the one remembered
    /// first wins.
    pub(crate) fn remember(&mut self, id: OperationId, accepted: &Accepted) {
        if self.accepted_max == 0 {
            return;
        }
        match self.accepted.entry(id) {
            Entry::Occupied(mut entry) => {
                // `None` is below every offset: a request of unknown offset does not replace
                // another.
                let known = entry.get();
                let is_earlier =
                    accepted.priority == known.priority && accepted.offset < known.offset;
                if accepted.offset.is_some() && is_earlier {
                    entry.insert(Box::new(accepted.clone()));
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(Box::new(accepted.clone()));
                self.order.push_back(id);
                if self.order.len() > self.accepted_max
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.accepted.remove(&oldest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::{Offset, PartitionId, Priority, Timestamp};

    use super::*;

    /// A waiter that has left, or not.
    struct Client(bool);

    impl Waiter for Client {
        fn is_gone(&self) -> bool {
            self.0
        }
    }

    fn accepted(offset: i64, hash: u8) -> Accepted {
        Accepted {
            priority: Priority::Normal,
            partition: PartitionId(0),
            offset: Some(Offset(offset)),
            hash: RequestHash([hash; 16]),
            workflow: "w".into(),
            tenant: None,
            caller_id: None,
            requested_at: Timestamp(0),
        }
    }

    fn id(number: u128) -> OperationId {
        OperationId(Uuid::from_u128(number))
    }

    #[test]
    fn the_first_of_two_requests_with_one_id_in_the_partition_wins() {
        let mut claims = Claims::<Client>::new(100);
        for (offset, wins) in [(5, 5), (7, 5), (3, 3)] {
            claims.remember(id(1), &accepted(offset, 1));
            assert_eq!(claims.accepted(id(1)), Some(&accepted(wins, 1)));
        }
        let unknown = Accepted {
            offset: None,
            ..accepted(0, 1)
        };
        claims.remember(id(1), &unknown);
        assert_eq!(claims.accepted(id(1)), Some(&accepted(3, 1)));
    }

    #[test]
    fn the_oldest_requests_are_forgotten() {
        let mut claims = Claims::<Client>::new(2);
        for number in 0..5 {
            claims.remember(id(number), &accepted(0, 0));
        }
        let known = |number| claims.accepted(id(number)).is_some();
        let known = [0, 1, 2, 3, 4].map(known);
        assert_eq!(known, [false, false, false, true, true]);
        let mut none = Claims::<Client>::new(0);
        none.remember(id(0), &accepted(0, 0));
        assert_eq!(none.accepted(id(0)), None);
    }

    #[test]
    fn waiters_that_left_take_no_memory() {
        let mut claims = Claims::new(100);
        claims.claim(id(1), RequestHash([1; 16]), Client(false));
        for _ in 0..1_000 {
            claims.share(id(1), Client(true));
        }
        let sharing = claims.in_flight[&id(1)].sharing.len();
        assert!(sharing <= 8, "{sharing} wait");
    }
}
