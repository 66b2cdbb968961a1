//! The supervisor's section of the configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::units;

/// The `supervisor` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SupervisorConfig {
    /// Whether a supervisor runs in this process. Without any supervisor, handed-off operations are
    /// not retried, and operations that failed for good wait for a decision.
    pub enabled: bool,
    /// How often the deadline index is swept.
    #[serde(with = "units::DurationText")]
    pub interval: Duration,
    /// Maximum number of recoveries per second: limits how fast a backlog of due work returns.
    pub recoveries_per_second_max: u32,
    /// How often to look for live operations whose due time has passed and that nothing would wake.
    #[serde(with = "units::DurationText")]
    pub audit_interval: Duration,
    /// How long the lease of an index shard lasts after each renewal.
    #[serde(with = "units::DurationText")]
    pub lease: Duration,
    /// Maximum skew between the clocks of schedulers and supervisors before entries of the deadline
    /// index are written twice.
    #[serde(with = "units::DurationText")]
    pub clock_skew: Duration,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Duration::from_millis(500),
            recoveries_per_second_max: 2_000,
            audit_interval: Duration::from_secs(5 * 60),
            lease: Duration::from_secs(10),
            clock_skew: Duration::from_secs(2),
        }
    }
}
