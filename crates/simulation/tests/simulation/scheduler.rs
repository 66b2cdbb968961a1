//! Owners of partitions: each runs the real engine with logs, store and lease, as the scheduler's
//! loop does. They die between any two actions, or pause and resume after another owner has taken
//! over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    ByPriority, Epoch, Event, ForwardRecord, KeyHash, LayoutShard, Offset, OperationId, OwnerId,
    Ownership, PartitionEngine, PartitionId, Priority, Recovery, RecoveryVerb, Room, ShardFilter,
    ShardingScheme, Source, Stamp, StepReply, StepState, Timestamp, TopicOffsets, partition_for,
};
use waybill_state::DueBucket;

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::commit::{Commit, Unsettled};
use crate::judge::Writer;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::store::{Lease, LeaseKey};
use crate::workload::Record;

/// The difference between a record's fingerprint and its offset.
pub const FINGERPRINT_BASE: u64 = 1_000;
/// How long a stopping owner waits for its writes and messages in flight.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);
/// The requester in recoveries of a planted bug.
const AGAIN: &str = "again";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Runs,
    /// It has lost its lease, and knows it.
    GaveUp,
    Crashed,
}

/// One ownership of one partition, by one process.
pub struct Owner {
    pub partition: usize,
    pub key: LeaseKey,
    filter: ShardFilter,
    pub epoch: Epoch,
    /// `None` until it has started.
    pub engine: Option<PartitionEngine>,
    pub clock: Clock,
    pub life: Life,
    pub paused_until: Timestamp,
    /// It was paused, and has not yet read the replies that arrived in the meantime.
    was_paused: bool,
    /// Since when it waits to release its lease.
    releasing_since: Option<Timestamp>,
    /// It may act until this time.
    pub valid_until: Timestamp,
    /// The end of the inbox when it started, or after its last pause.
    inbox_end: usize,
    /// The end of the inbox that applied to the decisions in its next batch.
    replies_end: usize,
    stamp_floor: Stamp,
    pub stamp_limit: Stamp,
    /// The offsets up to which it has read its logs.
    pub next: [usize; 4],
    will_poll: [bool; 4],
    will_commit: bool,
    ticks_at: Option<Timestamp>,
    pub is_renewing: bool,
    pub commit: Option<Commit>,
    pub unsettled: VecDeque<Unsettled>,
    pub last_stamp: Stamp,
}

impl Owner {
    /// A new owner that has just taken a lease, and has not started yet.
    pub fn new(
        key: LeaseKey,
        scheme: ShardingScheme,
        lease: &Lease,
        stamp_floor: Stamp,
        clock: Clock,
    ) -> Self {
        let mut next = [0; 4];
        for source in Source::ALL {
            next[Run::index_of(source)] = lease.checkpoint.on(source);
        }
        Self {
            partition: scheme.partition_of(key.1).0 as usize,
            key,
            filter: ShardFilter::new(scheme, key.1, lease.handover.clone()),
            epoch: lease.epoch,
            engine: None,
            clock,
            life: Life::Runs,
            paused_until: lease.changed_at,
            was_paused: false,
            releasing_since: None,
            valid_until: lease.changed_at,
            inbox_end: 0,
            replies_end: 0,
            stamp_floor,
            stamp_limit: lease.stamp_limit,
            next,
            will_poll: [false; 4],
            will_commit: false,
            ticks_at: None,
            is_renewing: false,
            commit: None,
            unsettled: VecDeque::new(),
            last_stamp: Stamp(stamp_floor.0 - 1),
        }
    }

    /// What it knew when it made the decisions in the batch that it takes.
    pub fn writer(&mut self, local: Timestamp) -> Writer {
        let replies_end = std::mem::replace(&mut self.replies_end, self.inbox_end);
        Writer { local, replies_end }
    }

    /// It takes no new batch from now on.
    pub fn stop(&mut self, now: Timestamp) {
        self.releasing_since.get_or_insert(now);
    }

    /// Whether it has stopped writing.
    pub fn is_releasing(&self) -> bool {
        self.releasing_since.is_some()
    }

