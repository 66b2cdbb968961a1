//! Fetch, with long polling.
//!
//! A fetch that finds too little registers itself with its partitions and is woken by the append.
//! It runs when its answer is the next to leave its connection, so that pipelined fetches do not
//! hold buffers at the same time. There are no fetch sessions: every answer names session 0, after
//! which clients list all their partitions each time.
//!
//! **A waiting fetch keeps no part of its request.** It keeps existing partitions, each once; a
//! fetch of anything else is answered immediately. With more than some 1,600 partitions it still
//! needs a permit for them, and waits no longer than [`COUNTED_WAIT_MAX`], so that others get one.
//!
//! The answer is written by hand: records are read from the file straight into it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::FetchRequest;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Call, Reply, int};
use crate::frame::Frame;
use crate::log::{Partition, ReadError};
use crate::stats::add;
use waybill_connections::Buffers;
use waybill_wire::batch::LEADER_EPOCH;
use waybill_wire::{self as wire, Malformed, OK};

/// The state that the fetches of one connection share.
#[derive(Debug, Default)]
pub(crate) struct LongPoll {
    /// Wakes a waiting fetch.
    appended: Arc<Notify>,
    answered: Mutex<Answered>,
}

/// The last answer to a fetch of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Answered {
    /// When it was made.
    at: Option<Instant>,
    /// How many records could be read then.
    records: u64,
}

impl Answered {
    /// The rest of `pause` since this answer, at `now`. Zero if few records could be read then.
    fn remaining_pause(self, pause: Duration, now: Instant) -> Duration {
        match self.at {
            Some(at) if self.records >= MANY_RECORDS => {
                pause.saturating_sub(now.saturating_duration_since(at))
            }
            Some(_) | None => Duration::ZERO,
        }
    }
}

/// A consumer that finds this many records at a time is busy, and can wait for further ones.
const MANY_RECORDS: u64 = 8;
/// With this many readable records the answer is sent immediately: more would not make one cheaper.
const ENOUGH_RECORDS: u64 = 512;

impl LongPoll {
    /// Waits for records until `pause` after the last answer, if many could be read then and few
    /// can be now: the more travel together, the less each costs.
    async fn gather(&self, pause: Duration, wanted: &[WantedTopic]) {
        let rest = self.answered().remaining_pause(pause, Instant::now());
        if !rest.is_zero() && is_gathering(wanted) {
            tokio::time::sleep(rest).await;
        }
        *self.answered() = Answered {
            at: Some(Instant::now()),
            records: readable(wanted),
        };
    }

    fn answered(&self) -> std::sync::MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer is worth delaying: there are a few records, and no partition's part is full.
fn is_gathering(wanted: &[WantedTopic]) -> bool {
    let mut all = wanted.iter().flat_map(|topic| &topic.partitions);
    (1..ENOUGH_RECORDS).contains(&readable(wanted))
        && all.all(|wanted| {
            let bytes = check(wanted).map(|partition| partition.bytes_from(wanted.offset));
            matches!(bytes, Ok(Ok(bytes)) if bytes < wanted.bytes_max as u64)
        })
}

/// How many records can be read.
fn readable(wanted: &[WantedTopic]) -> u64 {
    let all = wanted.iter().flat_map(|topic| &topic.partitions);
    let readable = all.filter_map(|wanted| {
        let partition = wanted.partition.as_ref().ok()?;
        let readable = partition.high_watermark().saturating_sub(wanted.offset);
        u64::try_from(readable).ok()
    });
    readable.fold(0, u64::saturating_add)
}

/// The longest wait of a fetch, whatever it asks for: Kafka's clients wait 0.5 s by default.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The longest wait of a fetch that holds a permit.
const COUNTED_WAIT_MAX: Duration = Duration::from_secs(1);
/// The bytes that a partition adds to the answer besides its records, in the newest version.
const PARTITION_HEAD_BYTES: usize = 42;
/// The bytes that a topic adds besides its name and partitions.
const TOPIC_HEAD_BYTES: usize = 6;

/// A requested partition.
struct Wanted {
    partition: Result<Arc<Partition>, ResponseError>,
    index: i32,
    offset: i64,
    leader_epoch: i32,
    bytes_max: usize,
}

/// The requested partitions of a topic, at least one.
struct WantedTopic {
    /// The topic's own name if it exists, otherwise a copy.
    name: Arc<str>,
    partitions: Vec<Wanted>,
}

/// The memory of `wanted`, in bytes.
fn kept_bytes(wanted: &Vec<WantedTopic>) -> usize {
    let topics = wanted
        .iter()
        .map(|topic| topic.name.len() + topic.partitions.capacity() * size_of::<Wanted>());
    wanted.capacity() * size_of::<WantedTopic>() + topics.sum::<usize>()
}

/// Collects into a list that has no room for more. `collect` alone may reuse the allocation of the
/// request's list, of which little may be left.
fn collect_exact<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = items.collect();
    list.shrink_to_fit();
    list
}

