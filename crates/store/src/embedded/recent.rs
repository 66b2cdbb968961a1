//! The stamps of recently written operations.
//!
//! Lets the writes of an operation in flight be compared with its stored stamp without a read. A
//! stamp that is not here is read from the table, so forgetting one costs no more than a read.

use std::collections::HashMap;

use waybill_engine::{OperationId, Stamp};

/// A bounded map from operation to the stamp of its stored state.
///
/// Two generations: when the young one is full it becomes the old one, and the old one goes.
#[derive(Debug)]
pub(super) struct RecentStamps {
    young: HashMap<OperationId, Stamp>,
    old: HashMap<OperationId, Stamp>,
    generation_max: usize,
}

impl RecentStamps {
    /// Remembers the last `generation_max` operations, and at most twice as many.
    pub(super) fn new(generation_max: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            generation_max: generation_max.max(1),
        }
    }

    /// The stamp of an operation's stored state, if it is remembered.
    pub(super) fn get(&self, id: OperationId) -> Option<Stamp> {
        self.young.get(&id).or_else(|| self.old.get(&id)).copied()
    }

    /// Remembers the stamp of an operation's stored state.
    pub(super) fn insert(&mut self, id: OperationId, stamp: Stamp) {
        if self.young.len() >= self.generation_max && !self.young.contains_key(&id) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, stamp);
    }

    /// Forgets an operation that is no longer stored.
    pub(super) fn remove(&mut self, id: OperationId) {
        self.young.remove(&id);
        self.old.remove(&id);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(n: u64) -> OperationId {
        OperationId(Uuid::from_u128(n.into()))
    }

    #[test]
    fn the_newest_stamp_is_remembered_across_generations() {
        let mut recent = RecentStamps::new(4);
        recent.insert(id(0), Stamp(1));
        for n in 1..=4 {
            recent.insert(id(n), Stamp(10));
        }
        assert_eq!(recent.get(id(0)), Some(Stamp(1)), "it is in the old one");
        recent.insert(id(0), Stamp(2));
        assert_eq!(recent.get(id(0)), Some(Stamp(2)));
    }

    #[test]
    fn the_latest_two_generations_are_kept() {
        let mut recent = RecentStamps::new(100);
        for n in 0..10_000 {
            recent.insert(id(n), Stamp(1));
            assert!(recent.young.len() + recent.old.len() <= 200);
        }
        for n in 9_900..10_000 {
            assert_eq!(recent.get(id(n)), Some(Stamp(1)), "{n}");
        }
        assert_eq!(recent.get(id(0)), None);
    }

    #[test]
    fn a_removed_stamp_is_absent_from_both_generations() {
        let mut recent = RecentStamps::new(1);
        recent.insert(id(1), Stamp(1));
        recent.insert(id(2), Stamp(1));
        recent.insert(id(1), Stamp(2));
        recent.remove(id(1));
        assert_eq!(recent.get(id(1)), None);
    }
}