    pub fn has_work_under_way(&self) -> bool {
        self.commit.is_some() || !self.unsettled.is_empty()
    }

    /// Whether it has stopped, and has nothing in flight, or has waited long enough.
    pub fn may_release(&self, now: Timestamp) -> bool {
        self.releasing_since
            .is_some_and(|since| !self.has_work_under_way() || now >= since + RELEASE_PATIENCE)
    }

    /// Whether no row can be written before the lease is renewed.
    pub fn has_run_out_of_stamps(&self, local: Timestamp) -> bool {
        let next = Stamp(self.last_stamp.0 + 1).max(Stamp(local.as_micros()));
        next.max(self.stamp_floor) >= self.stamp_limit
    }

    pub fn state(&self) -> (Life, [usize; 4], bool, usize) {
        let commit = self.commit.is_some();
        (self.life, self.next, commit, self.unsettled.len())
    }
}

impl Run {
    /// Reads the ends of the logs, and starts.
    pub fn start(&mut self, index: usize) {
        let name = OwnerId(self.rng.uuid());
        let ignores_inbox = self.bug == Some(Bug::TimeOutBeforeInboxIsRead);
        let owner = &mut self.owners[index];
        let logs = &mut self.store.logs[owner.partition];
        logs.cursor
            .get_or_insert_with(|| DueBucket::of(owner.clock.read(self.now)));
        owner.inbox_end = logs.replies.len();
        owner.replies_end = owner.inbox_end;
        let mut next = TopicOffsets::default();
        for source in Source::ALL {
            *next.on_mut(source) = offset(owner.next[Self::index_of(source)]);
        }
        let ownership = Ownership {
            partition: PartitionId(u32::try_from(owner.partition).unwrap()),
            shard: LayoutShard::default(),
            owner: name,
            epoch: owner.epoch,
            next,
            requests_end: ByPriority::of(|priority| offset(logs.len(priority.source()))),
            replies_end: offset(if ignores_inbox { 0 } else { logs.replies.len() }),
            stamp_floor: owner.stamp_floor,
            stamp_limit: owner.stamp_limit,
        };
        let (config, workflows) = (
            Arc::clone(&self.plan.config),
            Arc::clone(&self.plan.workflows),
        );
        owner.engine = Some(PartitionEngine::new(config, workflows, ownership));
        for source in Source::ALL {
            self.wake(index, source);
        }
    }

    /// Whether an owner acts; it may also die or pause at this moment.
    pub fn is_up(&mut self, index: usize) -> bool {
        let owner = &self.owners[index];
        if owner.life != Life::Runs || owner.paused_until > self.now {
            return false;
        }
        if owner.was_paused {
            self.wake_up(index);
        }
        let left = self.plan.owner_crashes + self.plan.owner_pauses + self.plan.owner_stops;
        if self.is_calm() || left == 0 {
            return true;
        }
        match self.rng.below(160) {
            0 if self.plan.owner_crashes > 0 => {
                self.plan.owner_crashes -= 1;
                self.crash(index);
                false
            }
            1 if self.plan.owner_pauses > 0 => {
                self.plan.owner_pauses -= 1;
                self.seen.count(Sight::Pauses);
                let micros = self.rng.between(1_000, 5_000_000);
                self.owners[index].paused_until = self.now + Duration::from_micros(micros);
                self.owners[index].was_paused = true;
                self.note_all(|| format!("owner {index} is paused for {micros} µs"));
                false
            }
            2 if self.plan.owner_stops > 0 && self.owners[index].engine.is_some() => {
                self.plan.owner_stops -= 1;
                let now = self.now;
                self.owners[index].stop(now);
                self.note_all(|| format!("owner {index} is stopped"));
                true
            }
            _ => true,
        }
    }

    /// The inbox must be read to its current end before any time-out.
    fn wake_up(&mut self, index: usize) {
        let owner = &mut self.owners[index];
        owner.was_paused = false;
        if owner.engine.is_none() || self.bug == Some(Bug::TimeOutBeforeInboxIsRead) {
            return;
        }
        owner.inbox_end = self.store.logs[owner.partition].replies.len();
        let end = offset(owner.inbox_end);
        self.apply(index, Event::InboxEnd(end));
    }

