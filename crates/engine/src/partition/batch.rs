//! Batches: all effects since the last batch form one list of commands. The records that caused
//! them are done once the batch is settled.
//!
//! What must hold: a record is done only with the batch that carries its effects, and batches
//! settle in order, in whatever order their acknowledgements arrive. So no decision that builds on
//! an earlier batch counts as done before that batch does.

use std::sync::Arc;

use crate::id::{BatchNumber, Offset, OperationId};
use crate::partition::command::{Batch, Command, Message, RowChange};
use crate::partition::messages;
use crate::partition::resident::{ResidentOperation, index_at};
use crate::partition::{Entry, PartitionEngine};
use crate::priority::{Position, Priority};
use crate::time::{Stamp, Timestamp};

/// The batch that is being filled.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) number: BatchNumber,
    /// Operations with pending effects, in the order in which those arose.
    changed: Vec<OperationId>,
    /// Messages that belong to no operation in memory.
    pub(super) sends: Vec<Message>,
    /// Operations with unreadable rows, which need an entry in the deadline index.
    pub(super) reminders: Vec<(OperationId, Timestamp)>,
    /// The records that are done when it settles.
    pub(super) done: Done,
    /// Operations that leave memory, or at least release their request, when it settles.
    departures: Vec<OperationId>,
}

/// Records that are done when a batch settles.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) requests: Vec<(Priority, Offset)>,
    /// Requests that are then consumed durably, done or not.
    pub(super) consumed: Vec<(Priority, Offset)>,
    pub(super) replies: Vec<Offset>,
    pub(super) recoveries: Vec<Offset>,
}

impl Done {
    /// The request at this position is done.
    pub(super) fn request(&mut self, at: Position) {
        self.requests.push((at.priority, at.offset));
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
            && self.consumed.is_empty()
            && self.replies.is_empty()
            && self.recoveries.is_empty()
    }
}

/// A batch that was handed over.
#[derive(Debug)]
pub(super) struct Unsettled {
    number: BatchNumber,
    settled: bool,
    done: Done,
    departures: Vec<OperationId>,
}

impl OpenBatch {
    pub(super) fn new(number: BatchNumber) -> Self {
        Self {
            number,
            changed: Vec::new(),
            sends: Vec::new(),
            reminders: Vec::new(),
            done: Done::default(),
            departures: Vec::new(),
        }
    }

    /// An empty batch with the capacity of this one.
    fn successor(&self) -> Self {
        Self {
            changed: Vec::with_capacity(self.changed.len()),
            done: Done {
                requests: Vec::with_capacity(self.done.requests.len()),
                consumed: Vec::with_capacity(self.done.consumed.len()),
                replies: Vec::with_capacity(self.done.replies.len()),
                recoveries: Vec::with_capacity(self.done.recoveries.len()),
            },
            departures: Vec::with_capacity(self.departures.len()),
            ..Self::new(self.number.next())
        }
    }

    /// Adds an operation if it has pending effects, or if it begins to leave memory.
    pub(super) fn collect_changes(
        &mut self,
        resident: &mut ResidentOperation,
        left_before: Option<BatchNumber>,
    ) {
        if !resident.pending.listed && !resident.pending.is_empty() {
            resident.pending.listed = true;
            self.changed.push(resident.id);
        }
        if resident.leaving == Some(self.number) && left_before != resident.leaving {
            self.departures.push(resident.id);
        }
    }

    fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.sends.is_empty()
            && self.reminders.is_empty()
            && self.done.is_empty()
            && self.departures.is_empty()
    }
}

/// The commands of one batch, by kind.
#[derive(Default)]
struct Commands {
    index: Vec<Command>,
    attention: Vec<Command>,
    rows: Vec<Command>,
    sends: Vec<Command>,
}

impl Commands {
    fn in_order(mut self) -> Vec<Command> {
        if self.index.is_empty() && self.attention.is_empty() {
            self.rows.append(&mut self.sends);
            return self.rows;
        }
        self.index.append(&mut self.attention);
        self.index.append(&mut self.rows);
        self.index.append(&mut self.sends);
        self.index
    }
}

