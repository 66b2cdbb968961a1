//! The requests in flight, and those accepted so recently that they might not have a row yet.
//!
//! The scheduler's row is authoritative. Until it exists, this cache joins a repeat with its first
//! request, detects a conflict immediately, and lets a status without a token answer `Pending`. It
//! is an optimisation: bounded, the oldest forgotten first, and empty after a restart. No guarantee
//! depends on it: two processes may write records with the same id, and the scheduler decides
//! between them.
//!
//! What must hold: from the moment when a request with a caller's id is passed to the producer
//! until it is forgotten, every other request with that id gets its outcome. The outcome moves from
//! the requests in flight to the accepted ones under one lock.
//!
//! Not quick_cache or moka: their locks do not cover the requests in flight, and they may evict a
//! request that was accepted just now, whose row is the one that does not exist yet.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use waybill_engine::{
    Offset, OperationId, PartitionId, Position, Priority, RequestHash, Timestamp,
};
use waybill_kafka::ProduceError;

use super::token::StatusToken;

/// A request that the broker has acknowledged.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The priority of the request.
    pub priority: Priority,
    /// The partition of its record.
    pub partition: PartitionId,
    /// The record's offset; `None` in the rare case that the broker acknowledged it without an
    /// offset.
    pub offset: Option<Offset>,
    /// Distinguishes a repeat from a conflict.
    pub hash: RequestHash,
    /// The requested workflow.
    pub workflow: Arc<str>,
    /// The tenant of the request, if any.
    pub tenant: Option<Arc<str>>,
    /// The caller's own id, if it differs.
    pub caller_id: Option<Arc<str>>,
    /// When it was accepted.
    pub requested_at: Timestamp,
}

impl Accepted {
    /// The tenant of the request; empty if it has none.
    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or_default()
    }

    /// The token for its `Location`.
    pub fn token(&self) -> Option<StatusToken> {
        let position = Position {
            priority: self.priority,
            partition: self.partition,
            offset: self.offset?,
        };
        Some(StatusToken::new(position, self.hash))
    }
}

/// The outcome of a request.
pub type Settled = Result<Accepted, ProduceError>;

/// The requests in flight and those accepted last, by operation.
#[derive(Debug)]
pub struct DedupCache {
    shards: Box<[Mutex<Shard>]>,
    shard_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    /// Boxed: a table that entries are added to and removed from has room for three times as many.
    accepted: HashMap<OperationId, Box<Accepted>>,
    order: VecDeque<OperationId>,
    /// No more than the producer's queue has room for.
    in_flight: HashMap<OperationId, InFlight>,
}

#[derive(Debug)]
struct InFlight {
    hash: RequestHash,
    /// Equal requests that wait for the outcome, each held by its connection or its batch.
    sharing: Vec<oneshot::Sender<Settled>>,
}

/// The result of a claim of a caller's id.
#[derive(Debug)]
pub enum Claimed {
    /// The id is free: it belongs to the request until the claim is settled or dropped.
    New(Claim),
    /// An equal request is in flight. The receiver gets its outcome.
    InFlight(oneshot::Receiver<Settled>),
    /// An equal request was accepted.
    Accepted(Accepted),
    /// Another request has the id.
    Conflict,
}

/// The right to have the only request with this id in flight. If it is dropped without an outcome,
/// the requests that share it learn that there is none.
#[derive(Debug)]
pub struct Claim {
    dedup_cache: Arc<DedupCache>,
    id: OperationId,
    is_settled: bool,
}

/// Reduces contention between connections.
const SHARDS: usize = 16;

impl DedupCache {
    /// A cache of about `max` requests.
    pub fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_max: max.div_ceil(SHARDS),
        }
    }

    /// Claims a caller's id for a request that is then passed to the producer.
    pub fn claim(self: &Arc<Self>, id: OperationId, hash: RequestHash) -> Claimed {
        let mut shard = self.shard(id);
        if let Some(first) = shard.in_flight.get_mut(&id) {
            if first.hash != hash {
                return Claimed::Conflict;
            }
            let (sender, outcome) = oneshot::channel();
            if first.sharing.len() == first.sharing.capacity() {
                // Requests that stopped waiting make room before another is added.
                first.sharing.retain(|sharing| !sharing.is_closed());
            }
            first.sharing.push(sender);
            return Claimed::InFlight(outcome);
        }
        match shard.accepted.get(&id) {
            Some(accepted) if accepted.hash == hash => Claimed::Accepted(accepted.as_ref().clone()),
            Some(_) => Claimed::Conflict,
            None => {
                let sharing = Vec::new();
                shard.in_flight.insert(id, InFlight { hash, sharing });
                Claimed::New(Claim {
                    dedup_cache: Arc::clone(self),
                    id,
                    is_settled: false,
                })
            }
        }
    }

    /// Enters an accepted request.
    pub fn insert(&self, id: OperationId, accepted: Accepted) {
        self.shard(id).insert(id, accepted, self.shard_max);
    }

    /// The request accepted under `id`, if it is remembered.
    pub fn get(&self, id: OperationId) -> Option<Accepted> {
        self.shard(id)
            .accepted
            .get(&id)
            .map(|accepted| accepted.as_ref().clone())
    }

    fn shard(&self, id: OperationId) -> std::sync::MutexGuard<'_, Shard> {
        // All bytes of a UUIDv5 are hash, and the later bytes of a UUIDv7 are random.
        let index = usize::from(id.0.as_bytes()[13]) % SHARDS;
        // A panic elsewhere cannot leave a shard half changed: no code here panics in between.
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// Of two requests with one id, the first in the partition wins, as it does at the scheduler.
    /// Across two priorities either may be first there: the one inserted first wins.
    fn insert(&mut self, id: OperationId, accepted: Accepted, max: usize) {
        if max == 0 {
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
                    entry.insert(Box::new(accepted));
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(Box::new(accepted));
                self.order.push_back(id);
                if self.order.len() > max
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.accepted.remove(&oldest);
                }
            }
        }
    }
}

