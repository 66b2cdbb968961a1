//! The engine of one shard: applies records, replies, rows and the time to its operations.
//!
//! [`PartitionEngine::apply`] changes operations in memory. [`PartitionEngine::take_batch`] returns
//! the effects as one ordered list of commands. The scheduler's loop executes the list (durable
//! first, then sent) and reports [`Event::Settled`]. Only then are the records after the list done,
//! and the checkpoint may pass them.
//!
//! What must hold:
//!
//! * **No message without its row.** A step request or a status is sent in the batch that writes
//!   the row which intends it, or later.
//! * **The checkpoint never passes unfinished work.** A request is done when its operation is final
//!   and announced, or handed off to the deadline index; every other record when the batch with its
//!   effects, and all batches before it, are settled.
//! * **A handed-off operation is never forgotten.** Until it is final and announced, the deadline
//!   index has an entry for it whose hint was not settled.
//! * **Requests are admitted fairly.** They wait until there is room: by weight between the
//!   priorities, in rotation between the tenants of a priority (`fair.rs`). Requests of one tenant
//!   and priority keep their order.
//! * **Time may go back, but stamps may not.** When the engine is given an earlier time, each retry
//!   keeps its remaining waiting time, and attempts in progress are requested again.
//! * **Bad input harms only itself.** The logic of one operation runs under `catch_unwind`. If it
//!   panics, or meets an impossible state, that operation is parked in `Error` with the code
//!   `internal-error`, and the partition continues.
//!
//! Deliberately absent: limits. The engine reports how much it holds
//! ([`PartitionEngine::in_flight`]) and how much waits ([`PartitionEngine::waiting`]). The
//! scheduler's loop decides how much to admit, and reads no more than may wait. Replies, rows and
//! hints are always applied, because they free room.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub use command::{Batch, Command, Message, RowChange};
pub use config::EngineConfig;
pub use event::{Event, ForwardRecord};
pub use figures::{Census, EngineCheckpoint, Held, InFlight, Room, Waiting};
pub(crate) use messages::failure_id;

use crate::gate::Gates;
use crate::id::{BatchNumber, Offset, OperationId};
use crate::operation::ProcessState;
use crate::ownership::Ownership;
use crate::partition::batch::{OpenBatch, Unsettled};
use crate::partition::early_cancels::{CLOCKS_AHEAD_MAX, EarlyCancels};
use crate::partition::fair::{FairQueue, Queued};
use crate::partition::hasher::IdHash;
use crate::partition::load::{ForRow, Loading};
use crate::partition::requests::RequestLog;
use crate::partition::resident::{OperationCx, ResidentOperation};
use crate::partition::timers::Timers;
use crate::partition::unreadable::UnreadableRows;
use crate::priority::{ByPriority, Position, Priority};
use crate::record::{
    AmendRequest, Amendment, CreateRequest, IdOrigin, OperationRequest, Recovery, StepReply,
};
use crate::stats::EngineStats;
use crate::step::IllegalTransition;
use crate::time::{Stamp, Timestamp};
use crate::tracker::OffsetTracker;
use crate::workflow::Workflows;

mod batch;
mod command;
mod config;
mod early_cancels;
mod event;
mod fair;
mod figures;
mod forward;
mod hasher;
mod load;
mod messages;
mod requests;
mod resident;
mod timers;
mod unreadable;

/// A smaller step back in time only delays waiting attempts by as much.
const BACK_MIN: Duration = Duration::from_secs(1);

/// The engine of one partition: a state machine over [`Event`]s without clock, I/O or randomness.
///
/// Events are applied in memory and cause commands, which are returned as a [`Batch`]. The
/// checkpoint passes a record only once its work is finished or handed off, and acknowledged.
#[derive(Debug)]
pub struct PartitionEngine {
    config: Arc<EngineConfig>,
    workflows: Arc<Workflows>,
    ownership: Ownership,
    entries: HashMap<OperationId, Entry, IdHash>,
    /// How many of `entries` are waiting for their row.
    loading: usize,
    /// Approximate memory of `entries`, in bytes.
    bytes: usize,
    /// Ids whose rows were not requested yet.
    loads: Vec<OperationId>,
    requests: ByPriority<RequestLog>,
    /// Requests that wait for admission.
    queue: FairQueue,
    /// Cancels that arrived before their creates, which must therefore be looked up although they
    /// are new.
    early_cancels: EarlyCancels,
    replies: OffsetTracker,
    /// The end of the inbox when the lease was taken.
    replies_end_before: Offset,
    recoveries: OffsetTracker,
    /// Every reply below this offset in the inbox was applied.
    replies_read: Offset,
    timers: Timers,
    /// Operations with an overdue attempt that wait for the inbox to be read.
    held_back: Vec<OperationId>,
    open: OpenBatch,
    /// Batches that were handed over and are not settled, in order.
    unsettled: VecDeque<Unsettled>,
    last_stamp: Stamp,
    /// The latest time since time last went back.
    latest: Timestamp,
    gates: Gates,
    unreadable: UnreadableRows,
    stats: EngineStats,
}

