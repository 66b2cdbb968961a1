//! Operations that are not in memory: their rows are requested, and their events wait in the
//! meantime.
//!
//! What must hold: nothing is decided about an operation that may have a row before that row was
//! read. A row of an earlier ownership is resumed first: its owner may have stopped between the row
//! and the message, so attempts in progress are requested again and a final state is announced
//! again. A row of this ownership needs neither, because an operation leaves memory only when all
//! its messages are acknowledged. The exception is a row written by a clock that was ahead: its
//! waits are shortened, and its attempts are requested again. (A new complete-by at each load would
//! let an attempt exceed its complete-by for as long as other events wake the operation.)

use crate::id::{Offset, OperationId};
use crate::operation::OperationRow;
use crate::operation::StepError;
use crate::partition::messages;
use crate::partition::resident::{ResidentOperation, index_at};
use crate::partition::{BACK_MIN, Entry, PartitionEngine};
use crate::priority::Priority;
use crate::record::{OperationRequest, Recovery, StepReply};
use crate::time::Timestamp;

/// Approximate size of an event that waits for a row, excluding its contents, in bytes.
const WAITING_BYTES: usize = 256;

/// An operation that waits for its row.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) since: Timestamp,
    pub(super) waiting: Vec<ForRow>,
    bytes: usize,
}

impl Loading {
    /// Whether this request waits for the row.
    pub(super) fn has_request(&self, of: Priority, at: Offset) -> bool {
        self.waiting.iter().any(|event| match event {
            ForRow::Request {
                priority, offset, ..
            }
            | ForRow::Refused { priority, offset } => (*priority, *offset) == (of, at),
            ForRow::Reply { .. } | ForRow::Recovery { .. } => false,
        })
    }
}

/// An event that waits for a row.
#[derive(Debug)]
pub(super) enum ForRow {
    Request {
        priority: Priority,
        offset: Offset,
        bytes: usize,
        request: Box<OperationRequest>,
    },
    /// A request that went to the dead-letter topic.
    Refused { priority: Priority, offset: Offset },
    Reply {
        /// Its offset; `None` if it arrived without a topic.
        offset: Option<Offset>,
        reply: StepReply,
    },
    Recovery {
        offset: Offset,
        recovery: Box<Recovery>,
    },
}

impl ForRow {
    /// The instant of the entry of the deadline index that it comes from.
    fn entry(&self) -> Option<Timestamp> {
        match self {
            Self::Recovery { recovery, .. } => recovery.due,
            Self::Request { .. } | Self::Refused { .. } | Self::Reply { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Request { bytes, .. } => WAITING_BYTES + bytes,
            Self::Refused { .. } | Self::Reply { .. } | Self::Recovery { .. } => WAITING_BYTES,
        }
    }
}

impl PartitionEngine {
    /// Queues an event until the row of its operation is loaded.
    pub(super) fn wait_for_row(&mut self, id: OperationId, event: ForRow, now: Timestamp) {
        let bytes = event.bytes();
        let entry = self.entries.entry(id).or_insert_with(|| {
            self.loads.push(id);
            self.loading += 1;
            Entry::Loading(Loading {
                since: now,
                waiting: Vec::new(),
                bytes: 0,
            })
        });
        if let Entry::Loading(loading) = entry {
            loading.bytes += bytes;
            loading.waiting.push(event);
            self.bytes += bytes;
        }
    }

    pub(super) fn loaded(
        &mut self,
        id: OperationId,
        row: Option<Box<OperationRow>>,
        now: Timestamp,
    ) {
        let Some(mut loading) = self.take_loading(id) else {
            return;
        };
        let kept = self.unreadable.restored(id);
        if let Some(row) = row {
            self.take_over(*row, now);
        }
        for (offset, reply) in kept {
            self.apply_reply(offset, reply, now);
        }
        // Recoveries last, so that a time-out does not overtake a reply that was read in time.
        loading
            .waiting
            .sort_by_key(|event| matches!(event, ForRow::Recovery { .. }));
        for event in loading.waiting {
            match event {
                ForRow::Request {
                    priority,
                    offset,
                    bytes,
                    request,
                } => self.request_known_row((priority, offset), bytes, *request, now),
                ForRow::Refused { priority, offset } => {
                    self.refused_known_row(id, (priority, offset));
                }
                ForRow::Reply { offset, reply } => self.reply_known_row(offset, reply, now),
                ForRow::Recovery { offset, recovery } => {
                    self.recovery_known_row(offset, *recovery, now);
                }
            }
        }
        self.with_resident(id, now, |resident, cx| resident.due(cx));
        self.forget_if_unchanged(id);
    }

