//! The scheduler's metrics. Handles are created once, so that hot paths need no lookup by name.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use waybill_engine::{
    AlertKind, ByPriority, Census, EngineStats, Offset, PartitionId, Priority, ProcessState,
    ShardId, Timestamp,
};
use waybill_scheduler_core::Task;
use waybill_telemetry::{Declared, Kind, Metric};

use super::lag::Lag;
use crate::control::{HeldView, SchedulerView};

const COMMIT_DURATION: Metric<Histogram> = Metric::new(
    "waybill_scheduler_commit_duration_seconds",
    "Time until a group commit of step state is durable",
    [],
);
const COMMIT_ROWS: Metric<Histogram> = Metric::new(
    "waybill_scheduler_commit_rows",
    "Rows in one group commit",
    [],
);
const FENCED: Metric<Counter> = Metric::new(
    "waybill_scheduler_fenced_batches_total",
    "Batches whose messages were withheld because the lease had ended",
    [],
);
const COMMITS_FAILED: Metric<Counter> = Metric::new(
    "waybill_scheduler_commits_failed_total",
    "Writes of step state that the state store did not acknowledge; they are repeated, or their \
     partitions restart",
    [],
);
pub(super) const STUCK: Metric<Counter, 1> = Metric::new(
    "waybill_scheduler_stuck_total",
    "Commits and loads of step state that were not acknowledged within scheduler.stuckAfter; their \
     partitions restart",
    ["what"],
);
pub(super) const TASK_PANICS: Metric<Counter, 1> = Metric::new(
    "waybill_scheduler_task_panics_total",
    "Panics in background tasks of the scheduler, by task",
    ["task"],
);
pub(super) const LEASES_LOST: Metric<Counter> = Metric::new(
    "waybill_scheduler_leases_lost_total",
    "Leases that expired before they were renewed; their partitions restart",
    [],
);
pub(super) const ROWS_UNREADABLE: Metric<Counter> = Metric::new(
    "waybill_scheduler_rows_unreadable_total",
    "Unreadable rows that an engine requested",
    [],
);
pub(super) const ROWS_REPLACED: Metric<Counter> = Metric::new(
    "waybill_scheduler_rows_replaced_total",
    "Unreadable rows that a commit replaced",
    [],
);
const ALERTS_RAISED: Metric<Counter, 1> = Metric::new(
    "waybill_alerts_raised_total",
    "Alerts raised for operators, by kind",
    ["kind"],
);
pub(super) const UNSENDABLE: Metric<Counter> = Metric::new(
    "waybill_scheduler_messages_unsendable_total",
    "Messages that can never be sent because they are too large or cannot be encoded",
    [],
);
pub(super) const STEPS_UNSENT: Metric<Counter, 1> = Metric::new(
    "waybill_scheduler_step_requests_refused_total",
    "Step requests that the broker refused because a partition of the topic is missing, or because \
     the scheduler has no permission to write to the topic",
    ["agent"],
);
pub(super) const COPIES_DROPPED: Metric<Counter> = Metric::new(
    "waybill_scheduler_reply_copies_dropped_total",
    "Copies of status records that did not reach the caller's topic",
    [],
);
const IN_FLIGHT: Metric<Gauge, 2> = of_shard(
    "waybill_scheduler_in_flight_operations",
    "Operations in memory",
);
const WAITING: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_waiting_requests",
    "Requests that were read and are waiting for capacity, of all tenants",
);
const CHECKPOINT: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_checkpoint_offset",
    "Offset below which all requests are done",
);
const CHECKPOINT_AGE: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_checkpoint_age_seconds",
    "How long the operation that holds the checkpoint has been in memory; 0 if no operation holds \
     it",
);
const CONSUMED: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_consumed_offset",
    "Offset below which all requests have a row or an answer",
);
const LAG: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_lag_records",
    "Requests of the partition, across all its shards, starting with the first one that has no row \
     or answer, as of the last fetch",
);
const LAG_SECONDS: Metric<Gauge, 3> = of_priority(
    "waybill_scheduler_lag_seconds",
    "Time for which the oldest request without a row or an answer is known to have waited; 0 if \
     there is none",
);
const OWNED: Metric<Gauge, 2> = of_shard(
    "waybill_scheduler_shard_owned",
    "Whether this process owns the shard: 1, or 0 while the shard waits for its lease or is \
     stopped",
);
const LAYOUT_SHARDS: Metric<Gauge> = Metric::new(
    "waybill_scheduler_layout_shards",
    "Shards in the layout, including those of other processes; all of them must have an owner",
    [],
);
const REQUESTS_RETENTION: Metric<Gauge> = Metric::new(
    "waybill_scheduler_requests_retention_seconds",
    "Configured retention of requests; requests with a longer lag are lost. Absent on the embedded \
     broker, where unfinished requests do not expire",
    [],
);
const OPERATIONS: Metric<Gauge, 3> = Metric::new(
    "waybill_operations",
    "Operations in memory, by state; excludes operations that were handed off or are parked",
    ["partition", "shard", "state"],
);
const OLDEST: Metric<Gauge, 3> = Metric::new(
    "waybill_operations_oldest_age_seconds",
    "Time since the oldest operation in memory of a state was requested; 0 if there is none",
    ["partition", "shard", "state"],
);

