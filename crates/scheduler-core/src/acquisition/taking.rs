//! Waits for the owners of a shard and of its predecessors, ends the predecessors for good, and
//! takes the lease.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use waybill_engine::{BootTime, Now, OwnerId, ShardId};
use waybill_state::{
    Layout, LayoutGeneration, Lease, LeaseKey, LeaseStatus, LeaseWatch, Predecessor, Successor,
};

use super::Candidate;
use super::call::AcquisitionCall;
use crate::checkpoint_check::remember_topics;
use crate::foreign_state::check_beginnings;
use crate::lease::{AcquireError, HeldLease};
use crate::log_offsets::LogEnds;

/// An attempt to take the lease, as far as it has got.
#[derive(Debug)]
pub(super) struct Taking {
    generation: LayoutGeneration,
    shard: ShardId,
    /// The leases of the shard and of its predecessors as they were last read.
    read: BTreeMap<LeaseKey, (Option<Lease>, LeaseStatus)>,
    watches: BTreeMap<LeaseKey, LeaseWatch>,
    /// The leases of predecessors that have ended. They never change again.
    ended: BTreeMap<LeaseKey, Lease>,
    /// The generation of the layout in the store.
    stored_layout: Option<LayoutGeneration>,
    /// Where the logs begin, for the first owner.
    ends: Option<LogEnds>,
    /// The lease that the write in progress takes.
    takes: Option<HeldLease>,
}

impl Taking {
    pub(super) fn new(generation: LayoutGeneration, shard: ShardId) -> Self {
        Self {
            generation,
            shard,
            read: BTreeMap::new(),
            watches: BTreeMap::new(),
            ended: BTreeMap::new(),
            stored_layout: None,
            ends: None,
            takes: None,
        }
    }

    fn key(&self) -> LeaseKey {
        LeaseKey::scheduler(self.generation, self.shard)
    }

    /// Learns a lease from a read that returned at `now`.
    pub(super) fn learn_lease(
        &mut self,
        candidate: &Candidate,
        key: LeaseKey,
        lease: Option<Lease>,
        now: BootTime,
    ) {
        // A predecessor that this process runs has a living owner, also in an exclusive store. A
        // lease of the shard itself in the name of this process is left from an attempt that
        // failed.
        let me: Option<OwnerId> = (key != self.key()).then_some(candidate.owner);
        let (margin, is_exclusive) = (candidate.terms.margin, candidate.store_is_exclusive);
        let watch = self.watches.entry(key);
        let watch = watch.or_insert_with(|| LeaseWatch::new(margin, is_exclusive, me));
        let status = watch.observe(lease.as_ref(), now);
        if status == LeaseStatus::Expired
            && let Some(lease) = &lease
        {
            tracing::warn!(
                lease = %key,
                epoch = %lease.epoch,
                "the owner stopped renewing its lease; taking over"
            );
        }
        match lease {
            Some(lease) if lease.is_ended && key != self.key() => {
                self.ended.insert(key, lease);
            }
            lease => {
                self.read.insert(key, (lease, status));
            }
        }
    }

    /// The leases that others hold must be read again.
    pub(super) fn forget_held(&mut self) {
        self.read
            .retain(|_, (_, status)| *status != LeaseStatus::Held);
    }

    pub(super) fn learn_layout(&mut self, stored: LayoutGeneration) {
        self.stored_layout = Some(stored);
    }

    pub(super) fn learn_ends(&mut self, ends: LogEnds) {
        self.ends = Some(ends);
    }

    /// Learns whether `lease` was written, and returns it if it is the one to acquire.
    pub(super) fn learn_taken(&mut self, lease: Lease, is_taken: bool) -> Option<HeldLease> {
        let key = lease.key;
        if key == self.key() {
            if is_taken {
                return self.takes.take();
            }
            tracing::info!(
                shard = %self.shard,
                "another owner took the lease first; waiting for it to be released or to expire"
            );
            *self = Self {
                ended: mem::take(&mut self.ended),
                ..Self::new(self.generation, self.shard)
            };
            return None;
        }
        self.read.remove(&key);
        self.watches.remove(&key);
        if is_taken {
            tracing::info!(
                lease = %key,
                checkpoint = %lease.checkpoint.at.requests,
                "retired the lease of an earlier layout"
            );
            self.ended.insert(key, lease);
        }
        None
    }

