//! Group commits: first the rows of everything that changed, then the messages, then, when those
//! are acknowledged, the word to the engines that may move the checkpoints.
//!
//! One commit is under way at a time. It holds what the engines of all readers had to write when
//! it began; what they decide meanwhile is in the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Handle;
use waybill_engine::{
    BatchNumber, Command, Event, Message, PartitionId, ReaderId, StepReply, Timestamp,
};
use waybill_store::{AttentionEntry, DueEntry, RowWrite, Store, StoreError, WriteBatch, Written};
use waybill_telemetry::trace::OpenSpan;

use super::gathering::Gathering;
use super::index;
use super::input::{Generation, Input, Inputs};
use super::metrics::CommitMetrics;
use super::outlet::{Asker, Outlet, Settled};
use super::partition::{Slot, SlotState};
use super::spans;
use super::unreadable::UnreadableRows;
use crate::chain::chain;

/// How long the loop sleeps at most while messages are not acknowledged: that they are now moves checkpoints and makes
/// room, for which nobody has to be woken.
const SETTLE_MAX: Duration = Duration::from_millis(5);

/// A batch of one engine that is on its way.
#[derive(Clone, Copy, Debug)]
struct Part {
    reader: ReaderId,
    partition: PartitionId,
    generation: Generation,
    batch: BatchNumber,
}

impl Part {
    fn asker(self) -> Asker {
        Asker {
            reader: self.reader,
            generation: self.generation,
            partition: self.partition,
        }
    }
}

/// The commit whose rows are being written.
struct UnderWay {
    began: Instant,
    parts: Vec<(Part, Vec<Message>)>,
    /// What the rows tell. They end with the commit.
    spans: Vec<OpenSpan>,
}

/// Everything between the engines and the store and topics.
pub(super) struct Commits {
    store: Arc<dyn Store>,
    runtime: Handle,
    sender: Inputs,
    outlet: Outlet,
    metrics: CommitMetrics,
    replaced: UnreadableRows,
    gathering: Gathering,
    under_way: Option<UnderWay>,
    unsettled: BTreeMap<u64, Part>,
    next_number: u64,
}