/// An operation in memory, or one that waits for its row.
#[derive(Debug)]
enum Entry {
    Loading(Loading),
    Resident(Box<ResidentOperation>),
}

impl PartitionEngine {
    /// Creates the engine of a new ownership.
    #[must_use]
    pub fn new(config: Arc<EngineConfig>, workflows: Arc<Workflows>, ownership: Ownership) -> Self {
        Self {
            entries: HashMap::with_hasher(IdHash::new(ownership.owner)),
            loading: 0,
            bytes: 0,
            loads: Vec::new(),
            requests: ByPriority::of(|priority| {
                RequestLog::new(ownership.next.on(priority.source()))
            }),
            queue: FairQueue::new(config.high_priority_weight),
            early_cancels: EarlyCancels::default(),
            replies: OffsetTracker::new(ownership.next.replies),
            replies_end_before: ownership.replies_end,
            recoveries: OffsetTracker::new(ownership.next.recoveries),
            replies_read: Offset(0),
            timers: Timers::default(),
            held_back: Vec::new(),
            open: OpenBatch::new(BatchNumber(0)),
            unsettled: VecDeque::new(),
            last_stamp: Stamp::default(),
            latest: Timestamp::default(),
            gates: Gates::default(),
            unreadable: UnreadableRows::new(ownership.owner),
            stats: EngineStats::default(),
            config,
            workflows,
            ownership,
        }
    }

    /// Applies one event in memory, and collects its effects; see [`PartitionEngine::take_batch`]
    /// and [`PartitionEngine::loads`].
    pub fn apply(&mut self, event: Event, now: Timestamp) {
        self.note_time(now);
        match event {
            Event::Request {
                priority,
                offset,
                fingerprint,
                bytes,
                rerouted,
                request,
            } => {
                if self.requests[priority].begin(offset, fingerprint) {
                    self.queue.push(Queued {
                        priority,
                        offset,
                        bytes,
                        rerouted,
                        request,
                        since: now,
                    });
                }
            }
            Event::Reply { offset, reply } => {
                if self.replies.begin(offset) {
                    self.reply(Some(offset), reply, now);
                }
            }
            Event::DirectReply(reply) => self.reply(None, reply, now),
            Event::Recovery { offset, recovery } => self.recovery(offset, recovery, now),
            Event::Unreadable {
                source,
                offset,
                fingerprint,
                operation,
                cause,
                record,
            } => {
                let is_new = self.unreadable(source, offset, fingerprint, operation, cause, record);
                if let (true, Some(id), Some(priority)) = (is_new, operation, source.priority()) {
                    self.refused(id, (priority, offset), now);
                }
            }
            Event::Misrouted {
                source,
                offset,
                fingerprint,
                home,
                partitions,
                already_rerouted,
                record,
            } => {
                let home = (home, partitions);
                self.misrouted(source, offset, fingerprint, home, already_rerouted, record);
            }
            Event::Passed {
                source,
                offset,
                fingerprint,
            } => self.passed(source, offset, fingerprint),
            Event::Loaded { operation, row } => self.loaded(operation, row, now),
            Event::Unloadable { operation, cause } => self.unloadable(operation, cause, now),
            Event::Settled { batch } => self.settled(batch),
            Event::StampLimit(limit) => {
                self.ownership.stamp_limit = self.ownership.stamp_limit.max(limit);
            }
            Event::InboxEnd(end) => self.ownership.replies_end = end,
            Event::InboxRead(end) => self.replies_read = self.replies_read.max(end),
            Event::Tick => self.tick(now),
        }
        if !self.held_back.is_empty() && self.is_inbox_read() {
            for id in std::mem::take(&mut self.held_back) {
                self.with_resident(id, now, |resident, cx| resident.due(cx));
            }
        }
    }

