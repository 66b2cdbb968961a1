//! The supervisor: finds what failed or outlived its complete-by, and asks the scheduler for a
//! retry, for compensation, or to park it.
//!
//! Two sources: the deadline index, whose index shards are divided between supervisors by lease
//! (`index_shard`), and the failed-operations topic, whose partitions are divided by a consumer group
//! (`failed`). What is asked is decided by the engine's [`Supervision`](waybill_engine::Supervision)
//! alone, and travels through the recovery topic (`ask`). The supervisor that owns an index shard also
//! reroutes the records of a partition that is no longer in use (`reroute`), counts the parked operations of the index shard
//! (`parked`), and finds those that nothing would wake (`audit`).
//!
//! What must hold here:
//!
//! * **It asks and never acts**: no operation row is written, no service is called.
//! * **Nothing is forgotten**: a sweep cursor passes an entry, and a group offset a record, only
//!   once what was asked because of it is acknowledged by the broker.
//! * **It never gets stuck**: a row that cannot be read is counted, and the scheduler is asked to
//!   look at it; a sweep that fails is repeated; the age of the last full sweep is a gauge.
//!
//! Deliberately absent: a memory of what was asked. A recovery names the attempt that it saw, so
//! that asking twice changes nothing.

mod ask;
mod audit;
mod config;
mod failed;
mod index_shard;
mod lease;
mod metrics;
mod parked;
mod reroute;
mod sweep;

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

use self::ask::Asker;
use self::audit::Auditor;
use self::index_shard::IndexShard;
use self::metrics::SupervisorMetrics;
use self::parked::Turn;
use self::reroute::Rerouter;

/// What the supervisor needs to know.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// How often the index is looked at.
    pub interval: Duration,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
    /// How many recoveries are asked for in a second at most.
    pub recoveries_per_second_max: u32,
    /// How often live operations are looked for that nothing would wake.
    pub audit_interval: Duration,
    /// How long the lease of an index shard lasts after each renewal.
    pub lease: Duration,
    /// What both sides of a lease allow for drift and delay.
    pub lease_margin: Duration,
    /// How long a scheduler's lease lasts: an entry of the index may become visible so much after
    /// it was decided on.
    pub scheduler_lease: Duration,
    /// How far the clocks of the processes may lie apart.
    pub clock_skew: Duration,
    /// A name that stays the same over restarts of this process, so that it gets its share of
    /// failed-operations back at once after it was killed; `None` to join as somebody new.
    pub instance_id: Option<String>,
}

/// What the supervisor works with.
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
    /// How operations are spread over partitions; each is an index shard.
    pub partition_map: PartitionMap,
}

/// Supervises until it is stopped.
///
/// The future is boxed, so that this crate compiles it, and all that it spawns, rather than the crate that awaits it.
///
/// # Errors
///
/// If a Kafka client or a thread cannot be made, or a part of it panicked.
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
    let asker = Asker::new(
        &parts.kafka,
        &parts.topics,
        parts.partition_map.clone(),
        settings.recoveries_per_second_max,
        metrics.clone(),
    )
    .context("the supervisor's producer cannot be made")?;
    let asker = Arc::new(asker);

    let rerouter = Rerouter::new(
        &parts.kafka,
        &parts.topics,
        parts.partition_map.clone(),
        asker.clone(),
        metrics.clone(),
    );
    let rerouter = Arc::new(rerouter.context("the supervisor's admin client cannot be made")?);
    let turn = Turn::default();
    let auditor = Auditor {
        name: name.clone(),
        store: parts.store.clone(),
        workflows: parts.workflows.clone(),
        timeout_grace: settings.timeout_grace,
        partition_map: parts.partition_map.clone(),
        asker: asker.clone(),
        admin: Admin::new(&parts.kafka, "waybill-audit")
            .context("the audit's admin client cannot be made")?,
        topics: parts.topics.clone(),
        metrics: metrics.clone(),
        turn: turn.clone(),
        every: settings.audit_interval,
    };
    let mut tasks = JoinSet::new();
    let mut partition_map = parts.partition_map.clone();
    let index_shard = IndexShard {
        index_shard: PartitionId(0),
        owner,
        name: name.clone(),
        settings: settings.clone(),
        store: parts.store.clone(),
        workflows: parts.workflows.clone(),
        asker: asker.clone(),
        rerouter,
        metrics: metrics.clone(),
        partition_map: parts.partition_map.clone(),
        turn,
        auditor: Arc::new(auditor),
    };
    let following = failed::Following {
        name,
        settings: settings.clone(),
        parts,
        asker,
        metrics,
    };
    tasks.spawn(following.run(stop.clone()));
    let mut index_shards = 0;
    loop {
        let all = partition_map.all_ever();
        for &of in &all[index_shards..] {
            let index_shard = IndexShard {
                index_shard: of,
                ..index_shard.clone()
            };
            tasks.spawn(index_shard.run(stop.clone()));
        }
        index_shards = all.len();
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.context("a part of the supervisor panicked")??,
                None => return Ok(()),
            },
            () = partition_map.changed() => {}
        }
    }
}
