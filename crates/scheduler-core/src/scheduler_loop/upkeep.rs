//! Upkeep of shards: acquires and renews their leases, stores checkpoints with the renewals, and
//! releases shards, gracefully or because the lease is lost.

use waybill_engine::{
    ByPriority, Event, LayoutShard, Now, Ownership, PartitionEngine, Priority, ShardFilter,
    ShardHandover, ShardId, Source,
};
use waybill_state::{Checkpoint, Layout, Lease};

use super::{RETRY_AFTER, SchedulerLoop};
use crate::checkpoint_check::{CheckpointMismatch, MismatchCause, remember_topics, start_offsets};
use crate::copies;
use crate::effect::{Assignment, Effect, Note};
use crate::input::{Generation, LostCause};
use crate::lease::{AcquireError, HeldLease};
use crate::log_offsets::LogEnds;
use crate::slot::{Differing, Owned, Slot, SlotState};
use crate::task::TaskError;

impl SchedulerLoop {
    /// Starts acquiring the lease of every shard that should run and is idle.
    pub(super) fn start_wanted(&mut self, now: Now) {
        if self.stopping.is_some() {
            return;
        }
        let shards = self.layout.scheme().shards();
        for (&shard, slot) in self.slots.range_mut(..ShardId(shards)) {
            let rested = slot.rest_until.is_none_or(|until| until <= now.boot);
            if !(slot.wanted && rested && matches!(slot.state, SlotState::Idle)) {
                continue;
            }
            slot.generation = self.assigned.next();
            slot.state = SlotState::Acquiring;
            self.effects.push(Effect::Acquire {
                shard,
                generation: slot.generation,
                layout: self.layout.clone(),
            });
        }
    }

    pub(super) fn acquired(
        &mut self,
        shard: ShardId,
        generation: Generation,
        result: Result<(HeldLease, LogEnds), AcquireError>,
        now: Now,
    ) {
        let is_awaited = |slot: &&mut Slot| {
            slot.generation == generation && matches!(slot.state, SlotState::Acquiring)
        };
        let Some(slot) = self.slots.get_mut(&shard).filter(is_awaited) else {
            if let Ok((lease, _)) = result {
                self.hand_back(&lease);
            }
            return;
        };
        let (mut lease, ends) = match result {
            Ok(acquired) => acquired,
            Err(error @ AcquireError::StateElsewhere { .. }) => {
                let reason = error.to_string();
                tracing::error!(%shard, reason, "refusing to run the partition");
                slot.state = SlotState::Refused(reason);
                return;
            }
            Err(AcquireError::LayoutChanged) => {
                self.layout_reads.hurry();
                return slot.rest(now.boot + RETRY_AFTER);
            }
            Err(error) => {
                tracing::warn!(%shard, %error, "could not take over the partition");
                return slot.rest(now.boot + RETRY_AFTER);
            }
        };
        // The store does not have these changes of the lease until the first renewal.
        let mut row_is_known = true;
        let stored = lease.row.checkpoint;
        // A mismatch with one checkpoint does not apply to another, which a different owner has
        // stored since.
        let differing = slot.differing.take();
        slot.differing = differing.filter(|differing| differing.judged == stored);
        let mut pass_over = |mismatch: &CheckpointMismatch, row: &mut Lease| {
            let (done, begins) = (
                row.checkpoint.on(mismatch.source),
                ends.first.on(mismatch.source),
            );
            tracing::error!(
                %shard, %mismatch, %done, %begins,
                "skipping deleted records, as set by scheduler.skipDeletedRequests: reading the \
                 log from its beginning"
            );
            mismatch.pass_over(row, &ends.first);
            row_is_known = false;
        };
        let logs = slot.differing.iter().flat_map(|differing| {
            let of = |priority: Priority| differing.logs[priority].as_ref();
            Priority::ALL.into_iter().filter_map(of)
        });
        for mismatch in logs {
            pass_over(mismatch, &mut lease.row);
        }
        let mut found = start_offsets(&lease.row, &ends);
        while self.settings.skip_deleted_requests
            && let Err(mismatch) = &found
        {
            pass_over(mismatch, &mut lease.row);
            found = start_offsets(&lease.row, &ends);
        }
        let start = match found {
            Ok(start) => start,
            Err(mismatch) => {
                let reason = mismatch.to_string();
                tracing::error!(%shard, reason, "refusing to run the partition");
                slot.state = SlotState::Refused(reason);
                self.hand_back(&lease);
                return;
            }
        };
        row_is_known &= !remember_topics(&mut lease.row, &ends);
        let partition = lease.row.partition;
        let filter = filter_of(&self.layout, &lease, start.handover.clone());
        let ownership = Ownership {
            partition,
            shard: LayoutShard {
                layout: lease.row.key.generation.0,
                number: lease.row.key.number,
            },
            owner: self.owner,
            epoch: lease.row.epoch,
            next: start.at,
            requests_end: ends.next.on_requests(),
            replies_end: ends.next.replies,
            stamp_floor: lease.stamp_floor,
            stamp_limit: lease.row.stamp_limit,
        };
        tracing::info!(
            %partition,
            %shard,
            layout = %lease.row.key.generation,
            epoch = %lease.row.epoch,
            requests_from = %start.at.requests,
            requests_end = %ends.next.requests,
            high_priority_from = %start.at.high_priority,
            high_priority_end = %ends.next.high_priority,
            replies_from = %start.at.replies,
            "took over the partition"
        );
        let engine = PartitionEngine::new(
            self.engine_config.clone(),
            self.workflows.clone(),
            ownership,
        );
        self.effects.push(Effect::Assign(Box::new(Assignment {
            shard,
            partition,
            generation,
            filter: filter.clone(),
            start,
            ends,
        })));
        let mut owned = Owned::new(engine, lease, filter, stored, now.boot);
        owned.row_is_known = row_is_known;
        slot.state = SlotState::Owned(Box::new(owned));
        slot.dropped_for = None;
    }

