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
//! * Records of a partition leave in the order in which they came. A released record is in flight
//!   from then on. So more are released only once it was settled, or to the single thread that asks
//!   for overdue records.
//! * A waiting record is released exactly once, by [`Lanes::settled`], [`Lanes::overdue`] or
//!   [`Lanes::close`], and soon: librdkafka counts its delivery timeout only from then on.
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
pub(crate) struct Lanes<D> {
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D> {
    of_topic: HashMap<String, HashMap<PartitionId, Lane<D>>>,
    closed: bool,
}

#[derive(Debug)]
struct Lane<D> {
    under_way: usize,
    waiting: Vec<Waiting<D>>,
    /// When the first waiting record came.
    since: Instant,
}

/// A waiting record, with its token.
#[derive(Debug)]
pub(crate) struct Waiting<D> {
    partition: PartitionId,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    pub(crate) token: D,
}

impl<D> Default for Lanes<D> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                of_topic: HashMap::new(),
                closed: false,
            }),
        }
    }
}

impl<D> Lanes<D> {
    /// Takes a record. Returns its token if the record is to be sent now; it is then in flight, and
    /// [`Lanes::settled`] must follow.
    pub(crate) fn enter(&self, record: &OutRecord<'_>, token: D) -> Option<D> {
        let mut state = self.state();
        if state.closed {
            return Some(token);
        }
        let lanes = match state.of_topic.get_mut(record.topic) {
            Some(lanes) => lanes,
            None => state.of_topic.entry(record.topic.to_owned()).or_default(),
        };
        let Some(lane) = lanes.get_mut(&record.partition) else {
            let lane = Lane {
                under_way: 1,
                waiting: Vec::new(),
                since: Instant::now(),
            };
            lanes.insert(record.partition, lane);
            return Some(token);
        };
        if lane.waiting.is_empty() {
            lane.since = Instant::now();
        }
        lane.waiting.push(Waiting::of(record, token));
        None
    }

    /// A record in flight is settled. If it was the last one, returns the records that waited for
    /// it: they are in flight from now on, and must be sent in this order.
    pub(crate) fn settled(&self, topic: &str, partition: PartitionId) -> Vec<Waiting<D>> {
        let mut state = self.state();
        let Some(lanes) = state.of_topic.get_mut(topic) else {
            return Vec::new();
        };
        let Some(lane) = lanes.get_mut(&partition) else {
            return Vec::new();
        };
        lane.under_way -= 1;
        if lane.under_way > 0 {
            return Vec::new();
        }
        if lane.waiting.is_empty() {
            lanes.remove(&partition);
            if lanes.is_empty() {
                state.of_topic.remove(topic);
            }
            return Vec::new();
        }
        lane.under_way = lane.waiting.len();
        std::mem::take(&mut lane.waiting)
    }

    /// The records that have waited for `patience` behind others in flight, by topic and partition.
    /// They are in flight from now on, and must be sent in this order. Only one thread may call
    /// this.
    pub(crate) fn overdue(
        &self,
        patience: Duration,
    ) -> Vec<(String, PartitionId, Vec<Waiting<D>>)> {
        let mut overdue = Vec::new();
        for (topic, lanes) in &mut self.state().of_topic {
            for (&partition, lane) in lanes {
                if !lane.waiting.is_empty() && lane.since.elapsed() >= patience {
                    lane.under_way += lane.waiting.len();
                    overdue.push((topic.clone(), partition, std::mem::take(&mut lane.waiting)));
                }
            }
        }
        overdue
    }

