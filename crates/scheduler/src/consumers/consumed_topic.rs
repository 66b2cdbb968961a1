//! The topics that one consumer's thread reads. It reads each partition once, for all shards of
//! this process that share it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use waybill_engine::{
    Event, ForwardRecord, KeyHash, Offset, PartitionId, ShardFilter, ShardId, Source,
};
use waybill_kafka::{DamagedLog, PartitionConsumer, RecordRef, RequestError};
use waybill_kafka::{UNDECODABLE, fingerprint};
use waybill_messages::{SchemaId, undecodable};
use waybill_scheduler_core::{Arrived, Generation, LostCause};

use crate::decode::Decoder;

/// A partition in the polling thread: read once, for all shards of this process that share it.
pub(super) struct Assigned {
    pub(super) shards: Vec<Reading>,
    /// One past the last record received.
    pub(super) next: Offset,
    /// The record that cannot be decoded (yet). Only this partition waits at it.
    pub(super) waits_at: Option<WaitsAt>,
    /// Whether its shards were notified that it is blocked at damaged records.
    pub(super) is_blocked: bool,
}

/// A shard of a partition.
pub(super) struct Reading {
    pub(super) shard: ShardId,
    pub(super) generation: Generation,
    pub(super) filter: ShardFilter,
    /// The first record that the shard has not received.
    pub(super) next: Offset,
    pub(super) verify: Option<(Offset, u64)>,
    /// For replies: the end up to which the engine waits for them to be read.
    pub(super) unread_end: Option<Offset>,
    /// The last skipped record that was not reported yet, with its fingerprint.
    pub(super) passed: Option<(Offset, u64)>,
}

impl Reading {
    /// Addresses an event to the shard's engine.
    pub(super) fn arrived(&self, event: Event) -> Arrived {
        Arrived {
            generation: self.generation,
            shard: self.shard,
            event,
        }
    }

    /// The last record that the shard must reach to complete a change of the number of partitions,
    /// if it has not reached it.
    pub(super) fn last_unseen(&self, source: Source) -> Option<Offset> {
        let end = self.filter.awaited_end(source);
        let end = end.filter(|end| self.next < *end)?;
        Some(Offset(end.0 - 1))
    }

    /// The event for the records skipped since the last call.
    pub(super) fn tell_passed(&mut self, source: Source) -> Option<Arrived> {
        let (offset, fingerprint) = self.passed.take()?;
        Some(self.arrived(Event::Passed {
            source,
            offset,
            fingerprint,
        }))
    }

    /// The events for records that no client can decode, from `log.offset` up to `next`. The
    /// checkpoint passes them, and one of the shards that share the partition sends a dead letter.
    ///
    /// # Errors
    ///
    /// If the checkpoint's fingerprint is that of another record.
    pub(super) fn pass_over(
        &mut self,
        source: Source,
        log: &DamagedLog,
        next: Offset,
    ) -> Result<Vec<Arrived>, LostCause> {
        let first = log.offset;
        if self.next >= next || !self.filter.reads(source, first.max(self.next)) {
            return Ok(Vec::new());
        }
        if let Some((below, expected)) = self.verify.take()
            && below >= first
        {
            let found = UNDECODABLE;
            return Err(LostCause::Fingerprint { expected, found });
        }
        let mut arrived: Vec<Arrived> = self.tell_passed(source).into_iter().collect();
        let takes = self.filter.is_whole() || self.filter.takes(source, first, KeyHash::of(&[]));
        if self.next <= first && takes {
            let range = (first, next);
            let stands_for = undecodable(&log.topic, log.partition, range, &log.cause);
            arrived.push(self.arrived(Event::Unreadable {
                source,
                offset: first,
                fingerprint: UNDECODABLE,
                operation: None,
                cause: log.cause.clone(),
                record: Box::new(ForwardRecord {
                    key: stands_for.key,
                    value: stands_for.value,
                    headers: stands_for.headers,
                }),
            }));
        }
        // Later records belong to the shards that stay in the partition.
        let last = match self.filter.awaited_end(source) {
            Some(end) if !self.filter.reads(source, Offset(next.0 - 1)) => end.min(next),
            Some(_) | None => next,
        };
        let last = Offset(last.0 - 1);
        if last > first || !takes {
            arrived.push(self.arrived(Event::Passed {
                source,
                offset: last,
                fingerprint: UNDECODABLE,
            }));
        }
        self.next = last.next();
        Ok(arrived)
    }

