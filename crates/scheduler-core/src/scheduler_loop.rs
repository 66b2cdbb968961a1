//! The loop that drives the engines of all shards of this process, as a state machine: inputs and
//! the time in, effects out.
//!
//! It applies inputs to the engines, hands everything that changed to one group commit, sends the
//! messages once the commit is durable, and lets their acknowledgements move the checkpoints. While
//! a commit is in flight it keeps applying inputs, whose changes form the next commit. So batches
//! grow with the load. A commit waits for more rows only if another with many rows began less than
//! a millisecond before.
//!
//! What must hold here:
//!
//! * a message is sent only after the commit that holds its row, and only while the lease is valid;
//! * a shard whose lease is lost drops its engine and all its work in flight;
//! * every wait ends: a task that panics reports it, and a shard whose rows are written or read for
//!   too long without an answer is given up.
//!
//! Deliberately absent: everything that performs an effect, and every clock. The driver performs
//! the effects in order after each call.

mod admission;
mod layout;
mod pauses;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    BootTime, EngineConfig, EngineStats, Event, Now, OperationId, OwnerId, ShardId, StepReply,
    Workflows,
};
use waybill_state::{Layout, RowRead};

use self::layout::LayoutReads;
use crate::commits::{Assigned, Commits};
use crate::control::ControlError;
use crate::effect::{Effect, LoopError, Note};
use crate::input::{Arrived, CallerId, Generation, Input, Requester};
use crate::settings::LoopSettings;
use crate::slot::{Owned, Slot, SlotState};
use crate::standstill::Standstills;
use crate::task::{Task, TaskError};

/// Maximum sleep of the loop when no input arrives.
const ITERATION_MAX: Duration = Duration::from_millis(50);
/// The pause after a failure, before a lease is acquired again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The loop and its state.
#[derive(Debug)]
pub struct SchedulerLoop {
    settings: LoopSettings,
    engine_config: Arc<EngineConfig>,
    workflows: Arc<Workflows>,
    owner: OwnerId,
    commits: Commits,
    slots: BTreeMap<ShardId, Slot>,
    layout: Layout,
    layout_reads: LayoutReads,
    /// The latest assignment of any shard.
    assigned: Generation,
    standstills: Standstills,
    /// The shard whose requests were admitted first in the last round.
    first_admitted: ShardId,
    /// Until when a shutdown waits for operations in flight, if it was requested.
    stopping: Option<BootTime>,
    effects: Vec<Effect>,
}

impl SchedulerLoop {
    /// The loop before its first turn. `owner` is a nonce of this process.
    #[must_use]
    pub fn new(
        settings: LoopSettings,
        engine_config: EngineConfig,
        workflows: Arc<Workflows>,
        owner: OwnerId,
        layout: Layout,
        now: Now,
    ) -> Self {
        let own = settings.own.of(layout.scheme());
        let slots: BTreeMap<ShardId, Slot> = own.map(|shard| (shard, Slot::new())).collect();
        if slots.is_empty() {
            tracing::warn!(
                %layout,
                "this process has no shard in the layout; waiting for another layout"
            );
        }
        Self {
            commits: Commits::new(settings.store_is_exclusive, settings.stuck_after),
            engine_config: Arc::new(engine_config),
            workflows,
            owner,
            slots,
            layout,
            layout_reads: LayoutReads::new(now.boot),
            assigned: Generation::default(),
            standstills: Standstills::new(now.boot),
            first_admitted: ShardId(0),
            stopping: None,
            effects: Vec::new(),
            settings,
        }
    }

    /// Maximum time until the next turn if no input arrives.
    #[must_use]
    pub fn patience(&self, now: BootTime) -> Duration {
        self.commits.patience(now).unwrap_or(ITERATION_MAX)
    }

