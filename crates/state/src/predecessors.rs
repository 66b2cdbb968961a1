//! Which shards a shard follows, and the lease with which it begins.
//!
//! What must hold: a shard begins where its predecessors, the shards of the generation before, have
//! ended or, if it gets a partition that none of them read, where the layout says.
//!
//! Deliberately absent: who ends the predecessors, and when. That is the candidate's work
//! (`waybill-scheduler-core`).

use std::collections::{BTreeMap, BTreeSet};

use waybill_engine::{ShardId, ShardingScheme};

use crate::layout::{Layout, LayoutGeneration};
use crate::lease::{Begins, Followed, Lease, LeaseKey};

/// A shard of a generation of a layout, which follows shards of the generation before.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    shard: ShardId,
    generation: LayoutGeneration,
    scheme: ShardingScheme,
    begins: Begins,
    before: Option<(LayoutGeneration, ShardingScheme)>,
}

/// A shard that another follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predecessor {
    /// The shard.
    pub shard: ShardId,
    /// Its generation.
    pub generation: LayoutGeneration,
    /// The sharding scheme of its generation.
    pub scheme: ShardingScheme,
}

impl Predecessor {
    /// The key of its lease.
    #[must_use]
    pub fn key(&self) -> LeaseKey {
        LeaseKey::scheduler(self.generation, self.shard)
    }
}

impl Successor {
    /// A shard of a generation of `layout`.
    #[must_use]
    pub fn new(layout: &Layout, generation: LayoutGeneration, shard: ShardId) -> Self {
        let of = |generation| layout.of(generation).unwrap_or(layout.scheme());
        let partition = of(generation).partition_of(shard);
        Self {
            shard,
            generation,
            scheme: of(generation),
            begins: Begins {
                boundary: layout.boundary_recorded_in(generation, partition),
                unread: layout.begin_of(generation, partition),
            },
            before: generation.previous().map(|before| (before, of(before))),
        }
    }

    /// The key of its lease.
    #[must_use]
    pub fn key(&self) -> LeaseKey {
        LeaseKey::scheduler(self.generation, self.shard)
    }

    /// The shards that it follows. A shard of the first generation follows none.
    #[must_use]
    pub fn predecessors(&self) -> Vec<Predecessor> {
        let Some((generation, scheme)) = self.before else {
            return Vec::new();
        };
        let shards = self.scheme.follows(scheme, self.shard).into_iter();
        let predecessors = shards.map(|shard| Predecessor {
            shard,
            generation,
            scheme,
        });
        predecessors.collect()
    }

    /// The lease with which it begins if `lease_of` gives the last ones of its predecessors; `None`
    /// if one of these is missing.
    #[must_use]
    pub fn begin<'a>(&self, lease_of: impl Fn(LeaseKey) -> Option<&'a Lease>) -> Option<Lease> {
        let predecessors = self.predecessors().into_iter();
        let leases = predecessors.map(|of| Some((lease_of(of.key())?, of.scheme)));
        let leases: Vec<_> = leases.collect::<Option<_>>()?;
        let followed = leases
            .into_iter()
            .map(|(lease, scheme)| Followed::new(lease.clone(), scheme))
            .collect::<Vec<_>>();
        let partition = self.scheme.partition_of(self.shard);
        Some(Lease::following(
            self.key(),
            partition,
            self.begins,
            &followed,
        ))
    }
}

/// The leases of shards as they are now. Before a shard has begun, that is the lease with which it
/// would begin if its predecessors ended at their current offsets.
///
/// Names the leases that must be read for that, one at a time.
#[derive(Clone, Debug, Default)]
pub struct CurrentLeases {
    /// Leases that were read, and those that follow from them.
    known: BTreeMap<LeaseKey, Lease>,
    /// Leases that were never taken.
    untaken: BTreeSet<LeaseKey>,
}

impl CurrentLeases {
    /// Learns a lease, or that it was never taken.
    pub fn learn(&mut self, key: LeaseKey, lease: Option<Lease>) {
        match lease {
            Some(lease) => {
                self.known.insert(key, lease);
            }
            None => {
                self.untaken.insert(key);
            }
        }
    }

    /// Whether a lease was ever taken, if that has been learned.
    #[must_use]
    pub fn was_taken(&self, key: LeaseKey) -> Option<bool> {
        match self.untaken.contains(&key) {
            true => Some(false),
            false => self.known.contains_key(&key).then_some(true),
        }
    }

