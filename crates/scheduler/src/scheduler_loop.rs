//! The loop that drives the engines of all shards of this process.
//!
//! One thread owns every engine. It receives inputs, applies them, hands everything that changed to
//! one group commit, sends the messages once the commit is durable, and lets their acknowledgements
//! move the checkpoints. While a commit is in flight it keeps applying inputs, whose changes form
//! the next commit. So batches grow with the load. A commit waits for more rows only if another
//! with many rows began less than a millisecond before.
//!
//! What must hold here:
//!
//! * a message is sent only after the commit that holds its row, and only while the lease is valid;
//! * a shard whose lease is lost drops its engine and all its work in flight;
//! * every wait ends: a task that panics reports it, and a shard whose rows are written or read for
//!   too long without an answer is given up;
//! * the loop never blocks on the store, on a lease or on a consumer. On a full producer queue it
//!   waits for at most a second per shard, and then restarts the shard.

pub(super) mod repartition;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use waybill_engine::{
    BootTime, EngineConfig, Event, OperationId, OwnerId, Priority, Room, ShardId, Source,
    StepReply, Workflows,
};
use waybill_store::{Layout, RowRead, Store};
use waybill_telemetry::chain;

use self::repartition::LayoutReads;
use super::SchedulerSettings;
use super::clock::{Clock, Now, Standstill, Standstills};
use super::commit::Commits;
use super::consumers::Consumers;
use super::credit::{Amount, room_beside};
use super::input::{Arrived, Asker, Generation, Input, Inputs};
use super::metrics::STUCK;
use super::partition::{Owned, Slot, SlotState};
use super::task::{Task, TaskError};
use super::tasks;
use super::unreadable::UnreadableRows;
use super::view::Views;
use crate::control::ControlError;

/// Maximum number of inputs that are applied before the loop handles commits and leases again.
const INPUTS_PER_ITERATION_MAX: usize = 256;
/// Maximum sleep of the loop when no input arrives.
const ITERATION_MAX: Duration = Duration::from_millis(50);
/// The pause after a failure, before a lease is acquired or the end of the inbox is read again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often the views on the admin port are updated.
const VIEW_INTERVAL: Duration = Duration::from_millis(200);

/// The loop and its state.
pub(super) struct SchedulerLoop {
    pub settings: SchedulerSettings,
    pub engine_config: Arc<EngineConfig>,
    pub workflows: Arc<Workflows>,
    pub owner: OwnerId,
    pub store: Arc<dyn Store>,
    pub runtime: Handle,
    pub inputs: Receiver<Input>,
    pub sender: Inputs,
    pub consumers: Consumers,
    pub commits: Commits,
    pub views: Views,
    pub unloadable: UnreadableRows,
    pub slots: BTreeMap<ShardId, Slot>,
    pub layout: Layout,
    pub layout_reads: LayoutReads,
    /// The latest assignment of any shard.
    pub assigned: Generation,
    pub clock: Clock,
    pub standstills: Standstills,
    /// The shard whose requests were admitted first in the last round.
    pub first_admitted: ShardId,
    pub stopping: Option<BootTime>,
    pub failure: Option<anyhow::Error>,
}

impl SchedulerLoop {
    /// Runs until a shutdown is complete, or the store fails.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        let mut viewed = Instant::now();
        loop {
            let patience = self.commits.patience(self.clock.read().boot);
            let patience = patience.unwrap_or(ITERATION_MAX);
            let all_taken = match self.inputs.recv_timeout(patience) {
                Ok(input) => self.take_all(input),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let suspended = self.clock.suspended();
            let now = self.clock.read();
            self.iterate(all_taken, suspended, now);
            if viewed.elapsed() >= VIEW_INTERVAL {
                viewed = Instant::now();
                self.views.show(&mut self.slots, &self.consumers, now);
                self.commits.show();
            }
            if self.failure.is_some() || self.is_stopped() {
                break;
            }
        }
        let now = self.clock.read();
        self.views.show(&mut self.slots, &self.consumers, now);
        self.consumers.stop();
        self.commits.close();
        self.failure.map_or(Ok(()), Err)
    }