/// The bytes of the answer besides the records.
fn head_bytes(wanted: &[WantedTopic]) -> usize {
    let topics = wanted.iter().map(|topic| {
        TOPIC_HEAD_BYTES + topic.name.len() + topic.partitions.len() * PARTITION_HEAD_BYTES
    });
    topics.sum()
}

/// Answers once `min_bytes` can be read, or the time is over.
pub(super) fn fetch(
    call: Call,
    long_poll: Arc<LongPoll>,
    request: FetchRequest,
) -> Result<Reply, Malformed> {
    add(&call.server.counters.fetch_requests, 1);
    if request.session_id != 0 {
        let mut frame = start(&call);
        put_head(
            &mut frame,
            call.head.version,
            ResponseError::FetchSessionIdNotFound.code(),
            0,
        );
        return Ok(Reply::Now(wire::finish(frame)));
    }
    let bytes_max = usize::try_from(request.max_bytes).unwrap_or(0);
    let bytes_max = bytes_max.min(call.server.config.fetch_bytes_max);
    let bytes_min = usize::try_from(request.min_bytes)
        .unwrap_or(0)
        .min(bytes_max);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX);
    let mut wanted = resolve(&call, request);
    let kept_bytes = kept_bytes(&wanted);
    let wait = match Buffers::is_counted(kept_bytes) {
        true => wait.min(COUNTED_WAIT_MAX),
        false => wait,
    };
    let answer = Box::pin(async move {
        wait_for_records(&call, &long_poll.appended, &wanted, bytes_min, wait).await;
        long_poll
            .gather(call.server.config.fetch_gather.min(wait), &wanted)
            .await;
        deny_withdrawn(&call, &mut wanted);
        answer(&call, &wanted, bytes_max).await
    });
    Ok(Reply::LaterKeeping { answer, kept_bytes })
}

fn resolve(call: &Call, request: FetchRequest) -> Vec<WantedTopic> {
    let mut seen = HashSet::new();
    let topics = request.topics.into_iter().filter_map(|asked| {
        let topic = call
            .may_read(&asked.topic)
            .map(|()| call.server.topics.get(&asked.topic));
        let once = asked
            .partitions
            .into_iter()
            .filter(|wanted| seen.insert((asked.topic.clone(), wanted.partition)));
        let partitions = once.map(|wanted| Wanted {
            partition: topic.as_ref().map_err(|error| *error).and_then(|topic| {
                let partition = topic.as_ref().and_then(|t| t.partition(wanted.partition));
                partition
                    .cloned()
                    .ok_or(ResponseError::UnknownTopicOrPartition)
            }),
            index: wanted.partition,
            offset: wanted.fetch_offset,
            leader_epoch: wanted.current_leader_epoch,
            bytes_max: usize::try_from(wanted.partition_max_bytes).unwrap_or(0),
        });
        let partitions = collect_exact(partitions);
        let name = match &topic {
            Ok(Some(topic)) => Arc::clone(&topic.name),
            Ok(None) | Err(_) => Arc::from(asked.topic.as_str()),
        };
        // Kafka does not answer for a topic without partitions either.
        (!partitions.is_empty()).then_some(WantedTopic { name, partitions })
    });
    collect_exact(topics)
}

