//! Group commits: first the rows of all changed operations are written, then their messages are
//! sent. Once the messages are acknowledged, the engines may move their checkpoints.
//!
//! One commit is in flight at a time. It holds the batches that the engines of all shards had when
//! it began; later decisions go into the next one.
//!
//! If an external database does not report whether a commit was made, each shard's part is written
//! again on its own, with the same stamps, until it is durable or the shard's lease has ended. That
//! shard takes no new batch in the meantime; the other shards continue. A commit that gets no
//! answer at all is abandoned after a while, and its shards restart.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_engine::{BatchNumber, BootTime, Command, Event, Message, Now, PartitionId, ShardId};
use waybill_state::{AttentionEntry, DueEntry, RowWrite, WriteBatch, Written};

use crate::effect::{Effect, LoopError, Note};
use crate::input::{CommitNumber, Generation, Requester, SendNumber, Undelivered};
use crate::linger::GroupCommitLinger;
use crate::slot::{Slot, SlotState};
use crate::task::{Task, TaskError};

/// Maximum sleep of the loop while messages are unacknowledged. Acknowledgements move checkpoints
/// and free room, but do not wake the loop.
const SETTLE_MAX: Duration = Duration::from_millis(5);
/// The pause before a part of a commit is written again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A shard under an assignment.
pub(crate) type Assigned = (ShardId, Generation);

/// A batch of one engine that is in flight.
#[derive(Clone, Copy, Debug)]
struct Part {
    shard: ShardId,
    partition: PartitionId,
    generation: Generation,
    batch: BatchNumber,
}

impl Part {
    fn requester(self) -> Requester {
        Requester {
            shard: self.shard,
            generation: self.generation,
            partition: self.partition,
        }
    }
}

/// One shard's part of a commit.
#[derive(Debug)]
struct PartOf {
    part: Part,
    /// Sent once the rows are durable.
    messages: Vec<Message>,
    /// The rows, for writing them again; empty if the store belongs to this process alone.
    write: WriteBatch,
}

/// A commit whose rows are being written.
#[derive(Debug)]
struct UnderWay {
    number: CommitNumber,
    /// When its rows were first written.
    began: BootTime,
    parts: Vec<PartOf>,
}

impl UnderWay {
    fn shards(&self) -> impl Iterator<Item = Assigned> {
        let parts = self.parts.iter();
        parts.map(|PartOf { part, .. }| (part.shard, part.generation))
    }

    fn involves(&self, shard: ShardId) -> bool {
        self.shards().any(|(of, _)| of == shard)
    }
}

/// The path from the engines to the store and the topics.
#[derive(Debug)]
pub(crate) struct Commits {
    /// Whether the store belongs to this process alone.
    store_is_exclusive: bool,
    linger: GroupCommitLinger,
    /// Commits without an answer for this long are abandoned.
    stuck_after: Duration,
    under_way: Option<UnderWay>,
    /// Parts of earlier commits that are being written again, each on its own.
    again: Vec<UnderWay>,
    last_number: CommitNumber,
    unsettled: BTreeMap<SendNumber, Part>,
    last_sent: SendNumber,
}

impl Commits {
    pub(crate) fn new(store_is_exclusive: bool, stuck_after: Duration) -> Self {
        Self {
            store_is_exclusive,
            linger: GroupCommitLinger::default(),
            stuck_after,
            under_way: None,
            again: Vec::new(),
            last_number: CommitNumber::default(),
            unsettled: BTreeMap::new(),
            last_sent: SendNumber::default(),
        }
    }