    /// Moves the effects since the last call to the end of `effects`. They must be performed in
    /// order.
    pub fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        effects.append(&mut self.effects);
    }

    /// Whether a shutdown is complete: no shard runs.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let mut slots = self.slots.values();
        self.stopping.is_some() && slots.all(|slot| !matches!(slot.state, SlotState::Owned(_)))
    }

    /// A shard of this process.
    #[must_use]
    pub fn slot(&self, shard: ShardId) -> Option<&Slot> {
        self.slots.get(&shard)
    }

    /// What the engine of a shard has counted since the last call; `None` if the shard does not
    /// run.
    pub fn take_stats(&mut self, shard: ShardId) -> Option<EngineStats> {
        match &mut self.slots.get_mut(&shard)?.state {
            SlotState::Owned(owned) => Some(owned.engine.take_stats()),
            SlotState::Idle | SlotState::Acquiring | SlotState::Refused(_) => None,
        }
    }

    /// The layout that the shards follow.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The work of the loop after it took its inputs. `suspended` is how long the machine was
    /// suspended since the last turn. While inputs are queued there is no tick: a queued reply must
    /// not be overtaken by its time-out.
    pub fn turn(&mut self, all_taken: bool, suspended: Option<Duration>, now: Now) {
        self.resume(suspended, now);
        self.read_layout(now);
        self.start_wanted(now);
        self.fence_expired(now);
        self.give_up_stuck(now);
        if all_taken {
            self.tick(now);
        }
        self.admit(now);
        self.load(now);
        self.commits.resume(&mut self.slots, now, &mut self.effects);
        self.renew(now);
        self.offer_room();
        for (&shard, slot) in &mut self.slots {
            slot.answer(shard, &mut self.effects);
        }
    }

    /// Takes an input.
    pub fn take(&mut self, input: Input, now: Now) {
        self.resume(None, now);
        match input {
            Input::Records(records) => self.records(records, now),
            Input::Replied { requester, reply } => self.replied(requester, reply, now),
            Input::Unsent {
                requester,
                agent,
                reply,
                why,
            } => self.unsent(&requester, agent, reply, why, now),
            Input::Lost {
                source,
                generation,
                shard,
                cause,
            } => {
                self.lost(source, generation, shard, &cause, now);
            }
            Input::Acquired {
                shard,
                generation,
                result,
            } => {
                self.acquired(shard, generation, result, now);
            }
            Input::Renewed {
                shard,
                generation,
                result,
            } => {
                self.renewed(shard, generation, result, now);
            }
            Input::Leases {
                shard,
                generation,
                result,
            } => {
                self.copy_checkpoint(shard, generation, result);
            }
            Input::Committed { number, result } => {
                let (slots, effects) = (&mut self.slots, &mut self.effects);
                match self.commits.committed(number, result, slots, now, effects) {
                    Ok(unknown) => self.begin_again(unknown, "could not write its rows", now),
                    Err(error) => self.effects.push(Effect::Fail(error)),
                }
            }
            Input::Settled { number, result } => {
                let (slots, effects) = (&mut self.slots, &mut self.effects);
                let failed = self.commits.settled(number, result, slots, now, effects);
                if let Some((assigned, reason)) = failed {
                    self.begin_again([assigned], &reason, now);
                }
            }
            Input::Loaded {
                shard,
                generation,
                result,
            } => {
                self.loaded(shard, generation, result, now);
            }
            Input::InboxEnd {
                shard,
                generation,
                end,
            } => {
                self.inbox_end(shard, generation, end, now);
            }
            Input::SetRunning {
                shard,
                running,
                caller,
            } => {
                self.set_running(shard, running, caller);
            }
            Input::Blocked {
                source,
                generation,
                shard,
                why,
            } => {
                if let Some(owned) = self.owned(shard, generation) {
                    owned.blocked.retain(|(of, _)| *of != source);
                    owned.blocked.extend(why.map(|why| (source, why)));
                }
            }
            Input::Layout(result) => self.layout_read(result),
            Input::Panicked(panicked) => {
                self.effects
                    .push(Effect::Fail(LoopError::Panicked(panicked)));
            }
            Input::Shutdown => {
                self.stopping.get_or_insert(now.boot + self.settings.drain);
            }
        }
    }

    /// Gives up those of the shards that still run under these assignments.
    fn begin_again(&mut self, shards: impl IntoIterator<Item = Assigned>, reason: &str, now: Now) {
        for (shard, generation) in shards {
            if self.owned(shard, generation).is_some() {
                self.give_up(shard, reason, now);
            }
        }
    }

    fn owned(&mut self, shard: ShardId, generation: Generation) -> Option<&mut Owned> {
        self.slots.get_mut(&shard)?.owned(generation)
    }

    fn records(&mut self, records: Vec<Arrived>, now: Now) {
        for Arrived {
            generation,
            shard,
            event,
        } in records
        {
            if let Some(owned) = self.owned(shard, generation) {
                owned.engine.apply(event, now.wall);
            }
        }
    }

    /// Takes the reply of an agent in this process. A reply for a shard that no longer runs, or
    /// takes no further batch, is published for its next owner.
    fn replied(&mut self, requester: Requester, reply: StepReply, now: Now) {
        match self.owned(requester.shard, requester.generation) {
            Some(owned) if owned.releasing_since.is_none() => {
                owned.engine.apply(Event::DirectReply(reply), now.wall);
            }
            _ => self.effects.push(Effect::PassOn { requester, reply }),
        }
    }

    /// Takes the reply that an attempt was not made because its request could not be sent. If the
    /// shard has a new owner by then, the attempt times out there.
    fn unsent(
        &mut self,
        requester: &Requester,
        agent: Arc<str>,
        reply: StepReply,
        why: String,
        now: Now,
    ) {
        let Some(owned) = self.owned(requester.shard, requester.generation) else {
            return;
        };
        if owned.note_unsent(agent.clone(), why.clone(), now.boot) {
            tracing::error!(shard = %requester.shard, %agent, why, "step requests are refused");
        }
        if owned.releasing_since.is_none() {
            owned.engine.apply(Event::DirectReply(reply), now.wall);
        }
    }

    fn loaded(
        &mut self,
        shard: ShardId,
        generation: Generation,
        result: Result<Vec<(OperationId, RowRead)>, TaskError>,
        now: Now,
    ) {
        let rows = match result {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%shard, %error, "could not read rows");
                return self.begin_again([(shard, generation)], "could not read rows", now);
            }
        };
        let Some(owned) = self.owned(shard, generation) else {
            return;
        };
        owned.loading_since = None;
        let mut corrupt = Vec::new();
        for (operation, row) in rows {
            let event = match row {
                Ok(row) => Event::Loaded {
                    operation,
                    row: row.map(Box::new),
                },
                Err(unreadable) => {
                    let cause = unreadable.to_string();
                    corrupt.push(unreadable);
                    Event::Unloadable { operation, cause }
                }
            };
            owned.engine.apply(event, now.wall);
        }
        let notes = corrupt.into_iter().map(Note::RowUnreadable);
        self.effects.extend(notes.map(Effect::Note));
    }

    fn tick(&mut self, now: Now) {
        for slot in self.slots.values_mut() {
            if let SlotState::Owned(owned) = &mut slot.state
                && !owned.inbox_end_awaited
                && owned
                    .engine
                    .next_timer()
                    .is_some_and(|timer| timer <= now.wall)
            {
                owned.engine.apply(Event::Tick, now.wall);
            }
        }
    }

    /// Reads the rows that engines requested: one read per shard at a time.
    fn load(&mut self, now: Now) {
        for (&shard, slot) in &mut self.slots {
            let generation = slot.generation;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            if owned.loading_since.is_some() {
                continue;
            }
            let operations = owned.engine.loads();
            if operations.is_empty() {
                continue;
            }
            owned.loading_since = Some(now.boot);
            self.effects.push(Effect::Load {
                shard,
                generation,
                operations,
            });
        }
    }

    /// Gives up shards whose rows have been written or read for too long without an answer.
    /// Otherwise their leases would be renewed, and no other process could run them.
    fn give_up_stuck(&mut self, now: Now) {
        let commits = self.commits.give_up_stuck(now.boot, &mut self.effects);
        self.begin_again(commits, "a commit of its rows was not acknowledged", now);
        let stuck_after = self.settings.stuck_after;
        let mut loads = Vec::new();
        for (&shard, slot) in &self.slots {
            let SlotState::Owned(owned) = &slot.state else {
                continue;
            };
            let age = owned.loading_since.map(|since| now.boot.since(since));
            if let Some(age) = age.filter(|age| *age >= stuck_after) {
                self.effects.push(Effect::Note(Note::Stuck(Task::Load)));
                tracing::error!(%shard, ?age, "giving up an unanswered read of rows");
                loads.push((shard, slot.generation));
            }
        }
        self.begin_again(loads, "a read of its rows was not answered", now);
    }

    fn set_running(&mut self, shard: ShardId, running: bool, caller: CallerId) {
        let Some(slot) = self.slots.get_mut(&shard) else {
            let result = Err(ControlError::NotHere(shard));
            self.effects.push(Effect::Answer { caller, result });
            return;
        };
        slot.wanted = running;
        if running && let SlotState::Refused(_) = slot.state {
            slot.state = SlotState::Idle;
        }
        slot.answers.push((running, caller));
        slot.answer(shard, &mut self.effects);
    }
}

#[cfg(test)]
mod tests;