    /// Drops an operation whose row cannot be read. Its waiting events are done, operators are
    /// alerted, and the row stays as it is. Requests get no answer, because they may have been
    /// applied before. Replies are kept until the row can be read. The deadline index wakes the
    /// operation again, because the row may have been restored by then; later events before that
    /// cause no second entry or alert.
    pub(super) fn unloadable(&mut self, id: OperationId, cause: String, now: Timestamp) {
        let Some(loading) = self.take_loading(id) else {
            return;
        };
        self.stats.unloadable += 1;
        let came_up = loading.waiting.iter().filter_map(ForRow::entry).max();
        // By another process's clock the entry may be due already.
        let stands = |again: Timestamp| again > now && came_up.is_none_or(|due| due < again);
        let reminded = self.unreadable.again_at(id).is_some_and(stands);
        let again_at = index_at(now + self.config.unreadable_again, now, came_up);
        if !reminded {
            self.unreadable.remember(id, again_at);
        }
        self.release_waiting(id, loading.waiting);
        if reminded {
            return;
        }
        let error = StepError {
            code: "row-unreadable".to_owned(),
            message: cause,
        };
        self.open
            .sends
            .push(messages::unloadable_alert(id, error, now));
        self.open.reminders.push((id, again_at));
    }

    /// Marks the events that wait for an unreadable row as done, and keeps only replies.
    fn release_waiting(&mut self, id: OperationId, waiting: Vec<ForRow>) {
        for event in waiting {
            match event {
                ForRow::Request {
                    priority, offset, ..
                }
                | ForRow::Refused { priority, offset } => {
                    self.open.done.consumed.push((priority, offset));
                    self.open.done.requests.push((priority, offset));
                }
                ForRow::Reply { offset, reply } => {
                    self.open.done.replies.extend(offset);
                    self.unreadable.keep(id, (offset, reply));
                }
                ForRow::Recovery { offset, .. } => self.open.done.recoveries.push(offset),
            }
        }
    }

    fn take_loading(&mut self, id: OperationId) -> Option<Loading> {
        if !matches!(self.entries.get(&id), Some(Entry::Loading(_))) {
            return None;
        }
        let Some(Entry::Loading(loading)) = self.entries.remove(&id) else {
            return None;
        };
        self.loading -= 1;
        self.bytes -= loading.bytes;
        Some(loading)
    }

    fn take_over(&mut self, row: OperationRow, now: Timestamp) {
        let id = row.id;
        let is_final = row.state.state.is_final();
        // Later than now if the clock that wrote it was ahead, and was corrected since.
        let written_at = row.state.updated_at;
        let was_left_cleanly = is_final || row.state.locked_by.is_none();
        let is_own = row.state.epoch == self.ownership.epoch && was_left_cleanly;
        let mut resident = ResidentOperation::load(row, is_own, &self.workflows, now);
        // Also write the immutable columns with this owner's stamp, so that no late write of a
        // previous owner can replace the announced values: its create of the same operation has
        // another time.
        resident.pending.write_created = !is_own;
        if is_final {
            if !is_own {
                resident.pending.write = true;
                resident.state.epoch = self.ownership.epoch;
            }
            resident.pending.announce = !is_own;
            resident.pending.failed = !is_own && resident.state.error.is_some();
            resident.leaving = Some(self.open.number);
            self.open.collect_changes(&mut resident, None);
        }
        self.bytes += resident.bytes;
        self.entries.insert(id, Entry::Resident(Box::new(resident)));
        if !is_own {
            self.stats.resumed += 1;
        }
        if !is_own && !is_final {
            self.with_resident(id, now, |resident, cx| resident.resume(cx));
        }
        if written_at.since(now) >= BACK_MIN {
            self.with_resident(id, now, |resident, cx| {
                resident.time_went_back(written_at, cx)
            });
        }
    }

    /// Drops a loaded operation that did not change, if the deadline index still has an entry for
    /// it. The store has all of its state, so even its request is done.
    fn forget_if_unchanged(&mut self, id: OperationId) {
        let Some(Entry::Resident(resident)) = self.entries.get(&id) else {
            return;
        };
        if resident.is_handed_off_unchanged() {
            self.open.done.requests.extend(resident.held);
            self.bytes -= resident.bytes;
            self.entries.remove(&id);
        }
    }
}
