//! The supervisor's metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use waybill_engine::{PartitionId, Recovery};

/// Handles, made once.
#[derive(Debug)]
pub(super) struct SupervisorMetrics {
    /// Rows that are due and cannot be read.
    pub(super) unreadable: Counter,
    /// Passes over a shard that ended early.
    pub(super) failed_passes: Counter,
    /// Failed operations that were decided on.
    pub(super) decided: Counter,
    /// Records that were written to partitions that are left over.
    pub(super) sent_home: Counter,
    overdue: Histogram,
    shards: Mutex<HashMap<PartitionId, ShardGauges>>,
}

#[derive(Debug)]
struct ShardGauges {
    swept_at: Gauge,
    behind: Gauge,
}

impl SupervisorMetrics {
    pub(super) fn new() -> Self {
        describe_counter!(
            "waybill_supervisor_recoveries_total",
            Unit::Count,
            "Recoveries asked of the schedulers, by verb"
        );
        describe_counter!(
            "waybill_supervisor_unreadable_rows_total",
            Unit::Count,
            "Rows that were due and could not be read"
        );
        describe_counter!(
            "waybill_supervisor_failed_passes_total",
            Unit::Count,
            "Passes over a shard of the deadline index that ended early and were repeated"
        );
        describe_counter!(
            "waybill_supervisor_decided_total",
            Unit::Count,
            "Failed operations of which it was decided what becomes of them"
        );
        describe_counter!(
            "waybill_supervisor_sent_home_total",
            Unit::Count,
            "Records that were written to partitions that are left over, and sent on to their own"
        );
        describe_histogram!(
            "waybill_supervisor_overdue_seconds",
            Unit::Seconds,
            "How long after it was due something was asked for"
        );
        describe_gauge!(
            "waybill_supervisor_last_sweep_timestamp_seconds",
            Unit::Seconds,
            "When the shard was last swept whole, in seconds since the Unix epoch"
        );
        describe_gauge!(
            "waybill_supervisor_oldest_overdue_seconds",
            Unit::Seconds,
            "How long the oldest part of the deadline index that was not swept has been due"
        );
        Self {
            unreadable: counter!("waybill_supervisor_unreadable_rows_total"),
            failed_passes: counter!("waybill_supervisor_failed_passes_total"),
            decided: counter!("waybill_supervisor_decided_total"),
            sent_home: counter!("waybill_supervisor_sent_home_total"),
            overdue: histogram!("waybill_supervisor_overdue_seconds"),
            shards: Mutex::default(),
        }
    }

    /// These were asked for and acknowledged.
    pub(super) fn asked(&self, recoveries: &[Recovery]) {
        // A counter is looked up by its label: once a verb is enough.
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        for recovery in recoveries {
            *counts.entry(recovery.verb.as_str()).or_default() += 1;
        }
        for (verb, count) in counts {
            counter!("waybill_supervisor_recoveries_total", "verb" => verb).increment(count);
        }
    }

    /// Something is asked for so long after it was due.
    pub(super) fn overdue(&self, overdue: Duration) {
        self.overdue.record(overdue);
    }

    /// A shard was swept whole.
    pub(super) fn swept(&self, shard: PartitionId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.of(shard, |gauges| {
            gauges.swept_at.set(now.unwrap_or_default().as_secs_f64());
        });
    }

    /// The sweep of a shard lies so far behind.
    pub(super) fn behind(&self, shard: PartitionId, behind: Duration) {
        self.of(shard, |gauges| gauges.behind.set(behind.as_secs_f64()));
    }

    fn of(&self, shard: PartitionId, set: impl FnOnce(&ShardGauges)) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        set(shards.entry(shard).or_insert_with(|| {
            let label = shard.to_string();
            ShardGauges {
                swept_at: gauge!(
                    "waybill_supervisor_last_sweep_timestamp_seconds", "shard" => label.clone()
                ),
                behind: gauge!("waybill_supervisor_oldest_overdue_seconds", "shard" => label),
            }
        }));
    }
}
