//! The outcome of a record that was handed to the producer.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};

use crate::native::Persisted;

/// The outcome of sending one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The partition that it was sent to.
    pub partition: PartitionId,
    /// Its offset there; `None` if it failed.
    pub offset: Option<Offset>,
    /// Whether the broker acknowledged it.
    pub result: Result<(), ProduceError>,
}

impl Delivery {
    /// The outcome of a record that librdkafka reports as delivered. If it has no offset, no broker
    /// acknowledged it: librdkafka inferred the delivery. When a batch fails and the next one
    /// succeeds, librdkafka counts both as appended (`rd_kafka_dr_implicit_ack`), because a broker
    /// refuses a gap in a producer's sequence. But a broker accepts any first sequence of a
    /// producer that it does not know. So a first batch that was refused, for example on a topic
    /// that was just created, is then in no log. The same may be true of a batch that a broker
    /// calls a duplicate.
    pub(crate) fn acknowledged(partition: PartitionId, offset: i64) -> Self {
        match offset {
            0.. => Self {
                partition,
                offset: Some(Offset(offset)),
                result: Ok(()),
            },
            _ => {
                let code = RDKafkaErrorCode::Inconsistent;
                Self::failed(partition, ProduceError::OutcomeUnknown { code })
            }
        }
    }

    /// The outcome of a record that could not be enqueued.
    #[must_use]
    pub fn failed(partition: PartitionId, error: ProduceError) -> Self {
        Self {
            partition,
            offset: None,
            result: Err(error),
        }
    }
}

/// Why a record was not acknowledged, and whether it may be in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProduceError {
    /// The record is certainly not in the log: it never left this process, or the broker refused
    /// it.
    #[error("the record was not appended")]
    Refused {
        /// librdkafka's error.
        #[source]
        code: RDKafkaErrorCode,
    },
    /// The record was sent and no answer arrived: it may be in the log, now or later.
    #[error("the record may or may not have been appended")]
    OutcomeUnknown {
        /// librdkafka's error.
        #[source]
        code: RDKafkaErrorCode,
    },
}

impl ProduceError {
    /// librdkafka's error code.
    #[must_use]
    pub const fn code(self) -> RDKafkaErrorCode {
        match self {
            Self::Refused { code } | Self::OutcomeUnknown { code } => code,
        }
    }

    /// Whether the broker would refuse the same record again, because the record, the topic or the
    /// permission is wrong.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        let is_of_place = matches!(
            self,
            Self::Refused {
                code: RDKafkaErrorCode::InvalidTopic
                    | RDKafkaErrorCode::InvalidArgument
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::UnknownPartition
                    | RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::PolicyViolation
                    | RDKafkaErrorCode::TopicAuthorizationFailed
                    | RDKafkaErrorCode::ClusterAuthorizationFailed
                    | RDKafkaErrorCode::UnsupportedCompressionType
                    | RDKafkaErrorCode::UnsupportedForMessageFormat
            }
        );
        is_of_place || self.is_of_record()
    }

    /// Whether the broker refused the record itself, not its topic or permission: no outside repair
    /// makes it acceptable. `InvalidTimestamp` does not count: the next attempt has a new
    /// timestamp.
    #[must_use]
    pub const fn is_of_record(self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: RDKafkaErrorCode::MessageSizeTooLarge
                    | RDKafkaErrorCode::MessageBatchTooLarge
                    | RDKafkaErrorCode::InvalidMessage
                    | RDKafkaErrorCode::InvalidMessageSize
                    | RDKafkaErrorCode::InvalidRecord
            }
        )
    }

    /// The meaning of a failed delivery, given what librdkafka knows of the message. A message that
    /// was in flight when the producer was dropped never counts as refused.
    pub(crate) fn of_delivery(code: RDKafkaErrorCode, persisted: Persisted) -> Self {
        match persisted {
            Persisted::No if code != RDKafkaErrorCode::PurgeInflight => Self::Refused { code },
            Persisted::No | Persisted::Possibly | Persisted::Yes => Self::OutcomeUnknown { code },
        }
    }
}

/// The token of a record, which receives the record's outcome exactly once.
///
/// The producer calls it on its own thread, or on a thread that flushes the producer, drops it, or
/// sends a record that is refused. So it must not block, must not panic, must not send by the same
/// producer, and must not drop the producer's last handle.
///
/// Implement it for `Box<T>` with your own `T` (one token per record), or implement
/// [`DeliveredShared`] for a `T` and send `Arc<T>` (one token for many records).
pub trait Delivered: rdkafka::IntoOpaque + 'static {
    /// Takes the outcome.
    fn delivered(self, delivery: Delivery);
}

/// A token that many records share. It receives the outcome of each.
pub trait DeliveredShared: Send + Sync + 'static {
    /// Takes the outcome of one record.
    fn delivered(&self, delivery: Delivery);
}

impl<T: DeliveredShared> Delivered for Arc<T> {
    fn delivered(self, delivery: Delivery) {
        T::delivered(&self, delivery);
    }
}

/// For one record whose sender awaits the outcome.
impl Delivered for Box<oneshot::Sender<Delivery>> {
    fn delivered(self, delivery: Delivery) {
        // The receiver may have been dropped.
        drop(self.send(delivery));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_that_were_certainly_not_written_are_refused() {
        let timed_out = RDKafkaErrorCode::MessageTimedOut;
        assert_eq!(
            ProduceError::of_delivery(timed_out, Persisted::No),
            ProduceError::Refused { code: timed_out }
        );
        for persisted in [Persisted::Possibly, Persisted::Yes] {
            assert_eq!(
                ProduceError::of_delivery(timed_out, persisted),
                ProduceError::OutcomeUnknown { code: timed_out }
            );
        }
    }

    #[test]
    fn a_success_without_an_offset_is_none() {
        let code = RDKafkaErrorCode::Inconsistent;
        let delivery = Delivery::acknowledged(PartitionId(1), -1);
        assert_eq!(delivery.result, Err(ProduceError::OutcomeUnknown { code }));
        let delivery = Delivery::acknowledged(PartitionId(1), 0);
        assert_eq!(
            (delivery.offset, delivery.result),
            (Some(Offset(0)), Ok(()))
        );
    }

    #[test]
    fn a_message_purged_in_flight_has_an_unknown_outcome_whatever_its_status() {
        let code = RDKafkaErrorCode::PurgeInflight;
        for persisted in [Persisted::No, Persisted::Possibly, Persisted::Yes] {
            assert_eq!(
                ProduceError::of_delivery(code, persisted),
                ProduceError::OutcomeUnknown { code }
            );
        }
    }

    #[test]
    fn an_unknown_outcome_is_never_permanent() {
        let code = RDKafkaErrorCode::MessageSizeTooLarge;
        assert!(ProduceError::Refused { code }.is_permanent());
        assert!(!ProduceError::OutcomeUnknown { code }.is_permanent());
        let code = RDKafkaErrorCode::MessageTimedOut;
        assert!(!ProduceError::Refused { code }.is_permanent());
        // The next attempt has another timestamp.
        let code = RDKafkaErrorCode::InvalidTimestamp;
        assert!(!ProduceError::Refused { code }.is_permanent());
        // The producer is recreated, and then takes the record.
        let code = RDKafkaErrorCode::Fatal;
        assert!(!ProduceError::Refused { code }.is_permanent());
    }
}
