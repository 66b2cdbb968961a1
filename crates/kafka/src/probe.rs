//! Checks whether a broker is reachable, and why not.
//!
//! A failed request says only that no broker was reached. The reason (a refused login, an untrusted
//! certificate, TLS on one side only) arrives separately, as an error or a log line, and only at a
//! client that is polled. This is such a client. It exists only while the caller waits for a
//! broker.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

/// Why no Kafka client can talk to a server that speaks HTTP.
pub const SPEAKS_HTTP: &str = "an HTTP server answers there, not a Kafka broker: check the port";

/// How librdkafka reports an answer that begins with `HTTP`, which it takes for the size of the
/// answer.
const SIZE_OF_HTTP: &str = "Invalid response size 1213486160";

/// How long to collect errors.
const COLLECT_FOR: Duration = Duration::from_millis(50);

/// A client that asks for brokers and remembers why none answered.
pub(crate) struct Probe {
    client: BaseConsumer<Reasons>,
}

impl Probe {
    /// Creates a probe with the configuration of another client.
    pub(crate) fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        let mut config = config.clone();
        config.set_log_level(RDKafkaLogLevel::Info);
        config.remove("log_level");
        let client = config.create_with_context(Reasons::default())?;
        Ok(Self { client })
    }

    /// The number of brokers. Blocks up to `timeout`, and a moment longer if none was reached.
    pub(crate) fn brokers(&self, timeout: Duration) -> Result<usize, KafkaError> {
        let found = self.client.fetch_metadata(None, timeout);
        if found.is_err() {
            self.collect_errors();
        }
        found.map(|found| found.brokers().len())
    }

    /// Has the client report its errors. It has no partitions, so a poll returns errors only, which
    /// its context has already received. A poll ends at each error, and needs time to continue
    /// after a log line.
    fn collect_errors(&self) {
        let until = Instant::now() + COLLECT_FOR;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.client.poll(left);
        }
    }

    /// Why the broker refused this client, or this client the broker, if that happened.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.client
            .context()
            .with_errors(|errors| errors.refusal.clone())
    }

    /// The last other error.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.client
            .context()
            .with_errors(|errors| errors.trouble.clone())
    }
}

/// The reasons that librdkafka reported.
#[derive(Default)]
struct Reasons(Mutex<Errors>);

#[derive(Default)]
struct Errors {
    refusal: Option<String>,
    trouble: Option<String>,
}

impl Reasons {
    fn with_errors<T>(&self, read: impl FnOnce(&mut Errors) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ConsumerContext for Reasons {}

impl ClientContext for Reasons {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, line: &str) {
        // Only the log reports a connection that the other side closed.
        if facility == "FAIL" {
            self.with_errors(|errors| match speaks_http(line) {
                true => errors.refusal = Some(SPEAKS_HTTP.to_owned()),
                false => errors.trouble = Some(with_advice(without_thread(line))),
            });
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.with_errors(|errors| match error.rdkafka_error_code() {
            _ if speaks_http(reason) => errors.refusal = Some(SPEAKS_HTTP.to_owned()),
            Some(code) if is_refusal(code) && !is_interrupted(reason) => {
                errors.refusal = Some(reason.to_owned());
            }
            // A summary of other errors, which are more specific.
            Some(RDKafkaErrorCode::AllBrokersDown) => {}
            Some(_) | None => errors.trouble = Some(reason.to_owned()),
        });
    }

    // Statistics are off: no parser is compiled for them.
    fn stats_raw(&self, _: &[u8]) {}
}

fn speaks_http(line: &str) -> bool {
    line.contains(SIZE_OF_HTTP)
}

/// A line of the log without the name of the thread that begins it.
fn without_thread(line: &str) -> &str {
    match line.strip_prefix("[thrd:") {
        Some(rest) => rest.split_once("]: ").map_or(line, |(_, message)| message),
        None => line,
    }
}

/// A broker that closes the connection on the very first request usually listens for TLS.
/// librdkafka says so, but not for every connection.
fn with_advice(line: &str) -> String {
    match line.contains("APIVERSION_QUERY") && !line.contains("security.protocol") {
        true => format!("{line}; check that security.protocol matches the broker's listener"),
        false => line.to_owned(),
    }
}

/// Whether a code means that the broker is reachable and one side refuses the other.
fn is_refusal(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::Authentication
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::UnsupportedSASLMechanism
            | RDKafkaErrorCode::IllegalSASLState
            | RDKafkaErrorCode::SSL
    )
}

/// Whether a login failed because its connection broke.
fn is_interrupted(reason: &str) -> bool {
    reason.contains("Local: Broker transport failure")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_whose_connection_breaks_is_not_refused() {
        let reasons = Reasons::default();
        let error = |reason| {
            reasons.error(KafkaError::Global(RDKafkaErrorCode::Authentication), reason);
            reasons.with_errors(|errors| (errors.refusal.is_some(), errors.trouble.is_some()))
        };
        let broken = "SASL PLAIN mechanism handshake failed: Local: Broker transport failure";
        assert_eq!(error(broken), (false, true));
        assert_eq!(error("SASL authentication error"), (true, true));
    }

    #[test]
    fn the_thread_name_is_removed_from_a_log_line() {
        for (line, expected) in [
            (
                "[thrd:a:1/bootstrap]: a:1/bootstrap: Disconnected",
                "a:1/bootstrap: Disconnected",
            ),
            ("[thrd:a:1", "[thrd:a:1"),
            ("Disconnected", "Disconnected"),
        ] {
            assert_eq!(without_thread(line), expected);
        }
    }

    #[test]
    fn an_http_answer_is_reported_as_such() {
        let line = "a:1/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): increase \
                    receive.message.max.bytes";
        let reasons = Reasons::default();
        reasons.log(RDKafkaLogLevel::Error, "FAIL", line);
        let refusal = reasons.with_errors(|errors| errors.refusal.clone());
        assert_eq!(refusal.as_deref(), Some(SPEAKS_HTTP));
        assert!(!speaks_http(
            "Invalid response size 352518912 (0..100000000)"
        ));
    }

    #[test]
    fn a_connection_closed_immediately_gets_one_hint_about_the_protocol() {
        let closed =
            "Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)";
        assert!(
            with_advice(closed)
                .ends_with("; check that security.protocol matches the broker's listener")
        );
        for line in [
            "Disconnected: incorrect security.protocol? (after 0ms in state APIVERSION_QUERY)",
            "Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
        ] {
            assert_eq!(with_advice(line), line);
        }
    }
}
