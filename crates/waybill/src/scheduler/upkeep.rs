//! Keeping partitions: taking their leases, renewing them, moving checkpoints with the renewals,
//! and letting go, in order or because the lease is lost.

use std::time::{Duration, Instant};

use waybill_engine::{Event, Offset, Ownership, PartitionEngine, PartitionId, Source, Timestamp};
use waybill_store::{Checkpoint, StoreError};

use super::inlet::EndsReader;
use super::input::{AcquireError, Generation, Input, LogEnds, LostCause};
use super::ownership::{self, HeldLease, Renewal};
use super::partition::{Owned, SlotState};
use super::shell::Shell;
use crate::chain::chain;

/// How long a partition rests after it failed, before its lease is taken again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// After how long a new owner asks again where the logs end.
const ENDS_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Shell {
    /// Asks for the lease of every partition that is wanted and idle.
    pub(super) fn start_wanted(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        for (&partition, slot) in &mut self.slots {
            let rested = slot.rest_until.is_none_or(|until| until <= Instant::now());
            if !(slot.wanted && rested && matches!(slot.state, SlotState::Idle)) {
                continue;
            }
            slot.generation = Generation(slot.generation.0 + 1);
            slot.state = SlotState::Acquiring;
            let generation = slot.generation;
            let (store, owner, terms) = (self.store.clone(), self.owner, self.settings.terms());
            let told = self.clock.last();
            let (sender, ends) = (self.sender.clone(), self.inlets.ends_reader());
            self.runtime.spawn(async move {
                let result = match ownership::acquire(store, partition, owner, terms, told).await {
                    Ok(lease) => read_ends(&ends, partition, &lease)
                        .await
                        .map(|ends| (lease, ends)),
                    Err(error) => Err(AcquireError::Store(error)),
                };
                let _ = sender.send(Input::Acquired {
                    partition,
                    generation,
                    result,
                });
            });
        }
    }

    pub(super) fn acquired(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        result: Result<(HeldLease, LogEnds), AcquireError>,
    ) {
        self.clock.read();
        let Some(slot) = self.slots.get_mut(&partition) else {
            return;
        };
        if slot.generation != generation || !matches!(slot.state, SlotState::Acquiring) {
            return;
        }
        let (lease, ends) = match result {
            Ok(acquired) => acquired,
            Err(error) => {
                tracing::warn!(%partition, error = %chain(&error), "cannot take the partition");
                return slot.rest(RETRY_AFTER);
            }
        };
        let start = match start_offsets(&lease, ends) {
            Ok(start) => start,
            Err(reason) => {
                tracing::error!(%partition, reason, "refusing to run the partition");
                slot.state = SlotState::Refused(reason);
                return;
            }
        };
        // The cursor stands where an earlier owner's clock was, and nothing may be indexed below it.
        self.clock
            .reach(Timestamp(lease.due_cursor.start().as_micros()));
        let ownership = Ownership {
            partition,
            partitions: self.settings.partitions,
            owner: self.owner,
            epoch: lease.row.epoch,
            requests_next: start.requests,
            replies_next: start.replies,
            recoveries_next: start.recoveries,
            requests_end: ends.requests.1,
            replies_end: ends.replies.1,
            stamp_floor: lease.stamp_floor,
            stamp_limit: lease.row.stamp_limit,
        };
        tracing::info!(
            %partition,
            epoch = %lease.row.epoch,
            requests_from = %start.requests,
            requests_end = %ends.requests.1,
            replies_from = %start.replies,
            "owning the partition"
        );
        let engine = PartitionEngine::new(
            self.engine_config.clone(),
            self.workflows.clone(),
            ownership,
        );
        self.inlets.add(partition, generation, &start, ends);
        slot.state = SlotState::Owned(Box::new(Owned::new(engine, lease)));
    }

    /// A consumer cannot go on with a partition.
    pub(super) fn lost(
        &mut self,
        source: Source,
        generation: Generation,
        partition: PartitionId,
        cause: &LostCause,
    ) {
        if self.owned(partition, generation).is_none() {
            return;
        }
        tracing::error!(%partition, ?source, %cause, "the partition cannot be read");
        self.give_up(partition, "the partition cannot be read");
        if matches!(cause, LostCause::Fingerprint { .. })
            && let Some(slot) = self.slots.get_mut(&partition)
        {
            slot.state = SlotState::Refused(cause.to_string());
        }
    }

    /// Drops the engine of a partition without a further write. What was on its way is found again
    /// by whoever owns the partition next.
    pub(super) fn give_up(&mut self, partition: PartitionId, reason: &'static str) {
        let Some(slot) = self.slots.get_mut(&partition) else {
            return;
        };
        if let SlotState::Owned(_) = slot.state {
            tracing::warn!(%partition, reason, "dropping the partition; it is taken again shortly");
            self.inlets.remove(partition);
            slot.rest(RETRY_AFTER);
        }
    }

    /// Drops every partition whose lease has run out.
    pub(super) fn fence_expired(&mut self) {
        let expired: Vec<PartitionId> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                matches!(&slot.state, SlotState::Owned(owned) if !owned.lease.is_valid())
            })
            .map(|(&partition, _)| partition)
            .collect();
        for partition in expired {
            metrics::counter!("waybill_scheduler_leases_lost_total").increment(1);
            self.give_up(partition, "the lease ran out");
        }
    }

    /// Renews leases, and with them moves checkpoints.
    pub(super) fn renew(&mut self) {
        let terms = self.settings.terms();
        let now = self.clock.last();
        let drained = self
            .stopping
            .is_some_and(|by| self.in_flight().records == 0 || Instant::now() >= by);
        for (&partition, slot) in &mut self.slots {
            let generation = slot.generation;
            let wanted = slot.wanted && !drained;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            if !wanted && owned.releasing_since.is_none() {
                owned.releasing_since = Some(Instant::now());
                self.inlets.remove(partition);
            }
            if owned.renewing {
                continue;
            }
            let reached = owned.engine.checkpoint();
            let stored = owned.lease.row.checkpoint;
            let checkpoint = Checkpoint {
                requests: reached.requests,
                replies: reached.replies,
                recoveries: reached.recoveries,
                requests_fingerprint: reached.requests_fingerprint.or(stored.requests_fingerprint),
            };
            let release = owned.may_release(self.commits.involve(partition));
            if !release && !owned.renewal_due(checkpoint, reached.consumed, &self.settings) {
                continue;
            }
            let renewal = owned
                .lease
                .renewal(terms, now, checkpoint, reached.consumed, release);
            owned.renewing = true;
            owned.renewal_sent_at = Instant::now();
            let held = owned.lease.row.clone();
            let (store, sender) = (self.store.clone(), self.sender.clone());
            self.runtime.spawn(async move {
                let result = match renewal.row.owner {
                    Some(_) => store.renew_lease(renewal.row.clone()).await,
                    None => store.take_lease(Some(held), renewal.row.clone()).await,
                };
                let _ = sender.send(Input::Renewed {
                    partition,
                    generation,
                    renewal,
                    result,
                });
            });
        }
    }

    pub(super) fn renewed(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        renewal: Renewal,
        result: Result<bool, StoreError>,
    ) {
        let now = self.clock.last();
        let released = renewal.row.owner.is_none();
        let Some(owned) = self.owned(partition, generation) else {
            return;
        };
        owned.renewing = false;
        match result {
            Ok(true) if released => {
                tracing::info!(%partition, checkpoint = %renewal.row.checkpoint.requests, "released");
                if let Some(slot) = self.slots.get_mut(&partition) {
                    slot.released();
                }
            }
            Ok(true) => {
                let stamp_limit = renewal.row.stamp_limit;
                let moved = renewal.row.checkpoint;
                let is_new = moved != owned.lease.row.checkpoint;
                owned.lease.renewed(renewal);
                owned.engine.apply(Event::StampLimit(stamp_limit), now);
                if is_new {
                    self.inlets.copy_checkpoint(partition, &moved);
                }
            }
            Ok(false) => self.give_up(partition, "another owner took the lease"),
            Err(error) => {
                tracing::warn!(%partition, error = %chain(&error), "the lease was not renewed");
                // It may have been, or may be yet: the next one must not have its number.
                owned.lease.row.renewal = renewal.row.renewal;
            }
        }
    }
}

