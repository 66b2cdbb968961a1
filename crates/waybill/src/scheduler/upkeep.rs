//! Keeping readers: taking their leases, renewing them, moving checkpoints with the renewals,
//! and letting go, in order or because the lease is lost.

use std::time::{Duration, Instant};

use waybill_engine::{
    Division, Event, Handover, Offset, Ownership, PartitionEngine, PartitionId, ReaderId, Share,
    Source, Timestamp,
};
use waybill_store::{Checkpoint, Layout, Lease, LeaseKey, Store, StoreError};

use super::inlet::EndsReader;
use super::input::{AcquireError, Generation, Input, LogEnds, LostCause};
use super::lost_state;
use super::ownership::{self, HeldLease, Renewal};
use super::partition::{Owned, Slot, SlotState};
use super::shell::Shell;
use crate::chain::chain;

/// How long a reader rests after it failed, before its lease is taken again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// After how long a new owner asks again where the logs end.
const ENDS_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Shell {
    /// Asks for the lease of every reader that is wanted and idle.
    pub(super) fn start_wanted(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let readers = self.layout.division().readers();
        for (&reader, slot) in self.slots.range_mut(..ReaderId(readers)) {
            let rested = slot.rest_until.is_none_or(|until| until <= Instant::now());
            if !(slot.wanted && rested && matches!(slot.state, SlotState::Idle)) {
                continue;
            }
            slot.generation = self.assigned.next();
            slot.state = SlotState::Acquiring;
            let generation = slot.generation;
            let (store, owner, terms) = (self.store.clone(), self.owner, self.settings.terms());
            let (told, layout) = (self.clock.last(), self.layout.clone());
            let partition = layout.division().partition_of(reader);
            let (sender, ends) = (self.sender.clone(), self.inlets.ends_reader());
            let may_lack_state = self.settings.start_without_state;
            self.runtime.spawn(async move {
                let acquiring = async {
                    if !may_lack_state {
                        lost_state::refuse(&*store, &ends, &layout, reader).await?;
                    }
                    let acquiring = ownership::acquire(store, &layout, reader, owner, terms, told);
                    let lease = acquiring.await?;
                    let ends = read_ends(&ends, partition, &lease).await?;
                    Ok::<_, AcquireError>((lease, ends))
                };
                let result = acquiring.await;
                let _ = sender.send(Input::Acquired {
                    reader,
                    generation,
                    result,
                });
            });
        }
    }

    pub(super) fn acquired(
        &mut self,
        reader: ReaderId,
        generation: Generation,
        result: Result<(HeldLease, LogEnds), AcquireError>,
    ) {
        self.clock.read();
        let is_awaited = |slot: &&mut Slot| {
            slot.generation == generation && matches!(slot.state, SlotState::Acquiring)
        };
        let Some(slot) = self.slots.get_mut(&reader).filter(is_awaited) else {
            if let Ok((lease, _)) = result {
                self.hand_back(lease);
            }
            return;
        };
        let (mut lease, ends) = match result {
            Ok(acquired) => acquired,
            Err(error @ AcquireError::StateElsewhere { .. }) => {
                let reason = error.to_string();
                tracing::error!(%reader, reason, "refusing to run the partition");
                slot.state = SlotState::Refused(reason);
                return;
            }
            Err(AcquireError::LayoutChanged) => {
                self.layout_asked.0 = Instant::now() - self.settings.lease;
                return slot.rest(RETRY_AFTER);
            }
            Err(error) => {
                tracing::warn!(%reader, error = %chain(&error), "cannot take the partition");
                return slot.rest(RETRY_AFTER);
            }
        };
        // What is passed over stands in no row before the first renewal.
        let mut row_is_known = true;
        // What was found out of a checkpoint says nothing of one that another owner has moved since.
        let differs = std::mem::take(&mut slot.differs);
        let differs = differs.filter(|(_, judged)| *judged == lease.row.checkpoint);
        let mut found = match differs {
            Some((unfit, _)) => Err(unfit),
            None => start_offsets(&lease.row, ends),
        };
        if self.settings.skip_deleted_requests
            && let Err(unfit) = &found
        {
            let (done, begins) = (lease.row.checkpoint.requests, ends.requests.0);
            tracing::error!(
                %reader, %unfit, %done, %begins,
                "what is gone from the log is passed over, as scheduler.skipDeletedRequests says: it is read \
                 from its beginning"
            );
            unfit.pass_over(&mut lease.row, begins);
            row_is_known = false;
            found = start_offsets(&lease.row, ends);
        }
        let start = match found {
            Ok(start) => start,
            Err(unfit) => {
                let reason = unfit.to_string();
                tracing::error!(%reader, reason, "refusing to run the partition");
                slot.state = SlotState::Refused(reason);
                return;
            }
        };
        // The cursor stands where an earlier owner's clock was, and nothing may be indexed below it.
        self.clock
            .reach(Timestamp(lease.due_cursor.start().as_micros()));
        let partition = lease.row.partition;
        let share = share_of(&self.layout, &lease, start.handover.clone());
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
            %reader,
            layout = %self.layout.generation(),
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
        self.inlets
            .add(reader, partition, generation, &share, &start, ends);
        let mut owned = Owned::new(engine, lease);
        owned.row_is_known = row_is_known;
        slot.state = SlotState::Owned(Box::new(owned));
    }

    /// Gives back a lease that was taken though nobody waited for it any more.
    fn hand_back(&self, lease: HeldLease) {
        let store = self.store.clone();
        self.runtime.spawn(async move {
            let free = Lease {
                owner: None,
                renewal: lease.row.renewal + 1,
                ..lease.row.clone()
            };
            if let Err(error) = store.take_lease(Some(lease.row), free).await {
                tracing::warn!(error = %chain(&error), "a lease that is not needed runs out by itself");
            }
        });
    }

    /// A consumer cannot go on with a partition.
    pub(super) fn lost(
        &mut self,
        source: Source,
        generation: Generation,
        reader: ReaderId,
        cause: &LostCause,
    ) {
        let Some(owned) = self.owned(reader, generation) else {
            return;
        };
        let judged = owned.lease.row.checkpoint;
        tracing::error!(%reader, ?source, %cause, "the partition cannot be read");
        self.give_up(reader, "the partition cannot be read");
        if let LostCause::Fingerprint { .. } = cause
            && let Some(slot) = self.slots.get_mut(&reader)
        {
            let differs = Unfit::Differs(cause.to_string());
            match self.settings.skip_deleted_requests {
                true => slot.differs = Some((differs, judged)),
                false => slot.state = SlotState::Refused(differs.to_string()),
            }
        }
    }

    /// Drops the engine of a reader without a further write. What was on its way is found again by
    /// whoever owns its work next.
    pub(super) fn give_up(&mut self, reader: ReaderId, reason: &'static str) {
        let Some(slot) = self.slots.get_mut(&reader) else {
            return;
        };
        if let SlotState::Owned(_) = slot.state {
            tracing::warn!(%reader, reason, "dropping the partition; it is taken again shortly");
            self.inlets.remove(reader);
            slot.rest(RETRY_AFTER);
            self.forget_gone();
        }
    }

    /// Drops every reader whose lease has run out.
    pub(super) fn fence_expired(&mut self) {
        let expired: Vec<ReaderId> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                matches!(&slot.state, SlotState::Owned(owned) if !owned.lease.is_valid())
            })
            .map(|(&reader, _)| reader)
            .collect();
        for reader in expired {
            metrics::counter!("waybill_scheduler_leases_lost_total").increment(1);
            self.give_up(reader, "the lease ran out");
        }
    }

    /// Renews leases, and with them moves checkpoints.
    pub(super) fn renew(&mut self) {
        let terms = self.settings.terms();
        let now = self.clock.last();
        let drained = self
            .stopping
            .is_some_and(|by| self.in_flight().records == 0 || Instant::now() >= by);
        for (&reader, slot) in &mut self.slots {
            let generation = slot.generation;
            let is_followed = slot.is_of_before(self.layout.generation());
            let wanted = slot.wanted && !drained && !is_followed;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            if !wanted && owned.releasing_since.is_none() {
                owned.releasing_since = Some(Instant::now());
                self.inlets.remove(reader);
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
            let ends = owned.may_release(self.commits.involve(reader));
            // It is given back as it stands, and after a renewal without an answer that is not known.
            let release = ends && owned.row_is_known;
            if !ends && !owned.renewal_due(checkpoint, reached.consumed, &self.settings) {
                continue;
            }
            let renewal = owned
                .lease
                .renewal(terms, now, checkpoint, reached.consumed, release);
            owned.renewing = true;
            owned.release_sent |= release;
            owned.renewal_sent_at = Instant::now();
            let held = owned.lease.row.clone();
            let (store, sender) = (self.store.clone(), self.sender.clone());
            let division = division_of(&self.layout, &held);
            self.runtime.spawn(async move {
                let result = match renewal.row.owner {
                    Some(_) => store.renew_lease(renewal.row.clone()).await,
                    None => {
                        store
                            .take_lease(Some(held.clone()), renewal.row.clone())
                            .await
                    }
                };
                let copy = match result {
                    Ok(true) if held.checkpoint != renewal.row.checkpoint => {
                        of_partition(&*store, division, &renewal.row).await
                    }
                    Ok(_) | Err(_) => None,
                };
                let _ = sender.send(Input::Renewed {
                    reader,
                    generation,
                    renewal,
                    result,
                    copy,
                });
            });
        }
    }

    pub(super) fn renewed(
        &mut self,
        reader: ReaderId,
        generation: Generation,
        renewal: Renewal,
        result: Result<bool, StoreError>,
        copy: Option<Checkpoint>,
    ) {
        let now = self.clock.last();
        let released = renewal.row.owner.is_none();
        let layout = &self.layout;
        let owned = self.slots.get_mut(&reader);
        let Some(owned) = owned.and_then(|slot| slot.owned(generation)) else {
            return;
        };
        owned.renewing = false;
        owned.row_is_known = result.is_ok();
        match result {
            Ok(true) if released => {
                tracing::info!(%reader, checkpoint = %renewal.row.checkpoint.requests, "released");
                if let Some(slot) = self.slots.get_mut(&reader) {
                    slot.released();
                }
                self.forget_gone();
            }
            Ok(true) => {
                let stamp_limit = renewal.row.stamp_limit;
                let partition = renewal.row.partition;
                let is_caught_up =
                    renewal.row.handover.is_empty() && !owned.lease.row.handover.is_empty();
                owned.lease.renewed(renewal);
                owned.engine.apply(Event::StampLimit(stamp_limit), now);
                if is_caught_up {
                    let share = share_of(layout, &owned.lease, Handover::default());
                    self.inlets.share(reader, &share);
                }
                if let Some(checkpoint) = copy {
                    self.inlets.copy_checkpoint(partition, &checkpoint);
                }
            }
            Ok(false) => self.give_up(reader, "another owner took the lease"),
            Err(error) => {
                tracing::warn!(%reader, error = %chain(&error), "the lease was not renewed");
                // It may have been, or may be yet: the next one must not have its number.
                owned.lease.row.renewal = renewal.row.renewal;
            }
        }
    }
}

