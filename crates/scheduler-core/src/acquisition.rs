//! The acquisition of a shard's lease.
//!
//! [`Acquisition`] is a state machine. It has one [`AcquisitionCall`] in progress at a time: the
//! driver performs it and passes the [`AcquisitionAnswer`] to [`Acquisition::handle`], with the
//! time, and gets the next one.
//!
//! What must hold here:
//!
//! * **A candidate waits for a silent owner.** It takes another owner's lease only after it has
//!   seen it unchanged for its duration plus the margin. An exclusive store needs no wait, since no
//!   older owner can be running.
//! * **A shard begins only after all its predecessors have ended.** They were taken from their
//!   owners for good, by conditional writes, so that no owner can write, send or commit any more.
//!   If a shard gets another partition, its predecessors have read the old one to its end.
//! * **The very first owner stores where the logs begin**, and the IDs of their topics, in the same
//!   write that takes the lease. So a log that later loses its beginning, or is recreated, is never
//!   mistaken for a new one.
//! * **A new owner reads first**: it reads where the logs end only after it has the lease.

mod before;
mod call;
mod taking;

use std::mem;
use std::time::Duration;

use waybill_engine::{Now, OwnerId, ShardId, Timestamp};
use waybill_state::{DueBucket, Layout};

pub use self::call::{AcquisitionAnswer, AcquisitionCall, AcquisitionStep};

use self::before::Before;
use self::taking::Taking;
use crate::lease::{AcquireError, HeldLease, LeaseTerms};

/// The pause before a new owner reads the ends of the logs again.
const ENDS_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// A new owner whose lease ends within this time does not read the ends of the logs again.
const ENDS_NEED: Duration = Duration::from_secs(1);

/// What a candidate is and may do.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The nonce of this process, never a host or pod name.
    pub owner: OwnerId,
    /// How long its leases last.
    pub terms: LeaseTerms,
    /// Whether no other process can have the store open.
    pub store_is_exclusive: bool,
    /// Whether a shard may start that the store has no record of, although its log has been
    /// consumed.
    pub may_lack_state: bool,
}

/// The state machine of an acquisition.
#[derive(Debug)]
pub struct Acquisition {
    candidate: Candidate,
    layout: Layout,
    shard: ShardId,
    stage: Stage,
    /// The call that is answered next; `None` before the first.
    called: Option<AcquisitionCall>,
}

#[derive(Debug)]
enum Stage {
    New,
    /// Finds the generation to run, and looks for signs that the shard has run before.
    Before(Before),
    /// Waits for owners, and takes the lease.
    Taking(Box<Taking>),
    /// Owns the shard, and reads the cursor of its index shard.
    ReadingCursor {
        held: HeldLease,
        asked_at: Timestamp,
    },
    /// Owns the shard, and stores the first cursor of its index shard.
    StoringCursor(HeldLease),
    /// Owns the shard, and reads the ends of the logs.
    ReadingEnds(HeldLease),
    Ended,
}

impl Acquisition {
    /// The machine that acquires the lease of a shard of `layout`. Begins with
    /// [`AcquisitionAnswer::Started`].
    #[must_use]
    pub fn new(candidate: Candidate, layout: Layout, shard: ShardId) -> Self {
        Self {
            candidate,
            layout,
            shard,
            stage: Stage::New,
            called: None,
        }
    }

    /// Handles the answer to the last call, and returns what comes next. `now` is the time at which
    /// the answer arrived; the driver begins the next call at once.
    ///
    /// It waits for a silent owner's lease to expire, and for the owners of the shards that this
    /// one follows. It ends early if a call fails, if the store has another layout by then, or if
    /// the shard must not run.
    pub fn handle(&mut self, answer: AcquisitionAnswer, now: Now) -> AcquisitionStep {
        let next = self.advance(answer, now);
        let step = next.unwrap_or_else(|error| AcquisitionStep::Done(Err(error)));
        if let AcquisitionStep::Call(call) = &step {
            self.called = Some(call.clone());
        }
        step
    }