    /// Releases a lease that was acquired for a shard that is not run.
    fn hand_back(&mut self, lease: &HeldLease) {
        self.effects.push(Effect::HandBack {
            held: Box::new(lease.row.clone()),
            free: Box::new(lease.without_owner()),
        });
    }

    /// Handles a consumer that cannot continue with a partition.
    pub(super) fn lost(
        &mut self,
        source: Source,
        generation: Generation,
        shard: ShardId,
        cause: &LostCause,
        now: Now,
    ) {
        let Some(owned) = self.owned(shard, generation) else {
            return;
        };
        let judged = owned.stored;
        tracing::error!(%shard, ?source, %cause, "cannot read the partition");
        self.give_up(shard, "cannot read the partition", now);
        if let LostCause::Fingerprint { .. } = cause
            && let Some(priority) = source.priority()
            && let Some(slot) = self.slots.get_mut(&shard)
        {
            let why = MismatchCause::Differs(cause.to_string());
            let differs = CheckpointMismatch { source, why };
            match self.settings.skip_deleted_requests {
                true => {
                    let before = slot.differing.take();
                    let before = before.filter(|differing| differing.judged == judged);
                    let mut differing = before.unwrap_or(Differing {
                        judged,
                        logs: ByPriority::default(),
                    });
                    differing.logs[priority] = Some(differs);
                    slot.differing = Some(differing);
                }
                // Let the lease expire: writes of this owner may still be in flight.
                false => slot.state = SlotState::Refused(differs.to_string()),
            }
        }
    }

    /// Drops the engine of a shard without another write. The next owner replays its work in
    /// flight.
    pub(super) fn give_up(&mut self, shard: ShardId, reason: &str, now: Now) {
        let Some(slot) = self.slots.get_mut(&shard) else {
            return;
        };
        if let SlotState::Owned(_) = slot.state {
            tracing::warn!(%shard, reason, "dropping the partition; taking it again shortly");
            self.effects.push(Effect::Unassign(shard));
            self.commits.forget(shard, &mut self.effects);
            slot.dropped_for = Some(reason.to_owned());
            slot.rest(now.boot + RETRY_AFTER);
            self.forget_gone();
        }
    }