/// What a reader takes of its partition. (Its layout may have ended since the lease was taken, but then
/// the lease's own generation says so, and it is handed back.)
fn share_of(layout: &Layout, lease: &HeldLease, handover: Handover) -> Share {
    let reader = ReaderId(lease.row.key.number);
    Share::new(division_of(layout, &lease.row), reader, handover)
}

/// The division that the reader of a lease is one of.
fn division_of(layout: &Layout, lease: &Lease) -> Division {
    let of = layout.of(lease.key.generation);
    of.unwrap_or(layout.division())
}

/// How far a whole partition is done, as the lease that was just written and those of the other readers
/// say; `None` while one of them has not begun, or cannot be read.
async fn of_partition(
    store: &dyn Store,
    division: Division,
    written: &Lease,
) -> Option<Checkpoint> {
    let mut lowest = written.checkpoint;
    for reader in division.of_partition(written.partition) {
        let key = LeaseKey::scheduler(written.key.generation, reader);
        if key != written.key {
            let lease = store.lease(key).await.ok().flatten()?;
            lowest = lowest.lowest(lease.checkpoint);
        }
    }
    Some(lowest)
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
#[derive(Clone, Debug)]
pub(super) struct StartOffsets {
    /// The first request to apply.
    pub requests: Offset,
    /// The record below it, which must have this fingerprint.
    pub verify: Option<(Offset, u64)>,
    /// The first reply to apply.
    pub replies: Offset,
    /// The first recovery to apply.
    pub recoveries: Offset,
    /// What of all that was done by those whom the reader follows.
    pub handover: Handover,
}

/// Why a log does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// It begins behind the checkpoint.
    #[error(
        "requests from offset {done} are not done, but the log begins at {begins}: its retention overtook \
         the checkpoint, and what lay between is gone; to go on all the same, set \
         scheduler.skipDeletedRequests: true"
    )]
    Overtaken {
        /// The first request that is not done.
        done: Offset,
        /// The first one that is there.
        begins: Offset,
    },
    /// It ends before the checkpoint.
    #[error(
        "requests are done up to {done}, but the log ends at {end}: this is another topic than the checkpoint \
         was taken on; if it was made anew, and what was not done of the old one is to be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Shorter {
        /// Below it everything was done.
        done: Offset,
        /// Where the log ends.
        end: Offset,
    },
    /// A record below the checkpoint is not the one that was done.
    #[error(
        "{0}; if it was made anew, and what was not done of the old one is to be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Differs(String),
}

