//! The `telemetry` section of the configuration.

mod traces;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::ConfigError;

pub use traces::TracesConfig;

use crate::log_filter::LogFilter;

/// The `telemetry` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TelemetryConfig {
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or `target=level` pairs separated by commas.
    pub log_filter: String,
    /// The collector of spans.
    pub traces: TracesConfig,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            traces: TracesConfig::default(),
        }
    }
}

impl TelemetryConfig {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// If a value is invalid, alone or together with others of the section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.log_filter.parse::<LogFilter>().map_err(|problem| {
            ConfigError::invalid(
                "telemetry.logFilter (or --log)",
                format!("is invalid: {problem}"),
            )
        })?;
        self.traces.validate()
    }
}

/// The format of log lines.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_that_selects_nothing_is_refused_by_its_key() {
        TelemetryConfig::default().validate().unwrap();
        for filter in ["bananas", "waybill=loud"] {
            let config = TelemetryConfig {
                log_filter: filter.to_owned(),
                ..TelemetryConfig::default()
            };
            let error = config.validate().expect_err(filter).to_string();
            assert!(error.starts_with("telemetry.logFilter"), "{error}");
        }
    }
}
