//! The records that a producer has in flight in each partition, and those that wait behind them.
//!
//! By default librdkafka sends a record immediately, until five requests are in flight in a
//! partition. Its thread then spins until one of them is acknowledged, because a partition of an
//! idempotent producer may have no more. So records for a partition with records in flight wait
//! here, and leave as one batch when those are settled. Requests grow with the load, no thread
//! spins, and a record for an idle partition leaves immediately.
//!
//! What must hold:
//!
//! * Records of a partition leave in the order in which they arrived. A released record is in
//!   flight from then on. So more are released only once it was settled, or to the single thread
//!   that asks for overdue records.
//! * A waiting record is released exactly once, by [`PartitionQueues::settled`],
//!   [`PartitionQueues::overdue`] or [`PartitionQueues::close`], and soon: librdkafka counts its
//!   delivery timeout only from then on.
//!
//! A record that is sent by its key does not wait here. When it is settled, it counts for the
//! partition that it was sent to: a record that waits there may leave early.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waybill_engine::PartitionId;

use crate::record::{Header, OutRecord};

/// The partitions with records in flight.
#[derive(Debug)]
pub(crate) struct PartitionQueues<D> {
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D> {
    by_topic: HashMap<String, HashMap<PartitionId, PartitionQueue<D>>>,
    closed: bool,
}

#[derive(Debug)]
struct PartitionQueue<D> {
    in_flight: usize,
    waiting: Vec<QueuedRecord<D>>,
    /// When the first waiting record arrived.
    since: Instant,
}

/// A waiting record, with its token.
#[derive(Debug)]
pub(crate) struct QueuedRecord<D> {
    partition: PartitionId,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    pub(crate) token: D,
}

impl<D> Default for PartitionQueues<D> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                by_topic: HashMap::new(),
                closed: false,
            }),
        }
    }
}

impl<D> PartitionQueues<D> {
    /// Takes a record. Returns its token if the record is to be sent now; it is then in flight, and
    /// [`PartitionQueues::settled`] must follow.
    pub(crate) fn enter(&self, record: &OutRecord<'_>, token: D) -> Option<D> {
        let mut state = self.state();
        if state.closed {
            return Some(token);
        }
        let queues = match state.by_topic.get_mut(record.topic) {
            Some(queues) => queues,
            None => state.by_topic.entry(record.topic.to_owned()).or_default(),
        };
        let Some(queue) = queues.get_mut(&record.partition) else {
            let queue = PartitionQueue {
                in_flight: 1,
                waiting: Vec::new(),
                since: Instant::now(),
            };
            queues.insert(record.partition, queue);
            return Some(token);
        };
        if queue.waiting.is_empty() {
            queue.since = Instant::now();
        }
        queue.waiting.push(QueuedRecord::of(record, token));
        None
    }

    /// A record in flight is settled. If it was the last one, returns the records that waited for
    /// it: they are in flight from now on, and must be sent in this order.
    pub(crate) fn settled(&self, topic: &str, partition: PartitionId) -> Vec<QueuedRecord<D>> {
        let mut state = self.state();
        let Some(queues) = state.by_topic.get_mut(topic) else {
            return Vec::new();
        };
        let Some(queue) = queues.get_mut(&partition) else {
            return Vec::new();
        };
        queue.in_flight -= 1;
        if queue.in_flight > 0 {
            return Vec::new();
        }
        if queue.waiting.is_empty() {
            queues.remove(&partition);
            if queues.is_empty() {
                state.by_topic.remove(topic);
            }
            return Vec::new();
        }
        queue.in_flight = queue.waiting.len();
        std::mem::take(&mut queue.waiting)
    }

    /// The records that have waited for `longest` behind others in flight, by topic and partition.
    /// They are in flight from now on, and must be sent in this order. Only one thread may call
    /// this.
    pub(crate) fn overdue(
        &self,
        longest: Duration,
    ) -> Vec<(String, PartitionId, Vec<QueuedRecord<D>>)> {
        let mut overdue = Vec::new();
        for (topic, queues) in &mut self.state().by_topic {
            for (&partition, queue) in queues {
                if !queue.waiting.is_empty() && queue.since.elapsed() >= longest {
                    queue.in_flight += queue.waiting.len();
                    overdue.push((topic.clone(), partition, std::mem::take(&mut queue.waiting)));
                }
            }
        }
        overdue
    }

