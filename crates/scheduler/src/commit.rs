//! Group commits: first the rows of everything that changed, then the messages, then, when those
//! are acknowledged, the word to the engines that may move the checkpoints.
//!
//! One commit is under way at a time. It holds what the engines of all shards had to write when
//! it began; what they decide meanwhile is in the next one.
//!
//! Where a database that others run does not say whether a commit was made, each shard's part of it is written again by
//! itself, with the same stamps, until it is durable or the shard's lease has ended. Its shard takes no new batch
//! meanwhile; the other shards go on. A commit without any answer is forgotten after a while, and its shards begin
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Handle;
use waybill_engine::{
    BatchNumber, Command, Event, Message, PartitionId, ShardId, StepReply, Timestamp,
};
use waybill_store::{AttentionEntry, DueEntry, RowWrite, Store, StoreError, WriteBatch, Written};
use waybill_telemetry::chain;
use waybill_telemetry::trace::OpenSpan;

use super::dispatcher::{Asker, Dispatcher, Settled};
use super::index;
use super::input::{CommitNumber, Generation, Input, Inputs};
use super::linger::GroupCommitLinger;
use super::metrics::{CommitMetrics, STUCK};
use super::partition::{Slot, SlotState};
use super::spans;
use super::tasks::{self, Task, TaskError};
use super::unreadable::UnreadableRows;

/// How long the loop sleeps at most while messages are not acknowledged: that they are now moves checkpoints and makes
/// room, for which nobody has to be woken.
const SETTLE_MAX: Duration = Duration::from_millis(5);

/// A batch of one engine that is on its way.
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

/// What one shard has in a commit.
struct PartOf {
    part: Part,
    /// To be sent once its rows are durable.
    messages: Vec<Message>,
    /// What is written, to be written again; empty where the store is this process's own.
    write: WriteBatch,
}

/// A commit whose rows are being written.
struct UnderWay {
    number: CommitNumber,
    /// When its rows were first written.
    began: Instant,
    parts: Vec<PartOf>,
    /// What the rows tell. They end with the commit.
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

/// How long a part of a commit rests before it is written again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Everything between the engines and the store and topics.
pub(super) struct Commits {
    store: Arc<dyn Store>,
    runtime: Handle,
    sender: Inputs,
    dispatcher: Dispatcher,
    metrics: CommitMetrics,
    replaced: UnreadableRows,
    linger: GroupCommitLinger,
    /// Commits are given up that have no answer for this long.
    stuck_after: Duration,
    under_way: Option<UnderWay>,
    /// Parts of earlier commits that are written again, each by itself.
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

    /// Begins the next commit, if none is under way and there is something to do.
    pub(super) fn go_on(&mut self, slots: &mut BTreeMap<ShardId, Slot>, now: Timestamp) {
        let began = Instant::now();
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
            let Some(batch) = owned.engine.take_batch(now) else {
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
            self.dispatch(under_way.parts, slots);
            return;
        }
        self.metrics.rows.record(write.rows.len() as f64);
        self.write(under_way.number, write, now, Duration::ZERO);
        self.under_way = Some(under_way);
    }

    /// Writes rows, after a rest, and tells the loop what became of them.
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