    /// Takes an input and those queued after it, up to a limit. Returns whether all were taken.
    fn take_all(&mut self, first: Input) -> bool {
        self.take(first, self.clock.read());
        for _ in 1..INPUTS_PER_ITERATION_MAX {
            let Ok(input) = self.inputs.try_recv() else {
                return true;
            };
            self.take(input, self.clock.read());
        }
        false
    }

    /// The work of the loop after it took its inputs. While inputs are queued there is no tick: a
    /// queued reply must not be overtaken by its time-out.
    fn iterate(&mut self, all_taken: bool, suspended: Option<Duration>, now: Now) {
        match self.standstills.turn(now.boot, suspended, ITERATION_MAX) {
            Some(Standstill::Suspended(suspended)) => self.was_suspended(suspended, now),
            Some(Standstill::Paused(pause)) => self.resume_after_pause(pause),
            None => {}
        }
        for (shard, generation, error) in self.commits.settle(&mut self.slots, now) {
            tracing::error!(%shard, error, "a message was not acknowledged");
            let reason = format!("a message was not acknowledged: {error}");
            self.begin_again([(shard, generation)], &reason, now);
        }
        self.read_layout(now);
        self.start_wanted(now);
        self.fence_expired(now);
        self.give_up_stuck(now);
        if all_taken {
            self.tick(now);
        }
        self.admit(now);
        self.load(now);
        self.commits.resume(&mut self.slots, now);
        self.renew(now);
        self.offer_room();
    }