    /// Delays the action of a paused owner; a dead one does nothing.
    pub fn when_up(&mut self, index: usize, what: What) {
        let owner = &self.owners[index];
        if owner.life == Life::Runs {
            self.queue.push(owner.paused_until, what);
        }
    }

    /// Schedules the reading of a log by an owner, unless that is scheduled already.
    pub fn wake(&mut self, index: usize, source: Source) {
        let slot = Self::index_of(source);
        if !std::mem::replace(&mut self.owners[index].will_poll[slot], true) {
            let after = self.travel();
            self.later(
                after,
                What::Poll {
                    owner: index,
                    source,
                },
            );
        }
    }

    /// Lets every process that believes to own a partition read one of its logs.
    pub fn wake_owners(&mut self, partition: usize, source: Source) {
        for index in 0..self.owners.len() {
            let owner = &self.owners[index];
            if owner.partition == partition && owner.life == Life::Runs && owner.engine.is_some() {
                self.wake(index, source);
            }
        }
    }

    pub fn poll(&mut self, index: usize, source: Source) {
        let slot = Self::index_of(source);
        self.owners[index].will_poll[slot] = false;
        for _ in 0..self.rng.between(1, 5) {
            let owner = &self.owners[index];
            let Some(engine) = &owner.engine else {
                return;
            };
            if owner.releasing_since.is_some() {
                return;
            }
            if let Some(priority) = source.priority()
                && engine.waiting(priority).requests >= self.plan.waiting_max
            {
                self.seen.count(Sight::WindowWasFull);
                return;
            }
            let at = owner.next[slot];
            let Some(event) = self.event_for(index, source, at) else {
                return;
            };
            self.owners[index].next[slot] += 1;
            let pretended = self.pretended(&event);
            if self.bug == Some(Bug::RecoverTwice)
                && let Event::Recovery { recovery, .. } = &event
            {
                self.ask_again(self.owners[index].partition, recovery.clone());
            }
            let now = self.owners[index].clock.read(self.now) + pretended;
            self.apply_at(index, event, now);
        }
        self.wake(index, source);
    }

    /// The event for a record, which may belong to another shard.
    fn event_for(&mut self, index: usize, source: Source, at: usize) -> Option<Event> {
        let owner = &self.owners[index];
        let event = self.event_at(owner.partition, source, at)?;
        let event = match self.refusal(owner, &event) {
            Some(refusal) => {
                self.seen.count(Sight::RefusedAgain);
                refusal
            }
            None => event,
        };
        let owner = &self.owners[index];
        let Some(key) = self.key_at(owner.partition, source, at) else {
            return Some(event);
        };
        if owner.filter.takes(source, offset(at), key) {
            return Some(event);
        }
        if owner.filter.had_done(source, offset(at), key) {
            self.seen.count(Sight::DoneByFollowed);
        }
        Some(Event::Passed {
            source,
            offset: offset(at),
            fingerprint: at as u64 + FINGERPRINT_BASE,
        })
    }

    /// The refusal of a request that an earlier owner accepted, as after an upgrade or damage. The
    /// operation and the owner decide which ones are refused, a few in a hundred.
    fn refusal(&self, owner: &Owner, event: &Event) -> Option<Event> {
        let &Event::Request {
            priority,
            offset,
            fingerprint,
            ref request,
            ..
        } = event
        else {
            return None;
        };
        let id = request.operation();
        let began_with_it = self.store.row(id).is_some_and(|row| {
            let began = row.created.request;
            (began.priority, began.offset) == (priority, offset)
                && began.partition.0 as usize == owner.partition
        });
        let is_refused = (id.0.as_u128() as u64 ^ owner.epoch.0).is_multiple_of(32);
        (began_with_it && is_refused).then(|| Event::Unreadable {
            source: priority.source(),
            offset,
            fingerprint,
            operation: (self.bug != Some(Bug::ForgetRefused)).then_some(id),
            cause: "refused".to_owned(),
            record: Box::default(),
        })
    }

