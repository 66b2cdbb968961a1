//! Under which generation a shard runs, and whether it has run before its first owner.

use waybill_engine::{ByPriority, Offset, Priority, ShardId, Source};
use waybill_state::{CurrentLeases, Layout, LayoutGeneration, Lease, LeaseKey};

use super::call::AcquisitionCall;
use crate::foreign_state::{check_beginnings, check_committed};
use crate::lease::AcquireError;
use crate::log_offsets::LogEnds;

/// What is known before a candidate waits for the lease.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The generation to run.
    generation: Option<LayoutGeneration>,
    leases: CurrentLeases,
    ends: Option<LogEnds>,
    committed: ByPriority<Option<Option<Offset>>>,
}

/// What comes next.
pub(super) enum Next {
    Call(AcquisitionCall),
    /// Take the lease of this generation.
    Take(LayoutGeneration),
}

impl Before {
    pub(super) fn learn_lease(&mut self, key: LeaseKey, lease: Option<Lease>) {
        self.leases.learn(key, lease);
    }

    pub(super) fn learn_ends(&mut self, ends: LogEnds) {
        self.ends = Some(ends);
    }

    pub(super) fn learn_committed(&mut self, source: Source, offset: Option<Offset>) {
        if let Some(priority) = source.priority() {
            self.committed[priority] = Some(offset);
        }
    }

    /// What to read, or the generation whose lease may be taken.
    ///
    /// # Errors
    ///
    /// [`AcquireError::StateElsewhere`] if the shard has never run according to the store, although
    /// its logs show that it has.
    pub(super) fn next(
        &mut self,
        layout: &Layout,
        shard: ShardId,
        may_lack_state: bool,
    ) -> Result<Next, AcquireError> {
        let generation = match self.generation {
            Some(generation) => generation,
            None => match self.generation_to_run(layout, shard) {
                Ok(generation) => {
                    self.generation = Some(generation);
                    self.leases = CurrentLeases::default();
                    generation
                }
                Err(key) => return Ok(Next::Call(AcquisitionCall::ReadLease(key))),
            },
        };
        if may_lack_state {
            return Ok(Next::Take(generation));
        }
        let lease = match self.leases.of(layout, generation, shard) {
            Ok(lease) if lease.is_begun => return Ok(Next::Take(generation)),
            Ok(lease) => lease,
            Err(key) => return Ok(Next::Call(AcquisitionCall::ReadLease(key))),
        };
        let partition = lease.partition;
        let Some(ends) = &self.ends else {
            return Ok(Next::Call(AcquisitionCall::ReadEnds(partition)));
        };
        for priority in Priority::ALL {
            let source = priority.source();
            let Some(committed) = self.committed[priority] else {
                let call = AcquisitionCall::ReadCommitted(source, partition);
                return Ok(Next::Call(call));
            };
            check_committed(ends.next.on(source), committed)?;
        }
        check_beginnings(&ends.first)?;
        Ok(Next::Take(generation))
    }

    /// The generation under which the shard runs now: that of the layout, or the one before while
    /// the shard still has to read its old partition to its end.
    ///
    /// # Errors
    ///
    /// The key of a lease that must be read first.
    fn generation_to_run(
        &mut self,
        layout: &Layout,
        shard: ShardId,
    ) -> Result<LayoutGeneration, LeaseKey> {
        let generation = layout.generation();
        let Some(before) = generation.previous() else {
            return Ok(generation);
        };
        let Some(end) = layout.end_of(before, shard) else {
            return Ok(generation);
        };
        let key = LeaseKey::scheduler(generation, shard);
        if self.leases.was_taken(key).ok_or(key)? {
            return Ok(generation);
        }
        let lease = self.leases.of(layout, before, shard)?;
        Ok(match lease.checkpoint.at.reach(&end) {
            true => generation,
            false => before,
        })
    }
}