    fn take(&mut self, input: Input, now: Now) {
        match input {
            Input::Records {
                source,
                amount,
                records,
            } => self.records(source, amount, records, now),
            Input::Answered => self.answered(now),
            Input::Unsent {
                asker,
                agent,
                reply,
                why,
            } => self.unsent(&asker, agent, reply, why, now),
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
                renewal,
                result,
                copy,
            } => {
                self.renewed(shard, generation, renewal, result, copy, now);
            }
            Input::Committed { number, result } => {
                match self.commits.committed(number, result, &mut self.slots, now) {
                    Ok(unknown) => self.begin_again(unknown, "could not write its rows", now),
                    Err(error) => self.failure = Some(error),
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
                let Ok(end) = end else {
                    return self.begin_again(
                        [(shard, generation)],
                        "could not read the end of its replies",
                        now,
                    );
                };
                if let Some(owned) = self.owned(shard, generation) {
                    owned.inbox_end_awaited = false;
                    owned.engine.apply(Event::InboxEnd(end), now.wall);
                    self.consumers.read_to(shard, end);
                }
            }
            Input::SetRunning {
                shard,
                running,
                answer,
            } => {
                self.set_running(shard, running, answer);
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
            Input::Panicked(panicked) => self.failure = Some(panicked.into()),
            Input::Shutdown => {
                self.stopping.get_or_insert(now.boot + self.settings.drain);
            }
        }
    }

    /// Gives up those of the shards that still run under these assignments.
    fn begin_again(
        &mut self,
        parts: impl IntoIterator<Item = (ShardId, Generation)>,
        reason: &str,
        now: Now,
    ) {
        for (shard, generation) in parts {
            if self.owned(shard, generation).is_some() {
                self.give_up(shard, reason, now);
            }
        }
    }

    fn owned(&mut self, shard: ShardId, generation: Generation) -> Option<&mut Owned> {
        self.slots.get_mut(&shard)?.owned(generation)
    }

    fn records(&mut self, source: Source, amount: Amount, records: Vec<Arrived>, now: Now) {
        self.consumers.credit(source).received(amount);
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

    /// Takes the replies of agents in this process. A reply for a shard that no longer runs, or
    /// takes no further batch, is published for its next owner.
    fn answered(&mut self, now: Now) {
        for (asker, reply) in self.commits.answers() {
            match self.owned(asker.shard, asker.generation) {
                Some(owned) if owned.releasing_since.is_none() => {
                    owned.engine.apply(Event::DirectReply(reply), now.wall);
                }
                _ => self.commits.pass_on(&asker, reply),
            }
        }
    }

    /// Takes the reply that an attempt was not made because its request could not be sent. If the
    /// shard has a new owner by then, the attempt times out there.
    fn unsent(&mut self, asker: &Asker, agent: Arc<str>, reply: StepReply, why: String, now: Now) {
        let Some(owned) = self.owned(asker.shard, asker.generation) else {
            return;
        };
        if owned.note_unsent(agent.clone(), why.clone(), now.boot) {
            tracing::error!(shard = %asker.shard, %agent, why, "step requests are refused");
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
                tracing::error!(%shard, error = %chain(&error), "could not read rows");
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
                    let cause = chain(&unreadable);
                    corrupt.push(unreadable);
                    Event::Unloadable { operation, cause }
                }
            };
            owned.engine.apply(event, now.wall);
        }
        for row in &corrupt {
            self.unloadable.report(row);
        }
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
            let ids = owned.engine.loads();
            if ids.is_empty() {
                continue;
            }
            owned.loading_since = Some(now.boot);
            let store = self.store.clone();
            let loading = async move {
                let rows = store.get_many(ids.clone()).await?;
                Ok(ids.into_iter().zip(rows).collect())
            };
            let input = move |result| Input::Loaded {
                shard,
                generation,
                result,
            };
            tasks::spawn(&self.runtime, &self.sender, Task::Load, loading, input);
        }
    }

    /// Gives up shards whose rows have been written or read for too long without an answer.
    /// Otherwise their leases would be renewed, and no other process could run them.
    fn give_up_stuck(&mut self, now: Now) {
        let commits = self.commits.give_up_stuck(now.boot);
        self.begin_again(commits, "a commit of its rows was not acknowledged", now);
        let stuck_after = self.settings.stuck_after;
        let mut loads = Vec::new();
        for (&shard, slot) in &self.slots {
            let SlotState::Owned(owned) = &slot.state else {
                continue;
            };
            let age = owned.loading_since.map(|since| now.boot.since(since));
            if let Some(age) = age.filter(|age| *age >= stuck_after) {
                STUCK.of([Task::Load.name()]).increment(1);
                tracing::error!(%shard, ?age, "giving up an unanswered read of rows");
                loads.push((shard, slot.generation));
            }
        }
        self.begin_again(loads, "a read of its rows was not answered", now);
    }

    /// The total that all engines hold.
    fn in_flight(&self) -> Amount {
        let mut sum = Amount::default();
        for slot in self.slots.values() {
            if let SlotState::Owned(owned) = &slot.state {
                let held = owned.engine.in_flight();
                sum.records += held.operations + held.loading;
                sum.bytes += held.bytes;
            }
        }
        sum
    }

    /// Admits waiting requests while the window has room: an equal share for each engine, and the
    /// rest for engines with more requests. Each round starts with another engine, so that the last
    /// free places rotate.
    fn admit(&mut self, now: Now) {
        if self.stopping.is_some() {
            return;
        }
        let held = self.in_flight();
        let mut room = Room {
            operations: self.settings.in_flight_max.saturating_sub(held.records),
            bytes: self.settings.in_flight_bytes_max.saturating_sub(held.bytes),
        };
        let slots = self.slots.iter();
        let waiting =
            slots.filter(|(_, slot)| slot.has_waiting() && !slot.has_reached_end(&self.layout));
        let mut waiting: Vec<ShardId> = waiting.map(|(&shard, _)| shard).collect();
        let first = waiting
            .iter()
            .position(|shard| *shard > self.first_admitted);
        waiting.rotate_left(first.unwrap_or_default());
        if let Some(first) = waiting.first() {
            self.first_admitted = *first;
        }
        while room.operations > 0 && room.bytes > 0 && !waiting.is_empty() {
            let each = Room {
                operations: room.operations.div_ceil(waiting.len()),
                bytes: room.bytes.div_ceil(waiting.len()),
            };
            waiting.retain(|shard| {
                let Some(slot) = self.slots.get_mut(shard) else {
                    return false;
                };
                let SlotState::Owned(owned) = &mut slot.state else {
                    return false;
                };
                let own = Room {
                    operations: each.operations.min(room.operations),
                    bytes: each.bytes.min(room.bytes),
                };
                let left = owned.engine.admit(own, now.wall);
                room.operations -= own.operations - left.operations;
                room.bytes -= own.bytes - left.bytes;
                slot.has_waiting()
            });
        }
    }

    /// Lets the consumers continue reading if more requests may wait.
    fn offer_room(&mut self) {
        let most = Amount {
            records: self.settings.read_ahead_max,
            bytes: self.settings.read_ahead_bytes_max,
        };
        for priority in Priority::ALL {
            let mut waiting = Amount::default();
            let mut known = 0;
            for slot in self.slots.values() {
                // Requests that wait in a stopping shard are dropped with it.
                if let SlotState::Owned(owned) = &slot.state
                    && owned.releasing_since.is_none()
                {
                    let of_it = owned.engine.waiting(priority);
                    waiting.records += of_it.requests;
                    waiting.bytes += of_it.bytes;
                    known += owned.engine.tracked(priority);
                }
            }
            let room = match self.stopping {
                Some(_) => Amount::default(),
                None => room_beside(most, waiting, self.settings.tracked_requests_max, known),
            };
            self.consumers.credit(priority.source()).offer(room);
        }
        self.consumers
            .credit(Source::Replies)
            .offer(self.settings.inbox_room());
    }

    /// Handles a suspension of the machine, or its move to another host. Other processes may have
    /// taken the shards over, whatever this machine's clock says, so every lease is acquired again.
    fn was_suspended(&mut self, suspended: Duration, now: Now) {
        tracing::warn!(
            ?suspended,
            "the machine was suspended; dropping all partitions"
        );
        let shards: Vec<ShardId> = self.slots.keys().copied().collect();
        for shard in shards {
            self.give_up(shard, "the machine was suspended", now);
        }
    }

    /// Handles a pause of the process. The inbox may hold replies that are older than the time-outs
    /// that would be applied now. So no time-out is applied until the inbox was read to its current
    /// end.
    fn resume_after_pause(&mut self, pause: Duration) {
        tracing::warn!(
            ?pause,
            "the scheduler was paused; reading all replies before applying time-outs"
        );
        for (&shard, slot) in &mut self.slots {
            let generation = slot.generation;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            let partition = owned.partition();
            owned.inbox_end_awaited = true;
            let ends = self.consumers.ends_reader();
            let asking = async move {
                loop {
                    match ends.read(partition).await {
                        Ok(ends) => break Ok(ends.next.replies),
                        Err(error) => {
                            tracing::warn!(
                                %partition,
                                %error,
                                "could not read the end of the replies; retrying"
                            );
                            tokio::time::sleep(RETRY_AFTER).await;
                        }
                    }
                }
            };
            let input = move |end| Input::InboxEnd {
                shard,
                generation,
                end,
            };
            tasks::spawn(&self.runtime, &self.sender, Task::InboxEnd, asking, input);
        }
    }

    fn set_running(
        &mut self,
        shard: ShardId,
        running: bool,
        answer: oneshot::Sender<Result<(), ControlError>>,
    ) {
        let Some(slot) = self.slots.get_mut(&shard) else {
            let _ = answer.send(Err(ControlError::NotHere(shard)));
            return;
        };
        slot.wanted = running;
        if running && let SlotState::Refused(_) = slot.state {
            slot.state = SlotState::Idle;
        }
        if slot.is(running) {
            let _ = answer.send(Ok(()));
        } else {
            slot.answers.push((running, answer));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopping.is_some()
            && self
                .slots
                .values()
                .all(|slot| !matches!(slot.state, SlotState::Owned(_)))
    }
}