    /// The lease of a shard.
    ///
    /// # Errors
    ///
    /// The key of a lease that must be learned first.
    pub fn of(
        &mut self,
        layout: &Layout,
        generation: LayoutGeneration,
        shard: ShardId,
    ) -> Result<&Lease, LeaseKey> {
        let mut path = vec![(generation, shard)];
        while let Some(&(generation, shard)) = path.last() {
            let successor = Successor::new(layout, generation, shard);
            let key = successor.key();
            if !self.known.contains_key(&key) {
                if !self.untaken.contains(&key) {
                    return Err(key);
                }
                let Some(lease) = successor.begin(|key| self.known.get(&key)) else {
                    let predecessors = successor.predecessors().into_iter();
                    let unknown = predecessors.filter(|of| !self.known.contains_key(&of.key()));
                    path.extend(unknown.take(1).map(|of| (of.generation, of.shard)));
                    continue;
                };
                self.known.insert(key, lease);
            }
            path.pop();
        }
        let key = LeaseKey::scheduler(generation, shard);
        self.known.get(&key).ok_or(key)
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Offset, TopicOffsets};

    use super::*;
    use crate::lease::Checkpoint;

    /// Layouts of one partition with these numbers of shards, after a first one with one shard.
    fn layout_of(numbers: &[u32]) -> Layout {
        numbers.iter().fold(Layout::first(1), |layout, &number| {
            let scheme = ShardingScheme {
                shards_per_partition: number,
                ..layout.scheme()
            };
            layout.successor(scheme).unwrap()
        })
    }

    fn key(generation: u64, shard: u32) -> LeaseKey {
        LeaseKey::scheduler(LayoutGeneration(generation), ShardId(shard))
    }

    fn done(key: LeaseKey, requests: i64) -> Lease {
        let at = TopicOffsets {
            requests: Offset(requests),
            ..TopicOffsets::default()
        };
        Lease {
            checkpoint: Checkpoint::at(at),
            is_begun: true,
            ..Lease::new(key, waybill_engine::PartitionId(0))
        }
    }

    /// The keys that must be read, in order, and the resulting checkpoint.
    fn current(layout: &Layout, shard: u32, stored: &[Lease]) -> (Vec<LeaseKey>, i64) {
        let mut leases = CurrentLeases::default();
        let mut read = Vec::new();
        loop {
            match leases.of(layout, layout.generation(), ShardId(shard)) {
                Ok(lease) => return (read, lease.checkpoint.at.requests.0),
                Err(key) => {
                    read.push(key);
                    let lease = stored.iter().find(|lease| lease.key == key);
                    leases.learn(key, lease.cloned());
                }
            }
        }
    }

    #[test]
    fn a_shard_that_has_begun_is_read_alone() {
        let layout = layout_of(&[2]);
        let stored = [done(key(1, 1), 9), done(key(0, 0), 5)];
        assert_eq!(current(&layout, 1, &stored), (vec![key(1, 1)], 9));
    }

    #[test]
    fn an_unbegun_shard_would_begin_at_the_lowest_offset_of_its_predecessors() {
        let layout = layout_of(&[2, 1]);
        let stored = [done(key(1, 0), 40), done(key(1, 1), 30)];
        let read = vec![key(2, 0), key(1, 0), key(1, 1)];
        assert_eq!(current(&layout, 0, &stored), (read, 30));
    }

    #[test]
    fn a_lease_that_unbegun_shards_share_is_read_once() {
        let numbers: Vec<u32> = (0..40)
            .map(|nth| if nth % 2 == 0 { 64 } else { 1 })
            .collect();
        let (read, checkpoint) = current(&layout_of(&numbers), 0, &[done(key(0, 0), 25)]);
        assert_eq!(checkpoint, 25);
        let different: BTreeSet<LeaseKey> = read.iter().copied().collect();
        assert_eq!(different.len(), read.len());
        assert_eq!(read.len(), 1 + 20 + 20 * 64);
    }

    #[test]
    fn a_shard_of_the_first_generation_has_not_begun_before_its_lease_is_taken() {
        let layout = Layout::first(1);
        let mut leases = CurrentLeases::default();
        leases.learn(key(0, 0), None);
        let lease = leases.of(&layout, layout.generation(), ShardId(0)).unwrap();
        let successor = Successor::new(&layout, layout.generation(), ShardId(0));
        assert_eq!(successor.predecessors(), []);
        assert!(!lease.is_begun);
    }
}