    /// The hash of a record's key, which determines its shard.
    fn key_at(&self, partition: usize, source: Source, at: usize) -> Option<KeyHash> {
        let logs = &self.store.logs[partition];
        let of = |id: OperationId| KeyHash::of(&id.key());
        match source {
            Source::Requests => Some(logs.requests.normal.get(at)?.key(at)),
            Source::HighPriority => Some(logs.requests.high.get(at)?.key(at)),
            Source::Replies => Some(of(logs.replies.get(at)?.as_ref()?.operation)),
            Source::Recoveries => Some(of(logs.recoveries.get(at)?.operation)),
        }
    }

    /// The event for a record.
    fn event_at(&self, partition: usize, source: Source, at: usize) -> Option<Event> {
        let logs = &self.store.logs[partition];
        let offset = offset(at);
        if let Some(priority) = source.priority() {
            let record = logs.requests[priority].get(at)?;
            return Some(self.request_event(priority, partition, record, at));
        }
        match source {
            Source::Requests | Source::HighPriority => None,
            Source::Replies => {
                let Some(reply) = logs.replies.get(at)? else {
                    return Some(Event::InboxRead(offset.next()));
                };
                let mut reply = (**reply).clone();
                let is_dropped = match self.bug {
                    Some(Bug::DropLateSuccess) => self.is_undone(reply.operation),
                    Some(Bug::DropCopiedSuccess) => self.had_succeeded(&reply),
                    _ => false,
                };
                if is_dropped {
                    reply.step = "dropped".to_owned();
                }
                Some(Event::Reply { offset, reply })
            }
            Source::Recoveries => {
                let mut recovery = (**logs.recoveries.get(at)?).clone();
                if self.bug == Some(Bug::LoseRecovery) {
                    recovery.operation = OperationId(uuid::Uuid::from_u128(at as u128));
                }
                Some(Event::Recovery {
                    offset,
                    recovery: Box::new(recovery),
                })
            }
        }
    }

    fn request_event(
        &self,
        priority: Priority,
        partition: usize,
        record: &Record,
        at: usize,
    ) -> Event {
        let (offset, fingerprint) = (offset(at), at as u64 + FINGERPRINT_BASE);
        let source = priority.source();
        let Record::Request {
            request,
            is_rerouted,
        } = record
        else {
            return Event::Unreadable {
                source,
                offset,
                fingerprint,
                operation: None,
                cause: "no such schema".to_owned(),
                record: Box::default(),
            };
        };
        let home = partition_for(request.operation(), self.plan.partitions);
        if home.0 as usize != partition {
            // Its bytes contain its position, so that it can be found again.
            let key = [partition as u64, at as u64].map(u64::to_be_bytes).concat();
            return Event::Misrouted {
                source,
                offset,
                fingerprint,
                home,
                partitions: self.plan.partitions,
                already_rerouted: *is_rerouted,
                record: Box::new(ForwardRecord {
                    key: Some(key),
                    ..ForwardRecord::default()
                }),
            };
        }
        Event::Request {
            priority,
            offset,
            fingerprint,
            bytes: 300,
            rerouted: *is_rerouted,
            request: (**request).clone(),
        }
    }

    /// Whether the attempt of a reply succeeded before, and its step is being undone, or is undone.
    fn had_succeeded(&self, reply: &StepReply) -> bool {
        let row = self.store.row(reply.operation);
        row.is_some_and(|row| {
            let names = row.created.step_names.iter();
            let mut steps = names.zip(&row.state.steps);
            steps.any(|(name, step)| {
                **name == *reply.step
                    && matches!(step.state, StepState::Compensating | StepState::Compensated)
                    && [step.succeeded, step.late_success].contains(&Some(reply.attempt))
            })
        })
    }

    fn is_undone(&self, operation: OperationId) -> bool {
        use waybill_engine::ProcessState as State;
        self.store.row(operation).is_some_and(|row| {
            matches!(
                row.state.state,
                State::Compensated | State::Cancelled | State::CompensationFailed
            )
        })
    }

    /// Applies an event to the engine, and handles the resulting work.
    pub fn apply(&mut self, index: usize, event: Event) {
        let now = self.owners[index].clock.read(self.now);
        self.apply_at(index, event, now);
    }

