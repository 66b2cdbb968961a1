//! The thread of one consumer: it polls, decodes, and executes the loop's orders.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use waybill_engine::{Event, KeyHash, Offset, PartitionId, ShardFilter, ShardId, Source};
use waybill_kafka::fingerprint;
use waybill_kafka::{DamageKind, DamagedLog, PartitionConsumer, PollError, PollLimits, RecordRef};
use waybill_scheduler_core::{Amount, Arrived, Generation, Input, LostCause};
use waybill_telemetry::chain;

use crate::consumers::consumed_topic::{
    Assigned, ConsumedTopic, Reading, Until, Verified, WaitsAt,
};
use crate::credit::Credit;
use crate::decode::Decoder;
use crate::incoming::{Incoming, Inputs};

/// Maximum amount of one poll.
const POLL_MAX: Amount = Amount {
    records: 2_000,
    bytes: 4 * 1024 * 1024,
};
/// How long a thread waits for records, or for room, before it checks for orders again.
const TIMEOUT: Duration = Duration::from_millis(50);

/// How long a partition is blocked at damaged records before they are read again.
const DAMAGED_AGAIN: Duration = Duration::from_secs(30);

/// An order from the loop to a consumer's thread.
pub(super) enum Order {
    /// Start reading a partition for a shard.
    Add {
        source: Source,
        partition: PartitionId,
        shard: ShardId,
        generation: Generation,
        filter: ShardFilter,
        start: Offset,
        verify: Option<(Offset, u64)>,
        end: Offset,
    },
    /// Replace the filter of a shard.
    SetFilter { shard: ShardId, filter: ShardFilter },
    /// Report once replies were read to this offset.
    ReadTo { shard: ShardId, end: Offset },
    /// Stop reading for a shard.
    Remove(ShardId),
    /// End the thread.
    Stop,
}

/// The state of a consumer's thread.
pub(super) struct Poller {
    /// One or two topics: the topic of a record is found by comparing names.
    consumed_topics: Vec<ConsumedTopic>,
    consumer: Arc<PartitionConsumer>,
    credit: Arc<Credit>,
    sender: Inputs,
}

impl Poller {
    /// A poller with nothing assigned.
    pub(super) fn new(
        consumer: Arc<PartitionConsumer>,
        topics: &[(Source, Arc<str>)],
        decoder: &dyn Fn(Source) -> Decoder,
        credit: Arc<Credit>,
        sender: Inputs,
    ) -> Self {
        let consumed = |(source, topic): &(Source, Arc<str>)| ConsumedTopic {
            source: *source,
            topic: topic.clone(),
            decoder: decoder(*source),
            assigned: Default::default(),
        };
        Self {
            consumed_topics: topics.iter().map(consumed).collect(),
            consumer,
            credit,
            sender,
        }
    }

