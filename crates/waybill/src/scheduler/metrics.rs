//! The scheduler's metrics. Handles are made once; nothing is looked up by name on the way.

use metrics::{Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, gauge};
use metrics::{Unit, describe_histogram, histogram};
use waybill_engine::{EngineStats, PartitionId, ReaderId};

use crate::admin::SchedulerView;

/// Of the group commits.
pub(super) struct CommitMetrics {
    /// How long a commit takes, from its beginning until it is durable.
    pub duration: Histogram,
    /// How many rows it writes.
    pub rows: Histogram,
    /// Batches whose messages were not sent because the lease had ended.
    pub fenced: Counter,
    /// Commits that the store did not say were durable, though it was asked for as long as it may be.
    pub failed: Counter,
}

impl CommitMetrics {
    pub(super) fn new() -> Self {
        describe_histogram!(
            "waybill_scheduler_commit_duration_seconds",
            Unit::Seconds,
            "Time until a group commit of step state is durable"
        );
        describe_histogram!(
            "waybill_scheduler_commit_rows",
            Unit::Count,
            "Rows that one group commit writes"
        );
        describe_counter!(
            "waybill_scheduler_fenced_batches_total",
            Unit::Count,
            "Batches whose messages were withheld because the lease had ended"
        );
        describe_counter!(
            "waybill_scheduler_commits_failed_total",
            Unit::Count,
            "Group commits that the state store did not acknowledge; their partitions begin again"
        );
        Self {
            duration: histogram!("waybill_scheduler_commit_duration_seconds"),
            rows: histogram!("waybill_scheduler_commit_rows"),
            fenced: counter!("waybill_scheduler_fenced_batches_total"),
            failed: counter!("waybill_scheduler_commits_failed_total"),
        }
    }
}

/// Of one reader.
pub(super) struct PartitionMetrics {
    in_flight: Gauge,
    checkpoint: Gauge,
    consumed: Gauge,
    counters: Vec<(Counter, CountOf)>,
}

/// Where the engine counts something.
type CountOf = fn(&EngineStats) -> u64;

/// A counter's name, its help, and where the engine counts it.
type EngineCounter = (&'static str, &'static str, CountOf);

const ENGINE_COUNTERS: &[EngineCounter] = &[
    (
        "waybill_operations_created_total",
        "Operations created",
        |s| s.created,
    ),
    (
        "waybill_operations_processed_total",
        "Operations that ended Processed",
        |s| s.processed,
    ),
    (
        "waybill_operations_parked_total",
        "Operations that were parked in Error",
        |s| s.failed,
    ),
    (
        "waybill_operations_undone_total",
        "Operations that ended Compensated or Cancelled",
        |s| s.undone,
    ),
    (
        "waybill_operations_undo_failed_total",
        "Operations that were parked in CompensationFailed",
        |s| s.undo_failed,
    ),
    (
        "waybill_operations_doomed_total",
        "Operations whose deadline could not be met any more",
        |s| s.doomed,
    ),
    (
        "waybill_requests_cancelled_total",
        "Cancels that were applied",
        |s| s.cancelled,
    ),
    (
        "waybill_requests_rescheduled_total",
        "Reschedules that were applied",
        |s| s.rescheduled,
    ),
    (
        "waybill_requests_amendment_refused_total",
        "Cancels and reschedules that were refused",
        |s| s.amendments_refused,
    ),
    (
        "waybill_recoveries_applied_total",
        "Recoveries that were applied",
        |s| s.recoveries,
    ),
    (
        "waybill_recoveries_void_total",
        "Recoveries that came too late to mean anything",
        |s| s.recoveries_void,
    ),
    (
        "waybill_recoveries_refused_total",
        "Recoveries that did not fit the operation's state",
        |s| s.recoveries_refused,
    ),
    (
        "waybill_requests_duplicate_total",
        "Requests that repeat an operation",
        |s| s.duplicates,
    ),
    (
        "waybill_requests_rejected_total",
        "Requests with the id of an operation and another body",
        |s| s.rejected,
    ),
    (
        "waybill_step_retries_total",
        "Attempts beyond a step's first",
        |s| s.retries,
    ),
    (
        "waybill_step_timeouts_total",
        "Attempts that outlived complete-by",
        |s| s.time_outs,
    ),
    (
        "waybill_step_unknown_outcomes_total",
        "Attempts of which the agent could not say how they ended",
        |s| s.unknown_outcomes,
    ),
    (
        "waybill_step_put_off_total",
        "Attempts put off to spare an agent",
        |s| s.put_off,
    ),
    (
        "waybill_step_not_attempted_total",
        "Attempts that the agent had no room for",
        |s| s.not_attempted,
    ),
    (
        "waybill_replies_stale_total",
        "Replies to superseded attempts",
        |s| s.stale_replies,
    ),
    (
        "waybill_replies_late_success_total",
        "Successes of superseded attempts that proved an effect",
        |s| s.late_successes,
    ),
    (
        "waybill_replies_unknown_total",
        "Replies of operations without a row",
        |s| s.unknown_replies,
    ),
    (
        "waybill_operations_handed_off_total",
        "Operations moved to the deadline index",
        |s| s.handed_off,
    ),
    (
        "waybill_operations_resumed_total",
        "Operations taken over from an earlier ownership",
        |s| s.resumed,
    ),
    (
        "waybill_records_unreadable_total",
        "Records that cannot be decoded",
        |s| s.unreadable,
    ),
    (
        "waybill_records_misplaced_total",
        "Records that belong to another partition",
        |s| s.misplaced,
    ),
    (
        "waybill_records_dead_lettered_total",
        "Records sent to a dead-letter topic",
        |s| s.dead_lettered,
    ),
    (
        "waybill_engine_internal_errors_total",
        "Operations parked because the engine failed on them",
        |s| s.internal_errors,
    ),
];

impl PartitionMetrics {
    pub(super) fn new(reader: ReaderId, partition: PartitionId) -> Self {
        let (label, number) = (partition.to_string(), reader.to_string());
        let of_partition = |name: &'static str, help: &'static str| {
            describe_gauge!(name, Unit::Count, help);
            gauge!(name, "partition" => label.clone(), "reader" => number.clone())
        };
        let counters = ENGINE_COUNTERS.iter().map(|&(name, help, count)| {
            describe_counter!(name, Unit::Count, help);
            let labels = [("partition", label.clone()), ("reader", number.clone())];
            (counter!(name, &labels), count)
        });
        Self {
            in_flight: of_partition(
                "waybill_scheduler_in_flight_operations",
                "Operations in memory",
            ),
            checkpoint: of_partition(
                "waybill_scheduler_checkpoint_offset",
                "Requests below this offset are done",
            ),
            consumed: of_partition(
                "waybill_scheduler_consumed_offset",
                "Requests below this offset have a row or an answer",
            ),
            counters: counters.collect(),
        }
    }

    /// Adds what the engine has counted.
    pub(super) fn count(&self, stats: &EngineStats) {
        for (counter, count) in &self.counters {
            counter.increment(count(stats));
        }
    }

    /// The reader is not one of this process any more.
    pub(super) fn forget(&self) {
        self.in_flight.set(0.0);
    }

    /// Shows how far the reader is.
    pub(super) fn show(&self, view: &SchedulerView) {
        self.in_flight.set(view.in_flight as f64);
        self.checkpoint.set(view.checkpoint.requests.0 as f64);
        self.consumed.set(view.consumed.0 as f64);
    }
}