/// All metrics of the scheduler.
pub fn declared() -> Vec<&'static dyn Declared> {
    const OTHERS: &[&dyn Declared] = &[
        &COMMIT_DURATION,
        &COMMIT_ROWS,
        &FENCED,
        &COMMITS_FAILED,
        &STUCK,
        &TASK_PANICS,
        &LEASES_LOST,
        &ROWS_UNREADABLE,
        &ROWS_REPLACED,
        &ALERTS_RAISED,
        &UNSENDABLE,
        &STEPS_UNSENT,
        &COPIES_DROPPED,
        &IN_FLIGHT,
        &WAITING,
        &CHECKPOINT,
        &CHECKPOINT_AGE,
        &CONSUMED,
        &LAG,
        &LAG_SECONDS,
        &OWNED,
        &LAYOUT_SHARDS,
        &REQUESTS_RETENTION,
        &OPERATIONS,
        &OLDEST,
    ];
    let counted = ENGINE_COUNTERS
        .iter()
        .map(|(metric, _)| metric as &dyn Declared);
    OTHERS.iter().copied().chain(counted).collect()
}

const fn of_shard<K: Kind>(name: &'static str, help: &'static str) -> Metric<K, 2> {
    Metric::new(name, help, ["partition", "shard"])
}

/// A metric of the requests of a priority: `normal` or `high`.
const fn of_priority<K: Kind>(name: &'static str, help: &'static str) -> Metric<K, 3> {
    Metric::new(name, help, ["partition", "shard", "priority"])
}

/// Returns the engine's count.
type CountOf = fn(&EngineStats) -> u64;

