//! The partitions of agents' topics whose step requests the brokers refuse.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use waybill_engine::PartitionId;

/// Agents and partitions of their topics whose last step request the brokers refused.
#[derive(Debug, Default)]
pub(super) struct RefusedSteps {
    refused: Mutex<BTreeSet<(Arc<str>, PartitionId)>>,
    /// The number of entries, so that no request takes the lock while there are none.
    count: AtomicUsize,
}

impl RefusedSteps {
    /// A step request was refused.
    pub(super) fn note(&self, agent: &Arc<str>, partition: PartitionId) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert((agent.clone(), partition));
        self.count.store(refused.len(), Ordering::Relaxed);
    }

    /// A step request was accepted. Returns whether the one before it was refused.
    pub(super) fn note_accepted(&self, agent: &Arc<str>, partition: PartitionId) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let was_refused = refused.remove(&(agent.clone(), partition));
        self.count.store(refused.len(), Ordering::Relaxed);
        was_refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_accepted_again_once_after_its_refusals() {
        let refused = RefusedSteps::default();
        let [package, drone] = ["package", "drone"].map(Arc::<str>::from);
        let [first, second] = [0, 1].map(PartitionId);
        assert!(!refused.note_accepted(&package, first));
        refused.note(&package, first);
        refused.note(&package, first);
        assert!(!refused.note_accepted(&package, second));
        assert!(!refused.note_accepted(&drone, first));
        assert!(refused.note_accepted(&package, first));
        assert!(!refused.note_accepted(&package, first));
    }
}
