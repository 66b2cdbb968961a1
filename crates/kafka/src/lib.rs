//! Consumers, a producer and topic administration over rdkafka: bytes in, bytes out.
//!
//! This crate exists so that librdkafka's settings, threads and error codes are handled in one
//! place, and no role needs to know them. `waybill-messages` defines what the bytes mean; this
//! crate takes only the form of a [dead letter](dead_letter()) from it.
//!
//! What must hold here:
//!
//! * **No offset is committed unless the caller asks.** Automatic commits and automatic offset
//!   stores are off, and no property can switch them on.
//! * **A missing offset is never skipped.** A [`PartitionConsumer`] whose start offset does not
//!   exist (any more, or yet) reports [`PollError::OffsetOutOfRange`].
//! * **Every record accepted for sending is settled exactly once**, and a failure says whether the
//!   record may have been appended nevertheless ([`ProduceError`]).
//! * **A producer never stays broken.** After a fatal error it is recreated ([`Producer`]).
//! * **The end of a partition is found even without a record there**: a [`PartitionConsumer`]
//!   reports how far it has read even if control records or a gap follow the last record.
//! * **Damage is reported, never skipped.** Every consumer verifies the checksum of each batch. It
//!   stops reading a partition with a damaged batch, and reports the partition and the offset.
//! * **Memory is bounded**: consumers by `queue_kib_max`, the producer by `queue_records_max` and
//!   `queue_kib_max`. A full producer queue returns the token immediately. A compressed batch is
//!   decompressed within [`KafkaSettings::decompressed_bytes_max`].
//!
//! Deliberately absent: `pause` and `resume` of a [`PartitionConsumer`] (they drop prefetched
//! records; to apply backpressure, stop polling), per-partition queues (lost wake-ups),
//! transactions, librdkafka's CRC32 partitioner (every record names its partition, see
//! [`partition_for`], or uses the murmur2 hash of its key), and futures per record.

mod admin;
mod batch_limits;
mod client_log;
mod damage;
mod dead_letter;
mod delivery;
mod error;
mod fingerprint;
mod group_commits;
mod group_consumer;
mod log_check;
mod metrics;
mod native;
mod partition;
mod partition_consumer;
mod partition_list;
mod partition_queues;
mod poll;
mod probe;
mod producer;
mod rebootstrap;
mod record;
mod record_reader;
mod settings;
mod settlement;
mod severity;
mod stall;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod timed_wait;
mod watermarks;

pub use admin::{Admin, AdminError, PartitionState, TopicSettings, TopicSpec, TopicsRead};
pub use damage::{DamageKind, DamagedLog};
pub use dead_letter::{
    dead_letter, enqueue, publish, publish_dead_letters, undecodable_dead_letter,
};
pub use delivery::{Delivered, DeliveredShared, Delivery, ProduceError};
pub use error::{ClientError, RequestError};
pub use fingerprint::fingerprint;
pub use group_commits::GroupCommits;
pub use group_consumer::{
    ASSIGNMENT_STRATEGY, GroupConsumer, GroupHandler, GroupOptions, TopicPartition,
};
pub use log_check::{Identity, LogCheck, Mark};
pub use metrics::METRICS;
pub use partition_consumer::{ConsumerOptions, PartitionConsumer};
pub use poll::{OutOfRange, PollError, PollLimits, Polled};
pub use probe::SPEAKS_HTTP;
pub use producer::{Producer, ProducerOptions, SendError};
/// librdkafka's error codes, both its own and the broker's.
pub use rdkafka::types::RDKafkaErrorCode as ErrorCode;
pub use record::{Header, Headers, OutRecord, RawRecord, RecordRef};
pub use record_reader::{AtOffset, ReadError, ReadPermit, RecordReader};
pub use settings::{KafkaSettings, no_group};
pub use settlement::{Settled, Settlement};
pub use waybill_engine::{murmur2, partition_for};
pub use waybill_messages::{TopicId, UNDECODABLE};
