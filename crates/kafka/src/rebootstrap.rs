//! Restores a client that has forgotten all its brokers.
//!
//! librdkafka (2.12.1, and its main branch in July 2026) forgets brokers that the newest metadata
//! does not list. Kafka does not list a fenced broker, for example one that was paused for longer
//! than its session. If none is left, librdkafka reports that all brokers are down and plans to
//! start at `bootstrap.servers` again. But the handling of that very metadata may cancel the plan
//! (`rd_kafka_rebootstrap_tmr_stop`) and leave it marked as pending, so that no other plan is made:
//! the client then has no broker until its process ends.
//!
//! So each client adds the bootstrap servers itself: one that is polled for errors once no further
//! report has arrived for [`QUIET`], any other after a request without an answer. A client that
//! found its brokers again drops them with the next metadata.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::native;

/// While brokers are unreachable, a client reports it about once a second.
const QUIET: Duration = Duration::from_secs(2);

/// The shortest time between two additions: librdkafka keeps a copy of the list for each.
const INTERVAL: Duration = Duration::from_secs(5);

/// What one client knows about unreachable brokers.
#[derive(Debug)]
pub(crate) struct Rebootstrap {
    servers: CString,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When all brokers were last reported down, unless the servers were added since.
    down_at: Option<Instant>,
    added_at: Option<Instant>,
}

impl Rebootstrap {
    /// For a client with this configuration.
    pub(crate) fn new(config: &ClientConfig) -> Self {
        let servers = config.get("bootstrap.servers").unwrap_or_default();
        Self {
            servers: CString::new(servers).unwrap_or_default(),
            state: Mutex::default(),
        }
    }

    /// Takes a global error of librdkafka.
    pub(crate) fn error(&self, error: &KafkaError) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.with(|state| state.down_at = Some(Instant::now()));
        }
    }

    /// Adds the bootstrap servers after a request that no broker answered, unless they were added a
    /// short while ago. For a client that is not polled for errors. It does not wait for silence:
    /// with overlapping requests there may be none. Never call it from a callback.
    pub(crate) fn request_failed<C: ClientContext>(&self, client: &Client<C>, error: &KafkaError) {
        // Negative codes are librdkafka's own, others a broker's.
        let code = error.rdkafka_error_code();
        if code.is_some_and(|code| code as i32 > 0) {
            return;
        }
        if self.with(|state| state.add_now(Instant::now())) {
            native::add_brokers(client, &self.servers);
        }
    }

    /// Whether the servers were ever added.
    #[cfg(test)]
    pub(crate) fn has_added(&self) -> bool {
        self.with(|state| state.added_at.is_some())
    }

    /// Adds the bootstrap servers to the client once brokers were reported down and reports have
    /// ceased. Call it often, and never from a callback.
    pub(crate) fn tend<C: ClientContext>(&self, client: &Client<C>) {
        if self.with(|state| state.is_due(Instant::now())) {
            native::add_brokers(client, &self.servers);
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    /// Whether to add the servers now. If so, they count as added.
    fn is_due(&mut self, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.down_at.is_some_and(|at| since(at) >= QUIET) && self.add_now(now)
    }

    /// Whether the last addition is long enough ago for another. If so, the servers count as added.
    fn add_now(&mut self, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        if self.added_at.is_some_and(|at| since(at) < INTERVAL) {
            return false;
        }
        *self = Self {
            down_at: None,
            added_at: Some(now),
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_servers_are_added_after_silence_and_rarely() {
        let start = Instant::now();
        let mut state = State::default();
        assert!(!state.is_due(start), "nothing was reported");
        state.down_at = Some(start);
        assert!(!state.is_due(start + QUIET / 2));
        // Another report.
        state.down_at = Some(start + QUIET / 2);
        assert!(!state.is_due(start + QUIET));
        let added = start + QUIET / 2 + QUIET;
        assert!(state.is_due(added));
        assert!(!state.is_due(added + 2 * INTERVAL), "it was done");

        state.down_at = Some(added);
        assert!(!state.is_due(added + QUIET), "too soon after the last");
        assert!(state.is_due(added + INTERVAL));
    }
}