/// Denies partitions that the login no longer allows: the fetch may have waited for a long time.
fn deny_withdrawn(call: &Call, wanted: &mut [WantedTopic]) {
    for topic in wanted {
        // Partitions that were denied immediately are counted already.
        if topic
            .partitions
            .iter()
            .all(|wanted| wanted.partition.is_err())
        {
            continue;
        }
        if let Err(denied) = call.may_read(&topic.name) {
            for wanted in &mut topic.partitions {
                wanted.partition = Err(denied);
            }
        }
    }
}

async fn wait_for_records(
    call: &Call,
    appended: &Arc<Notify>,
    wanted: &[WantedTopic],
    bytes_min: usize,
    wait: Duration,
) {
    let all = || wanted.iter().flat_map(|topic| &topic.partitions);
    if wait.is_zero() || all().next().is_none() || enough(wanted, bytes_min) {
        return;
    }
    add(&call.server.counters.fetch_waits, 1);
    let mut deadline = std::pin::pin!(tokio::time::sleep_until(Instant::now() + wait));
    let mut stopping = std::pin::pin!(call.server.stopping.cancelled());
    loop {
        for partition in all().filter_map(|wanted| wanted.partition.as_ref().ok()) {
            partition.wake(appended);
        }
        // Look again: an append before the registration did not wake this fetch.
        if enough(wanted, bytes_min) {
            return;
        }
        tokio::select! {
            () = appended.notified() => {}
            () = &mut deadline => return,
            () = &mut stopping => return,
        }
        if enough(wanted, bytes_min) {
            return;
        }
    }
}

/// Whether the answer is ready: enough bytes, or an error.
fn enough(wanted: &[WantedTopic], bytes_min: usize) -> bool {
    if bytes_min == 0 {
        return true;
    }
    let mut bytes = 0_u64;
    for wanted in wanted.iter().flat_map(|topic| &topic.partitions) {
        let Ok(partition) = check(wanted) else {
            return true;
        };
        let found = if bytes_min == 1 {
            partition.has_records(wanted.offset).map(u64::from)
        } else {
            partition.bytes_from(wanted.offset)
        };
        let Ok(found) = found else { return true };
        bytes += found.min(wanted.bytes_max.max(1) as u64);
        if bytes >= bytes_min as u64 {
            return true;
        }
    }
    false
}

fn check(wanted: &Wanted) -> Result<&Arc<Partition>, ResponseError> {
    let partition = wanted.partition.as_ref().map_err(|error| *error)?;
    if wanted.leader_epoch > LEADER_EPOCH {
        return Err(ResponseError::UnknownLeaderEpoch);
    }
    Ok(partition)
}

async fn answer(call: &Call, wanted: &[WantedTopic], bytes_max: usize) -> Result<Frame, Malformed> {
    // Reserve no more than can be there; later appends are left for the next fetch.
    let mut readable = 0_u64;
    // The first batch is read even if it is larger than the requested bytes.
    let mut batch_bytes_max = 0;
    for wanted in wanted.iter().flat_map(|topic| &topic.partitions) {
        if let Ok(partition) = check(wanted) {
            let found = partition.bytes_from(wanted.offset).unwrap_or(0);
            readable += found.min(wanted.bytes_max as u64);
            batch_bytes_max = batch_bytes_max.max(found.min(partition.message_bytes_max()));
        }
    }
    let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    let readable = bytes(readable).min(bytes_max);
    let head_bytes = head_bytes(wanted);
    let needed = readable.max(bytes(batch_bytes_max)) + head_bytes;
    let permit = match call.server.buffers.reserve(needed) {
        Some(reserved) => Some(reserved.await),
        None => None,
    };
    let version = call.head.version;
    let mut frame = start(call);
    frame.reserve(readable + head_bytes + 64);
    put_head(&mut frame, version, OK, wanted.len());
    let mut left = readable;
    let mut fetched = 0;
    let mut is_first = true;
    for topic in wanted {
        frame.put_i16(i16::try_from(topic.name.len()).unwrap_or(i16::MAX));
        frame.put_slice(topic.name.as_bytes());
        frame.put_i32(int(topic.partitions.len()));
        for wanted in &topic.partitions {
            let read = put_partition(&mut frame, version, wanted, left, is_first);
            left = left.saturating_sub(read);
            fetched += read;
            is_first &= read == 0;
        }
    }
    add(&call.server.counters.fetched_bytes, fetched);
    let permit = permit.and_then(|permit| permit.shrink(frame.capacity()));
    Ok(Frame {
        bytes: wire::finish(frame),
        permit,
    })
}