    /// Starts the next commit, if none is in flight and there is something to commit.
    pub(crate) fn resume(
        &mut self,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Now,
        effects: &mut Vec<Effect>,
    ) {
        let began = now.boot;
        if self.under_way.is_some() || self.linger.holds_back(began) {
            return;
        }
        let mut write = WriteBatch::default();
        let mut parts = Vec::new();
        let is_written_again = !self.store_is_exclusive;
        for (&shard, slot) in slots.iter_mut() {
            let generation = slot.generation;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            let partition = owned.partition();
            let is_behind = self.again.iter().any(|again| again.involves(shard));
            if owned.releasing_since.is_some() || is_behind {
                continue;
            }
            let Some(batch) = owned.engine.take_batch(now.wall) else {
                continue;
            };
            let mut messages = Vec::new();
            let mut own = WriteBatch::default();
            for command in batch.commands {
                match command {
                    Command::Index { due, operation } => {
                        own.due.push((partition, DueEntry { due, operation }));
                    }
                    Command::Attention { at, operation } => {
                        own.attention
                            .push((partition, AttentionEntry { at, operation }));
                    }
                    Command::Persist(row) => own.rows.push(RowWrite {
                        id: row.id,
                        created: row.created,
                        state: row.state,
                        stamp: row.stamp,
                        keep_for: row.keep_for,
                    }),
                    Command::Send(message) => messages.push(message),
                }
            }
            let copy = match is_written_again {
                true => own.clone(),
                false => WriteBatch::default(),
            };
            write.due.append(&mut own.due);
            write.attention.append(&mut own.attention);
            write.rows.append(&mut own.rows);
            parts.push(PartOf {
                part: Part {
                    shard,
                    partition,
                    generation,
                    batch: batch.number,
                },
                messages,
                write: copy,
            });
        }
        if parts.is_empty() {
            return;
        }
        self.linger.began(began, write.rows.len());
        if write.is_empty() {
            self.dispatch(parts, slots, began, effects);
            return;
        }
        effects.push(Effect::Note(Note::CommitBegan(write.rows.len())));
        let number = self.last_number.next();
        effects.push(Effect::Write {
            number,
            batch: write,
            again_after: None,
        });
        self.under_way = Some(UnderWay {
            number,
            began,
            parts,
        });
    }

    /// Maximum sleep of the loop on behalf of commits; `None` if an event will wake it.
    pub(crate) fn patience(&self, now: BootTime) -> Option<Duration> {
        match self.linger.rest(now) {
            Some(rest) => Some(rest),
            None if self.unsettled.is_empty() => None,
            None => Some(SETTLE_MAX),
        }
    }