    /// The next call. A write that takes the lease begins at `now`.
    ///
    /// # Errors
    ///
    /// [`AcquireError::LayoutChanged`] if the store has another layout by then, and
    /// [`AcquireError::StateElsewhere`] if the logs of the first owner have lost their beginnings.
    pub(super) fn next(
        &mut self,
        candidate: &Candidate,
        layout: &Layout,
        now: Now,
    ) -> Result<AcquisitionCall, AcquireError> {
        let Some((seen, status)) = self.read.get(&self.key()) else {
            return Ok(AcquisitionCall::ReadLease(self.key()));
        };
        if *status == LeaseStatus::Held {
            return Ok(AcquisitionCall::Wait(LeaseWatch::INTERVAL));
        }
        let Some(stored_layout) = self.stored_layout else {
            return Ok(AcquisitionCall::ReadLayout);
        };
        let has_ended = seen.as_ref().is_some_and(|lease| lease.is_ended);
        if has_ended || stored_layout != layout.generation() {
            return Err(AcquireError::LayoutChanged);
        }
        let begin = match seen {
            Some(lease) => Ok(lease.clone()),
            None => self.beginning(layout),
        };
        let mut begun = match begin {
            Ok(lease) => lease,
            Err(call) => return Ok(call),
        };
        if !begun.is_begun {
            let Some(ends) = &self.ends else {
                return Ok(AcquisitionCall::ReadEnds(begun.partition));
            };
            if !candidate.may_lack_state {
                check_beginnings(&ends.first)?;
            }
            begun = begun.beginning_at(ends.first);
            remember_topics(&mut begun, ends);
        }
        let held = HeldLease::taking(begun, candidate.owner, candidate.terms, now);
        let call = AcquisitionCall::TakeLease {
            seen: seen.clone().map(Box::new),
            lease: Box::new(held.row.clone()),
        };
        self.takes = Some(held);
        Ok(call)
    }

    /// The lease with which the shard begins, once all its predecessors have ended.
    ///
    /// # Errors
    ///
    /// What must be done first: a predecessor is taken for good once its owner has released it or
    /// become silent. Predecessors that have never begun follow theirs. Only if nothing else can be
    /// done is it a wait, so that the waits for several silent owners do not add up.
    fn beginning(&self, layout: &Layout) -> Result<Lease, AcquisitionCall> {
        let begin = |shard: &Successor| shard.begin(|key| self.ended.get(&key));
        let own = Successor::new(layout, self.generation, self.shard);
        if let Some(lease) = begin(&own) {
            return Ok(lease);
        }
        let mut looked_at = BTreeSet::new();
        let mut open = self.not_ended(&own);
        while let Some(predecessor) = open.pop() {
            let key = predecessor.key();
            if !looked_at.insert(key) {
                continue;
            }
            let Some((seen, status)) = self.read.get(&key) else {
                return Err(AcquisitionCall::ReadLease(key));
            };
            if *status == LeaseStatus::Held {
                continue;
            }
            let lease = match seen {
                Some(lease) => lease.clone(),
                None => {
                    let (generation, shard) = (predecessor.generation, predecessor.shard);
                    let unbegun = Successor::new(layout, generation, shard);
                    let Some(lease) = begin(&unbegun) else {
                        open.extend(self.not_ended(&unbegun));
                        continue;
                    };
                    lease
                }
            };
            return Err(AcquisitionCall::TakeLease {
                seen: seen.clone().map(Box::new),
                lease: Box::new(lease.ended()),
            });
        }
        Err(AcquisitionCall::Wait(LeaseWatch::INTERVAL))
    }

    /// The predecessors of a shard that have not ended, the last first.
    fn not_ended(&self, shard: &Successor) -> Vec<Predecessor> {
        let predecessors = shard.predecessors().into_iter().rev();
        let open = predecessors.filter(|of| !self.ended.contains_key(&of.key()));
        open.collect()
    }
}
