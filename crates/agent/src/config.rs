//! The `agents` section of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;
use waybill_config::checks::{check_not_zero, check_range_because};
use waybill_units::DurationText;

const SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const SESSION_TIMEOUT_MAX: Duration = Duration::from_secs(5 * 60);

/// The `agents` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentsConfig {
    /// How the scheduler reaches the agents of this process.
    pub transport: AgentTransport,
    /// Whether the five agents of the drone-delivery application run.
    pub built_in: bool,
    /// How the built-in agents call the simulated services.
    pub built_in_calls: BuiltInCalls,
    /// Files of additional declarative HTTP agents.
    pub files: Vec<PathBuf>,
    /// Step requests that one agent holds, running and waiting.
    pub in_flight_max: usize,
    /// A name that stays the same over restarts of this process, so that it gets its share of the
    /// work back immediately. It must be unique; `null` for one that is kept in the data directory.
    pub instance_id: Option<String>,
    /// How long an agent process may be silent before other processes take over its share.
    #[serde(with = "DurationText")]
    pub session_timeout: Duration,
}

impl Default for AgentsConfig {
    fn default() -> Self {
        Self {
            transport: AgentTransport::Topics,
            built_in: true,
            built_in_calls: BuiltInCalls::Http,
            files: Vec::new(),
            in_flight_max: 4_096,
            instance_id: None,
            session_timeout: Duration::from_secs(6),
        }
    }
}

impl AgentsConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range_because(
            "agents.sessionTimeout",
            self.session_timeout,
            SESSION_TIMEOUT_MIN..=SESSION_TIMEOUT_MAX,
            "a busy agent must keep its share, and the share of a killed one must not wait longer",
        )?;
        check_not_zero("agents.inFlightMax", self.in_flight_max)
    }
}

/// How a scheduler reaches agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AgentTransport {
    /// By their topics, wherever they run.
    Topics,
    /// Directly, in the same process, without records.
    Direct,
}

/// How the agents of the drone-delivery application call the simulated services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BuiltInCalls {
    /// Over HTTP, like any service.
    Http,
    /// As functions in the same process.
    Function,
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused_by_key() {
        let changes: Changes<'_, AgentsConfig> = &[
            ("agents.sessionTimeout", |c| {
                c.session_timeout = Duration::ZERO
            }),
            ("agents.sessionTimeout", |c| {
                c.session_timeout = Duration::from_secs(301)
            }),
            ("agents.inFlightMax", |c| c.in_flight_max = 0),
        ];
        assert_refused(&AgentsConfig::default(), AgentsConfig::validate, changes);
    }
}
