//! What a seed decides in advance: how much goes wrong, and how.

use std::sync::Arc;
use std::time::Duration;

use waybill_agent_core::QueueLimits;
use waybill_engine::{EngineConfig, Timestamp, Workflows};
use waybill_scheduler_core::LeaseTerms;

use crate::agents::REQUEST_BYTES;
use crate::bugs::Bug;
use crate::rng::Rng;
use crate::workload::{Ask, Protection, asks, workflows};

/// The start of every run.
pub const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// How long after its last fault every operation must be final or parked.
pub const BOUND: Duration = Duration::from_secs(240);

#[derive(Debug)]
pub struct Plan {
    pub partitions: u32,
    pub config: Arc<EngineConfig>,
    /// Maximum number of operations in a scheduler's memory.
    pub in_flight_max: usize,
    /// Maximum number of waiting requests of each priority.
    pub waiting_max: usize,
    pub workflows: Arc<Workflows>,
    pub protection: Protection,
    pub asks: Vec<Ask>,
    /// No fault happens after this.
    pub calm_at: Timestamp,
    pub supervisors: usize,
    pub schedulers: usize,
    /// How long a scheduler owns a shard after each renewal.
    pub lease: LeaseTerms,
    pub scheduler_crashes: u32,
    pub scheduler_pauses: u32,
    /// How often a scheduler stops gracefully and releases its leases, or one of its shards does.
    pub scheduler_stops: u32,
    /// How often a scheduler cannot reach the store for a while.
    pub cut_offs: u32,
    /// When retention deletes requests that nobody has done.
    pub loses_requests_at: Option<Timestamp>,
    /// When the store or the broker loses what would wake an operation.
    pub loses_wake_at: Option<Timestamp>,
    /// Maximum number of tracked requests of each priority.
    pub tracked_max: usize,
    /// How often checkpoints are stored.
    pub checkpoint_every: Duration,
    /// How often the number of shards changes.
    pub repartitions: u32,
    /// How many rows become unreadable for a while.
    pub spoilt_rows: u32,
    /// Whether agents write their replies in transactions, whose markers take up offsets.
    pub transactions: bool,
    /// Whether agents run in the schedulers' processes, and are called without a topic.
    pub direct: bool,
    pub supervisor_crashes: u32,
    pub agent_processes: usize,
    /// The limits of each agent's queue.
    pub agent_limits: QueueLimits,
    pub agent_crashes: u32,
    pub agent_pauses: u32,
    /// How often a process of agents stops gracefully.
    pub agent_stops: u32,
    /// How often a process of agents is fenced: it loses its partitions, and joins its group again.
    pub agent_fences: u32,
    /// When an undecodable record arrives at an agent's topic.
    pub spoils_agent_topic_at: Option<Timestamp>,
    pub interventions: u64,
    /// The percentage of messages that arrive twice.
    pub copies: u64,
    /// The percentage of calls that fail.
    pub faults: u64,
    /// A step that its service refuses, whatever the call.
    pub refused_step: Option<&'static str>,
    /// When the number of shards changes, besides `repartitions`.
    pub repartition_at: Option<Timestamp>,
    /// Whether clocks may be set during the run.
    pub sets_clocks: bool,
    /// Whether one replica of the store may have data that the others lack.
    pub replicas_differ: bool,
}

/// A lease, with a tenth of it as the allowance for drift and delay.
pub fn lease(millis: u64) -> LeaseTerms {
    LeaseTerms {
        duration: Duration::from_millis(millis),
        margin: Duration::from_millis(millis / 10),
    }
}

impl Plan {
    /// Whether `settle` is the only protection: then clocks and renewals must be nearly right.
    pub fn is_settling(&self) -> bool {
        self.protection == Protection::Settling
    }

    pub fn new(rng: &mut Rng, bug: Option<Bug>) -> Self {
        let protection = match rng.below(8) {
            0 => Protection::Evidence,
            1 => Protection::Settling,
            _ => Protection::Tombstones,
        };
        let partitions = 1 + u32::try_from(rng.below(3) / 2).unwrap();
        let millis = |rng: &mut Rng, from, to| Duration::from_millis(rng.between(from, to));
        let config = EngineConfig {
            retention: Duration::from_secs(86_400),
            hand_off_after: millis(rng, 5, 3_000),
            fresh_for: millis(rng, 1, 3_000),
            high_priority_weight: 1 + u32::try_from(rng.below(4)).unwrap(),
            timeout_grace: millis(rng, 0, 400),
            supervisor_decision_timeout: millis(rng, 1_000, 5_000),
            unreadable_again: millis(rng, 500, 4_000),
            publish_step_status: rng.chance(10),
        };
        let workflows = workflows(rng, protection, bug);
        let asks = asks(rng, START, partitions, config.fresh_for);
        let mut budget = |most: u64| u32::try_from(rng.below(most + 1)).unwrap();
        let (scheduler_crashes, scheduler_pauses) = (budget(4), budget(3));
        let scheduler_stops = budget(2);
        let [
            agent_crashes,
            agent_pauses,
            agent_stops,
            agent_fences,
            spoilt_rows,
        ] = match protection {
            Protection::Tombstones | Protection::Settling => [3, 2, 2, 2, 1].map(&mut budget),
            // The evidence of late effects would be lost.
            Protection::Evidence => [0; 5],
        };
        let repartitions = match rng.chance(35) {
            true => 1 + u32::try_from(rng.below(4)).unwrap(),
            false => 0,
        };
        // The losses that audits find are drawn apart, as is what audits do.
        let mut apart = rng.fork();
        Self {
            repartitions,
            partitions,
            in_flight_max: 2 + rng.index(8),
            waiting_max: 1 + rng.index(6),
            config: Arc::new(config),
            workflows: Arc::new(workflows),
            protection,
            asks,
            calm_at: START + millis(rng, 6_000, 14_000),
            supervisors: 1 + rng.index(3),
            schedulers: 2 + rng.index(2),
            lease: lease(if rng.chance(25) { 5_000 } else { 1_000 }),
            scheduler_crashes,
            scheduler_pauses,
            scheduler_stops,
            cut_offs: u32::try_from(rng.below(3)).unwrap(),
            loses_requests_at: (rng.below(40) == 0).then(|| START + millis(rng, 10, 4_000)),
            loses_wake_at: apart
                .chance(4)
                .then(|| START + millis(&mut apart, 10, 5_000)),
            replicas_differ: apart.chance(50),
            tracked_max: 8 + rng.index(40),
            checkpoint_every: millis(rng, 20, 400),
            spoilt_rows,
            transactions: rng.chance(20),
            supervisor_crashes: u32::try_from(rng.below(4)).unwrap(),
            agent_processes: 1 + rng.index(2),
            agent_limits: QueueLimits {
                workers: 1 + rng.index(3),
                in_flight_max: 1 + rng.index(8),
                in_flight_bytes_max: match rng.chance(30) {
                    true => REQUEST_BYTES * (1 + rng.index(6)),
                    false => 1 << 20,
                },
            },
            agent_crashes,
            agent_pauses,
            agent_stops,
            agent_fences,
            spoils_agent_topic_at: rng.chance(5).then(|| START + millis(rng, 10, 4_000)),
            interventions: rng.below(7),
            copies: rng.below(12),
            faults: [8, 25, 50][rng.index(3)],
            refused_step: None,
            repartition_at: None,
            sets_clocks: true,
            // The evidence of late effects would be lost with the process, and so would settling
            // attempts.
            direct: rng.chance(30) && protection == Protection::Tombstones,
        }
    }
}
