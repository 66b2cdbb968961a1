//! The consumers of schedulers: they read the logs of a partition for each of its shards.

use std::time::Duration;

use waybill_engine::{
    Event, ForwardRecord, KeyHash, OperationId, Priority, Recovery, RecoveryVerb, ShardId, Source,
    StepReply, StepState, partition_for,
};
use waybill_scheduler_core::{Arrived, Assignment, Generation, Input, LostCause, SlotState};

use super::{Act, Reading, offset};
use crate::bugs::Bug;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::store::FINGERPRINT_BASE;
use crate::workload::Record;

/// The cause of a refusal.
const REFUSED: &str = "refused";
/// The requester in recoveries of a planted bug.
const AGAIN: &str = "again";

impl Run {
    /// A shard begins to read.
    pub fn assign(&mut self, index: usize, assignment: Assignment) {
        let Assignment {
            shard,
            partition,
            generation,
            filter,
            start,
            ends,
        } = assignment;
        let scheduler = &mut self.schedulers[index];
        let slot = scheduler.scheduler_loop.as_ref();
        let slot = slot.and_then(|scheduler_loop| scheduler_loop.slot(shard));
        let Some(SlotState::Owned(owned)) = slot.map(waybill_scheduler_core::Slot::state) else {
            return;
        };
        let mut next = [0; 4];
        for source in Source::ALL {
            next[Self::index_of(source)] = usize::try_from(start.at.on(source).0).unwrap();
        }
        let read = usize::try_from(ends.next.replies.0).unwrap();
        let inbox_end = scheduler.inbox_ends.remove(&generation).unwrap_or(read);
        let reading = Reading {
            generation,
            partition: partition.0 as usize,
            key: owned.lease().key,
            epoch: owned.lease().epoch,
            filter,
            is_read: true,
            next,
            will_poll: [false; 4],
            inbox_end,
            replies_end: inbox_end,
            last_stamp: waybill_engine::Stamp(i64::MIN),
        };
        scheduler.readings.insert(shard, reading);
        for source in Source::ALL {
            self.wake(index, shard, source);
        }
    }

    /// Schedules the reading of a log for a shard, unless that is scheduled already.
    fn wake(&mut self, index: usize, shard: ShardId, source: Source) {
        let scheduler = &mut self.schedulers[index];
        let Some(reading) = scheduler.readings.get_mut(&shard) else {
            return;
        };
        let slot = Self::index_of(source);
        let has_more = reading.next[slot] < self.store.logs[reading.partition].len(source);
        let is_open = source.priority().is_none_or(|of| scheduler.room[of] > 0);
        if !reading.is_read || !has_more || std::mem::replace(&mut reading.will_poll[slot], true) {
            return;
        }
        let generation = reading.generation;
        if !is_open {
            reading.will_poll[slot] = false;
            return self.seen.count(Sight::WindowWasFull);
        }
        let after = self.travel();
        let poll = Act::Poll {
            shard,
            generation,
            source,
        };
        self.act_later(index, after, poll);
    }

    /// The same for all shards of a process.
    pub fn wake_all_shards(&mut self, index: usize, source: Source) {
        let shards: Vec<ShardId> = self.schedulers[index].readings.keys().copied().collect();
        for shard in shards {
            self.wake(index, shard, source);
        }
    }

    /// Lets every process that reads a partition read one of its logs.
    pub fn wake_schedulers(&mut self, partition: usize, source: Source) {
        for index in 0..self.schedulers.len() {
            let readings = self.schedulers[index].readings.iter();
            let of = readings.filter(|(_, reading)| reading.partition == partition);
            for shard in of.map(|(shard, _)| *shard).collect::<Vec<_>>() {
                self.wake(index, shard, source);
            }
        }
    }