    /// Admits waiting requests, in fair order, while there is room. Returns the remaining room.
    pub fn admit(&mut self, mut room: Room, now: Timestamp) -> Room {
        self.note_time(now);
        while room.operations > 0
            && room.bytes > 0
            && let Some(queued) = self.queue.pop()
        {
            let (entries, bytes) = (self.entries.len(), self.bytes);
            self.request(queued, now);
            let more = self.entries.len().saturating_sub(entries);
            room.operations = room.operations.saturating_sub(more);
            let more = self.bytes.saturating_sub(bytes);
            room.bytes = room.bytes.saturating_sub(more);
        }
        room
    }

    /// How many requests of a priority wait for admission.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> Waiting {
        self.queue.waiting(priority)
    }

    /// How many requests of a priority are tracked: started, or done after one that is not.
    #[must_use]
    pub fn tracked(&self, priority: Priority) -> usize {
        self.requests[priority].finished.kept()
    }

    /// Whether any admitted request of a priority is unfinished.
    #[must_use]
    pub fn has_begun(&self, priority: Priority) -> bool {
        self.requests[priority].finished.pending() > self.queue.waiting(priority).requests
    }

    /// Takes the ids whose rows must be read from the store. Each is answered with
    /// [`Event::Loaded`].
    pub fn loads(&mut self) -> Vec<OperationId> {
        std::mem::take(&mut self.loads)
    }

    /// How much the engine holds.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            operations: self.entries.len() - self.loading,
            bytes: self.bytes,
            loading: self.loading,
        }
    }

    /// When to apply the next [`Event::Tick`], at the latest.
    #[must_use]
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first()
    }

    /// The stamp of the last batch that had rows. Stamps increase from one batch to the next, even
    /// if time goes back, so the limit must stay ahead of them.
    #[must_use]
    pub fn last_stamp(&self) -> Stamp {
        self.last_stamp
    }

    /// The number of operations in memory in each process state, in the order of
    /// [`ProcessState::ALL`], and when the oldest of each was requested. Visits all operations.
    #[must_use]
    pub fn census(&self) -> [Census; ProcessState::ALL.len()] {
        let mut census = ProcessState::ALL.map(Census::none);
        for entry in self.entries.values() {
            let Entry::Resident(resident) = entry else {
                continue;
            };
            let counted = &mut census[resident.state.state as usize];
            counted.operations += 1;
            let requested = resident.created.requested_at;
            counted.oldest = Some(
                counted
                    .oldest
                    .map_or(requested, |oldest| oldest.min(requested)),
            );
        }
        census
    }

    /// Takes the counters since the last call.
    pub fn take_stats(&mut self) -> EngineStats {
        std::mem::take(&mut self.stats)
    }

    /// Re-evaluates everything that waits if time went back.
    fn note_time(&mut self, now: Timestamp) {
        let latest = self.latest;
        if latest.since(now) < BACK_MIN {
            self.latest = latest.max(now);
            return;
        }
        self.latest = now;
        // A new owner begins with open gates, too.
        self.gates = Gates::default();
        let mut resident = Vec::new();
        for (&id, entry) in &mut self.entries {
            match entry {
                Entry::Resident(_) => resident.push(id),
                Entry::Loading(loading) => loading.since = loading.since.min(now),
            }
        }
        for id in resident {
            self.with_resident(id, now, |resident, cx| resident.time_went_back(latest, cx));
        }
        // Their entries in the deadline index come up too late.
        let again_at = now + self.config.unreadable_again;
        let unreadable = self.unreadable.retry_at(again_at);
        let reminders = unreadable.map(|id| (id, again_at));
        self.open.reminders.extend(reminders);
    }

    fn request(&mut self, queued: Queued, now: Timestamp) {
        let Queued {
            priority,
            offset,
            bytes,
            rerouted,
            request,
            since: _,
        } = queued;
        let is_fresh = match &request {
            OperationRequest::Create(create) => {
                create.id_origin == IdOrigin::Server
                    && !rerouted
                    && offset >= self.ownership.requests_end[priority]
                    && now.since(create.requested_at) < self.config.fresh_for
                    // A request with a time in the future may have any age.
                    && create.requested_at.since(now) <= CLOCKS_AHEAD_MAX
                    && !self
                        .early_cancels
                        .may_have_cancel(create.operation, create.requested_at)
            }
            OperationRequest::Amend(_) => false,
        };
        let id = request.operation();
        match self.entries.get(&id) {
            Some(Entry::Resident(_)) => {
                self.request_known_row((priority, offset), bytes, request, now)
            }
            None if is_fresh => self.request_known_row((priority, offset), bytes, request, now),
            Some(Entry::Loading(_)) | None => {
                let request = Box::new(request);
                let event = ForRow::Request {
                    priority,
                    offset,
                    bytes,
                    request,
                };
                self.wait_for_row(id, event, now);
            }
        }
    }

    /// Applies a request. If the operation has a row, it is in memory.
    fn request_known_row(
        &mut self,
        (priority, offset): (Priority, Offset),
        bytes: usize,
        request: OperationRequest,
        now: Timestamp,
    ) {
        self.open.done.consumed.push((priority, offset));
        let position = Position {
            priority,
            partition: self.ownership.partition,
            offset,
        };
        match request {
            OperationRequest::Create(create) => self.create(position, bytes, create, now),
            OperationRequest::Amend(amend) => self.amend(position, amend, now),
        }
    }

    fn create(&mut self, position: Position, bytes: usize, request: CreateRequest, now: Timestamp) {
        let id = request.operation;
        let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
            self.create_new(position, bytes, request, now);
            return;
        };
        if resident.state.tombstone && *resident.created.tenant == *request.tenant {
            self.open.done.request(position);
            let workflows = Arc::clone(&self.workflows);
            self.with_resident(id, now, |resident, cx| {
                resident.adopt(request, position, &workflows, cx);
                Ok(())
            });
        } else if resident.created.request_hash != request.request_hash {
            self.stats.rejected += 1;
            let status = messages::rejected_status(request, position, now);
            self.open.sends.push(status);
            self.open.done.request(position);
        } else {
            if resident.created.request != position {
                self.stats.duplicates += 1;
            }
            self.hold_while_needed(id, position);
        }
    }

    /// Applies a cancel or a reschedule. If the operation has a row, it is in memory.
    fn amend(&mut self, position: Position, request: AmendRequest, now: Timestamp) {
        let id = request.operation;
        if self.entries.contains_key(&id) {
            self.open.done.request(position);
            self.with_resident(id, now, |resident, cx| {
                resident.amend(request, position, cx)
            });
            return;
        }
        let Amendment::Cancel { workflow } = &request.amendment else {
            self.stats.amendments_refused += 1;
            let answer = messages::answer_unknown(&request, position, now);
            self.open.sends.push(answer);
            self.open.done.request(position);
            return;
        };
        // A caller's own id is always looked up.
        if request.caller_id.is_none() {
            self.early_cancels.remember(id, now, self.config.fresh_for);
        }
        let resident =
            ResidentOperation::tombstone(&request, workflow, position, &self.ownership, now);
        self.stats.cancelled += 1;
        self.bytes += resident.bytes;
        self.entries.insert(id, Entry::Resident(Box::new(resident)));
        self.with_resident(id, now, |resident, cx| {
            resident.reserve_id(request, cx);
            Ok(())
        });
    }

    fn create_new(
        &mut self,
        position: Position,
        bytes: usize,
        request: CreateRequest,
        now: Timestamp,
    ) {
        let id = request.operation;
        let resident = ResidentOperation::create(
            request,
            position,
            bytes,
            &self.workflows,
            &self.ownership,
            now,
        );
        self.stats.created += 1;
        self.bytes += resident.bytes;
        self.entries.insert(id, Entry::Resident(Box::new(resident)));
        self.with_resident(id, now, |resident, cx| resident.start(cx));
    }

    fn reply(&mut self, offset: Option<Offset>, reply: StepReply, now: Timestamp) {
        if let Some(Entry::Resident(_)) = self.entries.get(&reply.operation) {
            self.reply_known_row(offset, reply, now);
        } else {
            let id = reply.operation;
            self.wait_for_row(id, ForRow::Reply { offset, reply }, now);
        }
    }

    /// Applies a reply. If the operation has a row, it is in memory.
    fn reply_known_row(&mut self, offset: Option<Offset>, reply: StepReply, now: Timestamp) {
        self.open.done.replies.extend(offset);
        self.apply_reply(offset, reply, now);
    }

    fn apply_reply(&mut self, offset: Option<Offset>, reply: StepReply, now: Timestamp) {
        let id = reply.operation;
        if self.entries.contains_key(&id) {
            self.with_resident(id, now, |resident, cx| resident.reply(offset, reply, cx));
        } else {
            self.stats.unknown_replies += 1;
        }
    }

    fn recovery(&mut self, offset: Offset, recovery: Box<Recovery>, now: Timestamp) {
        if !self.recoveries.begin(offset) {
            return;
        }
        let id = recovery.operation;
        if let Some(Entry::Resident(_)) = self.entries.get(&id) {
            self.recovery_known_row(offset, *recovery, now);
        } else {
            self.wait_for_row(id, ForRow::Recovery { offset, recovery }, now);
        }
    }

    /// Applies a recovery. If the operation has a row, it is in memory.
    fn recovery_known_row(&mut self, offset: Offset, recovery: Recovery, now: Timestamp) {
        self.open.done.recoveries.push(offset);
        let id = recovery.operation;
        if self.entries.contains_key(&id) {
            self.with_resident(id, now, |resident, cx| {
                resident.recover(offset, recovery, cx)
            });
        } else {
            self.stats.recoveries_void += 1;
        }
    }

    fn tick(&mut self, now: Timestamp) {
        while let Some((at, id)) = self.timers.pop_due(now) {
            let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
                continue;
            };
            if resident.armed != Some(at) {
                continue;
            }
            resident.armed = None;
            self.with_resident(id, now, |resident, cx| {
                resident.due(cx)?;
                resident.hand_off_if_lingering(cx);
                Ok(())
            });
        }
        self.timers.prune(self.entries.len(), |at, id| {
            matches!(self.entries.get(&id), Some(Entry::Resident(resident)) if resident.armed == Some(at))
        });
    }

    fn is_inbox_read(&self) -> bool {
        self.replies.next().max(self.replies_read) >= self.ownership.replies_end
    }

    /// Runs the logic of one operation in memory so that a failure harms that operation alone. Then
    /// handles the consequences of a change: its place in the batch and its timer.
    fn with_resident(
        &mut self,
        id: OperationId,
        now: Timestamp,
        logic: impl FnOnce(
            &mut ResidentOperation,
            &mut OperationCx<'_>,
        ) -> Result<(), IllegalTransition>,
    ) {
        let time_outs = self.is_inbox_read();
        let Some(Entry::Resident(resident)) = self.entries.get_mut(&id) else {
            return;
        };
        let mut cx = OperationCx {
            config: &self.config,
            ownership: &self.ownership,
            stats: &mut self.stats,
            gates: &mut self.gates,
            answers: &mut self.open.sends,
            batch: self.open.number,
            replies_end_before: self.replies_end_before,
            time_outs,
            now,
        };
        let (bytes, leaving, held_back) = (resident.bytes, resident.leaving, resident.held_back);
        match catch_unwind(AssertUnwindSafe(|| logic(resident, &mut cx))) {
            Ok(Ok(())) if resident.is_stuck() => {
                resident.park(
                    "the engine has no pending event for the operation and would never resume it"
                        .to_owned(),
                    &mut cx,
                );
            }
            Ok(Ok(())) => {}
            Ok(Err(illegal)) => resident.park(illegal.to_string(), &mut cx),
            Err(payload) => {
                let message = format!("the engine panicked: {}", panic_message(&*payload));
                resident.park(message, &mut cx);
            }
        }
        self.bytes = self.bytes - bytes + resident.bytes;
        self.open.collect_changes(resident, leaving);
        if resident.held_back && !held_back {
            self.held_back.push(id);
        }
        if let Some(at) = resident.wake_at(&self.config, now)
            && resident.armed.is_none_or(|armed| at < armed)
        {
            resident.armed = Some(at);
            self.timers.push(at, id);
        }
    }
}

/// The message of a panic, from its payload.
#[must_use]
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}
