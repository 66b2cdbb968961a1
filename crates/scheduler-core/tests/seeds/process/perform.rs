//! Performs the effects of the loop on the world, one at a time.

use std::time::Duration;

use waybill_engine::{BootTime, Message, Offset, ShardId};
use waybill_scheduler_core::{
    Asker, Assignment, CommitNumber, Effect, Generation, Input, Note, Panicked, SendNumber,
    StoreFailure, StoreFailureKind, Task, TaskError, Undelivered,
};
use waybill_state::{Lease, LeaseKey, WriteBatch, Written};

use super::{Change, Process, Reading, Work};
use crate::bugs::Bug;
use crate::seen::Sight;
use crate::world::World;

impl Process {
    pub(super) fn perform(&mut self, effect: Effect, world: &mut World) {
        match effect {
            Effect::Acquire {
                shard,
                generation,
                layout,
            } => self.acquire(world, shard, generation, layout),
            Effect::HandBack { held, free } => {
                world.take_lease(Some(&held), &free);
            }
            Effect::Renew {
                shard,
                generation,
                lease,
            } => self.renew(world, shard, generation, *lease),
            Effect::Release {
                shard,
                generation,
                held,
                free,
            } => {
                let (seen, lease) = (Some(*held), *free);
                let written = self.change(world, Change::Take { seen, lease }, Duration::ZERO);
                self.renewed(world, shard, generation, written);
            }
            Effect::ReadLeases {
                shard,
                generation,
                keys,
            } => {
                let lease = |key: &LeaseKey| world.leases.get(key).cloned();
                let leases = Input::Leases {
                    shard,
                    generation,
                    result: Ok(keys.iter().map(lease).collect()),
                };
                self.answer(world, leases);
            }
            Effect::ReadLayout => self.answer(world, Input::Layout(Ok(None))),
            Effect::Load {
                shard,
                generation,
                operations,
            } => {
                let result = match world.fault(2) {
                    true => Err(TaskError::Panicked(Panicked {
                        task: Task::Load,
                        message: "planted".to_owned(),
                    })),
                    false => Ok(world.read(&operations)),
                };
                let loaded = Input::Loaded {
                    shard,
                    generation,
                    result,
                };
                // At times it is not answered at all.
                if !world.fault(2) {
                    self.answer(world, loaded);
                }
            }
            Effect::Write {
                number,
                batch,
                again_after,
            } => self.write(world, number, batch, again_after),
            Effect::Send {
                number,
                from,
                messages,
                valid_until,
            } => self.send(world, number, from, messages, valid_until),
            Effect::Assign(assignment) => self.assign(&assignment),
            Effect::Unassign(shard) => {
                self.reading.remove(&shard);
            }
            Effect::ReadInboxEnd {
                shard,
                generation,
                partition,
            } => {
                world.seen.saw(Sight::PauseNoticed);
                let end = Input::InboxEnd {
                    shard,
                    generation,
                    end: Ok(world.ends(partition).next.replies),
                };
                self.answer(world, end);
            }
            Effect::OfferRoom { requests, .. } => self.room = requests.normal.records,
            Effect::Fail(error) => panic!("{error}"),
            Effect::Note(note) => saw(&note, world),
            Effect::PassOn { .. }
            | Effect::Forget(_)
            | Effect::SetFilter { .. }
            | Effect::ReadTo { .. }
            | Effect::CopyCheckpoint { .. }
            | Effect::Relay
            | Effect::Answer { .. } => {}
        }
    }

    /// Answers the loop after a delay.
    pub(super) fn answer(&mut self, world: &mut World, input: Input) {
        let at = world.time + world.delay();
        self.at(at, Work::Answer(Box::new(input)));
    }

    /// Makes a change of the store. At times its outcome is unknown: it happens late, or never. Returns
    /// whether the store wrote it, if the loop is to learn that.
    pub(super) fn change(
        &mut self,
        world: &mut World,
        change: Change,
        after: Duration,
    ) -> Option<bool> {
        if self.is_cut_off(world) {
            return None;
        }
        let is_known = !world.fault(8);
        if is_known {
            return Some(change.happen(world));
        }
        if !world.fault(30) {
            let at = world.time + after + world.delay() * 20;
            self.at(at, Work::Apply(change));
        }
        None
    }