    /// Whether no record is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.state().by_topic.is_empty()
    }

    /// Lets no record wait from now on. Returns those that did.
    pub(crate) fn close(&self) -> Vec<QueuedRecord<D>> {
        let mut state = self.state();
        state.closed = true;
        let queues = std::mem::take(&mut state.by_topic);
        queues
            .into_values()
            .flat_map(HashMap::into_values)
            .flat_map(|queue| queue.waiting)
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> QueuedRecord<D> {
    fn of(record: &OutRecord<'_>, token: D) -> Self {
        let headers = record.headers.iter();
        Self {
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
            token,
        }
    }

    /// The target partition.
    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Key and value together, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        len(&self.key) + len(&self.value)
    }

    /// Sends the record, with its token.
    pub(crate) fn send<R>(self, topic: &str, send: impl FnOnce(&OutRecord<'_>, D) -> R) -> R {
        let headers = Header::all_of(&self.headers);
        let record = OutRecord {
            topic,
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
        };
        send(&record, self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: PartitionId = PartitionId(3);

    fn enter(queues: &PartitionQueues<u32>, token: u32) -> Option<u32> {
        queues.enter(&OutRecord::new("t", PARTITION, b"key", b"value"), token)
    }

    fn tokens(released: Vec<QueuedRecord<u32>>) -> Vec<u32> {
        released.into_iter().map(|waiting| waiting.token).collect()
    }

    #[test]
    fn records_that_arrive_during_a_send_leave_together_when_it_is_settled() {
        let queues = PartitionQueues::default();
        assert_eq!(enter(&queues, 1), Some(1));
        assert_eq!(enter(&queues, 2), None);
        assert_eq!(enter(&queues, 3), None);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [2, 3]);
        // Both are in flight now, and the next waits for both.
        assert_eq!(enter(&queues, 4), None);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [4]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        // Idle again.
        assert_eq!(enter(&queues, 5), Some(5));
    }

    #[test]
    fn queues_of_partitions_and_topics_are_independent() {
        let queues = PartitionQueues::default();
        assert_eq!(enter(&queues, 1), Some(1));
        let beside = OutRecord::new("t", PartitionId(4), b"", b"");
        assert_eq!(queues.enter(&beside, 2), Some(2));
        let elsewhere = OutRecord::new("u", PARTITION, b"", b"");
        assert_eq!(queues.enter(&elsewhere, 3), Some(3));
        assert_eq!(enter(&queues, 4), None);
        assert_eq!(tokens(queues.settled("u", PARTITION)), [0; 0]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [4]);
    }

    #[test]
    fn a_queued_record_is_sent_unchanged() {
        let queues = PartitionQueues::default();
        let header = Header {
            key: "h",
            value: None,
        };
        let record = OutRecord {
            topic: "t",
            partition: PARTITION,
            key: None,
            value: Some(b"value"),
            headers: &[header],
        };
        assert_eq!(queues.enter(&record, 1), Some(1));
        assert_eq!(queues.enter(&record, 2), None);
        let waiting = queues.settled("t", PARTITION).pop().unwrap();
        assert_eq!((waiting.bytes(), waiting.partition()), (5, PARTITION));
        waiting.send("t", |sent, token| {
            assert_eq!(token, 2);
            assert_eq!(format!("{sent:?}"), format!("{record:?}"));
        });
    }

    #[test]
    fn an_overdue_record_is_sent_while_others_are_in_flight() {
        let queues = PartitionQueues::default();
        assert!(queues.are_idle());
        assert_eq!(enter(&queues, 1), Some(1));
        assert_eq!(enter(&queues, 2), None);
        assert_eq!(enter(&queues, 3), None);
        assert!(queues.overdue(Duration::from_secs(3600)).is_empty());
        let (topic, partition, overdue) = queues.overdue(Duration::ZERO).pop().unwrap();
        assert_eq!((topic.as_str(), partition), ("t", PARTITION));
        assert_eq!(tokens(overdue), [2, 3]);
        assert!(queues.overdue(Duration::ZERO).is_empty());
        // All three are in flight, and the next waits for them.
        assert_eq!(enter(&queues, 4), None);
        for _ in 0..2 {
            assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        }
        assert_eq!(tokens(queues.settled("t", PARTITION)), [4]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert!(queues.are_idle());
    }

    #[test]
    fn closed_queues_hold_no_record() {
        let queues = PartitionQueues::default();
        assert_eq!(enter(&queues, 1), Some(1));
        assert_eq!(enter(&queues, 2), None);
        assert_eq!(tokens(queues.close()), [2]);
        assert_eq!(enter(&queues, 3), Some(3));
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
    }

    #[test]
    fn a_settlement_without_a_record_in_flight_is_ignored() {
        let queues: PartitionQueues<u32> = PartitionQueues::default();
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert_eq!(enter(&queues, 1), Some(1));
        // A record that was sent by its key, into this partition.
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert_eq!(enter(&queues, 2), Some(2));
        assert_eq!(enter(&queues, 3), None);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [3]);
        assert_eq!(tokens(queues.settled("t", PARTITION)), [0; 0]);
        assert!(queues.are_idle());
    }
}
