//! The thread of one consumer: it polls, decodes, and does what the loop orders.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use waybill_engine::{Event, Offset, PartitionId, Source};
use waybill_kafka::{PartitionConsumer, PollError, PollLimits, RecordRef};

use crate::chain::chain;
use crate::scheduler::credit::{Amount, Credit};
use crate::scheduler::decode::Decoder;
use crate::scheduler::input::{Arrived, Generation, Input, Inputs, LostCause};

/// How much one poll takes at most.
const POLL_MAX: Amount = Amount {
    records: 2_000,
    bytes: 4 * 1024 * 1024,
};
/// How long a thread waits for records, or for room, before it looks after orders again.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the loop tells a consumer's thread.
pub(super) enum Order {
    /// Begin to read a partition.
    Add {
        source: Source,
        partition: PartitionId,
        generation: Generation,
        start: Offset,
        verify: Option<(Offset, u64)>,
        end: Offset,
    },
    /// Tell once replies were read to here.
    ReadTo { partition: PartitionId, end: Offset },
    /// End reading a partition.
    Remove(PartitionId),
    /// End.
    Stop,
}

/// A partition as the polling thread knows it.
struct Assigned {
    generation: Generation,
    verify: Option<(Offset, u64)>,
    /// Of replies: what the engine waits to be read to.
    unread_end: Option<Offset>,
}

/// One topic of a consumer.
struct Feed {
    source: Source,
    topic: Arc<str>,
    decoder: Decoder,
    assigned: HashMap<PartitionId, Assigned>,
}

/// What a consumer's thread works with.
pub(super) struct Poller {
    /// One or two: whose record is in hand is found by comparing names.
    feeds: Vec<Feed>,
    consumer: Arc<PartitionConsumer>,
    credit: Arc<Credit>,
    sender: Inputs,
}

impl Poller {
    /// A thread's work, with nothing assigned.
    pub(super) fn new(
        consumer: Arc<PartitionConsumer>,
        topics: &[(Source, Arc<str>)],
        partitions: u32,
        credit: Arc<Credit>,
        sender: Inputs,
    ) -> Self {
        let feed = |(source, topic): &(Source, Arc<str>)| Feed {
            source: *source,
            topic: topic.clone(),
            decoder: Decoder::new(*source, partitions),
            assigned: HashMap::new(),
        };
        Self {
            feeds: topics.iter().map(feed).collect(),
            consumer,
            credit,
            sender,
        }
    }