impl Commits {
    pub(super) fn new(
        store: Arc<dyn Store>,
        runtime: Handle,
        sender: Inputs,
        outlet: Outlet,
    ) -> Self {
        Self {
            store,
            runtime,
            sender,
            outlet,
            metrics: CommitMetrics::new(),
            replaced: UnreadableRows::replaced(),
            gathering: Gathering::default(),
            under_way: None,
            unsettled: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Begins the next commit, if none is under way and there is something to do.
    pub(super) fn go_on(&mut self, slots: &mut BTreeMap<ReaderId, Slot>, now: Timestamp) {
        let began = Instant::now();
        if self.under_way.is_some() || self.gathering.holds_back(began) {
            return;
        }
        let mut write = WriteBatch::default();
        let mut under_way = UnderWay {
            began,
            parts: Vec::new(),
            spans: Vec::new(),
        };
        for (&reader, slot) in slots.iter_mut() {
            let generation = slot.generation;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            let partition = owned.partition();
            if owned.releasing_since.is_some() {
                continue;
            }
            let Some(batch) = owned.engine.take_batch(now) else {
                continue;
            };
            let mut messages = Vec::new();
            for command in batch.commands {
                match command {
                    Command::Index { due, operation } => {
                        write.due.push((partition, DueEntry { due, operation }));
                    }
                    Command::Attention { at, operation } => {
                        write
                            .attention
                            .push((partition, AttentionEntry { at, operation }));
                    }
                    Command::Persist(row) => {
                        spans::of_row(&row, self.outlet.topics(), &mut under_way.spans);
                        write.rows.push(RowWrite {
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
            under_way.parts.push((
                Part {
                    reader,
                    partition,
                    generation,
                    batch: batch.number,
                },
                messages,
            ));
        }
        if under_way.parts.is_empty() {
            return;
        }
        self.gathering.began(began, write.rows.len());
        if write == WriteBatch::default() {
            self.dispatch(under_way.parts, slots);
            return;
        }
        self.metrics.rows.record(write.rows.len() as f64);
        self.under_way = Some(under_way);
        let (store, sender) = (self.store.clone(), self.sender.clone());
        self.runtime.spawn(async move {
            let _ = sender.send(Input::Committed(index::write(&*store, write, now).await));
        });
    }

    /// How long the loop may sleep at most for what is done here; `None` if something wakes it.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.gathering.rest(Instant::now()) {
            Some(rest) => Some(rest),
            None if self.unsettled.is_empty() => None,
            None => Some(SETTLE_MAX),
        }
    }

    /// The rows of the commit under way are durable: its messages may leave. Returns the readers
    /// that have to begin again because it is not known to be durable, each with the assignment under
    /// which its rows were written: a database that others run may come back.
    ///
    /// # Errors
    ///
    /// If the store that this process has to itself could not write, or a store refuses what it is
    /// given: this process can then promise nothing any more.
    pub(super) fn committed(
        &mut self,
        result: Result<Written, StoreError>,
        slots: &mut BTreeMap<ReaderId, Slot>,
    ) -> anyhow::Result<Vec<(ReaderId, Generation)>> {
        let written = match result {
            Ok(written) => written,
            Err(error) if may_come_back(&*self.store, &error) => {
                tracing::error!(error = %chain(&error), "the group commit of step state failed");
                self.metrics.failed.increment(1);
                let under_way = self.under_way.take();
                let parts = under_way.into_iter().flat_map(|commit| commit.parts);
                let involved = parts.map(|(part, _)| (part.reader, part.generation));
                return Ok(involved.collect());
            }
            Err(error) => return Err(error).context("the group commit of step state failed"),
        };
        for row in &written.replaced {
            self.replaced.met(row);
        }
        if let Some(under_way) = self.under_way.take() {
            self.metrics
                .duration
                .record(under_way.began.elapsed().as_secs_f64());
            self.dispatch(under_way.parts, slots);
        }
        Ok(Vec::new())
    }

    /// Sends the messages of those readers that are still owned. Whoever lost its lease, or gave it back,
    /// while the rows were being written sends nothing: a successor may not have read them.
    fn dispatch(&mut self, parts: Vec<(Part, Vec<Message>)>, slots: &mut BTreeMap<ReaderId, Slot>) {
        for (part, messages) in parts {
            let Some(slot) = slots.get_mut(&part.reader) else {
                continue;
            };
            match slot.owned(part.generation) {
                Some(owned) if owned.lease.is_valid() && !owned.release_sent => {
                    let number = self.next_number;
                    self.next_number += 1;
                    self.unsettled.insert(number, part);
                    self.outlet.send(number, part.asker(), messages);
                }
                _ => self.metrics.fenced.increment(1),
            }
        }
    }

    /// Takes what was acknowledged, and what could not be delivered. Returns the readers that have to begin again
    /// because a message of theirs may be missing, with the assignments under which those were sent.
    pub(super) fn settle(
        &mut self,
        slots: &mut BTreeMap<ReaderId, Slot>,
        now: Timestamp,
    ) -> Vec<(ReaderId, Generation)> {
        let mut failed = Vec::new();
        for Settled { number, result } in self.outlet.settled() {
            let Some(part) = self.unsettled.remove(&number) else {
                continue;
            };
            if let Err(error) = result {
                tracing::error!(reader = %part.reader, error, "a message was not acknowledged");
                failed.push((part.reader, part.generation));
                continue;
            }
            let slot = slots.get_mut(&part.reader);
            if let Some(owned) = slot.and_then(|slot| slot.owned(part.generation)) {
                let batch = part.batch;
                owned.engine.apply(Event::Settled { batch }, now);
            }
        }
        failed
    }

    /// Whether anything of a reader is still being written or sent.
    pub(super) fn involve(&self, reader: ReaderId) -> bool {
        let written = self
            .under_way
            .iter()
            .flat_map(|commit| &commit.parts)
            .map(|(part, _)| part);
        let sent = self.unsettled.values();
        written.chain(sent).any(|part| part.reader == reader)
    }

    /// What agents of this process have answered, and to whom.
    pub(super) fn answers(&self) -> Vec<(Asker, StepReply)> {
        self.outlet.answers()
    }

    /// Sends an answer where whoever has the operation by now reads it.
    pub(super) fn pass_on(&mut self, asker: &Asker, reply: &StepReply) {
        self.outlet.pass_on(asker, reply);
    }

    /// A reader has lost its work.
    pub(super) fn forget(&self, reader: ReaderId) {
        self.outlet.forget(reader);
    }

    /// Shows how busy the agents of this process are.
    pub(super) fn show(&self) {
        self.outlet.show();
    }

    /// Operations are spread over so many partitions from now on.
    pub(super) fn written(&mut self, partitions: u32) {
        self.outlet.written(partitions);
    }

    /// Lets what was sent leave, and ends the producer.
    pub(super) fn close(self) {
        self.outlet.close();
    }
}

/// Whether a store that failed like this may do what it is asked when it is asked again. The one that
/// belongs to this process has lost its disk, and says so until it is opened anew.
fn may_come_back(store: &dyn Store, error: &StoreError) -> bool {
    let is_away = match error {
        StoreError::Unavailable { .. } | StoreError::Unknown { .. } => true,
        StoreError::RowTooLong { .. }
        | StoreError::ElsewhereHeld { .. }
        | StoreError::Schema(_)
        | StoreError::Corrupt { .. }
        | StoreError::Locked { .. } => false,
    };
    is_away && !store.is_exclusive()
}
