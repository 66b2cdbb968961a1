//! The metrics of agents. Handles are created once per agent, never per record.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use waybill_engine::Outcome;

use waybill_telemetry::{Declared, Metric};

const ATTEMPTS: Metric<Counter, 2> = Metric::new(
    "waybill_agent_attempts_total",
    "Attempts by outcome; late ones were past their complete-by and got no reply",
    ["agent", "outcome"],
);
const POISON: Metric<Counter, 1> = Metric::new(
    "waybill_agent_poison_records_total",
    "Step requests that could not be decoded and went to the dead-letter topic",
    ["agent"],
);
const SUPERSEDED: Metric<Counter, 1> = Metric::new(
    "waybill_agent_superseded_total",
    "Step requests refused because a newer owner of their shard had already sent requests",
    ["agent"],
);
const DURATION: Metric<Histogram, 1> = Metric::new(
    "waybill_agent_attempt_duration_seconds",
    "Duration of attempts",
    ["agent"],
);
const IN_FLIGHT: Metric<Gauge, 1> =
    Metric::new("waybill_agent_in_flight", "Running attempts", ["agent"]);
const QUEUED: Metric<Gauge, 1> = Metric::new("waybill_agent_queued", "Queued attempts", ["agent"]);
const BREAKER: Metric<Gauge, 1> = Metric::new(
    "waybill_agent_breaker_state",
    "State of the agent's circuit breaker: 0 closed, 1 half-open, 2 open",
    ["agent"],
);
const CALLS: Metric<Counter, 2> = Metric::new(
    "waybill_service_calls_total",
    "HTTP calls of an agent's service by status class of the response; failed calls got no response",
    ["agent", "status"],
);
const CALL_DURATION: Metric<Histogram, 1> = Metric::new(
    "waybill_service_call_duration_seconds",
    "Duration of calls of an agent's service, from the request to the end of the response",
    ["agent"],
);
const TOKEN_REQUESTS: Metric<Counter, 2> = Metric::new(
    "waybill_agent_token_requests_total",
    "Requests of an agent for an OAuth 2.0 access token, by outcome",
    ["agent", "outcome"],
);

/// The metrics of agents and of the services that they call.
pub const METRICS: &[&dyn Declared] = &[
    &ATTEMPTS,
    &POISON,
    &SUPERSEDED,
    &DURATION,
    &IN_FLIGHT,
    &QUEUED,
    &BREAKER,
    &CALLS,
    &CALL_DURATION,
    &TOKEN_REQUESTS,
];

/// The gauge of an agent's circuit breaker: 0 closed, 1 half-open, 2 open.
pub(crate) fn breaker_state(agent: &str) -> Gauge {
    BREAKER.of([agent])
}

/// Describes the metrics to the recorder.
pub(crate) fn describe() {
    METRICS.iter().for_each(|metric| metric.describe());
}

/// The handles of one agent.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    success: Counter,
    transient: Counter,
    permanent: Counter,
    unknown: Counter,
    not_attempted: Counter,
    /// Attempts past complete-by: stopped or not started, and not answered.
    pub(crate) late: Counter,
    /// Records that could not be decoded.
    pub(crate) poison: Counter,
    /// Attempts refused because a newer owner of the shard has already sent requests.
    pub(crate) superseded: Counter,
    /// Duration of attempts, in seconds.
    pub(crate) duration: Histogram,
    /// Running attempts.
    in_flight: Gauge,
    /// Queued attempts.
    queued: Gauge,
}

impl AgentMetrics {
    pub(crate) fn new(agent: &str) -> Self {
        Self {
            success: ATTEMPTS.of([agent, "success"]),
            transient: ATTEMPTS.of([agent, "transient"]),
            permanent: ATTEMPTS.of([agent, "permanent"]),
            unknown: ATTEMPTS.of([agent, "unknown"]),
            not_attempted: ATTEMPTS.of([agent, "not-attempted"]),
            late: ATTEMPTS.of([agent, "late"]),
            poison: POISON.of([agent]),
            superseded: SUPERSEDED.of([agent]),
            duration: DURATION.of([agent]),
            in_flight: IN_FLIGHT.of([agent]),
            queued: QUEUED.of([agent]),
        }
    }

    /// Sets the numbers of queued and running attempts.
    pub(crate) fn show_depth(&self, (waiting, running): (usize, usize)) {
        self.queued.set(waiting as f64);
        self.in_flight.set(running as f64);
    }

    /// Counts an attempt by how it ended.
    pub(crate) fn count(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Success { .. } | Outcome::NotPerformed => &self.success,
            Outcome::Transient { .. } => &self.transient,
            Outcome::Permanent { .. } => &self.permanent,
            Outcome::Unknown { .. } => &self.unknown,
            Outcome::NotAttempted { .. } => &self.not_attempted,
        }
        .increment(1);
    }
}

/// The handles of one agent's service.
#[derive(Debug)]
pub(crate) struct ServiceMetrics {
    /// By the first digit of the status, from 1 on.
    answers: [Counter; 5],
    failed: Counter,
    duration: Histogram,
}

impl ServiceMetrics {
    pub(crate) fn new(agent: &str) -> Self {
        Self {
            answers: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| CALLS.of([agent, class])),
            failed: CALLS.of([agent, "failed"]),
            duration: CALL_DURATION.of([agent]),
        }
    }

    /// Counts a call with the answer's status, or without an answer.
    pub(crate) fn count(&self, status: Option<u16>, took: Duration) {
        let class = status.map(|status| usize::from(status / 100).wrapping_sub(1));
        let answers = class.and_then(|class| self.answers.get(class));
        answers.unwrap_or(&self.failed).increment(1);
        self.duration.record(took);
    }
}

/// The handles of one agent's access tokens.
#[derive(Debug)]
pub(crate) struct TokenMetrics {
    granted: Counter,
    failed: Counter,
}

impl TokenMetrics {
    pub(crate) fn new(agent: &str) -> Self {
        let [granted, failed] =
            ["granted", "failed"].map(|outcome| TOKEN_REQUESTS.of([agent, outcome]));
        Self { granted, failed }
    }

    /// Counts a request for a token.
    pub(crate) fn count(&self, is_granted: bool) {
        match is_granted {
            true => &self.granted,
            false => &self.failed,
        }
        .increment(1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn calls_are_counted_by_the_class_of_their_answer() {
        let counts: [Arc<AtomicU64>; 6] = std::array::from_fn(|_| Arc::default());
        let [answers @ .., failed] = counts.each_ref();
        let service = ServiceMetrics {
            answers: answers.map(|count| Counter::from_arc(count.clone())),
            failed: Counter::from_arc(failed.clone()),
            duration: Histogram::noop(),
        };
        for status in [Some(200), Some(204), Some(503), Some(99), Some(600), None] {
            service.count(status, Duration::from_millis(3));
        }
        assert_eq!(
            counts.map(|count| count.load(Ordering::Relaxed)),
            [0, 2, 0, 0, 1, 3]
        );
    }
}
