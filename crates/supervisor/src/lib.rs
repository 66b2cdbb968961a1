//! The supervisor: finds operations that failed or outlived their complete-by, and asks the
//! scheduler to retry, compensate or park them.
//!
//! It has two sources. The index shards of the deadline index are divided between supervisors by
//! lease (`index_shard`). The partitions of the failed-operations topic are divided by a consumer
//! group (`failed`). The engine's [`Supervision`](waybill_engine::Supervision) alone decides what
//! an operation needs, and its recoveries travel through the recovery topic (`publisher`). The
//! owner of an index shard also reroutes the records of a partition that is no longer in use
//! (`reroute`), counts the parked operations of the index shard (`parked`), and finds operations
//! that nothing would wake (`audit`).
//!
//! The loops are the state machines of `waybill-supervisor-core`. The modules here are their
//! drivers: each performs one effect at a time, passes the result back, and logs and counts what
//! the machine reports.
//!
//! What must hold here:
//!
//! * **It asks and never acts**: it writes no operation row and calls no service.
//! * **Nothing is forgotten**: a sweep cursor passes an entry, and a group offset a record, only
//!   once the broker has acknowledged the resulting recovery.
//! * **It never gets stuck**: a row that cannot be read is counted, and the scheduler is asked to
//!   look at it; a sweep that fails is repeated; the age of the last full sweep is a gauge.
//!
//! Deliberately absent: a memory of past recoveries. A recovery names the attempt that it refers
//! to, so asking twice changes nothing.

mod audit;
mod config;
mod failed;
mod index_shard;
mod metrics;
mod parked;
mod publisher;
mod reroute;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_engine::{OwnerId, PartitionId, Workflows};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::Store;
use waybill_topology::partition_map::PartitionMap;

pub use self::config::SupervisorConfig;
pub use self::metrics::METRICS;

use self::audit::Auditor;
use self::index_shard::IndexShardDriver;
use self::metrics::SupervisorMetrics;
use self::parked::ReadLock;
use self::publisher::Publisher;
use self::reroute::Rerouter;

/// The supervisor's settings.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// How often the deadline index is swept.
    pub interval: Duration,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
    /// Maximum number of recoveries per second.
    pub recoveries_per_second_max: u32,
    /// How often to look for live operations that nothing would wake.
    pub audit_interval: Duration,
    /// How long the lease of an index shard lasts after each renewal.
    pub lease: Duration,
    /// The allowance for drift and delay on both sides of a lease.
    pub lease_margin: Duration,
    /// The duration of a scheduler's lease: an index entry may become visible this long after the
    /// scheduler decided to write it.
    pub scheduler_lease: Duration,
    /// Maximum skew between the clocks of the processes.
    pub clock_skew: Duration,
    /// A name that survives restarts, so that a killed process gets its share of failed-operations
    /// back immediately; `None` to join the consumer group as a new member.
    pub instance_id: Option<String>,
}

/// The supervisor's dependencies.
#[derive(Clone, Debug)]
pub struct SupervisorParts {
    /// The state store.
    pub store: Arc<dyn Store>,
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The names of the topics.
    pub topics: Topics,
    /// The workflows, for their policies.
    pub workflows: Arc<Workflows>,
    /// The partition map; each partition is an index shard.
    pub partition_map: PartitionMap,
}

/// Runs the supervisor until it is stopped.
///
/// The future is boxed, so that this crate compiles it and everything it spawns, rather than the
/// crate that awaits it.
///
/// # Errors
///
/// If a Kafka client or a thread cannot be created, or one of its tasks panicked.
pub fn run(
    settings: SupervisorSettings,
    parts: SupervisorParts,
    stop: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(supervise(settings, parts, stop))
}

async fn supervise(
    settings: SupervisorSettings,
    parts: SupervisorParts,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let owner = OwnerId(Uuid::new_v4());
    let name: Arc<str> = "supervisor".into();
    let metrics = Arc::new(SupervisorMetrics::new());
    let publisher = Publisher::new(
        &parts.kafka,
        &parts.topics,
        parts.partition_map.clone(),
        settings.recoveries_per_second_max,
        metrics.clone(),
    )
    .context("cannot create the supervisor's producer")?;
    let publisher = Arc::new(publisher);

    let rerouter = Rerouter::new(
        &parts.kafka,
        &parts.topics,
        parts.partition_map.clone(),
        publisher.clone(),
        metrics.clone(),
    );
    let rerouter = Arc::new(rerouter.context("cannot create the supervisor's admin client")?);
    let read_lock = ReadLock::default();
    let auditor = Auditor {
        name: name.clone(),
        store: parts.store.clone(),
        workflows: parts.workflows.clone(),
        timeout_grace: settings.timeout_grace,
        partition_map: parts.partition_map.clone(),
        publisher: publisher.clone(),
        admin: Admin::new(&parts.kafka, "waybill-audit")
            .context("cannot create the audit's admin client")?,
        topics: parts.topics.clone(),
        metrics: metrics.clone(),
        read_lock: read_lock.clone(),
        every: settings.audit_interval,
    };
    let mut tasks = JoinSet::new();
    let mut partition_map = parts.partition_map.clone();
    let index_shard = IndexShardDriver {
        index_shard: PartitionId(0),
        owner,
        name: name.clone(),
        settings: settings.clone(),
        store: parts.store.clone(),
        workflows: parts.workflows.clone(),
        publisher: publisher.clone(),
        rerouter,
        metrics: metrics.clone(),
        partition_map: parts.partition_map.clone(),
        read_lock,
        missing: Arc::default(),
        auditor: Arc::new(auditor),
    };
    let following = failed::Following {
        name,
        settings: settings.clone(),
        parts,
        publisher,
        metrics,
    };
    tasks.spawn(following.run(stop.clone()));
    let mut index_shards = 0;
    loop {
        let all = partition_map.all_ever();
        for &of in &all[index_shards..] {
            let index_shard = IndexShardDriver {
                index_shard: of,
                ..index_shard.clone()
            };
            tasks.spawn(index_shard.run(stop.clone()));
        }
        index_shards = all.len();
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.context("a task of the supervisor panicked")??,
                None => return Ok(()),
            },
            () = partition_map.changed() => {}
        }
    }
}