    fn write(
        &mut self,
        world: &mut World,
        number: CommitNumber,
        batch: WriteBatch,
        again_after: Option<Duration>,
    ) {
        if again_after.is_some() {
            world.seen.saw(Sight::WrittenAgain);
        }
        let change = Change::Write(batch);
        let written = if self.has(Bug::SendBeforeDurable) {
            let at = world.time + world.delay();
            self.at(at, Work::Apply(change));
            Some(true)
        } else {
            self.change(world, change, again_after.unwrap_or_default())
        };
        let is_durable = written.is_some() || self.has(Bug::UnknownCountsAsDurable);
        let result = match is_durable {
            true => Ok(Written::default()),
            false => Err(unknown()),
        };
        // At times it is not answered at all.
        if !world.fault(2) {
            self.answer(world, Input::Committed { number, result });
        }
    }

    fn renew(
        &mut self,
        world: &mut World,
        shard: ShardId,
        generation: Generation,
        mut lease: Lease,
    ) {
        if self.has(Bug::CheckpointEarly)
            && let Some(reading) = self.reading.get(&shard)
        {
            lease.checkpoint.at.requests = Offset(i64::try_from(reading.requests).unwrap());
        }
        let mut written = self.change(world, Change::Renew(lease), Duration::ZERO);
        if self.has(Bug::RenewalAssumed) {
            written = written.or(Some(true));
        }
        self.renewed(world, shard, generation, written);
    }

    fn renewed(
        &mut self,
        world: &mut World,
        shard: ShardId,
        generation: Generation,
        written: Option<bool>,
    ) {
        let renewed = Input::Renewed {
            shard,
            generation,
            result: written.ok_or_else(unknown),
        };
        self.answer(world, renewed);
    }

    fn assign(&mut self, assignment: &Assignment) {
        let from = |offset: Offset| usize::try_from(offset.0).unwrap();
        let reading = Reading {
            generation: assignment.generation,
            partition: assignment.partition,
            requests: from(assignment.start.at.requests),
            replies: from(assignment.start.at.replies),
        };
        self.reading.insert(assignment.shard, reading);
    }

    /// Sends messages, after a wait if the producer's queue is full, unless the lease has ended by
    /// then.
    fn send(
        &mut self,
        world: &mut World,
        number: SendNumber,
        from: Asker,
        messages: Vec<Message>,
        valid_until: BootTime,
    ) {
        if !std::mem::take(&mut self.has_waited) && world.fault(3) {
            world.seen.saw(Sight::QueueFull);
            self.has_waited = true;
            self.busy_until = world.time + world.rng.duration(Duration::from_secs(1));
            return self.effects.push_front(Effect::Send {
                number,
                from,
                messages,
                valid_until,
            });
        }
        let has_ended = self.now(world).boot >= valid_until;
        if has_ended && !self.has(Bug::SendAfterLease) {
            world.seen.saw(Sight::WithheldLate);
            let result = Err(Undelivered::LeaseEnded);
            return self.answer(world, Input::Settled { number, result });
        }
        let is_lost = world.fault(2);
        let all = messages.len();
        let sent = match is_lost {
            true => world.rng.index(all + 1),
            false => all,
        };
        for message in &messages[..sent] {
            world.send(from, message);
        }
        let is_settled = sent == all || self.has(Bug::SettleBeforeAcknowledged);
        if sent < all {
            world.seen.saw(Sight::MessageLost);
        }
        let result = match is_settled {
            true => Ok(()),
            false => Err(Undelivered::Failed("it timed out".to_owned())),
        };
        self.answer(world, Input::Settled { number, result });
    }
}

fn saw(note: &Note, world: &mut World) {
    let sight = match note {
        Note::Withheld => Sight::Withheld,
        Note::Stuck(_) => Sight::Stuck,
        Note::LeaseLost => Sight::LeaseExpired,
        Note::CommitBegan(_)
        | Note::CommitDurable(_)
        | Note::CommitFailed
        | Note::RowUnreadable(_)
        | Note::RowReplaced(_) => return,
    };
    world.seen.saw(sight);
}

fn unknown() -> TaskError {
    TaskError::Store(StoreFailure {
        kind: StoreFailureKind::Unknown,
        message: "it timed out".to_owned(),
    })
}