    /// Compares the first record of an assignment with the checkpoint's fingerprint, if there is
    /// one.
    pub(super) fn verified(&mut self, record: &RecordRef<'_>) -> Verified {
        match self.verify {
            Some((below, _)) if record.offset() > below => {
                // The log has a gap below the checkpoint: compaction or a control record.
                self.verify = None;
                Verified::Go
            }
            Some((_, expected)) => {
                let found = fingerprint(record);
                if found == expected {
                    self.verify = None;
                    Verified::Below
                } else {
                    Verified::Differs { expected, found }
                }
            }
            None => Verified::Go,
        }
    }
}

/// Where a partition waits.
#[derive(Clone, Copy)]
pub(super) struct WaitsAt {
    pub(super) offset: Offset,
    pub(super) until: Until,
}

/// What it waits for.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// Until the schema registry has returned a schema.
    Known(SchemaId),
    /// Until damaged records are read again: another replica may lead by then.
    ReadAgain(Instant),
}

/// One topic of a consumer.
pub(super) struct ConsumedTopic {
    pub(super) source: Source,
    pub(super) topic: Arc<str>,
    pub(super) decoder: Decoder,
    pub(super) assigned: HashMap<PartitionId, Assigned>,
}

impl ConsumedTopic {
    /// A shard, in any of the partitions.
    pub(super) fn reading(&mut self, shard: ShardId) -> Option<&mut Reading> {
        let mut readings = self.assigned.values_mut().flat_map(|of| &mut of.shards);
        readings.find(|reading| reading.shard == shard)
    }

    /// Replaces the filter of a shard.
    pub(super) fn set_filter(
        &mut self,
        shard: ShardId,
        filter: &ShardFilter,
        consumer: &PartitionConsumer,
    ) -> Result<(), (PartitionId, RequestError)> {
        let source = self.source;
        for (&partition, assigned) in &mut self.assigned {
            let mut readings = assigned.shards.iter_mut();
            let Some(reading) = readings.find(|reading| reading.shard == shard) else {
                continue;
            };
            reading.filter = filter.clone();
            if reading.last_unseen(source).is_some() && assigned.waits_at.is_none() {
                // Resume at the current position, so that the end of the log is reported again.
                let at = (&*self.topic, partition);
                let from = [(at.0, at.1, assigned.next)];
                let again = consumer.remove(&[at]).and_then(|()| consumer.add(&from));
                again.map_err(|error| (partition, error))?;
            }
        }
        Ok(())
    }

    /// Reads a partition for one more shard. If the partition is already assigned, it is read again
    /// from the new shard's offset, if that is lower; the other shards skip the records that they
    /// have received.
    pub(super) fn add(
        &mut self,
        partition: PartitionId,
        reading: Reading,
        consumer: &PartitionConsumer,
    ) -> Result<(), RequestError> {
        let mut from = reading.next;
        if let Some(assigned) = self.assigned.get_mut(&partition) {
            assigned.shards.push(reading);
            let goes_on_at = assigned
                .waits_at
                .map_or(assigned.next, |waits| waits.offset);
            from = from.min(goes_on_at);
            // Resume even from the current position, so that the end of the log is reported again.
            if assigned.waits_at.take().is_none() {
                consumer.remove(&[(&self.topic, partition)])?;
            }
            assigned.next = from;
        } else {
            let assigned = Assigned {
                next: from,
                shards: vec![reading],
                waits_at: None,
                is_blocked: false,
            };
            self.assigned.insert(partition, assigned);
        }
        consumer.add(&[(&self.topic, partition, from)])
    }

    /// Stops reading for a shard.
    pub(super) fn remove(&mut self, shard: ShardId, consumer: &PartitionConsumer) {
        let mut left = Vec::new();
        for (&partition, assigned) in &mut self.assigned {
            assigned.shards.retain(|reading| reading.shard != shard);
            if assigned.shards.is_empty() {
                left.push((partition, assigned.waits_at.is_some()));
            }
        }
        for (partition, waits) in left {
            self.assigned.remove(&partition);
            if !waits && let Err(error) = consumer.remove(&[(&self.topic, partition)]) {
                tracing::warn!(%partition, %error, "a partition could not be unassigned");
            }
        }
    }
}

/// Result of comparing the first record of an assignment with the checkpoint.
pub(super) enum Verified {
    /// The record is for an engine.
    Go,
    /// The record below the checkpoint, unchanged.
    Below,
    /// The record differs from the one that the checkpoint was stored for.
    Differs { expected: u64, found: u64 },
}
