//! librdkafka's log lines and global errors, as tracing events under the target `librdkafka`.
//!
//! While a broker is away librdkafka reports every attempt to reach it. Such noise passes once in
//! ten seconds and client, with the number of lines that were held back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use tracing::{debug, error, info, warn};

/// How often a client that cannot reach its broker may say so.
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

    /// Takes a log line of librdkafka's.
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

    /// Takes a global error of librdkafka's.
    pub(crate) fn error(&self, error: &KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(code) if is_unreachable(code) => self.unreachable(reason),
            // No fault: a consumer has read what there is.
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            _ => warn!(target: "librdkafka", client = self.client_id, "{error}: {reason}"),
        }
    }

    /// Takes the failure of something that is repeated anyway.
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

/// Codes that say that the broker is away, or was a moment ago.
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

/// Lets one event through per interval and counts those that it held back.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Gate {
    /// The number of events held back since the last that passed, if this one passes.
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
    fn noise_passes_once_per_interval_and_counts_what_it_held_back() {
        let gate = Gate::default();
        let start = Instant::now();
        assert_eq!(gate.pass(start), Some(0));
        assert_eq!(gate.pass(start + NOISE_INTERVAL / 2), None);
        assert_eq!(gate.pass(start + NOISE_INTERVAL / 2), None);
        assert_eq!(gate.pass(start + NOISE_INTERVAL), Some(2));
        assert_eq!(gate.pass(start + NOISE_INTERVAL * 2), Some(0));
    }
}
