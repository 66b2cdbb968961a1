//! A client that finds out why a partition cannot be read.
//!
//! librdkafka reports a batch that it cannot decompress or whose checksum is wrong. A record that
//! it cannot parse looks to it like the cut-off end of an answer, which it reports in its protocol
//! log only. So this client reads that log and the statistics. Both are reset for each assignment.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode;
use waybill_engine::{Offset, PartitionId};

use super::DamageKind;
use crate::partition::partition_number;
use crate::partition_list::offsets_list;
use crate::severity::{Severity, severity};

/// How long one poll waits before the log and the statistics are checked.
const STEP: Duration = Duration::from_millis(20);
/// How long to drain events of the previous assignment.
const DRAIN: Duration = Duration::from_millis(5);
/// How many times the client must have failed to parse the record.
const UNPARSED_MIN: u32 = 3;
/// How many answers must have ended in an unparsable record while the position stayed the same.
const PARTIAL_MIN: u64 = 3;
/// The function of librdkafka that parses one record of a batch. It runs right after the checksum
/// of the batch was verified.
const RECORD_PARSER: &str = "rd_kafka_msgset_reader_msg_v2:";

/// What a probe found at an offset.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A record at the offset or after it, or the end of the partition.
    Readable,
    /// An unreadable record.
    Damaged(Damage),
    /// No broker answered in time.
    Unanswered,
}

/// Why a record cannot be read.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Damage {
    pub(super) kind: DamageKind,
    /// The error that the client or the broker reports.
    pub(super) cause: String,
    /// The first offset of the unreadable batch, if the client names it.
    pub(super) batch: Option<Offset>,
}

/// The client.
pub(super) struct Probe {
    consumer: BaseConsumer<ProbeLog>,
}

impl Probe {
    /// Creates a probe with the configuration of another consumer.
    pub(super) fn new(config: &ClientConfig) -> KafkaResult<Self> {
        let mut config = config.clone();
        for (name, value) in [
            ("enable.partition.eof", "true"),
            ("auto.offset.reset", "error"),
            ("fetch.error.backoff.ms", "10"),
            ("debug", "protocol"),
            ("statistics.interval.ms", "20"),
        ] {
            config.set(name, value);
        }
        // It joins no group: brokers would fence the member that has this instance id.
        config.remove("group.instance.id");
        config.remove("log_level");
        config.set_log_level(RDKafkaLogLevel::Debug);
        let consumer = config.create_with_context(ProbeLog::default())?;
        Ok(Self { consumer })
    }

    /// What can be read at an offset, or at the first readable offset after it. Waits for an answer
    /// up to `patience`.
    pub(super) fn ask(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        patience: Duration,
    ) -> Found {
        if self.assign(topic, partition, offset).is_err() {
            return Found::Unanswered;
        }
        let deadline = Instant::now() + patience;
        let log = self.consumer.context();
        loop {
            match self.consumer.poll(STEP) {
                Some(Ok(_)) | Some(Err(KafkaError::PartitionEOF(_))) => return Found::Readable,
                Some(Err(error)) if severity(&error) == Severity::Damaged => {
                    let reason = log.state().reason.take();
                    let kind = kind_of(&error, reason.as_deref());
                    let batch = reason.as_deref().and_then(batch_of);
                    return Found::Damaged(Damage {
                        kind,
                        cause: reason.unwrap_or_else(|| error.to_string()),
                        batch: batch.filter(|_| kind == DamageKind::Undecodable),
                    });
                }
                Some(Err(_)) | None => {}
            }
            let state = log.state();
            if state.is_unparsed {
                return Found::Damaged(Damage {
                    kind: DamageKind::Undecodable,
                    cause: "records at this offset cannot be parsed".to_owned(),
                    batch: None,
                });
            }
            if Instant::now() < deadline {
                continue;
            }
            return match state.partial >= PARTIAL_MIN && state.next == Some(offset.0) {
                true => Found::Damaged(Damage {
                    kind: DamageKind::Corrupt,
                    cause: "the batch at this offset is truncated, or its length is wrong"
                        .to_owned(),
                    batch: None,
                }),
                false => Found::Unanswered,
            };
        }
    }

    /// The client, for requests to brokers.
    pub(super) fn client(&self) -> &Client<impl ClientContext> {
        self.consumer.client()
    }

    fn assign(&self, topic: &str, partition: PartitionId, offset: Offset) -> KafkaResult<()> {
        self.consumer.unassign()?;
        while self.consumer.poll(DRAIN).is_some() {}
        let log = self.consumer.context();
        *log.state() = State {
            topic: topic.to_owned(),
            partition: partition_number(partition),
            offset: offset.0,
            ..State::default()
        };
        self.consumer
            .assign(&offsets_list(&[(topic, partition, offset)])?)
    }
}

/// Whether a batch that a client refuses is as it was written. A batch with a right checksum is.
/// The format's number is outside the checksummed bytes, and a broker that refuses to serve a batch
/// has found a wrong checksum.
fn kind_of(error: &KafkaError, reason: Option<&str>) -> DamageKind {
    let is_decoded_after_check = |reason: &str| reason.starts_with("Decompression ");
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::BadCompression) => DamageKind::Undecodable,
        Some(RDKafkaErrorCode::BadMessage | RDKafkaErrorCode::NotImplemented)
            if reason.is_some_and(is_decoded_after_check) =>
        {
            DamageKind::Undecodable
        }
        _ => DamageKind::Corrupt,
    }
}

