//! What a seed decides before anything happens: how much goes wrong, and how.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{EngineConfig, Timestamp, Workflows};

use crate::bugs::Bug;
use crate::rng::Rng;
use crate::workload::{Ask, Protection, asks, workflows};

/// When every run begins.
pub const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// How long after its faults have stopped everything has to be final or parked.
pub const BOUND: Duration = Duration::from_secs(240);

#[derive(Debug)]
pub struct Plan {
    pub partitions: u32,
    pub config: Arc<EngineConfig>,
    /// How many operations an owner has in memory at most.
    pub in_flight_max: usize,
    /// How many requests of each priority wait with it at most.
    pub waiting_max: usize,
    pub workflows: Arc<Workflows>,
    pub protection: Protection,
    pub asks: Vec<Ask>,
    /// From here on nothing fails any more.
    pub calm_at: Timestamp,
    pub supervisors: usize,
    pub owner_crashes: u32,
    pub owner_pauses: u32,
    /// Owners that stop in order, and give their lease back.
    pub owner_stops: u32,
    /// How often the work is divided anew.
    pub repartitions: u32,
    /// Rows that cannot be read for a while.
    pub spoilt_rows: u32,
    /// Whether agents write their replies in transactions, whose markers take offsets.
    pub transactions: bool,
    /// Whether agents run in the processes of the owners, and are asked without a topic.
    pub direct: bool,
    pub supervisor_crashes: u32,
    pub agent_crashes: u32,
    pub interventions: u64,
    /// Of a hundred messages, how many arrive twice.
    pub copies: u64,
    /// Of a hundred calls, how many go wrong.
    pub faults: u64,
}

impl Plan {
    /// Whether nothing but `settle` protects: then clocks and renewals have to be nearly right.
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
        let (owner_crashes, owner_pauses) = (budget(4), budget(3));
        let owner_stops = budget(2);
        let (agent_crashes, spoilt_rows) = match protection {
            Protection::Tombstones | Protection::Settling => (budget(3), budget(1)),
            // Evidence of what was done late would be lost.
            Protection::Evidence => (0, 0),
        };
        let repartitions = match rng.chance(35) {
            true => 1 + u32::try_from(rng.below(4)).unwrap(),
            false => 0,
        };
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
            owner_crashes,
            owner_pauses,
            owner_stops,
            spoilt_rows,
            transactions: rng.chance(20),
            supervisor_crashes: u32::try_from(rng.below(4)).unwrap(),
            agent_crashes,
            interventions: rng.below(7),
            copies: rng.below(12),
            faults: [8, 25, 50][rng.index(3)],
            // Evidence of what was done late dies with the process, and so would what is to protect.
            direct: rng.chance(30) && protection == Protection::Tombstones,
        }
    }
}
