//! The metrics of agents. Handles are made once per agent, never per record.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use waybill_engine::Outcome;

/// The gauge of an agent's circuit breaker: 0 closed, 1 half-open, 2 open.
pub(crate) fn breaker_state(agent: &str) -> Gauge {
    gauge!("waybill_agent_breaker_state", "agent" => agent.to_owned())
}

/// One agent's handles.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    success: Counter,
    transient: Counter,
    permanent: Counter,
    unknown: Counter,
    not_attempted: Counter,
    /// Past complete-by: stopped, or not started, and not answered.
    pub(crate) late: Counter,
    /// Records that could not be decoded.
    pub(crate) poison: Counter,
    /// How long attempts took, in seconds.
    pub(crate) duration: Histogram,
    /// Attempts that run now.
    in_flight: Gauge,
    /// Attempts that wait for their turn.
    queued: Gauge,
}

impl AgentMetrics {
    pub(crate) fn new(agent: &str) -> Self {
        let attempts = |outcome: &'static str| counter!("waybill_agent_attempts_total", "agent" => agent.to_owned(), "outcome" => outcome);
        Self {
            success: attempts("success"),
            transient: attempts("transient"),
            permanent: attempts("permanent"),
            unknown: attempts("unknown"),
            not_attempted: attempts("not-attempted"),
            late: attempts("late"),
            poison: counter!("waybill_agent_poison_records_total", "agent" => agent.to_owned()),
            duration: histogram!("waybill_agent_attempt_duration_seconds", "agent" => agent.to_owned()),
            in_flight: gauge!("waybill_agent_in_flight", "agent" => agent.to_owned()),
            queued: gauge!("waybill_agent_queued", "agent" => agent.to_owned()),
        }
    }

    /// Shows how much waits, and how much runs.
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

/// Describes the metrics to the recorder.
pub(crate) fn describe() {
    describe_gauge!(
        "waybill_agent_breaker_state",
        "State of the agent's circuit breaker: 0 closed, 1 half-open, 2 open"
    );
    describe_counter!(
        "waybill_agent_attempts_total",
        "Attempts by how they ended; late ones were past complete-by and not answered"
    );
    describe_counter!(
        "waybill_agent_poison_records_total",
        "Step requests that could not be decoded and went to the dead-letter topic"
    );
    describe_histogram!(
        "waybill_agent_attempt_duration_seconds",
        Unit::Seconds,
        "How long attempts took"
    );
    describe_gauge!("waybill_agent_in_flight", "Attempts that run now");
    describe_gauge!("waybill_agent_queued", "Attempts that wait for their turn");
}
