//! The supervisor's metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram};
use waybill_engine::{PartitionId, ProcessState, Recovery, Timestamp};
use waybill_supervisor_core::ParkedStats;
use waybill_telemetry::{Declared, Metric};

const RECOVERIES: Metric<Counter, 1> = Metric::new(
    "waybill_supervisor_recoveries_total",
    "Recoveries requested from the schedulers, by verb",
    ["verb"],
);
const UNREADABLE: Metric<Counter> = Metric::new(
    "waybill_supervisor_unreadable_rows_total",
    "Unreadable rows: rows of due operations, and rows that an audit finds unreadable for the \
     first time; also unreadable records of failed operations",
    [],
);
const FAILED_PASSES: Metric<Counter> = Metric::new(
    "waybill_supervisor_failed_passes_total",
    "Sweeps of an index shard that ended early and were repeated",
    [],
);
const DECIDED: Metric<Counter> = Metric::new(
    "waybill_supervisor_decided_total",
    "Decisions of the supervisor on failed operations",
    [],
);
const REROUTED: Metric<Counter> = Metric::new(
    "waybill_supervisor_rerouted_total",
    "Records rerouted from partitions that are no longer in use",
    [],
);
const OVERDUE: Metric<Histogram> = Metric::new(
    "waybill_supervisor_overdue_seconds",
    "Delay between the due time of an operation and the request for its recovery",
    [],
);
const SWEPT_AT: Metric<Gauge, 1> = Metric::new(
    "waybill_supervisor_last_sweep_timestamp_seconds",
    "When the last complete sweep of the index shard ended, in seconds since the Unix epoch",
    ["index_shard"],
);
const BEHIND: Metric<Gauge, 1> = Metric::new(
    "waybill_supervisor_oldest_overdue_seconds",
    "How long the oldest part of the deadline index that was not swept has been due",
    ["index_shard"],
);
const PARKED: Metric<Gauge, 2> = Metric::new(
    "waybill_parked_operations",
    "Parked operations, counted twice a minute; at most 10000 per index shard and state",
    ["index_shard", "state"],
);
const PARKED_AGE: Metric<Gauge, 2> = Metric::new(
    "waybill_parked_oldest_age_seconds",
    "Age of the oldest parked operation, counted from when it was parked; 0 if none is parked",
    ["index_shard", "state"],
);

const UNWOKEN: Metric<Gauge, 1> = Metric::new(
    "waybill_supervisor_unwoken_operations",
    "Live operations that the last audit of the index shard found with nothing to resume them, and \
     resumed",
    ["index_shard"],
);
const AUDIT_WOKEN: Metric<Counter> = Metric::new(
    "waybill_supervisor_audit_woken_total",
    "Live operations that audits found with nothing to resume them, and resumed",
    [],
);

/// All metrics of the supervisor.
pub const METRICS: &[&dyn Declared] = &[
    &RECOVERIES,
    &UNREADABLE,
    &FAILED_PASSES,
    &DECIDED,
    &REROUTED,
    &OVERDUE,
    &SWEPT_AT,
    &BEHIND,
    &PARKED,
    &PARKED_AGE,
    &UNWOKEN,
    &AUDIT_WOKEN,
];

/// Metric handles, created once.
#[derive(Debug)]
pub(super) struct SupervisorMetrics {
    /// Rows that cannot be read.
    pub(super) unreadable: Counter,
    /// Passes over an index shard that ended early.
    pub(super) failed_passes: Counter,
    /// Failed operations with a decision.
    pub(super) decided: Counter,
    /// Records rerouted from partitions that are no longer in use.
    pub(super) rerouted: Counter,
    audit_woken: Counter,
    overdue: Histogram,
    index_shards: Mutex<HashMap<PartitionId, IndexShardGauges>>,
}

#[derive(Debug)]
struct IndexShardGauges {
    swept_at: Gauge,
    behind: Gauge,
    unwoken: Gauge,
    /// By state, in the order of [`PARKED_STATES`].
    parked: [ParkedGauges; 2],
}

#[derive(Debug)]
struct ParkedGauges {
    count: Gauge,
    oldest_age: Gauge,
}

/// The states in which an operation waits for a person.
const PARKED_STATES: [ProcessState; 2] = [ProcessState::Error, ProcessState::CompensationFailed];

impl SupervisorMetrics {
    pub(super) fn new() -> Self {
        Self {
            unreadable: UNREADABLE.of([]),
            failed_passes: FAILED_PASSES.of([]),
            decided: DECIDED.of([]),
            rerouted: REROUTED.of([]),
            audit_woken: AUDIT_WOKEN.of([]),
            overdue: OVERDUE.of([]),
            index_shards: Mutex::default(),
        }
    }

    /// These recoveries were sent and acknowledged.
    pub(super) fn asked(&self, recoveries: &[Recovery]) {
        // A counter is looked up by its label, so count by verb first.
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        for recovery in recoveries {
            *counts.entry(recovery.verb.as_str()).or_default() += 1;
        }
        for (verb, count) in counts {
            RECOVERIES.of([verb]).increment(count);
        }
    }

    /// A recovery was sent this long after its due time.
    pub(super) fn overdue(&self, overdue: Duration) {
        self.overdue.record(overdue);
    }

    /// An index shard was swept completely.
    pub(super) fn swept(&self, index_shard: PartitionId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.of(index_shard, |gauges| {
            gauges.swept_at.set(now.unwrap_or_default().as_secs_f64());
        });
    }

    /// The sweep of an index shard is this far behind.
    pub(super) fn behind(&self, index_shard: PartitionId, behind: Duration) {
        self.of(index_shard, |gauges| {
            gauges.behind.set(behind.as_secs_f64())
        });
    }

    /// An audit of an index shard woke this many operations.
    pub(super) fn unwoken(&self, index_shard: PartitionId, count: usize) {
        self.audit_woken.increment(count as u64);
        self.of(index_shard, |gauges| gauges.unwoken.set(count as f64));
    }

    /// This many operations of an index shard are parked.
    pub(super) fn parked(
        &self,
        index_shard: PartitionId,
        now: Timestamp,
        stats: impl Fn(ProcessState) -> ParkedStats,
    ) {
        self.of(index_shard, |gauges| {
            for (state, gauges) in PARKED_STATES.into_iter().zip(&gauges.parked) {
                let stats = stats(state);
                let age = stats.oldest.map_or(Duration::ZERO, |at| now.since(at));
                gauges.count.set(stats.count as f64);
                gauges.oldest_age.set(age.as_secs_f64());
            }
        });
    }

    fn of(&self, index_shard: PartitionId, set: impl FnOnce(&IndexShardGauges)) {
        let mut index_shards = self
            .index_shards
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        set(index_shards.entry(index_shard).or_insert_with(|| {
            let label = index_shard.to_string();
            IndexShardGauges {
                swept_at: SWEPT_AT.of([&label]),
                behind: BEHIND.of([&label]),
                unwoken: UNWOKEN.of([&label]),
                parked: PARKED_STATES.map(|state| ParkedGauges {
                    count: PARKED.of([&label, state.as_str()]),
                    oldest_age: PARKED_AGE.of([&label, state.as_str()]),
                }),
            }
        }));
    }
}