/// The base offset of the batch that could not be decompressed.
fn batch_of(reason: &str) -> Option<Offset> {
    let (_, behind) = reason
        .strip_prefix("Decompression ")?
        .split_once(" of message at ")?;
    let (offset, _) = behind.split_once(' ')?;
    offset.parse().ok().map(Offset)
}

/// The errors, log lines and statistics of the client.
#[derive(Default)]
struct ProbeLog(Mutex<State>);

/// The state of one assignment.
#[derive(Default)]
struct State {
    /// The topic, partition and offset that the caller asked about.
    topic: String,
    partition: i32,
    offset: i64,
    /// The reason of the last error.
    reason: Option<String>,
    /// How many times a record was not parsed.
    unparsed: u32,
    /// `unparsed` and the client's count of incomplete answers, from the first statistics that show
    /// it fetching at `offset`. Earlier counts may be left over from the previous assignment.
    base: Option<(u32, u64)>,
    /// Whether the record at `offset` itself cannot be parsed: the client has repeatedly failed to
    /// parse a record and still fetches at `offset`. A readable record would have moved the
    /// position.
    is_unparsed: bool,
    /// How many answers were incomplete since.
    partial: u64,
    /// The next offset to fetch.
    next: Option<i64>,
}

impl State {
    /// Takes statistics: the next offset to fetch, and the number of incomplete answers so far.
    fn fetches_at(&mut self, next: Option<i64>, partial: u64) {
        self.next = next;
        match self.base {
            _ if next != Some(self.offset) => {
                (self.base, self.partial, self.is_unparsed) = (None, 0, false);
            }
            None => self.base = Some((self.unparsed, partial)),
            Some((unparsed_before, partial_before)) => {
                self.is_unparsed = self.unparsed - unparsed_before >= UNPARSED_MIN;
                self.partial = partial.saturating_sub(partial_before);
            }
        }
    }
}

impl ProbeLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for ProbeLog {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, line: &str) {
        if matches!(facility, "PROTOERR" | "PROTOUFLOW") && line.contains(RECORD_PARSER) {
            self.state().unparsed += 1;
        }
    }

    fn error(&self, _: KafkaError, reason: &str) {
        self.state().reason = Some(reason.to_owned());
    }

    fn stats(&self, statistics: Statistics) {
        let mut state = self.state();
        let topic = statistics.topics.get(&state.topic);
        let partition = topic.and_then(|topic| topic.partitions.get(&state.partition));
        let partial: u64 = statistics.brokers.values().map(|of| of.rxpartial).sum();
        let next = partition.map(|partition| partition.next_offset);
        state.fetches_at(next, partial);
    }
}

impl ConsumerContext for ProbeLog {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_as_unparsed_only_while_the_client_fetches_at_it() {
        let mut state = State {
            offset: 7,
            // Left over from the previous assignment.
            unparsed: 5,
            ..State::default()
        };
        state.fetches_at(Some(7), 9);
        state.unparsed += UNPARSED_MIN - 1;
        state.fetches_at(Some(7), 10);
        assert!(!state.is_unparsed);
        assert_eq!(state.partial, 1);
        // The record at 7 could be read, and that at 8 cannot.
        state.unparsed += UNPARSED_MIN;
        state.fetches_at(Some(8), 20);
        assert!(!state.is_unparsed);
        let mut state = State {
            offset: 8,
            ..State::default()
        };
        state.fetches_at(Some(8), 20);
        state.unparsed += UNPARSED_MIN;
        state.fetches_at(Some(8), 23);
        assert!(state.is_unparsed);
    }

    #[test]
    fn only_batches_with_a_valid_checksum_count_as_written() {
        use DamageKind::{Corrupt, Undecodable};
        use RDKafkaErrorCode::{BadCompression, BadMessage, InvalidMessage, NotImplemented};
        let decompressed =
            "Decompression (codec 0x4) of message at 7 of 90 bytes failed: Local: Not implemented";
        let checksum = "MessageSet at offset 7 (90 bytes) failed CRC32C check (original 0x1 != calculated 0x2)";
        let format = "Unsupported Message(Set) MagicByte 3 at offset 7";
        for (code, reason, expected) in [
            (BadCompression, Some(decompressed), Undecodable),
            (BadMessage, Some(decompressed), Undecodable),
            (NotImplemented, Some(decompressed), Undecodable),
            (BadMessage, Some(checksum), Corrupt),
            (NotImplemented, Some(format), Corrupt),
            (BadMessage, None, Corrupt),
            (InvalidMessage, None, Corrupt),
        ] {
            let error = KafkaError::MessageConsumption(code);
            assert_eq!(kind_of(&error, reason), expected, "{code:?} {reason:?}");
        }
        assert_eq!(batch_of(decompressed), Some(Offset(7)));
        assert_eq!(batch_of(checksum), None);
    }
}