    /// Whether an owner receives the replies of agents in its process.
    pub fn is_served(&self, index: usize) -> bool {
        let owner = &self.owners[index];
        owner.life == Life::Runs && owner.engine.is_some() && owner.releasing_since.is_none()
    }

    /// Delivers the reply of an agent in an owner's process to the owner.
    pub fn tell_directly(&mut self, index: usize, reply: StepReply) {
        let now = self.owners[index].clock.read(self.now);
        self.apply_at(index, Event::DirectReply(reply), now);
    }

    fn apply_at(&mut self, index: usize, event: Event, now: Timestamp) {
        let owner = &mut self.owners[index];
        let Some(engine) = &mut owner.engine else {
            return;
        };
        engine.apply(event, now);
        // A stopping owner starts no more operations.
        if owner.releasing_since.is_none() {
            let held = engine.in_flight();
            let held = held.operations + held.loading;
            let room = Room {
                operations: self.plan.in_flight_max.saturating_sub(held),
                bytes: 1 << 20,
            };
            engine.admit(room, now);
        }
        let loads = engine.loads();
        let timer = engine.next_timer().map(|at| owner.clock.true_time_of(at));
        for operation in loads {
            let after = self.travel();
            self.later(
                after,
                What::Read {
                    owner: index,
                    operation,
                },
            );
        }
        self.want_commit(index);
        let owner = &mut self.owners[index];
        if let Some(at) = timer
            && owner.ticks_at.is_none_or(|ticks_at| at < ticks_at)
        {
            owner.ticks_at = Some(at);
            let at = at.max(self.now) + Duration::from_micros(50);
            self.queue.push(at, What::Tick { owner: index });
        }
    }

    pub fn want_commit(&mut self, index: usize) {
        let owner = &mut self.owners[index];
        if owner.commit.is_none() && !std::mem::replace(&mut owner.will_commit, true) {
            let after = self.rng.below(1_500);
            self.later(after, What::Commit { owner: index });
        }
    }

    pub fn commit_begins(&mut self, index: usize) {
        self.owners[index].will_commit = false;
    }

    pub fn read(&mut self, index: usize, operation: OperationId) {
        let read = self.store.read(operation, self.now);
        let row = read.map(|row| row.cloned().map(Box::new));
        let after = if self.rng.chance(90) {
            200
        } else {
            self.travel()
        };
        self.later(
            after,
            What::Loaded {
                owner: index,
                operation,
                row,
            },
        );
    }

    pub fn tick(&mut self, index: usize) {
        self.owners[index].ticks_at = None;
        self.apply(index, Event::Tick);
    }

    /// The planted bug: another supervisor requests the attempt after the one that was seen.
    fn ask_again(&mut self, partition: usize, mut recovery: Box<Recovery>) {
        if let RecoveryVerb::Retry { seen, .. } = &mut recovery.verb
            && recovery.asked_by != AGAIN
        {
            seen.attempt = seen.attempt.next();
            recovery.asked_by = AGAIN.to_owned();
            self.later(
                30_000,
                What::Recovery {
                    partition,
                    recovery,
                    receipt: None,
                },
            );
        }
    }

    /// The planted bug: that attempt is treated as overdue.
    fn pretended(&self, event: &Event) -> Duration {
        match event {
            Event::Recovery { recovery, .. } if recovery.asked_by == AGAIN => match recovery.verb {
                RecoveryVerb::Retry { budget, .. } => budget + self.plan.config.timeout_grace,
                _ => Duration::ZERO,
            },
            _ => Duration::ZERO,
        }
    }
}

pub fn offset(position: usize) -> Offset {
    Offset(i64::try_from(position).unwrap())
}

/// A record's position, from the bytes that [`Run::request_event`] gave it.
pub fn position_of(record: &ForwardRecord) -> (usize, usize) {
    let key = record.key.as_deref().unwrap_or_default();
    let (partition, at) = key.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let number = |bytes: &[u8]| usize::try_from(number(bytes)).unwrap();
    (number(partition), number(at))
}