    /// Whether no record is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.state().of_topic.is_empty()
    }

    /// Lets no record wait from now on. Returns those that did.
    pub(crate) fn close(&self) -> Vec<Waiting<D>> {
        let mut state = self.state();
        state.closed = true;
        let lanes = std::mem::take(&mut state.of_topic);
        lanes
            .into_values()
            .flat_map(HashMap::into_values)
            .flat_map(|lane| lane.waiting)
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> Waiting<D> {
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

    fn enter(lanes: &Lanes<u32>, token: u32) -> Option<u32> {
        lanes.enter(&OutRecord::new("t", PARTITION, b"key", b"value"), token)
    }

    fn tokens(released: Vec<Waiting<u32>>) -> Vec<u32> {
        released.into_iter().map(|waiting| waiting.token).collect()
    }

    #[test]
    fn records_that_arrive_during_a_send_leave_together_when_it_is_settled() {
        let lanes = Lanes::default();
        assert_eq!(enter(&lanes, 1), Some(1));
        assert_eq!(enter(&lanes, 2), None);
        assert_eq!(enter(&lanes, 3), None);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [2, 3]);
        // Both are in flight now, and the next waits for both.
        assert_eq!(enter(&lanes, 4), None);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [4]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        // Idle again.
        assert_eq!(enter(&lanes, 5), Some(5));
    }

    #[test]
    fn partitions_and_topics_do_not_wait_for_each_other() {
        let lanes = Lanes::default();
        assert_eq!(enter(&lanes, 1), Some(1));
        let beside = OutRecord::new("t", PartitionId(4), b"", b"");
        assert_eq!(lanes.enter(&beside, 2), Some(2));
        let elsewhere = OutRecord::new("u", PARTITION, b"", b"");
        assert_eq!(lanes.enter(&elsewhere, 3), Some(3));
        assert_eq!(enter(&lanes, 4), None);
        assert_eq!(tokens(lanes.settled("u", PARTITION)), [0; 0]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [4]);
    }

    #[test]
    fn what_waits_is_the_record_that_came() {
        let lanes = Lanes::default();
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
        assert_eq!(lanes.enter(&record, 1), Some(1));
        assert_eq!(lanes.enter(&record, 2), None);
        let waiting = lanes.settled("t", PARTITION).pop().unwrap();
        assert_eq!((waiting.bytes(), waiting.partition()), (5, PARTITION));
        waiting.send("t", |sent, token| {
            assert_eq!(token, 2);
            assert_eq!(format!("{sent:?}"), format!("{record:?}"));
        });
    }

    #[test]
    fn a_record_that_waited_for_long_is_sent_during_another_send() {
        let lanes = Lanes::default();
        assert!(lanes.are_idle());
        assert_eq!(enter(&lanes, 1), Some(1));
        assert_eq!(enter(&lanes, 2), None);
        assert_eq!(enter(&lanes, 3), None);
        assert!(lanes.overdue(Duration::from_secs(3600)).is_empty());
        let (topic, partition, overdue) = lanes.overdue(Duration::ZERO).pop().unwrap();
        assert_eq!((topic.as_str(), partition), ("t", PARTITION));
        assert_eq!(tokens(overdue), [2, 3]);
        assert!(lanes.overdue(Duration::ZERO).is_empty());
        // All three are in flight, and the next waits for them.
        assert_eq!(enter(&lanes, 4), None);
        for _ in 0..2 {
            assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        }
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [4]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert!(lanes.are_idle());
    }

    #[test]
    fn nothing_waits_once_they_are_closed() {
        let lanes = Lanes::default();
        assert_eq!(enter(&lanes, 1), Some(1));
        assert_eq!(enter(&lanes, 2), None);
        assert_eq!(tokens(lanes.close()), [2]);
        assert_eq!(enter(&lanes, 3), Some(3));
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
    }

    #[test]
    fn a_word_too_many_is_harmless() {
        let lanes: Lanes<u32> = Lanes::default();
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert_eq!(enter(&lanes, 1), Some(1));
        // A record that was sent by its key, into this partition.
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert_eq!(enter(&lanes, 2), Some(2));
        assert_eq!(enter(&lanes, 3), None);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [3]);
        assert_eq!(tokens(lanes.settled("t", PARTITION)), [0; 0]);
        assert!(lanes.are_idle());
    }
}