    /// Handles the result of writing the rows of a commit: if they are durable, sends its messages.
    /// If that is unknown, writes them again, unless the store belongs to this process alone.
    /// Returns the shards that must restart, each with the assignment under which its rows were
    /// written.
    ///
    /// # Errors
    ///
    /// If the store of this process could not write, or a store rejects the write. This process can
    /// then guarantee nothing any more.
    pub(crate) fn committed(
        &mut self,
        number: CommitNumber,
        result: Result<Written, TaskError>,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<Assigned>, LoopError> {
        let result = match result {
            Err(TaskError::Store(error)) if !error.may_be_repeated(self.store_is_exclusive) => {
                return Err(LoopError::Commit(error));
            }
            result => result,
        };
        // Ignore the answer to a commit that was abandoned.
        let Some(under_way) = self.take(number) else {
            return Ok(Vec::new());
        };
        let error = match result {
            Ok(written) => {
                let replaced = written.replaced.into_iter();
                effects.extend(replaced.map(|row| Effect::Note(Note::RowReplaced(row))));
                let age = now.boot.since(under_way.began);
                effects.push(Effect::Note(Note::CommitDurable(age)));
                self.dispatch(under_way.parts, slots, now.boot, effects);
                return Ok(Vec::new());
            }
            Err(error) => error,
        };
        effects.push(Effect::Note(Note::CommitFailed));
        // A part that panics on its own would panic again.
        let is_of_one = under_way.parts.len() == 1;
        let is_hopeless = is_of_one && matches!(error, TaskError::Panicked(_));
        if self.store_is_exclusive || is_hopeless {
            tracing::error!(%error, "the group commit of step state failed");
            return Ok(under_way.shards().collect());
        }
        tracing::error!(
            %error,
            shards = under_way.parts.len(),
            "the group commit of step state failed; writing each shard's part again"
        );
        let UnderWay { began, parts, .. } = under_way;
        for part in parts {
            let Part {
                shard, generation, ..
            } = part.part;
            let slot = slots.get_mut(&shard);
            let owned = slot.and_then(|slot| slot.owned(generation));
            if !owned.is_some_and(|owned| owned.may_send(now.boot)) {
                effects.push(Effect::Note(Note::Withheld));
                continue;
            }
            let number = self.last_number.next();
            effects.push(Effect::Write {
                number,
                batch: part.write.clone(),
                again_after: Some(AGAIN_AFTER),
            });
            self.again.push(UnderWay {
                number,
                began,
                parts: vec![part],
            });
        }
        Ok(Vec::new())
    }

    /// Removes a commit from those in flight.
    fn take(&mut self, number: CommitNumber) -> Option<UnderWay> {
        if let Some(under_way) = self.under_way.take_if(|commit| commit.number == number) {
            return Some(under_way);
        }
        let at = self.again.iter().position(|commit| commit.number == number);
        at.map(|at| self.again.swap_remove(at))
    }

    /// Abandons commits that have had no answer for too long. Returns the shards that must restart,
    /// each with the assignment under which its rows were written.
    pub(crate) fn give_up_stuck(
        &mut self,
        now: BootTime,
        effects: &mut Vec<Effect>,
    ) -> Vec<Assigned> {
        let stuck_after = self.stuck_after;
        let is_stuck = |commit: &mut UnderWay| now.since(commit.began) >= stuck_after;
        let stuck = self.again.extract_if(.., is_stuck);
        let stuck: Vec<UnderWay> = self
            .under_way
            .take_if(|commit| is_stuck(commit))
            .into_iter()
            .chain(stuck)
            .collect();
        for commit in &stuck {
            effects.push(Effect::Note(Note::Stuck(Task::Commit)));
            let age = now.since(commit.began);
            let shards = commit.parts.len();
            tracing::error!(
                ?age,
                shards,
                "giving up a commit of step state that was not acknowledged"
            );
        }
        stuck.iter().flat_map(UnderWay::shards).collect()
    }

    /// Sends the messages of the shards that are still owned. A shard that lost or released its
    /// lease while the rows were being written sends nothing: its successor might not have read
    /// these rows.
    fn dispatch(
        &mut self,
        parts: Vec<PartOf>,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: BootTime,
        effects: &mut Vec<Effect>,
    ) {
        for PartOf { part, messages, .. } in parts {
            let Some(slot) = slots.get_mut(&part.shard) else {
                continue;
            };
            match slot.owned(part.generation) {
                Some(owned) if owned.may_send(now) => {
                    let number = self.last_sent.next();
                    self.unsettled.insert(number, part);
                    effects.push(Effect::Send {
                        number,
                        from: part.requester(),
                        messages,
                        valid_until: owned.lease.valid_until,
                    });
                }
                _ => effects.push(Effect::Note(Note::Withheld)),
            }
        }
    }

    /// Handles the acknowledgement of messages, or their failed delivery. Returns the shard that
    /// must restart because one of its messages may be missing, with the assignment under which
    /// they were sent, and the reason.
    pub(crate) fn settled(
        &mut self,
        number: SendNumber,
        result: Result<(), Undelivered>,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Option<(Assigned, String)> {
        let part = self.unsettled.remove(&number)?;
        let Part {
            shard, generation, ..
        } = part;
        match result {
            Ok(()) => {
                let slot = slots.get_mut(&shard);
                if let Some(owned) = slot.and_then(|slot| slot.owned(generation)) {
                    let batch = part.batch;
                    owned.engine.apply(Event::Settled { batch }, now.wall);
                }
                None
            }
            Err(Undelivered::LeaseEnded) => {
                effects.push(Effect::Note(Note::Withheld));
                let reason = "the lease ended before its messages were sent".to_owned();
                Some(((shard, generation), reason))
            }
            Err(Undelivered::Failed(error)) => {
                tracing::error!(%shard, error, "a message was not acknowledged");
                let reason = format!("a message was not acknowledged: {error}");
                Some(((shard, generation), reason))
            }
        }
    }

    /// Whether any row or message of a shard is in flight.
    pub(crate) fn involve(&self, shard: ShardId) -> bool {
        let mut written = self.under_way.iter().chain(&self.again);
        let mut sent = self.unsettled.values();
        written.any(|commit| commit.involves(shard)) || sent.any(|part| part.shard == shard)
    }

    /// Forgets a shard that no longer runs here.
    pub(crate) fn forget(&mut self, shard: ShardId, effects: &mut Vec<Effect>) {
        self.again.retain(|commit| !commit.involves(shard));
        effects.push(Effect::Forget(shard));
    }
}
