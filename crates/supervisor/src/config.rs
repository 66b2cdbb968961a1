//! The `supervisor` section of the configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_config::checks::{check_not_zero, check_range_because, require};
use waybill_topology::lease::check_lease;
use waybill_units::{DurationText, duration_to_text};

const INTERVAL_MIN: Duration = Duration::from_millis(10);
const AUDIT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The `supervisor` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SupervisorConfig {
    /// Whether a supervisor runs in this process. Without any supervisor, handed-off operations are
    /// not retried, and operations that failed for good wait for a decision.
    pub enabled: bool,
    /// How often the deadline index is swept.
    #[serde(with = "DurationText")]
    pub interval: Duration,
    /// Maximum number of recoveries per second: limits how fast a backlog of due work returns.
    pub recoveries_per_second_max: u32,
    /// How often to look for live operations whose due time has passed and that nothing would wake.
    #[serde(with = "DurationText")]
    pub audit_interval: Duration,
    /// How long the lease of an index shard lasts after each renewal.
    #[serde(with = "DurationText")]
    pub lease: Duration,
    /// Maximum skew between the clocks of schedulers and supervisors before entries of the deadline
    /// index are written twice.
    #[serde(with = "DurationText")]
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

impl SupervisorConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range_because(
            "supervisor.interval",
            self.interval,
            INTERVAL_MIN..,
            "each pass reads the state store",
        )?;
        check_range_because(
            "supervisor.auditInterval",
            self.audit_interval,
            AUDIT_INTERVAL_MIN..,
            "each audit reads all live operations",
        )?;
        check_lease("supervisor.lease", self.lease)?;
        require(
            self.interval < self.lease,
            "supervisor.interval",
            format!(
                "is {}, and must be less than supervisor.lease ({})",
                duration_to_text(self.interval),
                duration_to_text(self.lease)
            ),
        )?;
        check_not_zero(
            "supervisor.recoveriesPerSecondMax",
            self.recoveries_per_second_max,
        )
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, SupervisorConfig> = &[
            ("supervisor.lease", |c| c.lease = Duration::from_millis(999)),
            ("supervisor.interval", |c| {
                c.interval = Duration::from_millis(9)
            }),
            ("supervisor.interval", |c| c.interval = c.lease),
            ("supervisor.auditInterval", |c| {
                c.audit_interval = Duration::from_millis(999)
            }),
            ("supervisor.recoveriesPerSecondMax", |c| {
                c.recoveries_per_second_max = 0
            }),
        ];
        assert_refused(
            &SupervisorConfig::default(),
            SupervisorConfig::validate,
            changes,
        );
    }
}
