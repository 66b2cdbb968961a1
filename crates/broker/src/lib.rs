//! An embedded, single-node broker that speaks the Kafka protocol over TCP.
//!
//! **Purpose:** development, tests and one machine. It has no replication, no transactions and no
//! encryption: bind it to addresses that you trust. It requires a login if
//! [`BrokerSettings::logins`] is set. Beyond one machine, Apache Kafka replaces it by configuration
//! alone, because everything that talks to it uses an ordinary Kafka client (librdkafka, kcat, the
//! Java client).
//!
//! What must hold:
//!
//! * **A record batch is kept as it was sent** if it is uncompressed. Only the base offset and the
//!   partition leader epoch are rewritten; both lie outside the batch's checksum.
//! * **Acknowledged means kept.** On a topic with `flush.messages=1` a produce request is
//!   answered, and its records become visible to consumers, only after they were synced to disk;
//!   everything that waits shares one sync. On other topics an acknowledged record survives the
//!   death of the process, not that of the machine. A disk that fails takes its partition
//!   offline: nothing is acknowledged that may be lost.
//! * **A torn tail is truncated at the last whole batch** when a partition is opened, with a log
//!   line. It is torn only if nothing valid follows it. A log that is damaged before valid records,
//!   or ends before its synced end, refuses the start until [`repair_logs`] has dropped the damaged
//!   part. The synced end covers every acknowledged record of a synced topic.
//! * **No damaged batch is served.** Checksums are verified each time that a batch is read.
//! * **A full disk fails only writes**: records are refused with a retriable error, and accepted
//!   again as soon as there is room.
//! * **No clock deletes records early.** Retention counts the time for which the broker has run;
//!   see `retention.rs`.
//! * **Nothing is polled.** A waiting fetch is woken by the append itself.
//! * **No bytes make it panic, and memory is bounded.** Malformed frames close the one
//!   connection that sent them; frame sizes, connections, requests per connection and the bytes
//!   in flight are limited by [`BrokerSettings`].
//! * **Every client can read every record that the broker accepts.** It decompresses batches within
//!   the bound of their topic, keeps them uncompressed, and counts the records of each.
//! * **With logins, every request is checked**: before its login a connection can do nothing, and
//!   then only what its rights allow at that moment.
//!
//! Deliberately absent: looking into the records of a batch beyond their number, fetch sessions,
//! log compaction, quotas, the consumer group protocol of KIP-848, message formats older than
//! version 2.
//!
//! On disk, below [`BrokerSettings::data_dir`]: `lock` (one process owns the directory), `meta/`
//! (topics, producer id blocks, log starts and group offsets in an embedded key-value store) and
//! `logs/<topic>/<partition>/<base offset>.log` with an `.index` next to each closed segment, and
//! `synced-0` and `synced-1` (how far each log is known to be synced).

mod access;
mod api;
mod backup;
mod broker;
mod config;
mod connection;
mod frame;
mod group;
mod log;
mod meta;
mod repair;
mod retention;
mod server;
mod settings;
mod stats;
mod topic_config;
mod topics;

pub use access::{Action, Logins, Rights};
pub use backup::{CopyError, Logs, LogsRestore, LogsSnapshot, Segment};
pub use broker::{Broker, BrokerFailure, OWN_CONNECTIONS_MAX, StartError, log_ends};
pub use config::BrokerConfig;
pub use log::{Damage, DamagedBatch};
pub use repair::{LogRepair, RepairError, repair_logs};
pub use settings::BrokerSettings;
pub use stats::{BatchRefusal, Stats};
pub use topic_config::{TopicConfig, TopicConfigError};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. The guarded values are valid between any two statements, so that a panic that
/// held one harms nothing else.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
