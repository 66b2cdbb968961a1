//! How schedulers take over shards.

use waybill_engine::{ShardId, Source, Stamp};
use waybill_scheduler_core::{
    AcquisitionAnswer, AcquisitionCall, AcquisitionStep, Generation, HeldLease, Input, LogEnds,
};
use waybill_state::Lease;

use super::{Act, Call};
use crate::bugs::Bug;
use crate::run::Run;
use crate::seen::Sight;

impl Run {
    /// Gives a candidate the answer to its last call.
    pub fn acquire(&mut self, index: usize, generation: Generation, answer: AcquisitionAnswer) {
        let scheduler = &mut self.schedulers[index];
        let now = scheduler.now(self.now);
        let Some((shard, acquisition)) = scheduler.acquiring.get_mut(&generation) else {
            return;
        };
        match acquisition.handle(answer, now) {
            AcquisitionStep::Call(AcquisitionCall::Wait(time)) => {
                let micros = u64::try_from(time.as_micros()).unwrap() + self.rng.below(50_000);
                let waited = Act::Acquisition(generation, AcquisitionAnswer::Waited);
                self.act_later(index, micros, waited);
            }
            AcquisitionStep::Call(call) => {
                self.send_scheduler_call(index, Call::Acquisition(generation, call));
            }
            AcquisitionStep::Done(result) => {
                let shard = *shard;
                scheduler.acquiring.remove(&generation);
                if let Ok((_, ends)) = &result {
                    let inbox_end = usize::try_from(ends.next.replies.0).unwrap();
                    scheduler.inbox_ends.insert(generation, inbox_end);
                }
                let result = result.map(|(held, ends)| {
                    self.note_all(|| format!("scheduler {index} takes {}: {held:?}", held.row.key));
                    let ends = self.corrupted_ends(&held, ends);
                    (self.corrupted_lease(held), ends)
                });
                self.give(
                    index,
                    Input::Acquired {
                        shard,
                        generation,
                        result,
                    },
                );
            }
        }
    }

    /// A call of a candidate fails: it may have been proposed.
    pub fn candidate_fails(&mut self, call: &AcquisitionCall) {
        if let AcquisitionCall::TakeLease { seen, lease } = call {
            self.complete_proposal(lease.key);
            if self.store.leases.get(&lease.key) == seen.as_deref() {
                self.proposal_fails(lease);
            }
        }
    }

    /// Applies a call of a candidate.
    pub fn candidate_calls(&mut self, index: usize, call: AcquisitionCall) -> AcquisitionAnswer {
        match call {
            AcquisitionCall::ReadLease(key) => {
                self.complete_proposal(key);
                let lease = self.store.leases.get(&key).cloned();
                AcquisitionAnswer::Lease(lease.map(|lease| Box::new(self.corrupted_parent(lease))))
            }
            AcquisitionCall::TakeLease { seen, lease } => {
                let taken = self.take_lease(seen.as_deref(), &lease);
                if taken {
                    self.release_kept();
                    self.saw_taken(index, seen.as_deref(), &lease);
                }
                AcquisitionAnswer::Taken(taken)
            }
            AcquisitionCall::ReadLayout => {
                AcquisitionAnswer::Layout(Some(self.store.layout.clone()))
            }
            AcquisitionCall::ReadEnds(partition) => {
                AcquisitionAnswer::Ends(self.log_ends(partition))
            }
            AcquisitionCall::ReadCommitted(source, partition) => {
                let copied = self.store.logs[partition.0 as usize].copied;
                AcquisitionAnswer::Committed(copied.map(|copied| copied.on(source)))
            }
            AcquisitionCall::ReadCursor(partition) => {
                AcquisitionAnswer::Cursor(self.store.logs[partition.0 as usize].cursor)
            }
            AcquisitionCall::AdvanceCursor(partition, cursor) => {
                let logs = &mut self.store.logs[partition.0 as usize];
                logs.cursor = logs.cursor.max(Some(cursor));
                AcquisitionAnswer::CursorMoved
            }
            AcquisitionCall::Wait(_) => unreachable!("a wait is no call of the store"),
        }
    }

    fn saw_taken(&mut self, index: usize, seen: Option<&Lease>, lease: &Lease) {
        if lease.is_ended {
            let key = lease.key;
            return self.note_all(|| format!("scheduler {index} ends {key}: {lease:?}"));
        }
        let sight = match seen {
            Some(seen) if seen.owner.is_some() => Sight::TakeOvers,
            Some(_) => Sight::HandedOver,
            None if lease.key.generation.0 == 0 => return,
            None => {
                let (of, shard) = (lease.key.generation, ShardId(lease.key.number));
                let layout = &self.store.layout;
                let before = of.previous().and_then(|before| layout.of(before));
                let parents = layout.of(of).zip(before);
                match parents.map_or(0, |(of, before)| of.follows(before, shard).len()) {
                    0 | 1 => Sight::Splits,
                    _ => Sight::Merges,
                }
            }
        };
        self.seen.count(sight);
    }

    /// The planted bugs: what a candidate reads of the predecessors of a shard is wrong.
    fn corrupted_parent(&self, lease: Lease) -> Lease {
        let is_parent = lease.key.generation < self.store.layout.generation();
        match self.bug {
            Some(Bug::BeginBeforeTaken) if is_parent => Lease {
                is_ended: true,
                ..lease
            },
            Some(Bug::MergeAtHighest) if is_parent => {
                let siblings = self.store.leases.values().filter(|other| {
                    (other.key.generation, other.partition)
                        == (lease.key.generation, lease.partition)
                });
                let mut highest = lease.clone();
                for source in Source::ALL {
                    let at = siblings.clone().map(|lease| lease.checkpoint.on(source));
                    *highest.checkpoint.at.on_mut(source) = at.max().unwrap_or_default();
                }
                highest.checkpoint.fingerprints = Default::default();
                highest
            }
            _ => lease,
        }
    }

    /// The planted bugs: the loop gets wrong beginnings or ends of the logs.
    fn corrupted_ends(&self, held: &HeldLease, mut ends: LogEnds) -> LogEnds {
        match self.bug {
            Some(Bug::TimeOutBeforeInboxIsRead) => {
                ends.next.replies = held.row.checkpoint.at.replies;
            }
            Some(Bug::SkipDeleted) => ends.first = held.row.checkpoint.at,
            _ => {}
        }
        ends
    }

    /// The planted bug: a new owner does not know the stamps of the last one.
    fn corrupted_lease(&self, held: HeldLease) -> HeldLease {
        match self.bug {
            Some(Bug::ForgetStampFloor) => HeldLease {
                stamp_floor: Stamp(0),
                ..held
            },
            _ => held,
        }
    }
}