impl PartitionEngine {
    /// Returns all effects since the last batch, with at most one row per operation. `None` if
    /// there are none, or while no stamp below the limit is left for its rows.
    pub fn take_batch(&mut self, now: Timestamp) -> Option<Batch> {
        if self.open.is_empty() {
            return None;
        }
        if !self.open.changed.is_empty() {
            self.last_stamp = self.next_stamp(now)?;
        }
        let next = self.open.successor();
        let open = std::mem::replace(&mut self.open, next);
        let mut commands = Commands {
            // The sends are appended to the rows.
            rows: Vec::with_capacity(2 * open.changed.len() + open.sends.len()),
            sends: Vec::with_capacity(open.changed.len() + open.sends.len()),
            ..Commands::default()
        };
        for id in open.changed {
            self.add_commands(id, now, &mut commands);
        }
        for (operation, at) in open.reminders {
            let due = index_at(at, now, None);
            commands.index.push(Command::Index { due, operation });
        }
        commands
            .sends
            .extend(open.sends.into_iter().map(Command::Send));
        self.unsettled.push_back(Unsettled {
            number: open.number,
            settled: false,
            done: open.done,
            departures: open.departures,
        });
        Some(Batch {
            number: open.number,
            commands: commands.in_order(),
        })
    }

    fn next_stamp(&self, now: Timestamp) -> Option<Stamp> {
        let stamp = Stamp(self.last_stamp.0 + 1)
            .max(Stamp(now.as_micros()))
            .max(self.ownership.stamp_floor);
        (stamp < self.ownership.stamp_limit).then_some(stamp)
    }

    fn add_commands(&mut self, id: OperationId, now: Timestamp, commands: &mut Commands) {
        let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
            return;
        };
        let pending = std::mem::take(&mut resident.pending);
        let is_final = resident.state.state.is_final();
        if let Some(due) = resident.state.next_due
            && pending.write
            && resident.state.handed_off
            && !is_final
        {
            let at = index_at(due, now, resident.came_up);
            let leaves = resident.leaving.is_some();
            if leaves {
                resident.state.next_due = Some(at);
            }
            if leaves || resident.indexed.is_none_or(|indexed| indexed > at) {
                resident.indexed = Some(at);
                commands.index.push(Command::Index {
                    due: at,
                    operation: id,
                });
            }
        }
        if pending.attention {
            commands.attention.push(Command::Attention {
                at: now,
                operation: id,
            });
        }
        if pending.write {
            commands.rows.push(Command::Persist(Box::new(RowChange {
                id,
                created: pending.write_created.then(|| Arc::clone(&resident.created)),
                state: resident.state.clone(),
                stamp: self.last_stamp,
                keep_for: resident.keep_for(&self.config),
            })));
        }
        messages::add(resident, pending, &self.ownership, &mut commands.sends);
    }

    pub(super) fn settled(&mut self, batch: BatchNumber) {
        let Some(first) = self.unsettled.front().map(|first| first.number) else {
            return;
        };
        let index = batch.0.checked_sub(first.0).map(usize::try_from);
        if let Some(Ok(index)) = index
            && let Some(unsettled) = self.unsettled.get_mut(index)
        {
            unsettled.settled = true;
        }
        while self.unsettled.front().is_some_and(|first| first.settled) {
            if let Some(unsettled) = self.unsettled.pop_front() {
                self.release(unsettled);
            }
        }
    }

    fn release(&mut self, batch: Unsettled) {
        for (priority, offset) in batch.done.requests {
            self.requests[priority].finished.done(offset);
        }
        for (priority, offset) in batch.done.consumed {
            self.requests[priority].consumed.done(offset);
        }
        for offset in batch.done.replies {
            self.replies.done(offset);
        }
        for offset in batch.done.recoveries {
            self.recoveries.done(offset);
        }
        for id in batch.departures {
            let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
                continue;
            };
            // After a hand-off the store has the operation, even if a reply has kept it in memory
            // since. (Its request may have been read again since, and be part of a later batch.)
            if let Some((priority, offset)) = resident.held.take() {
                self.requests[priority].finished.done(offset);
                self.requests[priority].consumed.done(offset);
            }
            if resident.leaving == Some(batch.number) {
                self.bytes -= resident.bytes;
                self.entries.remove(&id);
            }
        }
    }
}