/// Asks where the logs end, again and again while the lease lasts: given up now, it would have to be
/// waited for. (The leader of a topic that was just made may not know of it yet.)
async fn read_ends(
    ends: &EndsReader,
    partition: PartitionId,
    lease: &HeldLease,
) -> Result<LogEnds, AcquireError> {
    loop {
        match ends.read(partition).await {
            Err(error) if Instant::now() + RETRY_AFTER < lease.valid_until => {
                tracing::info!(%partition, error = %chain(&error), "asking again for the logs' ends");
                tokio::time::sleep(ENDS_AGAIN_AFTER).await;
            }
            result => return result,
        }
    }
}

/// Where the consumers begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartOffsets {
    /// The first request to apply.
    pub requests: Offset,
    /// The record below it, which must have this fingerprint.
    pub verify: Option<(Offset, u64)>,
    /// The first reply to apply.
    pub replies: Offset,
    /// The first recovery to apply.
    pub recoveries: Offset,
}

/// Holds the checkpoint against the log. A log that lost requests which are not done, or that ends
/// before the checkpoint, is refused: skipping silently would lose operations.
fn start_offsets(lease: &HeldLease, ends: LogEnds) -> Result<StartOffsets, String> {
    let checkpoint = lease.row.checkpoint;
    let (first, end) = ends.requests;
    // An owner that never got to a first renewal has done nothing that another must not do again.
    let never_owned = checkpoint.requests == Offset(0) && lease.row.consumed == Offset(0);
    let requests = if never_owned {
        checkpoint.requests.max(first)
    } else {
        checkpoint.requests
    };
    if requests < first {
        return Err(format!(
            "requests from offset {requests} are not done, but the log begins at {first}: its \
             retention overtook the checkpoint"
        ));
    }
    if requests > end {
        return Err(format!(
            "the checkpoint is {requests}, but the log ends at {end}: this is another topic than \
             the checkpoint was taken on"
        ));
    }
    // Replies can be derived again, for every running step of a live operation is asked for anew.
    let replies = checkpoint.replies.clamp(ends.replies.0, ends.replies.1);
    // Recoveries cannot: whoever asked for one counts on it. A log that ends before the checkpoint
    // is another one, and all of it is new. (Of what is not, nothing applies twice.)
    let (first_recovery, recoveries_end) = ends.recoveries;
    let recoveries = match checkpoint.recoveries {
        beyond if beyond > recoveries_end => first_recovery,
        next => next.max(first_recovery),
    };
    let below = Offset(requests.0 - 1);
    let verify = checkpoint
        .requests_fingerprint
        .filter(|_| below >= first)
        .map(|fingerprint| (below, fingerprint));
    Ok(StartOffsets {
        requests,
        verify,
        replies,
        recoveries,
    })
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Epoch, OwnerId, Stamp};
    use waybill_store::{DueBucket, Lease, LeaseKey};

    use super::*;

    const FINGERPRINT: u64 = 7;

    fn held(epoch: u64, requests: i64, replies: i64) -> HeldLease {
        let checkpoint = Checkpoint {
            requests: Offset(requests),
            replies: Offset(replies),
            requests_fingerprint: (requests > 0).then_some(FINGERPRINT),
            ..Checkpoint::default()
        };
        HeldLease {
            row: Lease {
                key: LeaseKey::scheduler(PartitionId(0)),
                owner: Some(OwnerId(uuid::Uuid::nil())),
                epoch: Epoch(epoch),
                renewal: 0,
                duration: Duration::from_secs(10),
                stamp_limit: Stamp(0),
                checkpoint,
                consumed: Offset(requests),
            },
            stamp_floor: Stamp(0),
            valid_until: Instant::now(),
            due_cursor: DueBucket(0),
        }
    }

    fn logs(requests: (i64, i64), replies: (i64, i64)) -> LogEnds {
        let ends = |(first, end)| (Offset(first), Offset(end));
        LogEnds {
            requests: ends(requests),
            replies: ends(replies),
            recoveries: ends((0, 0)),
        }
    }

    #[test]
    fn reading_begins_at_the_checkpoint_and_the_record_below_it_is_verified() {
        let start = start_offsets(&held(3, 50, 200), logs((10, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(50), Offset(200)));
        assert_eq!(start.verify, Some((Offset(49), FINGERPRINT)));
    }

    #[test]
    fn a_record_below_the_checkpoint_that_was_deleted_is_not_verified() {
        let start = start_offsets(&held(3, 50, 200), logs((50, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.verify), (Offset(50), None));
    }

    #[test]
    fn requests_that_are_not_done_and_gone_or_not_there_are_refused() {
        let overtaken = start_offsets(&held(3, 50, 0), logs((51, 60), (0, 0))).unwrap_err();
        assert!(overtaken.contains("retention overtook"), "{overtaken}");
        let another = start_offsets(&held(3, 50, 0), logs((0, 49), (0, 0))).unwrap_err();
        assert!(another.contains("another topic"), "{another}");
    }

    #[test]
    fn the_first_owner_of_all_begins_where_the_log_does() {
        let start = start_offsets(&held(1, 0, 0), logs((40, 60), (5, 9))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(40), Offset(5)));
        // Its predecessor never got to a first renewal.
        let mut second = held(2, 0, 0);
        assert!(start_offsets(&second, logs((40, 60), (5, 9))).is_ok());
        second.row.consumed = Offset(1);
        assert!(start_offsets(&second, logs((40, 60), (5, 9))).is_err());
    }

    #[test]
    fn replies_that_were_lost_with_the_machine_do_not_stop_a_partition() {
        let start = start_offsets(&held(3, 50, 900), logs((0, 60), (100, 300))).unwrap();
        assert_eq!(start.replies, Offset(300));
    }

    #[test]
    fn recoveries_of_a_log_that_was_made_anew_are_all_read() {
        let recoveries_from = |checkpoint, first, end| {
            let mut held = held(3, 50, 0);
            held.row.checkpoint.recoveries = Offset(checkpoint);
            let mut ends = logs((0, 60), (0, 0));
            ends.recoveries = (Offset(first), Offset(end));
            start_offsets(&held, ends).unwrap().recoveries.0
        };
        assert_eq!(recoveries_from(7, 0, 9), 7);
        assert_eq!(recoveries_from(7, 8, 9), 8, "retention took what was done");
        assert_eq!(recoveries_from(7, 0, 5), 0);
    }
}
