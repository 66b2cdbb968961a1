//! librdkafka's log lines and global errors, as tracing events under the target `librdkafka`.
//!
//! While a broker is unreachable, librdkafka reports every connection attempt. Each client logs
//! such an event at most once in ten seconds, with the number of events that it suppressed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use tracing::{debug, error, info, warn};

/// Minimum time between two reports of one client that its broker is unreachable.
const NOISE_INTERVAL: Duration = Duration::from_secs(10);

/// The log of one client.
#[derive(Debug)]
pub(crate) struct ClientLog {
    client_id: String,
    noise: Gate,
}

impl ClientLog {
    pub(crate) fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_owned(),
            noise: Gate::default(),
        }
    }

    /// Logs a line of librdkafka's log.
    pub(crate) fn line(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        let client = self.client_id.as_str();
        if is_connection_noise(facility) {
            self.unreachable(line);
            return;
        }
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => {
                error!(target: "librdkafka", client, facility, "{line}");
            }
            RDKafkaLogLevel::Warning => warn!(target: "librdkafka", client, facility, "{line}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                info!(target: "librdkafka", client, facility, "{line}");
            }
            RDKafkaLogLevel::Debug => debug!(target: "librdkafka", client, facility, "{line}"),
        }
    }

    /// Logs a global error of librdkafka.
    pub(crate) fn error(&self, error: &KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(code) if is_unreachable(code) => self.unreachable(reason),
            // Not an error: a consumer has reached the end of a partition.
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            _ => warn!(target: "librdkafka", client = self.client_id, "{error}: {reason}"),
        }
    }

    /// Logs the failure of an action that is retried anyway.
    pub(crate) fn transient(&self, action: &str, error: &KafkaError) {
        if let Some(held_back) = self.noise.pass(Instant::now()) {
            warn!(target: "librdkafka", client = self.client_id, held_back, "{action}: {error}");
        }
    }

    fn unreachable(&self, line: &str) {
        if let Some(held_back) = self.noise.pass(Instant::now()) {
            warn!(target: "librdkafka", client = self.client_id, held_back, "{line}");
        }
    }
}

/// Whether a code means that the broker is unreachable, or was a moment ago.
pub(crate) fn is_unreachable(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::TimedOutQueue
            | RDKafkaErrorCode::NetworkException
            | RDKafkaErrorCode::RequestTimedOut
            | RDKafkaErrorCode::WaitingForCoordinator
            | RDKafkaErrorCode::CoordinatorLoadInProgress
            | RDKafkaErrorCode::CoordinatorNotAvailable
            | RDKafkaErrorCode::NotCoordinator
    )
}

/// The facilities under which librdkafka reports lost and refused connections.
fn is_connection_noise(facility: &str) -> bool {
    matches!(
        facility,
        "FAIL" | "ERROR" | "REQTMOUT" | "CONNECT" | "DISCONNECT"
    )
}

/// Lets one event through per interval and counts the suppressed ones.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Gate {
    /// If this event passes: the number of events suppressed since the last one that passed.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match state.0 {
            Some(last) if now.saturating_duration_since(last) < NOISE_INTERVAL => {
                state.1 += 1;
                None
            }
            _ => {
                state.0 = Some(now);
                Some(std::mem::take(&mut state.1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_logged_once_per_interval_with_a_count() {
        let gate = Gate::default();
        let start = Instant::now();
        assert_eq!(gate.pass(start), Some(0));
        assert_eq!(gate.pass(start + NOISE_INTERVAL / 2), None);
        assert_eq!(gate.pass(start + NOISE_INTERVAL / 2), None);
        assert_eq!(gate.pass(start + NOISE_INTERVAL), Some(2));
        assert_eq!(gate.pass(start + NOISE_INTERVAL * 2), Some(0));
    }
}