    /// Polls until it is ordered to stop.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            while let Ok(order) = orders.try_recv() {
                if !self.obey(order) {
                    return;
                }
            }
            if self.feeds.iter().all(|feed| feed.assigned.is_empty()) {
                let Ok(order) = orders.recv() else { return };
                if !self.obey(order) {
                    return;
                }
                continue;
            }
            if let Some(amount) = self.credit.take(POLL_MAX, PATIENCE) {
                self.poll(amount);
            }
        }
    }

    /// Follows an order. Returns whether to go on.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Stop => return false,
            Order::ReadTo { partition, end } => {
                for feed in &mut self.feeds {
                    if feed.source == Source::Replies
                        && let Some(assigned) = feed.assigned.get_mut(&partition)
                    {
                        assigned.unread_end = Some(end);
                    }
                }
            }
            Order::Remove(partition) => {
                for feed in &mut self.feeds {
                    if feed.assigned.remove(&partition).is_some()
                        && let Err(error) = self.consumer.remove(&[(&feed.topic, partition)])
                    {
                        tracing::warn!(%partition, %error, "a partition could not be unassigned");
                    }
                }
            }
            Order::Add {
                source,
                partition,
                generation,
                start,
                verify,
                end,
            } => {
                let from = verify.map_or(start, |(below, _)| below);
                let Some(feed) = self.feeds.iter_mut().find(|feed| feed.source == source) else {
                    return true;
                };
                let is_inbox = source == Source::Replies;
                let assigned = Assigned {
                    generation,
                    verify,
                    unread_end: Some(end).filter(|end| is_inbox && from < *end),
                };
                feed.assigned.insert(partition, assigned);
                if let Err(error) = self.consumer.add(&[(&feed.topic, partition, from)]) {
                    let cause = LostCause::Client(error.to_string());
                    self.lost(source, partition, cause);
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
        let mut bytes = 0;
        let mut mismatches = Vec::new();
        let mut ends = Vec::new();
        let waits_for_end = self.waits_for_end();
        let feeds = &mut self.feeds;
        let mut on_record = |record: RecordRef<'_>| {
            let partition = record.partition();
            let Some(feed) = feeds.iter_mut().find(|feed| *feed.topic == *record.topic()) else {
                return;
            };
            let Some(assigned) = feed.assigned.get_mut(&partition) else {
                return;
            };
            match verified(assigned, &feed.decoder, &record) {
                Verified::Below => {}
                Verified::Differs { expected, found } => {
                    let cause = LostCause::Fingerprint { expected, found };
                    mismatches.push((feed.source, partition, cause));
                }
                Verified::Go => {
                    let event = feed.decoder.event(&record);
                    bytes += record.bytes();
                    records.push(Arrived {
                        generation: assigned.generation,
                        partition,
                        event,
                    });
                }
            }
        };
        let mut on_end = |topic: &str, partition: PartitionId, end: Offset| {
            ends.push((topic.to_owned(), partition, end));
        };
        let polled = if waits_for_end {
            self.consumer
                .poll_with_positions(limits, PATIENCE, &mut on_record, &mut on_end)
        } else {
            self.consumer.poll(limits, PATIENCE, &mut on_record)
        };
        self.credit.read(Amount {
            records: records.len(),
            bytes,
        });
        for (source, partition, cause) in mismatches {
            self.lost(source, partition, cause);
        }
        let read = records.len();
        for (topic, partition, end) in ends {
            records.extend(self.inbox_read(&topic, partition, end));
        }
        if !records.is_empty() {
            self.send(Input::Records {
                source: self.feeds[0].source,
                amount: Amount {
                    records: read,
                    bytes,
                },
                records,
            });
        }
        match polled {
            Ok(_) => {}
            Err(PollError::OffsetOutOfRange {
                topic, partition, ..
            }) => {
                let mut feeds = self.feeds.iter();
                if let Some(feed) = feeds.find(|feed| *feed.topic == *topic) {
                    self.lost(feed.source, partition, LostCause::OutOfRange);
                }
            }
            Err(error) => {
                let cause = chain(&error);
                for feed in &self.feeds {
                    for partition in feed.assigned.keys() {
                        self.lost(feed.source, *partition, LostCause::Client(cause.clone()));
                    }
                }
            }
        }
    }

    /// Whether an engine waits for replies to be read to an end. To ask for positions has its price,
    /// and records tell how far was read, unless the last ones are none that are delivered.
    fn waits_for_end(&self) -> bool {
        let mut assigned = self.feeds.iter().flat_map(|feed| feed.assigned.values());
        assigned.any(|assigned| assigned.unread_end.is_some())
    }

    /// The engine is told that replies were read to the end that it waits for, for records that are
    /// never delivered (those of transactions' ends) may be the last ones.
    fn inbox_read(&mut self, topic: &str, partition: PartitionId, end: Offset) -> Option<Arrived> {
        let mut feeds = self.feeds.iter_mut();
        let feed = feeds.find(|feed| feed.source == Source::Replies && *feed.topic == *topic)?;
        let assigned = feed.assigned.get_mut(&partition)?;
        if assigned.unread_end.is_none_or(|unread| end < unread) {
            return None;
        }
        assigned.unread_end = None;
        Some(Arrived {
            generation: assigned.generation,
            partition,
            event: Event::InboxRead(end),
        })
    }

    /// Tells the loop that a partition cannot be read, which makes it order its removal.
    fn lost(&self, source: Source, partition: PartitionId, cause: LostCause) {
        let mut feeds = self.feeds.iter();
        let feed = feeds.find(|feed| feed.source == source);
        if let Some(assigned) = feed.and_then(|feed| feed.assigned.get(&partition)) {
            let generation = assigned.generation;
            self.send(Input::Lost {
                source,
                generation,
                partition,
                cause,
            });
        }
    }

    /// Fails only when the loop has ended, and then it orders this thread to stop.
    fn send(&self, input: Input) {
        let _ = self.sender.send(input);
    }
}

enum Verified {
    /// A record that belongs to an engine.
    Go,
    /// The record below the checkpoint, as it was.
    Below,
    /// Another record than the checkpoint saw.
    Differs { expected: u64, found: u64 },
}

/// Holds the first record of an assignment against the checkpoint's fingerprint, if it has one.
fn verified(assigned: &mut Assigned, decoder: &Decoder, record: &RecordRef<'_>) -> Verified {
    match assigned.verify {
        Some((below, _)) if record.offset() > below => {
            // The log has a gap below the checkpoint: compaction or a control record.
            assigned.verify = None;
            Verified::Go
        }
        Some((_, expected)) => {
            let found = decoder.fingerprint(record);
            if found == expected {
                assigned.verify = None;
                Verified::Below
            } else {
                Verified::Differs { expected, found }
            }
        }
        None => Verified::Go,
    }
}
