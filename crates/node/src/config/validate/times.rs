//! Times of several sections that must fit together.

use waybill_config::ConfigError;
use waybill_config::checks::require;
use waybill_store::RequestTimeout;
use waybill_topology::lease::check_lease_and_margin;
use waybill_units::duration_to_text;

use super::Config;

/// Reports the first time that does not fit the others.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Config {
        kafka,
        http,
        store,
        scheduler,
        supervisor,
        ..
    } = config;
    if let Some(RequestTimeout { key, limit }) = store.request_timeout() {
        require(
            limit < scheduler.lease.min(supervisor.lease),
            key,
            format!(
                "is {}, and must be less than scheduler.lease ({}) and supervisor.lease ({}): the result of a \
                 renewal must arrive in time",
                duration_to_text(limit),
                duration_to_text(scheduler.lease),
                duration_to_text(supervisor.lease)
            ),
        )?;
    }
    require(
        store.retention > kafka.requests_retention,
        "store.retention",
        format!(
            "is {}, and must be more than kafka.requestsRetention ({}): a request must not \
             outlive the row of its operation",
            duration_to_text(store.retention),
            duration_to_text(kafka.requests_retention)
        ),
    )?;
    require(
        kafka.repartition_settle > http.accept_timeout,
        "kafka.repartitionSettle",
        format!(
            "is {}, and must be more than http.acceptTimeout",
            duration_to_text(kafka.repartition_settle)
        ),
    )?;
    require(
        http.drain_timeout < config.shutdown_timeout,
        "http.drainTimeout",
        "must be less than shutdownTimeout",
    )?;
    require(
        scheduler.drain < config.shutdown_timeout,
        "scheduler.drain",
        "must be less than shutdownTimeout",
    )?;
    check_lease_and_margin("supervisor.lease", supervisor.lease, scheduler.lease_margin)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use waybill_config::testing::{Changes, assert_refused};

    use super::*;

    #[test]
    fn times_that_do_not_fit_others_are_refused_by_key() {
        let changes: Changes<'_, Config> = &[
            ("store.scylla.requestTimeout", |c| {
                c.store.scylla.nodes = Some(vec!["a:1".to_owned()]);
                c.store.scylla.request_timeout = c.scheduler.lease;
            }),
            ("store.retention", |c| {
                c.store.retention = c.kafka.requests_retention
            }),
            ("kafka.repartitionSettle", |c| {
                c.kafka.repartition_settle = c.http.accept_timeout
            }),
            ("http.drainTimeout", |c| {
                c.http.drain_timeout = c.shutdown_timeout
            }),
            ("scheduler.drain", |c| {
                c.scheduler.drain = c.shutdown_timeout
            }),
            (
                "supervisor.lease is 2s, and must be at least 3s: 3 times",
                |c| c.supervisor.lease = Duration::from_secs(2),
            ),
        ];
        assert_refused(&Config::default(), check, changes);
    }
}
