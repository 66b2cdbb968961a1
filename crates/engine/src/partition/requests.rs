//! The progress of the engine on the two request topics, and what blocks it.

use crate::id::Offset;
use crate::partition::figures::{EngineCheckpoint, Held};
use crate::partition::{Entry, PartitionEngine};
use crate::priority::{ByPriority, Priority};
use crate::shard::TopicOffsets;
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
}
