//! The progress of the engine on the two request topics, what blocks it, and which requests are
//! kept for their operations.

use crate::id::{Offset, OperationId};
use crate::partition::figures::{EngineCheckpoint, Held};
use crate::partition::load::ForRow;
use crate::partition::{Entry, PartitionEngine};
use crate::priority::{ByPriority, Position, Priority};
use crate::shard::TopicOffsets;
use crate::time::Timestamp;
use crate::tracker::OffsetTracker;

/// The progress of the engine on one request topic.
#[derive(Debug)]
pub(super) struct RequestLog {
    /// The requests that are done.
    pub(super) finished: OffsetTracker,
    /// The same requests; one is done here as soon as its first row is durable.
    pub(super) consumed: OffsetTracker,
}

impl RequestLog {
    pub(super) fn new(next: Offset) -> Self {
        Self {
            finished: OffsetTracker::new(next),
            consumed: OffsetTracker::new(next),
        }
    }

    /// Begins a request; see [`OffsetTracker::begin_with`].
    pub(super) fn begin(&mut self, offset: Offset, fingerprint: u64) -> bool {
        self.consumed.begin(offset);
        self.finished.begin_with(offset, fingerprint)
    }

    /// Skips requests; see [`OffsetTracker::pass`].
    pub(super) fn pass(&mut self, offset: Offset, fingerprint: u64) {
        self.finished.pass(offset, fingerprint);
        self.consumed.pass(offset, fingerprint);
    }
}

impl PartitionEngine {
    /// The engine's checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> EngineCheckpoint {
        EngineCheckpoint {
            at: TopicOffsets {
                requests: self.requests.normal.finished.low(),
                high_priority: self.requests.high.finished.low(),
                replies: self.replies.low(),
                recoveries: self.recoveries.low(),
            },
            fingerprints: ByPriority::of(|priority| {
                self.requests[priority].finished.fingerprint_below_low()
            }),
            consumed: ByPriority::of(|priority| self.requests[priority].consumed.low()),
        }
    }

    /// The operation whose request holds the checkpoint of a priority. `None` if a record of an
    /// unsettled batch holds it. Visits all operations; meant for explaining a lag.
    #[must_use]
    pub fn oldest_held(&self, priority: Priority) -> Option<Held> {
        let finished = &self.requests[priority].finished;
        if finished.pending() == 0 {
            return None;
        }
        let low = finished.low();
        let held = |operation, since, waits| Held {
            operation,
            priority,
            offset: low,
            since,
            waits,
        };
        let in_memory = self.entries.iter().find_map(|(id, entry)| {
            let (holds, since) = match entry {
                Entry::Resident(resident) => {
                    (resident.held == Some((priority, low)), resident.since)
                }
                Entry::Loading(loading) => (loading.has_request(priority, low), loading.since),
            };
            holds.then(|| held(*id, since, false))
        });
        in_memory.or_else(|| {
            let queued = self.queue.find(priority, low)?;
            Some(held(queued.request.operation(), queued.since, true))
        })
    }

    /// Keeps a request until its operation ends, if the next owner may need the record to find the
    /// operation. Otherwise it is done.
    pub(super) fn hold_while_needed(&mut self, id: OperationId, position: Position) {
        let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
            self.open.done.request(position);
            return;
        };
        let is_final = resident.state.state.is_final();
        let is_needed = if resident.created.request == position {
            !is_final
        } else {
            // The record was rerouted from a partition that has lost the shard. If this owner dies,
            // the record may be the only one that leads to the operation.
            let is_from_elsewhere = resident.created.request.partition != position.partition;
            let is_safe = is_final || resident.state.handed_off;
            is_from_elsewhere && !is_safe && resident.held.is_none()
        };
        if is_needed {
            resident.held = Some((position.priority, position.offset));
        } else {
            self.open.done.request(position);
        }
    }

    /// Finds the operation of a refused request. An earlier owner may have accepted the record, and
    /// nothing else may lead to the operation.
    pub(super) fn refused(&mut self, id: OperationId, at: (Priority, Offset), now: Timestamp) {
        match self.entries.get(&id) {
            Some(Entry::Resident(_)) => self.refused_known_row(id, at),
            Some(Entry::Loading(_)) | None => {
                let (priority, offset) = at;
                self.wait_for_row(id, ForRow::Refused { priority, offset }, now);
            }
        }
    }

    /// Ends a refused request, or keeps it for its operation. If the operation has a row, it is in
    /// memory.
    pub(super) fn refused_known_row(
        &mut self,
        id: OperationId,
        (priority, offset): (Priority, Offset),
    ) {
        self.open.done.consumed.push((priority, offset));
        let position = Position {
            priority,
            partition: self.ownership.partition,
            offset,
        };
        self.hold_while_needed(id, position);
    }
}
