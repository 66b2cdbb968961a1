//! The `scheduler` section of the configuration.

mod identity;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_config::checks::{check_not_zero, check_range, check_range_because, require};
use waybill_engine::SHARDS_PER_PARTITION_MAX;
use waybill_topology::lease::{check_lease, check_lease_and_margin};
use waybill_units::{ByteSize, DurationText};

pub use identity::{IdentityError, PartitionChoice};

const LEASE_MARGIN_MIN: Duration = Duration::from_millis(100);

/// The `scheduler` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// The partitions that this process runs; if partitions have several shards, the shards.
    pub partitions: PartitionChoice,
    /// The number of shards per partition of a new store. `waybill shards set` changes an existing
    /// one.
    pub shards_per_partition: u32,
    /// Operations in memory, over all partitions of the process.
    pub in_flight_max: usize,
    /// Their total size.
    pub in_flight_bytes_max: ByteSize,
    /// Requests that are read ahead of admission, from each of the two request topics, over all
    /// partitions of the process. They are admitted fairly among tenants, and high-priority
    /// requests first (highPriorityWeight).
    pub read_ahead_max: usize,
    /// Their total size, for each topic.
    pub read_ahead_bytes_max: ByteSize,
    /// Requests that are tracked, from each of the two request topics, over all partitions of the
    /// process: requests that wait, that are in progress, or that are done while an earlier one is
    /// not (a restart reads these again). At the limit, the scheduler stops reading the topic until
    /// the request that holds the checkpoint is done or handed off.
    pub tracked_requests_max: usize,
    /// How many high-priority requests are admitted for each normal one, while both wait.
    pub high_priority_weight: u32,
    /// How long an operation stays in memory before it is handed off to the deadline index and no
    /// longer holds the checkpoint. An operation that only waits, and for longer than this, is
    /// handed off immediately.
    #[serde(with = "DurationText")]
    pub hand_off_after: Duration,
    /// The longest time between two moves of the checkpoint, while records are finished.
    #[serde(with = "DurationText")]
    pub checkpoint_every: Duration,
    /// The number of finished records after which it moves earlier.
    pub checkpoint_records: u64,
    /// How long the lease of a shard lasts after each renewal.
    #[serde(with = "DurationText")]
    pub lease: Duration,
    /// How long before the end of its lease an owner stops acting, and how long after that end
    /// another scheduler waits before it takes the lease.
    #[serde(with = "DurationText")]
    pub lease_margin: Duration,
    /// How long after complete-by a reply is still expected.
    #[serde(with = "DurationText")]
    pub timeout_grace: Duration,
    /// How long a shutdown waits for operations in flight; the next start resumes the rest.
    #[serde(with = "DurationText")]
    pub drain: Duration,
    /// How long the supervisor may take to decide about an operation that failed for good, before
    /// the deadline index requests the decision again.
    #[serde(with = "DurationText")]
    pub supervisor_decision_timeout: Duration,
    /// Whether the status topic gets a record for every step of every operation: an operation of
    /// five steps then has 18 records in total instead of 11. Callers' reply topics get them in any
    /// case.
    pub publish_step_status: bool,
    /// Whether a partition without state in the store is started although its log was processed
    /// before: every request in the log then runs again.
    pub start_without_state: bool,
    /// How long the state store may take for a write or a read of rows before the shard is given
    /// up, to be acquired again by this or another scheduler.
    #[serde(with = "DurationText")]
    pub stuck_after: Duration,
    /// Whether a partition continues if unfinished requests or recoveries are missing from its log:
    /// retention deleted them, or the topic was deleted and created again.
    pub skip_deleted_requests: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            partitions: PartitionChoice::Auto,
            shards_per_partition: 1,
            in_flight_max: 4_000,
            in_flight_bytes_max: ByteSize::mib(64),
            read_ahead_max: 50_000,
            read_ahead_bytes_max: ByteSize::mib(32),
            tracked_requests_max: 250_000,
            high_priority_weight: 4,
            hand_off_after: Duration::from_secs(5),
            checkpoint_every: Duration::from_secs(1),
            checkpoint_records: 10_000,
            lease: Duration::from_secs(10),
            lease_margin: Duration::from_secs(1),
            timeout_grace: Duration::from_millis(500),
            drain: Duration::from_secs(5),
            supervisor_decision_timeout: Duration::from_secs(15),
            publish_step_status: false,
            start_without_state: false,
            stuck_after: Duration::from_secs(60),
            skip_deleted_requests: false,
        }
    }
}

impl SchedulerConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range("scheduler.checkpointRecords", self.checkpoint_records, 1..)?;
        check_lease("scheduler.lease", self.lease)?;
        check_range_because(
            "scheduler.leaseMargin",
            self.lease_margin,
            LEASE_MARGIN_MIN..,
            "an owner may take that long to stop acting",
        )?;
        check_range(
            "scheduler.shardsPerPartition",
            self.shards_per_partition,
            1..=SHARDS_PER_PARTITION_MAX,
        )?;
        check_not_zero("scheduler.inFlightMax", self.in_flight_max)?;
        check_not_zero("scheduler.inFlightBytesMax", self.in_flight_bytes_max)?;
        check_not_zero("scheduler.readAheadMax", self.read_ahead_max)?;
        check_not_zero("scheduler.readAheadBytesMax", self.read_ahead_bytes_max)?;
        require(
            self.tracked_requests_max >= self.read_ahead_max.saturating_add(self.in_flight_max),
            "scheduler.trackedRequestsMax",
            "must be at least scheduler.readAheadMax and scheduler.inFlightMax together",
        )?;
        check_not_zero("scheduler.highPriorityWeight", self.high_priority_weight)?;
        check_lease_and_margin("scheduler.lease", self.lease, self.lease_margin)?;
        require(
            !self.checkpoint_every.is_zero() && self.checkpoint_every < self.lease,
            "scheduler.checkpointEvery",
            "must be more than 0s and less than scheduler.lease",
        )?;
        check_not_zero(
            "scheduler.supervisorDecisionTimeout",
            self.supervisor_decision_timeout,
        )?;
        require(
            self.stuck_after >= self.lease,
            "scheduler.stuckAfter",
            "must be at least scheduler.lease",
        )
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, SchedulerConfig> = &[
            ("scheduler.trackedRequestsMax", |c| {
                c.tracked_requests_max = 53_999
            }),
            ("scheduler.shardsPerPartition", |c| {
                c.shards_per_partition = 0
            }),
            ("scheduler.lease", |c| c.lease = Duration::from_secs(2)),
            ("scheduler.checkpointEvery", |c| {
                c.checkpoint_every = Duration::from_secs(10);
            }),
            ("scheduler.checkpointRecords", |c| c.checkpoint_records = 0),
            ("scheduler.leaseMargin", |c| {
                c.lease_margin = Duration::from_millis(99)
            }),
            ("scheduler.lease", |c| c.lease = Duration::from_millis(999)),
            ("scheduler.lease", |c| c.lease = Duration::from_secs(3_601)),
        ];
        assert_refused(
            &SchedulerConfig::default(),
            SchedulerConfig::validate,
            changes,
        );
    }
}
