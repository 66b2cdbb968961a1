//! Takes records from a consumer, a batch at a time.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaError;
use waybill_engine::{Offset, PartitionId};

use crate::damage::DamagedLog;
use crate::record::RecordRef;
use crate::severity::{Severity, severity};

/// How much one poll may take. A poll takes at least one available record, whatever the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollLimits {
    /// At most this many records.
    pub records: usize,
    /// The poll stops once it has taken this many bytes of keys and values: one record may exceed
    /// the limit.
    pub bytes: usize,
}

impl PollLimits {
    /// Whether a poll that took this much may have left records.
    pub(crate) fn are_reached(&self, polled: Polled) -> bool {
        polled.records >= self.records || polled.bytes >= self.bytes
    }
}

/// How much one poll took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Polled {
    /// Records.
    pub records: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
}

/// Why a poll failed. An unreachable broker is not an error: the consumer logs it and waits.
///
/// Records handed to the callback before the error stay handed over.
#[derive(Debug, thiserror::Error)]
pub enum PollError {
    /// The next offsets to read do not exist: retention deleted them, the logs lost their ends, or
    /// the topic was recreated. These partitions are no longer read.
    #[error("{}", text(.0))]
    OffsetOutOfRange(Vec<OutOfRange>),
    /// Records are damaged, or the client stalls at them without an error. These partitions are no
    /// longer assigned; all others are read on.
    #[error("{}", text(.0))]
    Damaged(Vec<DamagedLog>),
    /// The position of an assigned partition became invalid, and the partition could not be
    /// determined.
    #[error("the position in one of the assigned partitions is no longer valid: {reason}")]
    PositionLost {
        /// librdkafka's reason.
        reason: String,
    },
    /// The consumer cannot continue: it is not authorized, or librdkafka gave up.
    #[error("the consumer {client_id:?} failed permanently")]
    Fatal {
        /// The client's ID.
        client_id: String,
        /// librdkafka's error.
        #[source]
        source: KafkaError,
    },
}

/// A partition whose next offset to read does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfRange {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The next offset to read.
    pub offset: Offset,
    /// The first offset that exists.
    pub low: Offset,
    /// The offset that the next record will get.
    pub high: Offset,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            offset,
            low,
            high,
        } = self;
        write!(
            f,
            "offset {offset} of {topic} partition {partition} does not exist: the partition begins \
             at {low} and ends before {high}"
        )
    }
}

fn text(partitions: &[impl fmt::Display]) -> String {
    let text: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    text.join("; ")
}

/// Takes records up to a limit or until none is available, or until `stop` returns true: it is
/// called whenever librdkafka has no record. `on_end` is called for a partition (of some topic)
/// whose end was reached after the records handed over so far, if the consumer reports ends.
///
/// Transient errors are skipped: the consumer's context has logged them.
pub(crate) fn take<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    limits: PollLimits,
    timeout: Duration,
    mut on_record: impl FnMut(RecordRef<'_>),
    mut on_end: impl FnMut(i32),
    stop: impl Fn() -> bool,
) -> Result<Polled, KafkaError> {
    let mut polled = Polled::default();
    let deadline = Instant::now() + timeout;
    loop {
        let wait = if polled.records == 0 {
            whole_millis(deadline.saturating_duration_since(Instant::now()))
        } else {
            Duration::ZERO
        };
        match consumer.poll(wait) {
            Some(Ok(message)) => {
                let record = RecordRef::new(&message);
                polled.records += 1;
                polled.bytes += record.bytes();
                on_record(record);
                if limits.are_reached(polled) {
                    return Ok(polled);
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => on_end(partition),
            Some(Err(error)) if severity(&error) == Severity::Transient => {}
            Some(Err(error)) => return Err(error),
            None => {
                if polled.records > 0 || stop() || Instant::now() >= deadline {
                    return Ok(polled);
                }
            }
        }
    }
}

/// Rounded up: the client waits for whole milliseconds, and not at all for less than one. Without
/// rounding, the last millisecond of each wait would be a busy loop.
fn whole_millis(wait: Duration) -> Duration {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_to_whole_milliseconds() {
        let cases = [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)];
        for (nanos, millis) in cases {
            let wait = whole_millis(Duration::from_nanos(nanos));
            assert_eq!(wait, Duration::from_millis(millis), "{nanos} ns");
        }
    }
}