    /// Drops every shard whose lease has expired.
    pub(super) fn fence_expired(&mut self, now: Now) {
        let expired: Vec<ShardId> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                matches!(&slot.state, SlotState::Owned(owned) if !owned.lease.is_valid(now.boot))
            })
            .map(|(&shard, _)| shard)
            .collect();
        for shard in expired {
            self.expired(shard, now);
        }
    }

    fn expired(&mut self, shard: ShardId, now: Now) {
        self.effects.push(Effect::Note(Note::LeaseLost));
        self.give_up(shard, "the lease expired", now);
    }

    /// Renews leases, and stores checkpoints with them.
    pub(super) fn renew(&mut self, now: Now) {
        let terms = self.settings.lease;
        let drained = self
            .stopping
            .is_some_and(|by| self.in_flight().records == 0 || now.boot >= by);
        for (&shard, slot) in &mut self.slots {
            let generation = slot.generation;
            let is_followed = slot.is_to_follow(&self.layout);
            let wanted = slot.wanted && !drained && !is_followed;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            if !wanted && owned.releasing_since.is_none() {
                owned.releasing_since = Some(now.boot);
                self.effects.push(Effect::Unassign(shard));
            }
            if owned.renewing.is_some() {
                continue;
            }
            let reached = owned.engine.checkpoint();
            let stored = owned.lease.row.checkpoint;
            let checkpoint = Checkpoint {
                at: reached.at,
                fingerprints: ByPriority::of(|priority| {
                    reached.fingerprints[priority].or(stored.fingerprints[priority])
                }),
            };
            let ends = owned.may_release(self.commits.involve(shard), now.boot);
            // A release writes the row as it is, which is unknown after a renewal without an
            // answer.
            let release = ends && owned.row_is_known;
            let is_due = owned.renewal_due(checkpoint, reached.consumed, &self.settings, now.boot);
            if !ends && !is_due {
                continue;
            }
            let renewal = owned.lease.renewal(
                terms,
                now,
                owned.engine.last_stamp(),
                checkpoint,
                reached.consumed,
                release,
            );
            owned.release_sent |= release;
            owned.renewal_sent_at = now.boot;
            let lease = Box::new(renewal.row.clone());
            self.effects.push(match release {
                true => Effect::Release {
                    shard,
                    generation,
                    held: Box::new(owned.lease.row.clone()),
                    free: lease,
                },
                false => Effect::Renew {
                    shard,
                    generation,
                    lease,
                },
            });
            owned.renewing = Some(renewal);
        }
    }

    pub(super) fn renewed(
        &mut self,
        shard: ShardId,
        generation: Generation,
        result: Result<bool, TaskError>,
        now: Now,
    ) {
        let owned = self.slots.get_mut(&shard);
        let Some(owned) = owned.and_then(|slot| slot.owned(generation)) else {
            return;
        };
        let Some(renewal) = owned.renewing.take() else {
            return;
        };
        let released = renewal.row.owner.is_none();
        owned.row_is_known = result.is_ok();
        match result {
            Ok(true) if released => {
                tracing::info!(%shard, checkpoint = %renewal.row.checkpoint.at.requests, "released");
                if let Some(slot) = self.slots.get_mut(&shard) {
                    slot.released();
                }
                self.forget_gone();
            }
            // Messages may have been withheld since the lease ended, and nothing would send them.
            Ok(true) if !owned.lease.is_valid(now.boot) => self.expired(shard, now),
            Ok(true) => {
                let stamp_limit = renewal.row.stamp_limit;
                let filter = owned.filter.clone();
                let filter = filter.beyond(&renewal.row.checkpoint.at);
                owned.stored = renewal.row.checkpoint;
                let has_moved = renewal.row.checkpoint != owned.lease.row.checkpoint;
                owned.lease.renewed(renewal);
                owned.engine.apply(Event::StampLimit(stamp_limit), now.wall);
                if filter != owned.filter {
                    owned.filter = filter.clone();
                    self.effects.push(Effect::SetFilter { shard, filter });
                }
                if has_moved && let Some(keys) = copies::others(&self.layout, &owned.lease.row) {
                    match keys.is_empty() {
                        true => self.copy_checkpoint(shard, generation, Ok(Vec::new())),
                        false => self.effects.push(Effect::ReadLeases {
                            shard,
                            generation,
                            keys,
                        }),
                    }
                }
            }
            Ok(false) => self.give_up(shard, "another owner took the lease", now),
            Err(error) => {
                tracing::warn!(%shard, %error, "could not renew the lease");
                // The write may have happened or may happen yet, so the next renewal must not reuse
                // its number.
                owned.lease.row.renewal = renewal.row.renewal;
            }
        }
    }

    /// Copies the checkpoint of a whole partition for lag tools, from the leases of its other
    /// shards.
    pub(super) fn copy_checkpoint(
        &mut self,
        shard: ShardId,
        generation: Generation,
        others: Result<Vec<Option<Lease>>, TaskError>,
    ) {
        let owned = self.slots.get_mut(&shard);
        let owned = owned.and_then(|slot| slot.owned(generation));
        if let Some(owned) = owned
            && let Ok(others) = others
            && let Some(checkpoint) = copies::of_partition(&self.layout, &owned.lease.row, &others)
        {
            self.effects.push(Effect::CopyCheckpoint {
                partition: owned.partition(),
                checkpoint,
            });
        }
    }
}

/// The filter of a shard, from the offsets in its lease. (If its layout has ended since the lease
/// was acquired, the lease's own generation shows it, and the lease is released.)
fn filter_of(layout: &Layout, lease: &HeldLease, handover: ShardHandover) -> ShardFilter {
    let (row, generation) = (&lease.row, lease.row.key.generation);
    let shard = ShardId(row.key.number);
    ShardFilter::new(layout.taken_by(generation, row.partition), shard, handover)
        .with_boundary(layout.boundary_of(generation, row.partition))
        .with_end(layout.end_of(generation, shard))
        .with_written(layout.partitions_written())
        .beyond(&row.checkpoint.at)
}
