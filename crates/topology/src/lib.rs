//! Which topics and partitions there are, and which shard of them belongs to whom.
//!
//! [`topics`] has the one table of topics, creates them and audits what is there. [`partition_map`] says which partition an
//! operation belongs to, and [`shards`] how far the owner of each shard has got. [`repartition`] changes the number of partitions
//! while work goes on.
//!
//! Deliberately absent: taking part in the work. Who owns a shard decides what becomes of its operations.

mod config;
pub mod partition_map;
pub mod repartition;
pub mod shards;
pub mod topics;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use waybill_config::ByteSize;
use waybill_engine::ShardingScheme;

pub use config::{KafkaConfig, Properties};

/// More partitions than this are a slip of the keyboard: each costs a lease and files.
pub const PARTITIONS_MAX: u32 = 1_024;

/// What topics and shards are made with.
#[derive(Clone, PartialEq, Debug)]
pub struct TopologySettings {
    /// How many partitions the operation topics of a new store have, and how many shards each has.
    pub scheme: ShardingScheme,
    /// The brokers, and the topics on them.
    pub kafka: KafkaConfig,
    /// What concerns topics of the embedded broker alone.
    pub embedded: EmbeddedTopics,
    /// How long operations that have ended are kept. Requests are kept for less.
    pub operations_retention: Duration,
}

/// The topics of the embedded broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmbeddedTopics {
    /// Where it listens.
    pub listen: SocketAddr,
    /// How large a segment of a log becomes at most.
    pub segment_bytes: ByteSize,
    /// How much of the disk a topic of requests may take.
    pub requests_disk_bytes_max: ByteSize,
    /// How much of the disk recoveries may take.
    pub recoveries_disk_bytes_max: ByteSize,
}

impl Default for EmbeddedTopics {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9092)),
            segment_bytes: ByteSize::mib(64),
            requests_disk_bytes_max: ByteSize::gib(8),
            recoveries_disk_bytes_max: ByteSize::mib(256),
        }
    }
}
