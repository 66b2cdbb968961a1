//! The topics and partitions of an installation, and which shard of a partition owns an operation.
//!
//! [`topics`] has the table of required topics, creates them, and audits existing ones.
//! [`partition_map`] maps operations to partitions. [`shards`] reports the progress of each shard's
//! owner. [`repartition`] changes the number of partitions without downtime. [`lease`] has the
//! rules for the leases of owners.
//!
//! Deliberately absent: running operations. Only the owner of a shard decides about its operations.

mod config;
pub mod lease;
pub mod partition_map;
pub mod repartition;
pub mod shards;
pub mod topics;
pub mod trim;

use std::net::SocketAddr;
use std::time::Duration;

use waybill_engine::ShardingScheme;
use waybill_units::ByteSize;

pub use config::{KafkaConfig, Properties};

/// The maximum number of partitions. More are probably a typing error: each costs a lease and
/// files.
pub const PARTITIONS_MAX: u32 = 1_024;

/// The settings for topics and shards.
#[derive(Clone, PartialEq, Debug)]
pub struct TopologySettings {
    /// The number of partitions of operation topics in a new store, and of shards per partition.
    pub scheme: ShardingScheme,
    /// The brokers and their topics.
    pub kafka: KafkaConfig,
    /// The settings of topics on the embedded broker.
    pub embedded: EmbeddedTopics,
    /// How long finished operations are kept. Requests are kept for less.
    pub operations_retention: Duration,
}

/// The topics of the embedded broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmbeddedTopics {
    /// The listen address.
    pub listen: SocketAddr,
    /// The maximum size of a log segment.
    pub segment_bytes: ByteSize,
    /// The maximum disk space of a topic of requests.
    pub requests_disk_bytes_max: ByteSize,
    /// The maximum disk space of the topic of recoveries.
    pub recoveries_disk_bytes_max: ByteSize,
}
