//! The settings of a partition engine.

use std::time::Duration;

/// Settings of a partition engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// How long the row of a final operation is kept.
    pub retention: Duration,
    /// How long an operation may stay in memory, and hold the checkpoint, before it is handed off
    /// to the deadline index.
    pub hand_off_after: Duration,
    /// Maximum age of a request with a server-generated id that needs no look-up. A caller may
    /// repeat an older request after ingestion has reported its outcome as unknown. So this must be
    /// less than the time after which ingestion does so.
    pub fresh_for: Duration,
    /// How many high-priority requests are admitted for each normal one, while both wait. At least
    /// 1.
    pub high_priority_weight: u32,
    /// How long after its complete-by an attempt counts as timed out: its reply may be in transit.
    pub timeout_grace: Duration,
    /// How long the supervisor may take to decide about an operation that failed for good, before
    /// the deadline index triggers the decision again.
    pub supervisor_decision_timeout: Duration,
    /// How long until an operation with an unreadable row is loaded again.
    pub unreadable_again: Duration,
    /// Whether the step states of every operation are published on `operation-status`, and not only
    /// to the topics that callers have named.
    pub publish_step_status: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            hand_off_after: Duration::from_secs(5),
            fresh_for: Duration::from_secs(5),
            high_priority_weight: 4,
            timeout_grace: Duration::from_millis(500),
            supervisor_decision_timeout: Duration::from_secs(15),
            unreadable_again: Duration::from_secs(10 * 60),
            publish_step_status: false,
        }
    }
}