    /// Reads some records of a log for a shard.
    pub fn poll(&mut self, index: usize, shard: ShardId, generation: Generation, source: Source) {
        let slot = Self::index_of(source);
        match self.schedulers[index].readings.get_mut(&shard) {
            Some(reading) if reading.generation == generation => reading.will_poll[slot] = false,
            _ => return,
        }
        let mut records = Vec::new();
        for _ in 0..self.rng.between(1, 5) {
            let scheduler = &self.schedulers[index];
            let reading = &scheduler.readings[&shard];
            let at = reading.next[slot];
            if at < self.store.logs[reading.partition].first[slot] {
                self.deleted(index, shard, generation, source);
                break;
            }
            if !reading.is_read || !reading.filter.reads(source, offset(at)) {
                break;
            }
            if source.priority().is_some_and(|of| scheduler.room[of] == 0) {
                self.seen.count(Sight::WindowWasFull);
                break;
            }
            let Some(event) = self.event_for(reading, source, at) else {
                break;
            };
            let partition = reading.partition;
            let scheduler = &mut self.schedulers[index];
            if let Some(reading) = scheduler.readings.get_mut(&shard) {
                reading.next[slot] += 1;
            }
            if let Some(priority) = source.priority() {
                scheduler.room[priority] -= 1;
            }
            match &event {
                Event::Passed { .. } if self.was_done(index, shard, source, at) => {
                    self.seen.count(Sight::DoneByFollowed);
                }
                Event::Unreadable { cause, .. } if cause == REFUSED => {
                    self.seen.count(Sight::RefusedAgain);
                }
                _ => {}
            }
            let pretended = self.pretended(&event);
            if self.bug == Some(Bug::RecoverTwice)
                && let Event::Recovery { recovery, .. } = &event
            {
                self.ask_again(partition, recovery.clone());
            }
            let arrived = Arrived {
                generation,
                shard,
                event,
            };
            match pretended.is_zero() {
                true => records.push(arrived),
                false => self.give_later(index, Input::Records(vec![arrived]), pretended),
            }
        }
        if !records.is_empty() {
            self.give(index, Input::Records(records));
            self.wake(index, shard, source);
        }
    }

    /// The record that a consumer would read next was deleted.
    fn deleted(&mut self, index: usize, shard: ShardId, generation: Generation, source: Source) {
        let slot = Self::index_of(source);
        if self.bug == Some(Bug::SkipDeleted)
            && let Some(reading) = self.schedulers[index].readings.get_mut(&shard)
        {
            reading.next[slot] = self.store.logs[reading.partition].first[slot];
            return self.wake(index, shard, source);
        }
        let lost = Input::Lost {
            source,
            generation,
            shard,
            cause: LostCause::OutOfRange,
        };
        self.act_later(index, 0, Act::Input(lost));
    }

    /// The event for a record, which may belong to another shard.
    fn event_for(&self, reading: &Reading, source: Source, at: usize) -> Option<Event> {
        let event = self.event_at(reading.partition, source, at)?;
        let event = self.refusal(reading, &event).unwrap_or(event);
        let Some(key) = self.key_at(reading.partition, source, at) else {
            return Some(event);
        };
        if reading.filter.takes(source, offset(at), key) {
            return Some(event);
        }
        Some(Event::Passed {
            source,
            offset: offset(at),
            fingerprint: at as u64 + FINGERPRINT_BASE,
        })
    }

    /// Whether a shard that this one follows has done a record.
    fn was_done(&self, index: usize, shard: ShardId, source: Source, at: usize) -> bool {
        let reading = &self.schedulers[index].readings[&shard];
        let key = self.key_at(reading.partition, source, at);
        key.is_some_and(|key| reading.filter.had_done(source, offset(at), key))
    }

    /// The refusal of a request that an earlier owner accepted, as after an upgrade or damage. The
    /// operation and the owner decide which ones are refused, a few in a hundred.
    fn refusal(&self, reading: &Reading, event: &Event) -> Option<Event> {
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
                && began.partition.0 as usize == reading.partition
        });
        let is_refused = (id.0.as_u128() as u64 ^ reading.epoch.0).is_multiple_of(32);
        (began_with_it && is_refused).then(|| Event::Unreadable {
            source: priority.source(),
            offset,
            fingerprint,
            operation: (self.bug != Some(Bug::ForgetRefused)).then_some(id),
            cause: REFUSED.to_owned(),
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

/// A record's position, from the bytes that [`Run::request_event`] gave it.
pub fn position_of(record: &ForwardRecord) -> (usize, usize) {
    let key = record.key.as_deref().unwrap_or_default();
    let (partition, at) = key.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let number = |bytes: &[u8]| usize::try_from(number(bytes)).unwrap();
    (number(partition), number(at))
}