    /// Polls until it receives [`Order::Stop`].
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            while let Ok(order) = orders.try_recv() {
                if !self.obey(order) {
                    return;
                }
            }
            if self
                .consumed_topics
                .iter()
                .all(|consumed| consumed.assigned.is_empty())
            {
                let Ok(order) = orders.recv() else { return };
                if !self.obey(order) {
                    return;
                }
                continue;
            }
            self.read_on();
            if let Some(amount) = self.credit.take(POLL_MAX, TIMEOUT) {
                self.poll(amount);
            }
        }
    }

    /// Executes an order. Returns whether to continue.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Stop => return false,
            Order::ReadTo { shard, end } => {
                for consumed in &mut self.consumed_topics {
                    if consumed.source == Source::Replies
                        && let Some(reading) = consumed.reading(shard)
                    {
                        reading.unread_end = Some(end);
                    }
                }
            }
            Order::SetFilter { shard, filter } => {
                let mut unreadable = Vec::new();
                for consumed in &mut self.consumed_topics {
                    if let Err((partition, error)) =
                        consumed.set_filter(shard, &filter, &self.consumer)
                    {
                        let cause = LostCause::Client(error.to_string());
                        unreadable.push((consumed.source, partition, cause));
                    }
                }
                for (source, partition, cause) in unreadable {
                    self.lost(source, partition, &cause);
                }
            }
            Order::Remove(shard) => {
                for consumed in &mut self.consumed_topics {
                    consumed.remove(shard, &self.consumer);
                }
            }
            Order::Add {
                source,
                partition,
                shard,
                generation,
                filter,
                start,
                verify,
                end,
            } => {
                let from = verify.map_or(start, |(below, _)| below);
                let Some(consumed) = self
                    .consumed_topics
                    .iter_mut()
                    .find(|consumed| consumed.source == source)
                else {
                    return true;
                };
                let is_inbox = source == Source::Replies;
                let reading = Reading {
                    shard,
                    generation,
                    filter,
                    next: from,
                    verify,
                    unread_end: Some(end).filter(|end| is_inbox && from < *end),
                    passed: None,
                };
                if let Err(error) = consumed.add(partition, reading, &self.consumer) {
                    let cause = LostCause::Client(error.to_string());
                    self.lost(source, partition, &cause);
                }
            }
        }
        true
    }

    fn poll(&mut self, limits: Amount) {
        let limits = PollLimits {
            records: limits.records,
            bytes: limits.bytes,
        };
        let mut records = Vec::new();
        let (mut taken, mut bytes) = (0, 0);
        let mut mismatches = Vec::new();
        let mut waiting = Vec::new();
        let (mut ends, mut read_again) = (Vec::new(), Vec::new());
        let waits_for_end = self.waits_for_end();
        let consumed_topics = &mut self.consumed_topics;
        let mut on_record = |record: RecordRef<'_>| {
            let partition = record.partition();
            let Some(consumed) = consumed_topics
                .iter_mut()
                .find(|consumed| *consumed.topic == *record.topic())
            else {
                return;
            };
            let Some(assigned) = consumed.assigned.get_mut(&partition) else {
                return;
            };
            if assigned.waits_at.is_some() {
                return;
            }
            let (source, offset) = (consumed.source, record.offset());
            if std::mem::take(&mut assigned.is_blocked) {
                read_again.extend(blocked(source, &assigned.shards, None));
            }
            assigned.next = offset.next();
            let mut key = None;
            for reading in &mut assigned.shards {
                // The partition may be read again from a lower offset for another shard.
                if offset < reading.next {
                    continue;
                }
                // Later records belong to the shards that stay in the partition.
                if !reading.filter.reads(source, offset) {
                    continue;
                }
                match reading.verified(&record) {
                    Verified::Go => {}
                    Verified::Below => {
                        reading.next = offset.next();
                        continue;
                    }
                    Verified::Differs { expected, found } => {
                        let cause = LostCause::Fingerprint { expected, found };
                        mismatches.push((source, reading.shard, cause));
                        continue;
                    }
                }
                let takes = reading.filter.is_whole() || {
                    let hash = || KeyHash::of(record.key().unwrap_or_default());
                    let key = *key.get_or_insert_with(hash);
                    reading.filter.takes(source, offset, key)
                };
                if !takes {
                    let fingerprint = match source {
                        Source::Requests | Source::HighPriority => fingerprint(&record),
                        Source::Replies | Source::Recoveries => 0,
                    };
                    reading.passed = Some((offset, fingerprint));
                    reading.next = offset.next();
                    continue;
                }
                match consumed.decoder.event(&record, &reading.filter) {
                    Ok(event) => {
                        taken += 1;
                        bytes += record.bytes();
                        records.extend(reading.tell_passed(source));
                        records.push(reading.arrived(event));
                        reading.next = offset.next();
                    }
                    Err(schema) => {
                        let until = Until::Known(schema);
                        assigned.waits_at = Some(WaitsAt { offset, until });
                        waiting.push((source, partition));
                        return;
                    }
                }
            }
        };
        let mut on_end = |topic: &str, partition: PartitionId, end: Offset| {
            ends.push((topic.to_owned(), partition, end));
        };
        let polled = if waits_for_end {
            self.consumer
                .poll_with_positions(limits, TIMEOUT, &mut on_record, &mut on_end)
        } else {
            self.consumer.poll(limits, TIMEOUT, &mut on_record)
        };
        self.credit.read(Amount {
            records: taken,
            bytes,
        });
        for input in read_again {
            self.send(input);
        }
        for (source, shard, cause) in mismatches {
            let mut consumed_topics = self.consumed_topics.iter_mut();
            let consumed = consumed_topics.find(|consumed| consumed.source == source);
            if let Some(reading) = consumed.and_then(|consumed| consumed.reading(shard)) {
                let generation = reading.generation;
                self.send_lost(source, shard, generation, &cause);
            }
        }
        for consumed in &mut self.consumed_topics {
            let source = consumed.source;
            let readings = consumed.assigned.values_mut().flat_map(|of| &mut of.shards);
            records.extend(readings.filter_map(|reading| reading.tell_passed(source)));
        }
        let damaged = match &polled {
            Err(PollError::Damaged(logs)) => logs.as_slice(),
            Ok(_) | Err(_) => &[],
        };
        for (source, partition) in waiting {
            self.wait(source, partition, damaged);
        }
        for (topic, partition, end) in ends {
            self.read_to(&topic, partition, end, &mut records);
        }
        if !records.is_empty() {
            self.send(Incoming::Records {
                source: self.consumed_topics[0].source,
                amount: Amount {
                    records: taken,
                    bytes,
                },
                records,
            });
        }
        match polled {
            Ok(_) => {}
            Err(PollError::Damaged(logs)) => {
                for log in &logs {
                    match log.next {
                        Some(next) => self.pass_over(log, next),
                        None => self.stop_at(log),
                    }
                }
            }
            Err(PollError::OffsetOutOfRange(partitions)) => {
                for of in partitions {
                    let mut consumed_topics = self.consumed_topics.iter();
                    let Some(consumed) =
                        consumed_topics.find(|consumed| *consumed.topic == *of.topic)
                    else {
                        continue;
                    };
                    if of.offset <= of.high {
                        self.lost(consumed.source, of.partition, &LostCause::OutOfRange);
                        continue;
                    }
                    // The topic was recreated, or has lost its end. So partitions that have grown
                    // beyond the read position have lost records as well.
                    for &partition in consumed.assigned.keys() {
                        self.lost(consumed.source, partition, &LostCause::OutOfRange);
                    }
                }
            }
            Err(error) => {
                let cause = LostCause::Client(chain(&error));
                for consumed in &self.consumed_topics {
                    for partition in consumed.assigned.keys() {
                        self.lost(consumed.source, *partition, &cause);
                    }
                }
            }
        }
    }

    /// Whether an engine waits for a topic to be read to an end. Querying positions is expensive,
    /// and records show how far was read, unless the last ones are never delivered.
    fn waits_for_end(&self) -> bool {
        self.consumed_topics.iter().any(|consumed| {
            let mut readings = consumed.assigned.values().flat_map(|of| &of.shards);
            readings.any(|reading| {
                reading.unread_end.is_some() || reading.last_unseen(consumed.source).is_some()
            })
        })
    }

    /// Notifies the engines that a topic was read to the end that they wait for. The last records
    /// may be ones that are never delivered (those that end transactions).
    fn read_to(
        &mut self,
        topic: &str,
        partition: PartitionId,
        end: Offset,
        records: &mut Vec<Arrived>,
    ) {
        let mut consumed_topics = self.consumed_topics.iter_mut();
        let Some(consumed) = consumed_topics.find(|consumed| *consumed.topic == *topic) else {
            return;
        };
        let source = consumed.source;
        let Some(assigned) = consumed.assigned.get_mut(&partition) else {
            return;
        };
        if assigned.waits_at.is_some() {
            return;
        }
        for reading in &mut assigned.shards {
            // A shard that leaves the partition does not wait for replies that were lost with a
            // broker.
            let is_short = source == Source::Replies && reading.filter.leaves();
            if let Some(last) = reading.last_unseen(source)
                && (last < end || is_short)
            {
                reading.next = last.next();
                let fingerprint = 0;
                records.push(reading.arrived(Event::Passed {
                    source,
                    offset: last,
                    fingerprint,
                }));
            }
            if reading.unread_end.is_some_and(|unread| unread <= end) {
                reading.unread_end = None;
                records.push(reading.arrived(Event::InboxRead(end)));
            }
        }
    }

    /// Stops fetching a partition whose next record cannot be decoded yet, unless the client has
    /// already stopped at damage after that record. Records fetched after it are read again.
    fn wait(&self, source: Source, partition: PartitionId, damaged: &[DamagedLog]) {
        let mut consumed_topics = self.consumed_topics.iter();
        let Some(consumed) = consumed_topics.find(|consumed| consumed.source == source) else {
            return;
        };
        if let Some(WaitsAt { offset, until }) = consumed.assigned[&partition].waits_at
            && let Until::Known(schema) = until
        {
            let topic = &*consumed.topic;
            tracing::info!(
                topic, %partition, %offset, %schema,
                "waiting for a schema from the schema registry"
            );
        }
        let is_removed =
            |log: &DamagedLog| *log.topic == *consumed.topic && log.partition == partition;
        if damaged.iter().any(is_removed) {
            return;
        }
        if let Err(error) = self.consumer.remove(&[(&consumed.topic, partition)]) {
            self.lost(source, partition, &LostCause::Client(error.to_string()));
        }
    }

    /// Resumes partitions whose next record can be decoded by now.
    fn read_on(&mut self) {
        let mut unreadable = Vec::new();
        for consumed in &mut self.consumed_topics {
            for (partition, assigned) in &mut consumed.assigned {
                let Some(WaitsAt { offset, until }) = assigned.waits_at else {
                    continue;
                };
                let still = match until {
                    Until::Known(schema) => consumed.decoder.waits_for(schema),
                    Until::ReadAgain(at) => Instant::now() < at,
                };
                if still {
                    continue;
                }
                assigned.waits_at = None;
                if let Err(error) = self.consumer.add(&[(&consumed.topic, *partition, offset)]) {
                    let cause = LostCause::Client(error.to_string());
                    unreadable.push((consumed.source, *partition, cause));
                }
            }
        }
        for (source, partition, cause) in unreadable {
            self.lost(source, partition, &cause);
        }
    }

    /// The partition of a damaged log, if it is still assigned and no record before the damage
    /// waits for its schema. If one does, the partition is read again once the schema is known, and
    /// the client meets the damage again.
    fn stopped(&mut self, log: &DamagedLog) -> Option<(Source, &mut Assigned)> {
        let mut consumed_topics = self.consumed_topics.iter_mut();
        let consumed = consumed_topics.find(|consumed| *consumed.topic == *log.topic)?;
        let source = consumed.source;
        let assigned = consumed.assigned.get_mut(&log.partition)?;
        assigned.waits_at.is_none().then_some((source, assigned))
    }

    /// Blocks a partition at damaged records, where the client has stopped reading. Its other
    /// topics are still read, and no record of this one is skipped.
    fn stop_at(&mut self, log: &DamagedLog) {
        let Some((source, assigned)) = self.stopped(log) else {
            return;
        };
        assigned.next = log.offset;
        assigned.is_blocked = true;
        assigned.waits_at = Some(WaitsAt {
            offset: log.offset,
            until: Until::ReadAgain(Instant::now() + DAMAGED_AGAIN),
        });
        for input in blocked(source, &assigned.shards, Some(why_stopped(log))) {
            self.send(input);
        }
    }

    /// Continues after records that no client can decode and at which the client has stopped. A
    /// dead letter describes them, and the checkpoint passes them.
    fn pass_over(&mut self, log: &DamagedLog, next: Offset) {
        let Some((source, assigned)) = self.stopped(log) else {
            return;
        };
        assigned.next = next;
        let mut inputs = Vec::new();
        if std::mem::take(&mut assigned.is_blocked) {
            inputs.extend(blocked(source, &assigned.shards, None));
        }
        let mut records = Vec::new();
        for reading in &mut assigned.shards {
            match reading.pass_over(source, log, next) {
                Ok(arrived) => records.extend(arrived),
                Err(cause) => inputs.push(Input::Lost {
                    source,
                    generation: reading.generation,
                    shard: reading.shard,
                    cause,
                }),
            }
        }
        if !records.is_empty() {
            log.log_passed_over(next);
        }
        for input in inputs {
            self.send(input);
        }
        self.send(Incoming::Records {
            source: self.consumed_topics[0].source,
            amount: Amount {
                records: 0,
                bytes: 0,
            },
            records,
        });
        let at = [(log.topic.as_str(), log.partition, next)];
        if let Err(error) = self.consumer.add(&at) {
            let cause = LostCause::Client(error.to_string());
            self.lost(source, log.partition, &cause);
        }
    }

    /// Reports to the loop that a partition cannot be read. The loop then orders the removal of its
    /// shards.
    fn lost(&self, source: Source, partition: PartitionId, cause: &LostCause) {
        let mut consumed_topics = self.consumed_topics.iter();
        let consumed = consumed_topics.find(|consumed| consumed.source == source);
        let assigned = consumed.and_then(|consumed| consumed.assigned.get(&partition));
        for reading in assigned.into_iter().flat_map(|assigned| &assigned.shards) {
            self.send_lost(source, reading.shard, reading.generation, cause);
        }
    }

    fn send_lost(&self, source: Source, shard: ShardId, generation: Generation, cause: &LostCause) {
        self.send(Input::Lost {
            source,
            generation,
            shard,
            cause: cause.clone(),
        });
    }

    /// Fails only when the loop has ended, which then orders this thread to stop.
    fn send(&self, input: impl Into<Incoming>) {
        let _ = self.sender.send(input.into());
    }
}

/// Notifies the shards of a partition why it is blocked, or that it is read again.
fn blocked(source: Source, shards: &[Reading], why: Option<String>) -> Vec<Input> {
    let inputs = shards.iter().map(|reading| Input::Blocked {
        source,
        generation: reading.generation,
        shard: reading.shard,
        why: why.clone(),
    });
    inputs.collect()
}

/// Why a partition stopped at damaged records, with the command that skips them.
fn why_stopped(log: &DamagedLog) -> String {
    let DamagedLog {
        topic,
        partition,
        offset,
        ..
    } = log;
    let again = DAMAGED_AGAIN.as_secs();
    match log.kind {
        DamageKind::Undecodable => {
            format!(
                "{log}; retrying in {again} s, and skipping the records if they still cannot be \
                 decoded"
            )
        }
        DamageKind::Corrupt => format!(
            "{log}; retrying every {again} s. If no replica has an intact copy, skip the damage: \
             on the embedded broker, run `waybill broker repair --topic {topic} --partition \
             {partition}`; on Kafka, delete the records before offset {} with \
             kafka-delete-records.sh, and set scheduler.skipDeletedRequests: true",
            offset.next()
        ),
    }
}

#[cfg(test)]
mod tests;