    fn advance(
        &mut self,
        answer: AcquisitionAnswer,
        now: Now,
    ) -> Result<AcquisitionStep, AcquireError> {
        use AcquisitionAnswer as Answer;
        use AcquisitionCall as Call;

        let stage = mem::replace(&mut self.stage, Stage::Ended);
        match (stage, self.called.take(), answer) {
            (Stage::New, None, Answer::Started) => self.look_back(Before::default(), now),
            (Stage::Before(mut before), Some(Call::ReadLease(key)), Answer::Lease(lease)) => {
                before.learn_lease(key, lease.map(|lease| *lease));
                self.look_back(before, now)
            }
            (Stage::Before(mut before), Some(Call::ReadEnds(_)), Answer::Ends(ends)) => {
                before.learn_ends(ends);
                self.look_back(before, now)
            }
            (
                Stage::Before(mut before),
                Some(Call::ReadCommitted(source, _)),
                Answer::Committed(offset),
            ) => {
                before.learn_committed(source, offset);
                self.look_back(before, now)
            }
            (Stage::Taking(mut taking), Some(Call::ReadLease(key)), Answer::Lease(lease)) => {
                let lease = lease.map(|lease| *lease);
                taking.learn_lease(&self.candidate, key, lease, now.boot);
                self.take(taking, now)
            }
            (Stage::Taking(mut taking), Some(Call::Wait(_)), Answer::Waited) => {
                taking.forget_held();
                self.take(taking, now)
            }
            (Stage::Taking(mut taking), Some(Call::ReadLayout), Answer::Layout(layout)) => {
                let current = layout.map(|layout| layout.generation());
                taking.learn_layout(current.unwrap_or_default());
                self.take(taking, now)
            }
            (Stage::Taking(mut taking), Some(Call::ReadEnds(_)), Answer::Ends(ends)) => {
                taking.learn_ends(ends);
                self.take(taking, now)
            }
            (
                Stage::Taking(mut taking),
                Some(Call::TakeLease { lease, .. }),
                Answer::Taken(is_taken),
            ) => match taking.learn_taken(*lease, is_taken) {
                Some(held) => {
                    let partition = held.row.partition;
                    let asked_at = now.wall;
                    self.stage = Stage::ReadingCursor { held, asked_at };
                    Ok(Call::ReadCursor(partition).into())
                }
                None => self.take(taking, now),
            },
            (
                Stage::ReadingCursor { held, asked_at },
                Some(Call::ReadCursor(partition)),
                Answer::Cursor(stored),
            ) => match DueBucket::first_cursor(stored, asked_at) {
                Some(cursor) => {
                    self.stage = Stage::StoringCursor(held);
                    Ok(Call::AdvanceCursor(partition, cursor).into())
                }
                None => Ok(self.read_ends(held).into()),
            },
            (Stage::StoringCursor(held), Some(Call::AdvanceCursor(..)), Answer::CursorMoved)
            | (Stage::ReadingEnds(held), Some(Call::Wait(_)), Answer::Waited) => {
                Ok(self.read_ends(held).into())
            }
            (Stage::ReadingEnds(held), Some(Call::ReadEnds(_)), Answer::Ends(ends)) => {
                Ok(AcquisitionStep::Done(Ok((held, ends))))
            }
            (Stage::ReadingEnds(held), Some(Call::ReadEnds(partition)), Answer::Failed(error))
                if now.boot + ENDS_NEED < held.valid_until =>
            {
                tracing::info!(
                    %partition, error, "could not read the ends of the logs; retrying"
                );
                self.stage = Stage::ReadingEnds(held);
                Ok(Call::Wait(ENDS_AGAIN_AFTER).into())
            }
            (_, Some(call), Answer::Failed(error)) if call.may_fail() => Err(call.failed(&error)),
            (_, call, answer) => Err(answer.unexpected(call.as_ref())),
        }
    }

    /// Finds the generation to run, and then begins to take its lease.
    fn look_back(&mut self, mut before: Before, now: Now) -> Result<AcquisitionStep, AcquireError> {
        let may_lack_state = self.candidate.may_lack_state;
        match before.next(&self.layout, self.shard, may_lack_state)? {
            before::Next::Call(call) => {
                self.stage = Stage::Before(before);
                Ok(call.into())
            }
            before::Next::Take(generation) => {
                self.take(Box::new(Taking::new(generation, self.shard)), now)
            }
        }
    }

    fn take(&mut self, mut taking: Box<Taking>, now: Now) -> Result<AcquisitionStep, AcquireError> {
        let call = taking.next(&self.candidate, &self.layout, now)?;
        self.stage = Stage::Taking(taking);
        Ok(call.into())
    }

    /// Reads the ends of the logs, and again while the lease lasts: giving up after the first
    /// failure would mean waiting for the lease to expire. (The leader of a new topic might not
    /// know the topic yet.)
    fn read_ends(&mut self, held: HeldLease) -> AcquisitionCall {
        let partition = held.row.partition;
        self.stage = Stage::ReadingEnds(held);
        AcquisitionCall::ReadEnds(partition)
    }
}

#[cfg(test)]
mod tests;