/// The counters of a shard, each with the function that returns the engine's count.
static ENGINE_COUNTERS: [(Metric<Counter, 2>, CountOf); 29] = [
    (
        of_shard("waybill_operations_created_total", "Operations created"),
        |s| s.created,
    ),
    (
        of_shard(
            "waybill_operations_processed_total",
            "Operations that ended Processed",
        ),
        |s| s.processed,
    ),
    (
        of_shard(
            "waybill_operations_parked_total",
            "Operations that were parked in Error",
        ),
        |s| s.failed,
    ),
    (
        of_shard(
            "waybill_operations_undone_total",
            "Operations that ended Compensated or Cancelled",
        ),
        |s| s.undone,
    ),
    (
        of_shard(
            "waybill_operations_undo_failed_total",
            "Operations that were parked in CompensationFailed",
        ),
        |s| s.undo_failed,
    ),
    (
        of_shard(
            "waybill_operations_deadline_unreachable_total",
            "Operations whose deadline became unreachable",
        ),
        |s| s.deadline_unreachable,
    ),
    (
        of_shard(
            "waybill_requests_cancelled_total",
            "Cancels that were applied",
        ),
        |s| s.cancelled,
    ),
    (
        of_shard(
            "waybill_requests_rescheduled_total",
            "Reschedules that were applied",
        ),
        |s| s.rescheduled,
    ),
    (
        of_shard(
            "waybill_requests_amendment_refused_total",
            "Cancels and reschedules that were refused",
        ),
        |s| s.amendments_refused,
    ),
    (
        of_shard(
            "waybill_recoveries_applied_total",
            "Recoveries that were applied",
        ),
        |s| s.recoveries,
    ),
    (
        of_shard(
            "waybill_recoveries_void_total",
            "Recoveries that arrived too late to have an effect",
        ),
        |s| s.recoveries_void,
    ),
    (
        of_shard(
            "waybill_recoveries_refused_total",
            "Recoveries that did not match the operation's state",
        ),
        |s| s.recoveries_refused,
    ),
    (
        of_shard(
            "waybill_requests_duplicate_total",
            "Repeated requests for an operation",
        ),
        |s| s.duplicates,
    ),
    (
        of_shard(
            "waybill_requests_rejected_total",
            "Requests with the id of an existing operation and a different body",
        ),
        |s| s.rejected,
    ),
    (
        of_shard(
            "waybill_step_retries_total",
            "Attempts beyond a step's first",
        ),
        |s| s.retries,
    ),
    (
        of_shard(
            "waybill_step_compensations_total",
            "Steps whose undo started",
        ),
        |s| s.compensations,
    ),
    (
        of_shard(
            "waybill_step_timeouts_total",
            "Attempts that did not finish by their complete-by time",
        ),
        |s| s.time_outs,
    ),
    (
        of_shard(
            "waybill_step_unknown_outcomes_total",
            "Attempts whose outcome the agent could not determine",
        ),
        |s| s.unknown_outcomes,
    ),
    (
        of_shard(
            "waybill_step_put_off_total",
            "Attempts postponed because the agent is throttled",
        ),
        |s| s.put_off,
    ),
    (
        of_shard(
            "waybill_step_not_attempted_total",
            "Attempts that the agent had no capacity for",
        ),
        |s| s.not_attempted,
    ),
    (
        of_shard(
            "waybill_replies_stale_total",
            "Replies to superseded attempts",
        ),
        |s| s.stale_replies,
    ),
    (
        of_shard(
            "waybill_replies_late_success_total",
            "Successful replies to superseded attempts, each of which proves an effect",
        ),
        |s| s.late_successes,
    ),
    (
        of_shard(
            "waybill_replies_unknown_total",
            "Replies for operations without a row",
        ),
        |s| s.unknown_replies,
    ),
    (
        of_shard(
            "waybill_operations_handed_off_total",
            "Operations moved to the deadline index",
        ),
        |s| s.handed_off,
    ),
    (
        of_shard(
            "waybill_operations_resumed_total",
            "Operations taken over from a previous owner",
        ),
        |s| s.resumed,
    ),
    (
        of_shard(
            "waybill_records_unreadable_total",
            "Records that cannot be decoded",
        ),
        |s| s.unreadable,
    ),
    (
        of_shard(
            "waybill_records_misrouted_total",
            "Records that belong to another partition",
        ),
        |s| s.misrouted,
    ),
    (
        of_shard(
            "waybill_records_dead_lettered_total",
            "Records sent to a dead-letter topic",
        ),
        |s| s.dead_lettered,
    ),
    (
        of_shard(
            "waybill_engine_internal_errors_total",
            "Operations parked because the engine failed on them",
        ),
        |s| s.internal_errors,
    ),
];

/// Sets the number of shards.
pub(super) fn show_layout(shards: u32) {
    LAYOUT_SHARDS.of([]).set(f64::from(shards));
}

/// Sets how long requests are kept.
pub fn show_requests_retention(retention: Duration) {
    REQUESTS_RETENTION.of([]).set(retention.as_secs_f64());
}

/// Counts an alert of this kind.
pub(super) fn alert_raised(kind: AlertKind) {
    ALERTS_RAISED.of([kind.as_str()]).increment(1);
}

/// The metrics of group commits.
pub(super) struct CommitMetrics {
    /// The duration of a commit, from its beginning until it is durable.
    pub duration: Histogram,
    /// The number of rows in a commit.
    pub rows: Histogram,
    /// Batches whose messages were not sent because the lease had ended.
    pub fenced: Counter,
    /// Commits that the store did not confirm as durable within the allowed time.
    pub failed: Counter,
}

impl CommitMetrics {
    pub(super) fn new() -> Self {
        // Exported from the start, although their handles are only created when something happens.
        for rare in [LEASES_LOST, UNSENDABLE, COPIES_DROPPED] {
            rare.of([]).increment(0);
        }
        for what in [Task::Commit, Task::Load] {
            STUCK.of([what.name()]).increment(0);
        }
        for task in Task::ALL {
            TASK_PANICS.of([task.name()]).increment(0);
        }
        Self {
            duration: COMMIT_DURATION.of([]),
            rows: COMMIT_ROWS.of([]),
            fenced: FENCED.of([]),
            failed: COMMITS_FAILED.of([]),
        }
    }
}

/// The metrics of one shard.
pub(super) struct PartitionMetrics {
    in_flight: Gauge,
    priorities: ByPriority<PriorityMetrics>,
    owned: Gauge,
    operations: [(Gauge, Gauge); ProcessState::ALL.len()],
    counters: Vec<(Counter, CountOf)>,
}

