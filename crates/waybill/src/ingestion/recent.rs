//! What was accepted a moment ago and may not have a row yet.
//!
//! A scheduler's row is the truth; until it is there, this memory lets a repeat meet its first, a
//! conflict be told at once, and a status without a token answer `Pending`. It is a convenience:
//! bounded, the oldest forgotten first, empty after a restart. Nothing rests on it: two records
//! with one id are the scheduler's to judge.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use waybill_engine::{Offset, OperationId, PartitionId, Position, RequestHash, Timestamp};

use super::token::StatusToken;

/// A request that the broker has acknowledged.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The partition that it lies in.
    pub partition: PartitionId,
    /// Its offset there; `None` in the rare case that the broker acknowledged it without saying.
    pub offset: Option<Offset>,
    /// Tells a repeat from a conflict.
    pub hash: RequestHash,
    /// The workflow that it asks for.
    pub workflow: Arc<str>,
    /// When it was taken.
    pub requested_at: Timestamp,
}

impl Accepted {
    /// What its `Location` carries.
    pub fn token(&self) -> Option<StatusToken> {
        let position = Position {
            partition: self.partition,
            offset: self.offset?,
        };
        Some(StatusToken::new(position, self.hash))
    }
}

/// The requests accepted last, by operation.
#[derive(Debug)]
pub struct Recent {
    shards: Box<[Mutex<Shard>]>,
    shard_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    accepted: HashMap<OperationId, Accepted>,
    order: VecDeque<OperationId>,
}

/// Keeps connections from waiting for each other.
const SHARDS: usize = 16;

impl Recent {
    /// A memory of about `max` requests.
    pub fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_max: max.div_ceil(SHARDS),
        }
    }

    /// Enters an accepted request. Of two with one id the first in the partition stands, as it does
    /// at the scheduler.
    pub fn insert(&self, id: OperationId, accepted: Accepted) {
        if self.shard_max == 0 {
            return;
        }
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        match shard.accepted.entry(id) {
            Entry::Occupied(mut entry) => {
                // `None` is below every offset: what is not known does not take another's place.
                if accepted.offset.is_some() && accepted.offset < entry.get().offset {
                    entry.insert(accepted);
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(accepted);
                shard.order.push_back(id);
                if shard.order.len() > self.shard_max
                    && let Some(oldest) = shard.order.pop_front()
                {
                    shard.accepted.remove(&oldest);
                }
            }
        }
    }

    /// The request accepted under `id`, if it is remembered.
    pub fn get(&self, id: OperationId) -> Option<Accepted> {
        self.shard(id).accepted.get(&id).cloned()
    }

    fn shard(&self, id: OperationId) -> std::sync::MutexGuard<'_, Shard> {
        // The bytes of a UUIDv5 are all hash, and of a UUIDv7 the later ones are random.
        let index = usize::from(id.0.as_bytes()[13]) % SHARDS;
        // A panic elsewhere cannot leave a shard half changed: nothing in here panics in between.
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn accepted(offset: i64, hash: u8) -> Accepted {
        Accepted {
            partition: PartitionId(0),
            offset: Some(Offset(offset)),
            hash: RequestHash([hash; 16]),
            workflow: "w".into(),
            requested_at: Timestamp(0),
        }
    }

    #[test]
    fn of_twins_the_first_in_the_partition_stands() {
        let recent = Recent::new(100);
        let id = OperationId(Uuid::from_u128(1));
        recent.insert(id, accepted(5, 5));
        recent.insert(id, accepted(7, 7));
        assert_eq!(recent.get(id), Some(accepted(5, 5)));
        recent.insert(id, accepted(3, 3));
        assert_eq!(recent.get(id), Some(accepted(3, 3)));
    }

    #[test]
    fn it_forgets_the_oldest_and_stays_within_its_bound() {
        let recent = Recent::new(SHARDS * 2);
        // All in one shard: their 14th byte is zero.
        let ids: Vec<_> = (0..5).map(|n| OperationId(Uuid::from_u128(n))).collect();
        for (n, id) in ids.iter().enumerate() {
            recent.insert(*id, accepted(n as i64, 0));
        }
        let known: Vec<_> = ids.iter().map(|id| recent.get(*id).is_some()).collect();
        assert_eq!(known, [false, false, false, true, true]);
        let none = Recent::new(0);
        none.insert(ids[0], accepted(0, 0));
        assert_eq!(none.get(ids[0]), None);
    }
}