impl Claim {
    /// Passes the outcome to every request that shares it, and inserts an accepted request.
    pub fn settle(mut self, settled: &Settled) {
        self.is_settled = true;
        let first = {
            let mut shard = self.dedup_cache.shard(self.id);
            if let Ok(accepted) = settled {
                shard.insert(self.id, accepted.clone(), self.dedup_cache.shard_max);
            }
            shard.in_flight.remove(&self.id)
        };
        for sharing in first.into_iter().flat_map(|first| first.sharing) {
            // The connection may be closed.
            drop(sharing.send(settled.clone()));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Once the claim is settled, another request may use the id.
        if !self.is_settled {
            self.dedup_cache.shard(self.id).in_flight.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_kafka::ErrorCode;

    use super::*;

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

    #[test]
    fn the_first_of_two_requests_with_one_id_in_the_partition_wins() {
        let recent = DedupCache::new(100);
        let id = OperationId(Uuid::from_u128(1));
        recent.insert(id, accepted(5, 5));
        recent.insert(id, accepted(7, 7));
        assert_eq!(recent.get(id), Some(accepted(5, 5)));
        recent.insert(id, accepted(3, 3));
        assert_eq!(recent.get(id), Some(accepted(3, 3)));
    }

    #[test]
    fn the_cache_forgets_the_oldest_entries() {
        let recent = DedupCache::new(SHARDS * 2);
        // All ids map to one shard: their 14th byte is zero.
        let ids: Vec<_> = (0..5).map(|n| OperationId(Uuid::from_u128(n))).collect();
        for (n, id) in ids.iter().enumerate() {
            recent.insert(*id, accepted(n as i64, 0));
        }
        let known: Vec<_> = ids.iter().map(|id| recent.get(*id).is_some()).collect();
        assert_eq!(known, [false, false, false, true, true]);
        let none = DedupCache::new(0);
        none.insert(ids[0], accepted(0, 0));
        assert_eq!(none.get(ids[0]), None);
    }

    #[test]
    fn equal_requests_share_an_outcome_and_a_different_one_conflicts_immediately() {
        let recent = Arc::new(DedupCache::new(100));
        let id = OperationId(Uuid::from_u128(1));
        let claim_of = |hash| recent.claim(id, RequestHash([hash; 16]));
        let Claimed::New(claim) = claim_of(1) else {
            panic!("the id is free")
        };
        let (Claimed::InFlight(mut outcome), Claimed::Conflict) = (claim_of(1), claim_of(2)) else {
            panic!("the first is in flight")
        };
        claim.settle(&Ok(accepted(5, 1)));
        assert_eq!(outcome.try_recv(), Ok(Ok(accepted(5, 1))));
        assert!(matches!(claim_of(1), Claimed::Accepted(first) if first == accepted(5, 1)));
        assert!(matches!(claim_of(2), Claimed::Conflict));
    }

    #[test]
    fn the_id_of_a_failed_request_can_be_claimed_again() {
        let recent = Arc::new(DedupCache::new(100));
        let id = OperationId(Uuid::from_u128(1));
        let claim_of = |hash| recent.claim(id, RequestHash([hash; 16]));
        let refused = Err(ProduceError::Refused {
            code: ErrorCode::QueueFull,
        });
        let (Claimed::New(claim), Claimed::InFlight(mut outcome)) = (claim_of(1), claim_of(1))
        else {
            panic!("the id is free")
        };
        claim.settle(&refused);
        assert_eq!(outcome.try_recv(), Ok(refused));

        let (Claimed::New(claim), Claimed::InFlight(mut outcome)) = (claim_of(2), claim_of(2))
        else {
            panic!("the id is free")
        };
        drop(claim);
        assert!(outcome.try_recv().is_err(), "there is no outcome");
        assert!(matches!(claim_of(3), Claimed::New(_)));
    }

    #[test]
    fn abandoned_claims_take_no_memory() {
        let recent = Arc::new(DedupCache::new(100));
        let id = OperationId(Uuid::from_u128(1));
        let claim = recent.claim(id, RequestHash([1; 16]));
        for _ in 0..1_000 {
            drop(recent.claim(id, RequestHash([1; 16])));
        }
        let sharing = recent.shard(id).in_flight[&id].sharing.len();
        assert!(sharing <= 8, "{sharing} wait");
        drop(claim);
    }
}