    /// How long the loop may sleep at most for what is done here; `None` if something wakes it.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.linger.rest(Instant::now()) {
            Some(rest) => Some(rest),
            None if self.unsettled.is_empty() => None,
            None => Some(SETTLE_MAX),
        }
    }

    /// The rows of a commit are durable: its messages may leave. Where that is not known they are written again, unless
    /// the store is this process's own. Returns the shards that have to begin again, each with the assignment under
    /// which its rows were written.
    ///
    /// # Errors
    ///
    /// If the store that this process has to itself could not write, or a store refuses what it is
    /// given: this process can then promise nothing any more.
    pub(super) fn committed(
        &mut self,
        number: CommitNumber,
        result: Result<Written, TaskError>,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Timestamp,
    ) -> anyhow::Result<Vec<(ShardId, Generation)>> {
        let result = match result {
            Err(TaskError::Store(error)) if !may_come_back(&*self.store, &error) => {
                return Err(error).context("the group commit of step state failed");
            }
            result => result,
        };
        // One that was given up is forgotten.
        let Some(under_way) = self.take(number) else {
            return Ok(Vec::new());
        };
        let error = match result {
            Ok(written) => {
                for row in &written.replaced {
                    self.replaced.met(row);
                }
                self.metrics
                    .duration
                    .record(under_way.began.elapsed().as_secs_f64());
                self.dispatch(under_way.parts, slots);
                return Ok(Vec::new());
            }
            Err(error) => error,
        };
        self.metrics.failed.increment(1);
        // What panics alone would panic again.
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
            if !owned.is_some_and(|owned| owned.lease.is_valid() && !owned.release_sent) {
                self.metrics.fenced.increment(1);
                continue;
            }
            let number = self.last_number.next();
            self.write(number, part.write.clone(), now, AGAIN_AFTER);
            self.again.push(UnderWay {
                number,
                began,
                parts: vec![part],
                spans: Vec::new(),
            });
        }
        Ok(Vec::new())
    }

    /// Takes a commit out of those under way.
    fn take(&mut self, number: CommitNumber) -> Option<UnderWay> {
        if let Some(under_way) = self.under_way.take_if(|commit| commit.number == number) {
            return Some(under_way);
        }
        let at = self.again.iter().position(|commit| commit.number == number);
        at.map(|at| self.again.swap_remove(at))
    }

    /// Gives up commits that have had no answer for too long. Returns the shards that have to begin again, each with
    /// the assignment under which its rows were written.
    pub(super) fn give_up_stuck(&mut self) -> Vec<(ShardId, Generation)> {
        let stuck_after = self.stuck_after;
        let is_stuck = |commit: &mut UnderWay| commit.began.elapsed() >= stuck_after;
        let stuck = self.again.extract_if(.., is_stuck);
        let stuck: Vec<UnderWay> = self
            .under_way
            .take_if(|commit| is_stuck(commit))
            .into_iter()
            .chain(stuck)
            .collect();
        for commit in &stuck {
            STUCK.of([Task::Commit.name()]).increment(1);
            let age = commit.began.elapsed();
            let shards = commit.parts.len();
            tracing::error!(
                ?age,
                shards,
                "giving up a commit of step state that was not acknowledged"
            );
        }
        stuck.iter().flat_map(UnderWay::shards).collect()
    }

    /// Sends the messages of those shards that are still owned. Whoever lost its lease, or gave it back,
    /// while the rows were being written sends nothing: a successor may not have read them.
    fn dispatch(&mut self, parts: Vec<PartOf>, slots: &mut BTreeMap<ShardId, Slot>) {
        for PartOf { part, messages, .. } in parts {
            let Some(slot) = slots.get_mut(&part.shard) else {
                continue;
            };
            match slot.owned(part.generation) {
                Some(owned) if owned.lease.is_valid() && !owned.release_sent => {
                    let number = self.next_number;
                    self.next_number += 1;
                    self.unsettled.insert(number, part);
                    self.dispatcher.send(number, part.asker(), messages);
                }
                _ => self.metrics.fenced.increment(1),
            }
        }
    }

    /// Takes what was acknowledged, and what could not be delivered. Returns the shards that have to begin again
    /// because a message of theirs may be missing, with the assignments under which those were sent, and why.
    pub(super) fn settle(
        &mut self,
        slots: &mut BTreeMap<ShardId, Slot>,
        now: Timestamp,
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
                owned.engine.apply(Event::Settled { batch }, now);
            }
        }
        failed
    }

    /// Whether anything of a shard is still being written or sent.
    pub(super) fn involve(&self, shard: ShardId) -> bool {
        let mut written = self.under_way.iter().chain(&self.again);
        let mut sent = self.unsettled.values();
        written.any(|commit| commit.involves(shard)) || sent.any(|part| part.shard == shard)
    }

    /// What agents of this process have answered, and to whom.
    pub(super) fn answers(&self) -> Vec<(Asker, StepReply)> {
        self.dispatcher.answers()
    }

    /// Sends an answer where whoever has the operation by now reads it.
    pub(super) fn pass_on(&mut self, asker: &Asker, reply: StepReply) {
        self.dispatcher.pass_on(asker, reply);
    }

    /// A shard has lost its work.
    pub(super) fn forget(&mut self, shard: ShardId) {
        self.again.retain(|commit| !commit.involves(shard));
        self.dispatcher.forget(shard);
    }

    /// Shows how busy the agents of this process are.
    pub(super) fn show(&self) {
        self.dispatcher.show();
    }

    /// Operations are spread over so many partitions from now on.
    pub(super) fn written(&mut self, partitions: u32) {
        self.dispatcher.written(partitions);
    }

    /// Lets what was sent leave, and ends the producer.
    pub(super) fn close(self) {
        self.dispatcher.close();
    }
}

/// Whether a store that failed like this may do what it is asked when it is asked again. The one that belongs to this
/// process does so once it has opened its files again. An I/O error of a write is not retried: whether the write took effect is
/// unknown, and the next start finds out.
fn may_come_back(store: &dyn Store, error: &StoreError) -> bool {
    let is_away = match error {
        StoreError::Full { .. } | StoreError::Reopening { .. } => return true,
        StoreError::Unavailable { .. } | StoreError::Unknown { .. } => true,
        StoreError::RowTooLong { .. }
        | StoreError::ElsewhereHeld { .. }
        | StoreError::Schema(_)
        | StoreError::Corrupt { .. }
        | StoreError::Damaged(_)
        | StoreError::Locked { .. } => false,
    };
    is_away && !store.is_exclusive()
}
