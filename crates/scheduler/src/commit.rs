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
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use waybill_engine::{
    BatchNumber, BootTime, Command, Event, Message, PartitionId, ShardId, StepReply, Timestamp,
};
use waybill_store::{AttentionEntry, DueEntry, RowWrite, Store, StoreError, WriteBatch, Written};
use waybill_telemetry::chain;
use waybill_telemetry::trace::OpenSpan;

use super::clock::Now;
use super::dispatcher::{Dispatcher, Settled};
use super::index;
use super::input::{Asker, CommitNumber, Generation, Input, Inputs};
use super::linger::GroupCommitLinger;
use super::metrics::{CommitMetrics, STUCK};
use super::partition::{Slot, SlotState};
use super::spans;
use super::task::{Task, TaskError};
use super::tasks;
use super::unreadable::UnreadableRows;

/// Maximum sleep of the loop while messages are unacknowledged. Acknowledgements move checkpoints
/// and free room, but do not wake the loop.
const SETTLE_MAX: Duration = Duration::from_millis(5);

/// A batch of one engine that is in flight.
#[derive(Clone, Copy, Debug)]
struct Part {
    shard: ShardId,
    partition: PartitionId,
    generation: Generation,
    batch: BatchNumber,
}

impl Part {
    fn asker(self) -> Asker {
        Asker {
            shard: self.shard,
            generation: self.generation,
            partition: self.partition,
        }
    }
}

/// One shard's part of a commit.
struct PartOf {
    part: Part,
    /// Sent once the rows are durable.
    messages: Vec<Message>,
    /// The rows, for writing them again; empty if the store belongs to this process alone.
    write: WriteBatch,
}

/// A commit whose rows are being written.
struct UnderWay {
    number: CommitNumber,
    /// When its rows were first written.
    began: BootTime,
    parts: Vec<PartOf>,
    /// The spans of the rows. They end with the commit.
    spans: Vec<OpenSpan>,
}

impl UnderWay {
    fn shards(&self) -> impl Iterator<Item = (ShardId, Generation)> {
        let parts = self.parts.iter();
        parts.map(|PartOf { part, .. }| (part.shard, part.generation))
    }

    fn involves(&self, shard: ShardId) -> bool {
        self.shards().any(|(of, _)| of == shard)
    }
}

/// The pause before a part of a commit is written again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The path from the engines to the store and the topics.
pub(super) struct Commits {
    store: Arc<dyn Store>,
    runtime: Handle,
    sender: Inputs,
    dispatcher: Dispatcher,
    metrics: CommitMetrics,
    replaced: UnreadableRows,
    linger: GroupCommitLinger,
    /// Commits without an answer for this long are abandoned.
    stuck_after: Duration,
    under_way: Option<UnderWay>,
    /// Parts of earlier commits that are being written again, each on its own.
    again: Vec<UnderWay>,
    last_number: CommitNumber,
    unsettled: BTreeMap<u64, Part>,
    next_number: u64,
}

