//! Performs the calls of an acquisition on the world, one at a time. They fail at times, or their
//! answers are late; a write may happen although it failed.

use std::mem;
use std::time::Duration;

use waybill_engine::{ShardId, Stamp};
use waybill_scheduler_core::{
    Acquisition, AcquisitionAnswer, AcquisitionCall, AcquisitionStep, Candidate, Generation, Input,
};
use waybill_state::Layout;

use super::{Change, LEASE, Process, Work};
use crate::bugs::Bug;
use crate::seen::Sight;
use crate::world::World;

/// A shard whose lease is being acquired.
pub struct Acquiring {
    shard: ShardId,
    generation: Generation,
    acquisition: Acquisition,
    /// The answer to its last call.
    answer: AcquisitionAnswer,
}

impl Process {
    pub(super) fn acquire(
        &mut self,
        world: &mut World,
        shard: ShardId,
        generation: Generation,
        layout: Layout,
    ) {
        let candidate = Candidate {
            owner: self.owner,
            terms: LEASE,
            store_is_exclusive: self.has(Bug::TakeWithoutWaiting),
            may_lack_state: false,
        };
        let acquiring = Acquiring {
            shard,
            generation,
            acquisition: Acquisition::new(candidate, layout, shard),
            answer: AcquisitionAnswer::Started,
        };
        self.go_on(Box::new(acquiring), world);
    }

    /// Gives an acquisition the answer to its last call, and performs the next one.
    pub(super) fn go_on(&mut self, mut acquiring: Box<Acquiring>, world: &mut World) {
        let answer = mem::replace(&mut acquiring.answer, AcquisitionAnswer::Started);
        match acquiring.acquisition.handle(answer, self.now(world)) {
            AcquisitionStep::Call(call) => {
                let after = match call {
                    AcquisitionCall::Wait(time) => time,
                    _ => world.delay(),
                };
                acquiring.answer = self.call(call, world);
                self.at(world.time + after, Work::Acquire(acquiring));
            }
            AcquisitionStep::Done(mut result) => {
                if let Ok((held, ends)) = &mut result {
                    if self.has(Bug::ForgetStampFloor) {
                        held.stamp_floor = Stamp(0);
                    }
                    if self.has(Bug::SkipLogCheck) {
                        let first = &mut ends.first.requests;
                        *first = held.row.checkpoint.at.requests.min(*first);
                    }
                }
                let acquired = Input::Acquired {
                    shard: acquiring.shard,
                    generation: acquiring.generation,
                    result,
                };
                self.answer(world, acquired);
            }
        }
    }

    fn call(&mut self, call: AcquisitionCall, world: &mut World) -> AcquisitionAnswer {
        use AcquisitionAnswer as Answer;
        use AcquisitionCall as Call;

        let is_read = matches!(
            call,
            Call::ReadLease(_)
                | Call::ReadLayout
                | Call::ReadEnds(_)
                | Call::ReadCommitted(..)
                | Call::ReadCursor(_)
        );
        if is_read && (self.is_cut_off(world) || world.fault(2)) {
            world.seen.saw(Sight::AcquisitionFailed);
            return failed();
        }
        match call {
            Call::ReadLease(key) => Answer::Lease(world.leases.get(&key).cloned().map(Box::new)),
            Call::TakeLease { seen, lease } => {
                if seen.as_ref().is_some_and(|seen| seen.owner.is_some()) {
                    world.seen.saw(Sight::TakeOver);
                }
                let (seen, lease) = (seen.map(|seen| *seen), *lease);
                let taken = self.change(world, Change::Take { seen, lease }, Duration::ZERO);
                if taken == Some(false) {
                    world.seen.saw(Sight::RaceLost);
                }
                taken.map_or_else(failed, Answer::Taken)
            }
            Call::ReadLayout => Answer::Layout(None),
            Call::ReadEnds(partition) => Answer::Ends(world.ends(partition)),
            // The copy is for lag tools. A shard that has run has its lease in this store.
            Call::ReadCommitted(..) => Answer::Committed(None),
            Call::ReadCursor(shard) => Answer::Cursor(world.cursors.get(&shard).copied()),
            Call::AdvanceCursor(shard, cursor) => {
                let moved = self.change(world, Change::Cursor(shard, cursor), Duration::ZERO);
                moved.map_or_else(failed, |_| Answer::CursorMoved)
            }
            Call::Wait(_) => Answer::Waited,
        }
    }
}

fn failed() -> AcquisitionAnswer {
    AcquisitionAnswer::Failed("it timed out".to_owned())
}
