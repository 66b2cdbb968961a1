//! Durations with a lower bound above 0, some also with an upper bound.
//!
//! Why it exists: a process with a time-out that is too short answers nothing, or keeps losing its
//! leases or connections. It is refused at the start, with the key and the reason.

use std::time::Duration;

use waybill_config::{ConfigError, duration_to_text};

use super::Config;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// A request to a service on another machine takes tens of milliseconds.
const REQUEST_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const REQUEST_TIMEOUT_REASON: &str = "a request to another machine takes tens of milliseconds";
struct Bound {
    key: &'static str,
    value: Duration,
    least: Duration,
    most: Option<Duration>,
    reason: &'static str,
}

/// Reports the first duration out of its range.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let wrong = bounds(config).into_iter().find(|bound| {
        bound.value < bound.least || bound.most.is_some_and(|most| bound.value > most)
    });
    let Some(Bound {
        key,
        value,
        least,
        most,
        reason,
    }) = wrong
    else {
        return Ok(());
    };
    let [value, least] = [value, least].map(duration_to_text);
    let range = match most {
        Some(most) => format!("from {least} to {}", duration_to_text(most)),
        None => format!("at least {least}"),
    };
    Err(ConfigError::invalid(
        key,
        format!("is {value}, and must be {range}: {reason}"),
    ))
}

fn bounds(config: &Config) -> Vec<Bound> {
    let Config {
        http,
        broker,
        ..
    } = config;
    let at_least = |key, value, least, reason| Bound {
        key,
        value,
        least,
        most: None,
        reason,
    };
    let mut bounds = vec![
        at_least(
            "shutdownTimeout",
            config.shutdown_timeout,
            2 * SECOND,
            "an idle process takes about a second to stop",
        ),
        at_least(
            "http.idleTimeout",
            http.idle_timeout,
            SECOND,
            "clients reuse connections",
        ),
        at_least(
            "http.acceptTimeout",
            http.accept_timeout,
            100 * MILLISECOND,
            "the broker syncs a record before it acknowledges it, which takes tens of milliseconds",
        ),
        at_least(
            "broker.idleTimeout",
            broker.idle_timeout,
            10 * SECOND,
            "Waybill's own clients may be silent for up to 10s",
        ),
    ];
    if config.telemetry.traces.endpoint.is_some() {
        bounds.push(at_least(
            "telemetry.traces.requestTimeout",
            config.telemetry.traces.request_timeout,
            REQUEST_TIMEOUT_MIN,
            REQUEST_TIMEOUT_REASON,
        ));
    }
    bounds
}