/// The metrics of the requests of one priority.
struct PriorityMetrics {
    waiting: Gauge,
    checkpoint: Gauge,
    checkpoint_age: Gauge,
    consumed: Gauge,
    lag: Gauge,
    lag_seconds: Gauge,
}

/// The progress of a shard with the requests of one priority.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PriorityView {
    /// Requests that wait for admission.
    pub waiting: usize,
    /// The offset below which all are done.
    pub checkpoint: Offset,
    /// The operation that holds the checkpoint.
    pub held_by: Option<HeldView>,
    /// The offset below which all have a row or an answer.
    pub consumed: Offset,
    /// How far `consumed` is behind the end.
    pub lag: Lag,
}

impl PriorityMetrics {
    fn new([partition, shard]: [&str; 2], priority: Priority) -> Self {
        let of = [partition, shard, priority.name()];
        Self {
            waiting: WAITING.of(of),
            checkpoint: CHECKPOINT.of(of),
            checkpoint_age: CHECKPOINT_AGE.of(of),
            consumed: CONSUMED.of(of),
            lag: LAG.of(of),
            lag_seconds: LAG_SECONDS.of(of),
        }
    }

    fn show(&self, view: &PriorityView, now: Timestamp) {
        self.waiting.set(view.waiting as f64);
        self.checkpoint.set(view.checkpoint.0 as f64);
        // A request that waits for admission is part of the backlog, which the lag shows.
        let held = view.held_by.filter(|held| !held.waits);
        let held = held.map(|held| seconds_between(held.since_us, now));
        self.checkpoint_age.set(held.unwrap_or_default());
        self.consumed.set(view.consumed.0 as f64);
        self.lag.set(view.lag.records as f64);
        self.lag_seconds.set(view.lag.seconds);
    }

    /// The gauges to reset when another process owns the shard.
    fn gauges(&self) -> [&Gauge; 4] {
        [
            &self.waiting,
            &self.checkpoint_age,
            &self.lag,
            &self.lag_seconds,
        ]
    }
}

impl PartitionMetrics {
    pub(super) fn new(shard: ShardId, partition: PartitionId) -> Self {
        let labels = [partition.to_string(), shard.to_string()];
        let of = labels.each_ref().map(String::as_str);
        let counters = ENGINE_COUNTERS.iter();
        Self {
            in_flight: IN_FLIGHT.of(of),
            priorities: ByPriority::of(|priority| PriorityMetrics::new(of, priority)),
            owned: OWNED.of(of),
            operations: ProcessState::ALL.map(|state| {
                let of = [of[0], of[1], state.as_str()];
                (OPERATIONS.of(of), OLDEST.of(of))
            }),
            counters: counters
                .map(|(metric, count)| (metric.of(of), *count))
                .collect(),
        }
    }

    /// Adds the engine's counts.
    pub(super) fn count(&self, stats: &EngineStats) {
        for (counter, count) in &self.counters {
            counter.increment(count(stats));
        }
    }

    /// Updates the number of operations in memory and their ages.
    pub(super) fn show_census(&self, census: &[Census], now: Timestamp) {
        for ((operations, oldest), counted) in self.operations.iter().zip(census) {
            operations.set(counted.operations as f64);
            oldest.set(counted.oldest.map_or(0.0, |at| seconds_between(at, now)));
        }
    }

    /// Resets the gauges: the shard no longer belongs to this process.
    pub(super) fn forget(&self) {
        let of_priorities = Priority::ALL
            .into_iter()
            .flat_map(|priority| self.priorities[priority].gauges());
        let counted = self
            .operations
            .iter()
            .flat_map(|(operations, oldest)| [operations, oldest]);
        [&self.in_flight, &self.owned]
            .into_iter()
            .chain(of_priorities)
            .chain(counted)
            .for_each(|gauge| gauge.set(0.0));
    }

    /// Updates the gauges of the shard's progress.
    pub(super) fn show(
        &self,
        view: &SchedulerView,
        priorities: &ByPriority<PriorityView>,
        now: Timestamp,
    ) {
        self.in_flight.set(view.in_flight as f64);
        for priority in Priority::ALL {
            self.priorities[priority].show(&priorities[priority], now);
        }
        self.owned.set(if view.epoch.is_some() { 1.0 } else { 0.0 });
    }
}

fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_micros() - from.as_micros()).max(0) as f64 / 1e6
}
