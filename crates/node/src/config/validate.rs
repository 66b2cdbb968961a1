//! Checks a whole configuration: each section separately, then the sections together.

mod broker;
mod times;

pub use broker::partitions as check_topics;

use std::time::Duration;

use waybill_config::ConfigError;
use waybill_config::checks::{check_range, check_range_because, require};
use waybill_http::ANY_ORIGIN;
use waybill_topology::PARTITIONS_MAX;

use super::Config;

const SHUTDOWN_TIMEOUT_MIN: Duration = Duration::from_secs(2);

/// Reports the first invalid value.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    check_common(config)?;
    config.telemetry.validate()?;
    config.kafka.validate()?;
    config.schema_registry.validate()?;
    config.http.validate()?;
    config.admin.validate()?;
    config.auth.validate()?;
    config.broker.validate()?;
    config.store.validate()?;
    config.scheduler.validate()?;
    config.supervisor.validate()?;
    config.agents.validate()?;
    config.workflows.validate()?;
    config.services.validate()?;
    config.alerts.validate()?;
    check_origins(config)?;
    times::check(config)?;
    broker::check(config)
}

/// Without authentication, a page of any origin could use the API with the rights of its visitor.
fn check_origins(config: &Config) -> Result<(), ConfigError> {
    let mut origins = config.http.cors_origins.iter();
    require(
        config.auth.is_on() || origins.all(|origin| origin != ANY_ORIGIN),
        "http.corsOrigins",
        "must list single origins, not *, while auth is off: pages of all origins could use the API",
    )
}

/// Checks the keys that belong to no section.
fn check_common(config: &Config) -> Result<(), ConfigError> {
    check_range_because(
        "shutdownTimeout",
        config.shutdown_timeout,
        SHUTDOWN_TIMEOUT_MIN..,
        "an idle process takes about a second to stop",
    )?;
    check_range("partitions", config.partitions, 1..=PARTITIONS_MAX)?;
    require(
        !config.data_dir.as_os_str().is_empty(),
        "dataDir",
        "must not be empty",
    )?;
    check_variables(config)
}

/// Checks the values for files of agents.
fn check_variables(config: &Config) -> Result<(), ConfigError> {
    const NAME_BYTES_MAX: usize = 64;
    const VALUE_BYTES_MAX: usize = 4096;
    const VARIABLES_MAX: usize = 1000;
    require(
        config.variables.len() <= VARIABLES_MAX,
        "variables",
        "must be at most 1000",
    )?;
    for (name, value) in &config.variables {
        let mut bytes = name.bytes();
        let is_name = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && name.len() <= NAME_BYTES_MAX;
        // An invalid name may contain invisible characters.
        let key = format!("variables.{}", name.escape_debug());
        require(
            is_name,
            &key,
            "must have a name of 1 to 64 of a-z, A-Z, 0-9, '-' and '_', of which the first is a to z or A to Z",
        )?;
        require(
            value.len() <= VALUE_BYTES_MAX && !value.chars().any(char::is_control),
            &key,
            "must have at most 4096 bytes, without control characters",
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};
    use waybill_units::ByteSize;

    use super::*;

    #[test]
    fn invalid_values_are_refused_by_key() {
        let changes: Changes<'_, Config> = &[
            ("partitions", |c| c.partitions = 0),
            ("partitions", |c| c.partitions = 5_000),
            ("dataDir", |c| c.data_dir = "".into()),
            ("variables.1st", |c| {
                c.variables.insert("1st".to_owned(), "a".to_owned());
            }),
            ("variables.payments", |c| {
                c.variables
                    .insert("payments".to_owned(), "a\r\nb".to_owned());
            }),
            ("variables.payments", |c| {
                c.variables.insert("payments".to_owned(), "a".repeat(5000));
            }),
            ("shutdownTimeout", |c| {
                c.shutdown_timeout = Duration::from_secs(1)
            }),
            // Of each section, one that its own check refuses.
            ("kafka.brokers", |c| c.kafka.brokers = Some(Vec::new())),
            ("schemaRegistry.user", |c| {
                c.schema_registry.user = Some("anna".to_owned())
            }),
            ("http.requestsMax", |c| c.http.requests_max = 0),
            ("admin.requestsMax", |c| c.admin.requests_max = 0),
            ("auth.jwt.clockSkew", |c| {
                c.auth.jwt.clock_skew = Duration::from_secs(601)
            }),
            ("broker.idleTimeout", |c| {
                c.broker.idle_timeout = Duration::ZERO
            }),
            ("store.scylla.replicationFactor", |c| {
                c.store.scylla.replication_factor = 0
            }),
            ("scheduler.highPriorityWeight", |c| {
                c.scheduler.high_priority_weight = 0
            }),
            ("supervisor.recoveriesPerSecondMax", |c| {
                c.supervisor.recoveries_per_second_max = 0
            }),
            ("agents.inFlightMax", |c| c.agents.in_flight_max = 0),
            ("workflows.files", |c| c.workflows.built_in = false),
            ("services.requestsMax", |c| c.services.requests_max = 0),
            ("alerts.queueMax", |c| c.alerts.queue_max = usize::MAX),
            ("telemetry.logFilter", |c| {
                c.telemetry.log_filter = "bananas".to_owned()
            }),
            // Several sections together.
            ("http.corsOrigins", |c| {
                c.http.cors_origins = vec!["*".to_owned()]
            }),
            ("store.retention", |c| {
                c.store.retention = c.kafka.requests_retention
            }),
            ("broker.requestBytesMax", |c| {
                c.broker.request_bytes_max = ByteSize::kib(2_047)
            }),
            ("broker.bufferBytesMax", |c| {
                c.broker.buffer_bytes_max = ByteSize::mib(31)
            }),
            ("broker.requestsDiskBytesMax", |c| {
                c.broker.requests_disk_bytes_max = ByteSize::kib(64)
            }),
            ("broker.recoveriesDiskBytesMax", |c| {
                c.broker.recoveries_disk_bytes_max = ByteSize::kib(64)
            }),
            ("broker.partitionsMax", |c| c.broker.partitions_max = 59),
        ];
        assert_refused(&Config::default(), check, changes);
    }
}