/// A frame with its header: length, correlation id.
fn start(call: &Call) -> BytesMut {
    let mut frame = BytesMut::with_capacity(256);
    frame.put_i32(0);
    frame.put_i32(call.head.correlation_id);
    frame
}

/// The answer up to the first topic.
fn put_head(frame: &mut BytesMut, version: i16, error_code: i16, topics: usize) {
    frame.put_i32(0);
    if version >= 7 {
        frame.put_i16(error_code);
        frame.put_i32(0);
    }
    frame.put_i32(int(topics));
}

/// One partition with its records; returns their bytes.
fn put_partition(
    frame: &mut BytesMut,
    version: i16,
    wanted: &Wanted,
    left: usize,
    is_first: bool,
) -> usize {
    frame.put_i32(wanted.index);
    let error_at = frame.len();
    frame.put_i16(OK);
    let (high_watermark, log_start) = match &wanted.partition {
        Ok(partition) => (partition.high_watermark(), partition.log_start()),
        Err(_) => (-1, -1),
    };
    frame.put_i64(high_watermark);
    // Without transactions everything below the high watermark is stable.
    frame.put_i64(high_watermark);
    if version >= 5 {
        frame.put_i64(log_start);
    }
    // No aborted transactions.
    frame.put_i32(-1);
    if version >= 11 {
        // No preferred replica.
        frame.put_i32(-1);
    }
    let length_at = frame.len();
    frame.put_i32(0);
    let read = check(wanted).and_then(|partition| {
        let bytes_max = wanted.bytes_max.min(left);
        partition
            .read(wanted.offset, bytes_max, is_first, frame)
            .map_err(|error| match error {
                ReadError::OutOfRange => ResponseError::OffsetOutOfRange,
                ReadError::Offline => ResponseError::KafkaStorageError,
                ReadError::Damaged(_) => ResponseError::CorruptMessage,
                ReadError::Deleted => ResponseError::UnknownTopicOrPartition,
                ReadError::Io(cause) => {
                    tracing::error!(
                        topic = %partition.topic, partition = partition.index, %cause,
                        "a log cannot be read"
                    );
                    ResponseError::KafkaStorageError
                }
            })
    });
    match read {
        Ok(read) => {
            frame[length_at..length_at + 4].copy_from_slice(&int(read).to_be_bytes());
            read
        }
        Err(error) => {
            frame[error_at..error_at + 2].copy_from_slice(&error.code().to_be_bytes());
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_list_does_not_keep_the_allocation_of_a_long_one() {
        let long = vec![[0_u64; 12]; 65_535];
        let short = long.into_iter().enumerate();
        let short = collect_exact(short.filter_map(|(at, item)| (at == 0).then_some(item[0])));
        assert_eq!(short.capacity(), 1);
    }

    #[test]
    fn a_fetch_is_delayed_only_after_an_answer_with_many_records() {
        let (now, pause) = (Instant::now(), Duration::from_millis(5));
        let rest = |records, micros| {
            let answered = Answered {
                at: Some(now),
                records,
            };
            let rest = answered.remaining_pause(pause, now + Duration::from_micros(micros));
            rest.as_micros()
        };
        assert_eq!(
            Answered::default().remaining_pause(pause, now),
            Duration::ZERO
        );
        assert_eq!([rest(0, 10), rest(MANY_RECORDS - 1, 10)], [0, 0]);
        assert_eq!(
            [10, 4_999, 5_000, 20_000].map(|micros| rest(MANY_RECORDS, micros)),
            [4_990, 1, 0, 0]
        );
    }
}