impl Unfit {
    /// Has a reader begin where the log does.
    fn pass_over(&self, row: &mut Lease, begins: Offset) {
        row.checkpoint.requests = begins;
        row.checkpoint.requests_fingerprint = None;
        row.handover.distrust(Source::Requests);
        row.consumed = match self {
            Self::Overtaken { .. } => row.consumed.max(begins),
            // Offsets of another log say nothing of this one.
            Self::Shorter { .. } | Self::Differs(_) => begins,
        };
    }
}

/// Holds the checkpoint against the log. A log that lost requests which are not done, or that ends
/// before the checkpoint, is refused: skipping silently would lose operations.
fn start_offsets(row: &Lease, ends: LogEnds) -> Result<StartOffsets, Unfit> {
    let checkpoint = row.checkpoint;
    let (first, end) = ends.requests;
    // An owner that never got to a first renewal has done nothing that another must not do again.
    let requests = if lost_state::never_owned(row) {
        checkpoint.requests.max(first)
    } else {
        checkpoint.requests
    };
    if requests < first {
        return Err(Unfit::Overtaken {
            done: requests,
            begins: first,
        });
    }
    let mut handover = row.handover.clone();
    let done = requests.max(handover.furthest(Source::Requests));
    if done > end {
        return Err(Unfit::Shorter { done, end });
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
    for (source, end) in [
        (Source::Replies, ends.replies.1),
        (Source::Recoveries, recoveries_end),
    ] {
        if handover.furthest(source) > end {
            handover.distrust(source);
        }
    }
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
        handover,
    })
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Epoch, OwnerId, Stamp, Stood};
    use waybill_store::{DueBucket, LayoutGeneration};

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
                owner: Some(OwnerId(uuid::Uuid::nil())),
                epoch: Epoch(epoch),
                duration: Duration::from_secs(10),
                checkpoint,
                consumed: Offset(requests),
                ..Lease::new(
                    LeaseKey::scheduler(LayoutGeneration(0), ReaderId(0)),
                    PartitionId(0),
                )
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
        let start = start_offsets(&held(3, 50, 200).row, logs((10, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(50), Offset(200)));
        assert_eq!(start.verify, Some((Offset(49), FINGERPRINT)));
    }

    #[test]
    fn a_record_below_the_checkpoint_that_was_deleted_is_not_verified() {
        let start = start_offsets(&held(3, 50, 200).row, logs((50, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.verify), (Offset(50), None));
    }

    #[test]
    fn requests_that_are_not_done_and_gone_or_not_there_are_refused() {
        let overtaken = start_offsets(&held(3, 50, 0).row, logs((51, 60), (0, 0))).unwrap_err();
        assert!(matches!(overtaken, Unfit::Overtaken { .. }), "{overtaken}");
        let another = start_offsets(&held(3, 50, 0).row, logs((0, 49), (0, 0))).unwrap_err();
        assert!(matches!(another, Unfit::Shorter { .. }), "{another}");
    }

    #[test]
    fn what_is_gone_may_be_passed_over_and_the_rest_of_the_log_is_read() {
        let passed = |checkpoint: i64, consumed: i64, ends: LogEnds| {
            let mut row = held(3, checkpoint, 0).row;
            row.consumed = Offset(consumed);
            let unfit = start_offsets(&row, ends).unwrap_err();
            unfit.pass_over(&mut row, ends.requests.0);
            let start = start_offsets(&row, ends).unwrap();
            (start.requests.0, start.verify, row.consumed.0)
        };
        assert_eq!(passed(50, 55, logs((52, 60), (0, 0))), (52, None, 55));
        assert_eq!(passed(50, 50, logs((58, 60), (0, 0))), (58, None, 58));
        assert_eq!(passed(50, 55, logs((0, 10), (0, 0))), (0, None, 0));

        let mut row = held(3, 50, 0).row;
        let ends = logs((0, 60), (0, 0));
        Unfit::Differs(String::new()).pass_over(&mut row, ends.requests.0);
        let start = start_offsets(&row, ends).unwrap();
        assert_eq!((start.requests, start.verify), (Offset(0), None));
    }

    #[test]
    fn the_first_owner_of_all_begins_where_the_log_does() {
        let start = start_offsets(&held(1, 0, 0).row, logs((40, 60), (5, 9))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(40), Offset(5)));
        // Its predecessor never got to a first renewal.
        let mut second = held(2, 0, 0);
        assert!(start_offsets(&second.row, logs((40, 60), (5, 9))).is_ok());
        second.row.consumed = Offset(1);
        assert!(start_offsets(&second.row, logs((40, 60), (5, 9))).is_err());
    }

    #[test]
    fn replies_that_were_lost_with_the_machine_do_not_stop_a_partition() {
        let start = start_offsets(&held(3, 50, 900).row, logs((0, 60), (100, 300))).unwrap();
        assert_eq!(start.replies, Offset(300));
    }

    #[test]
    fn what_those_who_are_followed_had_done_is_held_against_the_logs_as_well() {
        let merged = |stood: i64, ends: LogEnds| {
            let mut held = held(3, 50, 200);
            let stood = Stood {
                division: Division {
                    partitions: 1,
                    readers_per_partition: 2,
                },
                reader: ReaderId(1),
                requests: Offset(stood),
                replies: Offset(280),
                recoveries: Offset(0),
            };
            held.row.handover = Handover::new([stood], |_| Offset(0));
            start_offsets(&held.row, ends)
        };
        let start = merged(58, logs((0, 60), (0, 300))).unwrap();
        assert_eq!(start.handover.furthest(Source::Replies), Offset(280));
        let lost_replies = merged(58, logs((0, 60), (0, 270))).unwrap();
        assert_eq!(lost_replies.replies, Offset(200));
        assert_eq!(lost_replies.handover.furthest(Source::Replies), Offset(0));
        assert_eq!(lost_replies.handover.furthest(Source::Requests), Offset(58));
        let lost_requests = merged(58, logs((0, 55), (0, 300))).unwrap_err();
        let done = Offset(58);
        let end = Offset(55);
        assert_eq!(lost_requests, Unfit::Shorter { done, end });
    }

    #[test]
    fn recoveries_of_a_log_that_was_made_anew_are_all_read() {
        let recoveries_from = |checkpoint, first, end| {
            let mut held = held(3, 50, 0);
            held.row.checkpoint.recoveries = Offset(checkpoint);
            let mut ends = logs((0, 60), (0, 0));
            ends.recoveries = (Offset(first), Offset(end));
            start_offsets(&held.row, ends).unwrap().recoveries.0
        };
        assert_eq!(recoveries_from(7, 0, 9), 7);
        assert_eq!(recoveries_from(7, 8, 9), 8, "retention took what was done");
        assert_eq!(recoveries_from(7, 0, 5), 0);
    }
}