impl Commits {
    pub(super) fn new(
        store: Arc<dyn Store>,
        runtime: Handle,
        sender: Inputs,
        dispatcher: Dispatcher,
        stuck_after: Duration,
    ) -> Self {
        Self {
            store,
            runtime,
            sender,
            dispatcher,
            metrics: CommitMetrics::new(),
            replaced: UnreadableRows::replaced(),
            linger: GroupCommitLinger::default(),
            stuck_after,
            under_way: None,
            again: Vec::new(),
            last_number: CommitNumber::default(),
            unsettled: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Starts the next commit, if none is in flight and there is something to commit.
    pub(super) fn resume(&mut self, slots: &mut BTreeMap<ShardId, Slot>, now: Now) {
        let began = now.boot;
        if self.under_way.is_some() || self.linger.holds_back(began) {
            return;
        }
        let mut write = WriteBatch::default();
        let mut under_way = UnderWay {
            number: self.last_number.next(),
            began,
            parts: Vec::new(),
            spans: Vec::new(),
        };
        let is_written_again = !self.store.is_exclusive();
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
                    Command::Persist(row) => {
                        spans::of_row(&row, self.dispatcher.topics(), &mut under_way.spans);
                        own.rows.push(RowWrite {
                            id: row.id,
                            created: row.created,
                            state: row.state,
                            stamp: row.stamp,
                            keep_for: row.keep_for,
                        });
                    }
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
            under_way.parts.push(PartOf {
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
        if under_way.parts.is_empty() {
            return;
        }
        self.linger.began(began, write.rows.len());
        if write == WriteBatch::default() {
            self.dispatch(under_way.parts, slots, now.boot);
            return;
        }
        self.metrics.rows.record(write.rows.len() as f64);
        self.write(under_way.number, write, now.wall, Duration::ZERO);
        self.under_way = Some(under_way);
    }

    /// Writes rows after a pause, and reports the result to the loop.
    fn write(&self, number: CommitNumber, write: WriteBatch, now: Timestamp, rest: Duration) {
        let store = self.store.clone();
        let writing = async move {
            if !rest.is_zero() {
                tokio::time::sleep(rest).await;
            }
            Ok(index::write(&*store, write, now + rest).await?)
        };
        let input = move |result| Input::Committed { number, result };
        tasks::spawn(&self.runtime, &self.sender, Task::Commit, writing, input);
    }

    /// Maximum sleep of the loop on behalf of commits; `None` if an event will wake it.
    pub(super) fn patience(&self, now: BootTime) -> Option<Duration> {
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
    pub(super) fn committed(
        &mut self,
        number: CommitNumber,
        result: Result<Written, TaskError>,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Now,
    ) -> anyhow::Result<Vec<(ShardId, Generation)>> {
        let result = match result {
            Err(TaskError::Store(error)) if !may_come_back(&*self.store, &error) => {
                return Err(error).context("the group commit of step state failed");
            }
            result => result,
        };
        // Ignore the answer to a commit that was abandoned.
        let Some(under_way) = self.take(number) else {
            return Ok(Vec::new());
        };
        let error = match result {
            Ok(written) => {
                for row in &written.replaced {
                    self.replaced.report(row);
                }
                self.metrics
                    .duration
                    .record(now.boot.since(under_way.began).as_secs_f64());
                self.dispatch(under_way.parts, slots, now.boot);
                return Ok(Vec::new());
            }
            Err(error) => error,
        };
        self.metrics.failed.increment(1);
        // A part that panics on its own would panic again.
        let is_of_one = under_way.parts.len() == 1;
        let is_hopeless = is_of_one && matches!(error, TaskError::Panicked(_));
        if self.store.is_exclusive() || is_hopeless {
            tracing::error!(error = %chain(&error), "the group commit of step state failed");
            return Ok(under_way.shards().collect());
        }
        tracing::error!(
            error = %chain(&error),
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
                self.metrics.fenced.increment(1);
                continue;
            }
            let number = self.last_number.next();
            self.write(number, part.write.clone(), now.wall, AGAIN_AFTER);
            self.again.push(UnderWay {
                number,
                began,
                parts: vec![part],
                spans: Vec::new(),
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
    pub(super) fn give_up_stuck(&mut self, now: BootTime) -> Vec<(ShardId, Generation)> {
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
            STUCK.of([Task::Commit.name()]).increment(1);
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
    fn dispatch(&mut self, parts: Vec<PartOf>, slots: &mut BTreeMap<ShardId, Slot>, now: BootTime) {
        for PartOf { part, messages, .. } in parts {
            let Some(slot) = slots.get_mut(&part.shard) else {
                continue;
            };
            match slot.owned(part.generation) {
                Some(owned) if owned.may_send(now) => {
                    let number = self.next_number;
                    self.next_number += 1;
                    self.unsettled.insert(number, part);
                    let valid_until = owned.lease.valid_until;
                    self.dispatcher
                        .send(number, part.asker(), messages, valid_until);
                }
                _ => self.metrics.fenced.increment(1),
            }
        }
    }

    /// Processes acknowledgements and failed deliveries. Returns the shards that must restart
    /// because one of their messages may be missing, with the assignments under which those were
    /// sent, and the reason.
    pub(super) fn settle(
        &mut self,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Now,
    ) -> Vec<(ShardId, Generation, String)> {
        let mut failed = Vec::new();
        for Settled { number, result } in self.dispatcher.settled() {
            let Some(part) = self.unsettled.remove(&number) else {
                continue;
            };
            if let Err(error) = result {
                failed.push((part.shard, part.generation, error));
                continue;
            }
            let slot = slots.get_mut(&part.shard);
            if let Some(owned) = slot.and_then(|slot| slot.owned(part.generation)) {
                let batch = part.batch;
                owned.engine.apply(Event::Settled { batch }, now.wall);
            }
        }
        failed
    }

    /// Whether any row or message of a shard is in flight.
    pub(super) fn involve(&self, shard: ShardId) -> bool {
        let mut written = self.under_way.iter().chain(&self.again);
        let mut sent = self.unsettled.values();
        written.any(|commit| commit.involves(shard)) || sent.any(|part| part.shard == shard)
    }

    /// The replies of agents in this process, with the shard that each is for.
    pub(super) fn answers(&self) -> Vec<(Asker, StepReply)> {
        self.dispatcher.answers()
    }

    /// Publishes a reply to the topic from which the current owner of the operation reads it.
    pub(super) fn pass_on(&mut self, asker: &Asker, reply: StepReply) {
        self.dispatcher.pass_on(asker, reply);
    }

    /// Forgets a shard that no longer runs here.
    pub(super) fn forget(&mut self, shard: ShardId) {
        self.again.retain(|commit| !commit.involves(shard));
        self.dispatcher.forget(shard);
    }

    /// Updates the metrics of the agents in this process.
    pub(super) fn show(&self) {
        self.dispatcher.show();
    }

    /// Sets the number of partitions over which operations are spread.
    pub(super) fn written(&mut self, partitions: u32) {
        self.dispatcher.written(partitions);
    }

    /// Flushes the sent records, and closes the producer.
    pub(super) fn close(self) {
        self.dispatcher.close();
    }
}

/// Whether the operation may succeed when it is repeated after this error. The embedded store can
/// once it has reopened its files. An I/O error of a write is not retried: it is unknown whether
/// the write took effect, and the next start finds out.
fn may_come_back(store: &dyn Store, error: &StoreError) -> bool {
    let may_recover = match error {
        StoreError::Full { .. } | StoreError::Reopening { .. } => return true,
        StoreError::Unavailable { .. } | StoreError::Unknown { .. } => true,
        StoreError::RowTooLong { .. }
        | StoreError::ElsewhereHeld { .. }
        | StoreError::Schema(_)
        | StoreError::Corrupt { .. }
        | StoreError::Damaged(_)
        | StoreError::Locked { .. } => false,
    };
    may_recover && !store.is_exclusive()
}
