//! Looking whether a broker is there, and why it is not.
//!
//! A request that fails says no more than that no broker was reached. The reason (a login that is
//! refused, a certificate that is not trusted, TLS that one side does not speak) is told apart from
//! any request, as an error or in the log, to a client that is polled. This is such a client, made for
//! the time of waiting.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

/// Why no Kafka client gets on with a server: it speaks HTTP.
pub const SPEAKS_HTTP: &str = "an HTTP server answers there, and no Kafka broker: check the port";

/// How librdkafka reports an answer that begins with `HTTP`, which it takes for the size of the answer.
const SIZE_OF_HTTP: &str = "Invalid response size 1213486160";

/// How long it is heard what went wrong.
const HEARING: Duration = Duration::from_millis(50);

/// A client that asks for brokers and remembers why there are none.
pub(crate) struct Probe {
    client: BaseConsumer<Reasons>,
}

impl Probe {
    /// Makes one with the configuration of another client.
    pub(crate) fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        let mut config = config.clone();
        config.set_log_level(RDKafkaLogLevel::Info);
        config.remove("log_level");
        let client = config.create_with_context(Reasons::default())?;
        Ok(Self { client })
    }

    /// How many brokers there are. Blocks up to `timeout`, and a moment longer where none was reached.
    pub(crate) fn brokers(&self, timeout: Duration) -> Result<usize, KafkaError> {
        let found = self.client.fetch_metadata(None, timeout);
        if found.is_err() {
            self.hear();
        }
        found.map(|found| found.brokers().len())
    }

    /// Has the client hand over what went wrong. It has no partition: whatever it gives is an error, and
    /// its context has got it. A poll ends with each error; between them, it needs time to go on behind
    /// a line of the log.
    fn hear(&self) {
        let until = Instant::now() + HEARING;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.client.poll(left);
        }
    }

    /// Why the broker or this client will have nothing to do with the other, if that was met.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.client.context().told(|told| told.refusal.clone())
    }

    /// What else went wrong last.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.client.context().told(|told| told.trouble.clone())
    }
}

/// What librdkafka told.
#[derive(Default)]
struct Reasons(Mutex<Told>);

#[derive(Default)]
struct Told {
    refusal: Option<String>,
    trouble: Option<String>,
}

impl Reasons {
    fn told<T>(&self, look: impl FnOnce(&mut Told) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ConsumerContext for Reasons {}

impl ClientContext for Reasons {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, line: &str) {
        // A connection that the other side closes is told in the log alone.
        if facility == "FAIL" {
            self.told(|told| match speaks_http(line) {
                true => told.refusal = Some(SPEAKS_HTTP.to_owned()),
                false => told.trouble = Some(with_advice(without_thread(line))),
            });
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.told(|told| match error.rdkafka_error_code() {
            _ if speaks_http(reason) => told.refusal = Some(SPEAKS_HTTP.to_owned()),
            Some(code) if is_refusal(code) => told.refusal = Some(reason.to_owned()),
            // A sum of others, which say more.
            Some(RDKafkaErrorCode::AllBrokersDown) => {}
            Some(_) | None => told.trouble = Some(reason.to_owned()),
        });
    }
}

fn speaks_http(line: &str) -> bool {
    line.contains(SIZE_OF_HTTP)
}

/// A line of the log without the name of the thread that begins it.
fn without_thread(line: &str) -> &str {
    match line.strip_prefix("[thrd:") {
        Some(rest) => rest.split_once("]: ").map_or(line, |(_, said)| said),
        None => line,
    }
}

/// A broker that hangs up on the very first request mostly listens for TLS. librdkafka says so, but not of
/// every connection.
fn with_advice(line: &str) -> String {
    match line.contains("APIVERSION_QUERY") && !line.contains("security.protocol") {
        true => format!("{line}; is security.protocol what it listens for?"),
        false => line.to_owned(),
    }
}

/// Whether a code says that a broker is there and the two do not come together.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_loses_the_name_of_its_thread_and_nothing_else() {
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
    fn an_answer_in_http_is_a_refusal_that_names_it() {
        let line = "a:1/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): increase \
                    receive.message.max.bytes";
        let reasons = Reasons::default();
        reasons.log(RDKafkaLogLevel::Error, "FAIL", line);
        let refusal = reasons.told(|told| told.refusal.clone());
        assert_eq!(refusal.as_deref(), Some(SPEAKS_HTTP));
        assert!(!speaks_http(
            "Invalid response size 352518912 (0..100000000)"
        ));
    }

    #[test]
    fn whoever_is_hung_up_on_at_once_is_led_to_the_protocol_and_only_once() {
        let closed =
            "Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)";
        assert!(with_advice(closed).ends_with("; is security.protocol what it listens for?"));
        for line in [
            "Disconnected: incorrect security.protocol? (after 0ms in state APIVERSION_QUERY)",
            "Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
        ] {
            assert_eq!(with_advice(line), line);
        }
    }
}
