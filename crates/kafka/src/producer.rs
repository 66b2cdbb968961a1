//! A producer whose acknowledgements settle tokens of the caller's, not futures.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header as NativeHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use waybill_engine::Offset;

use crate::client_log::ClientLog;
use crate::delivery::{Delivered, Delivery, ProduceError};
use crate::error::{ClientError, RequestError};
use crate::native;
use crate::record::{OutRecord, partition_id, partition_number};
use crate::settings::KafkaSettings;

/// The longest pause between two tries while the queue is full.
const QUEUE_FULL_PAUSE_MAX: Duration = Duration::from_millis(10);

/// Settings of a [`Producer`]. Records are always acknowledged by all in-sync replicas, and the
/// producer is always idempotent: librdkafka's own retries neither lose, repeat nor reorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerOptions {
    /// The name that brokers and logs know the client by.
    pub client_id: String,
    /// At most this many records wait for their acknowledgement. Default 100,000.
    pub queue_records_max: u32,
    /// At most this much waits for its acknowledgement. Default 64 MiB.
    pub queue_kib_max: u32,
    /// The largest record. Default 1 MiB.
    pub message_bytes_max: u32,
    /// A record that is not acknowledged by then has failed. Default 30 s.
    pub delivery_timeout: Duration,
    /// How long a batch waits for company. Default 0: batches form from what is handed over
    /// together and from what gathers while the last request is under way.
    pub linger: Duration,
    /// librdkafka's name of the compression. Default `none`.
    pub compression: String,
}

impl ProducerOptions {
    /// The defaults under a client id.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            queue_records_max: 100_000,
            queue_kib_max: 64 * 1024,
            message_bytes_max: 1024 * 1024,
            delivery_timeout: Duration::from_secs(30),
            linger: Duration::ZERO,
            compression: "none".to_owned(),
        }
    }

    fn defaults(&self) -> Vec<(&'static str, String)> {
        let delivery_ms = self.delivery_timeout.as_millis().clamp(1, 2_147_483_647);
        vec![
            (
                "queue.buffering.max.messages",
                self.queue_records_max.max(1).to_string(),
            ),
            (
                "queue.buffering.max.kbytes",
                self.queue_kib_max.clamp(1, 2_147_483_647).to_string(),
            ),
            (
                "message.max.bytes",
                self.message_bytes_max
                    .clamp(1_000, 1_000_000_000)
                    .to_string(),
            ),
            ("delivery.timeout.ms", delivery_ms.to_string()),
            ("request.timeout.ms", delivery_ms.min(30_000).to_string()),
            (
                "linger.ms",
                self.linger.as_millis().min(900_000).to_string(),
            ),
            ("compression.type", self.compression.clone()),
            ("retry.backoff.ms", "50".to_owned()),
        ]
    }
}

/// A record that was not taken, with its token.
#[derive(thiserror::Error)]
pub enum SendError<D> {
    /// The producer's queue is full: try again later, or turn work away.
    #[error("the producer's queue is full")]
    QueueFull(D),
    /// The record can't be sent: it was not enqueued.
    #[error("the record cannot be sent")]
    Refused {
        /// The record's token.
        token: D,
        /// Always [`ProduceError::Refused`].
        #[source]
        error: ProduceError,
    },
}

impl<D> SendError<D> {
    /// The token, and the error that it would be told.
    pub fn into_parts(self) -> (D, ProduceError) {
        match self {
            Self::QueueFull(token) => (
                token,
                ProduceError::Refused {
                    code: RDKafkaErrorCode::QueueFull,
                },
            ),
            Self::Refused { token, error } => (token, error),
        }
    }
}

impl<D> fmt::Debug for SendError<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull(_) => f.write_str("QueueFull"),
            Self::Refused { error, .. } => f.debug_tuple("Refused").field(error).finish(),
        }
    }
}

/// A producer with a thread of its own, which tells each record's token the outcome.
///
/// `D` is the token: `Box<T>` for one record, `Arc<T>` for many, see [`Delivered`]. When the
/// producer is dropped, records that are not acknowledged yet fail: flush first.
pub struct Producer<D: Delivered> {
    inner: ThreadedProducer<Context<D>>,
    client_id: String,
}

impl<D: Delivered> Producer<D> {
    /// Makes a producer. No broker need be there yet.
    pub fn new(settings: &KafkaSettings, options: &ProducerOptions) -> Result<Self, ClientError> {
        let fixed = [
            ("acks", "all".to_owned()),
            ("enable.idempotence", "true".to_owned()),
            ("partitioner", "murmur2_random".to_owned()),
        ];
        let config = settings.client_config(&options.client_id, &options.defaults(), &fixed)?;
        let context = Context {
            log: ClientLog::new(&options.client_id),
            in_flight: AtomicUsize::new(0),
            token: PhantomData,
        };
        let inner = config
            .create_with_context(context)
            .map_err(|error| ClientError::new(&options.client_id, error))?;
        Ok(Self {
            inner,
            client_id: options.client_id.clone(),
        })
    }

    /// Enqueues a record; its bytes are copied. Never blocks. On success the token will be told
    /// the outcome, exactly once; on an error it comes back and is told nothing.
    pub fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
        let message = BaseRecord::<[u8], [u8], D> {
            topic: record.topic,
            partition: (record.partition != OutRecord::BY_KEY)
                .then(|| partition_number(record.partition)),
            payload: record.value,
            key: record.key,
            timestamp: record.timestamp_ms,
            headers: native_headers(record),
            delivery_opaque: token,
        };
        // Counted before it is sent: its outcome may be told before `send` is back.
        let in_flight = &self.inner.context().in_flight;
        in_flight.fetch_add(1, Ordering::Relaxed);
        self.inner.send(message).map_err(|(error, message)| {
            in_flight.fetch_sub(1, Ordering::Relaxed);
            let token = message.delivery_opaque;
            match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => SendError::QueueFull(token),
                code => {
                    let code = code.unwrap_or(RDKafkaErrorCode::InvalidArgument);
                    SendError::Refused {
                        token,
                        error: ProduceError::Refused { code },
                    }
                }
            }
        })
    }

    /// Enqueues a record, and blocks the calling thread while the queue is full, up to `timeout`.
    /// Not for threads of an async runtime.
    pub fn send_or_wait(
        &self,
        record: &OutRecord<'_>,
        mut token: D,
        timeout: Duration,
    ) -> Result<(), SendError<D>> {
        let deadline = Instant::now() + timeout;
        let mut pause = Duration::from_micros(200);
        loop {
            token = match self.send(record, token) {
                Err(SendError::QueueFull(token)) => token,
                other => return other,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SendError::QueueFull(token));
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(QUEUE_FULL_PAUSE_MAX);
        }
    }

    /// Waits up to `timeout` until every record sent so far is settled. Blocks.
    pub fn flush(&self, timeout: Duration) -> Result<(), RequestError> {
        self.inner
            .flush(timeout)
            .map_err(RequestError::new("flushing the producer"))
    }

    /// How many records are not settled yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // librdkafka's own count takes log lines and errors that wait to be read for records.
        self.inner.context().in_flight.load(Ordering::Relaxed)
    }

    /// The error after which this producer sends nothing more, if it met one: make a new one.
    #[must_use]
    pub fn fatal_error(&self) -> Option<String> {
        self.inner
            .client()
            .fatal_error()
            .map(|(code, reason)| format!("{code}: {reason}"))
    }
}

impl<D: Delivered> fmt::Debug for Producer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("client_id", &self.client_id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

fn native_headers(record: &OutRecord<'_>) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for header in record.headers {
        headers = headers.insert(NativeHeader {
            key: header.key,
            value: header.value,
        });
    }
    Some(headers)
}

/// What librdkafka calls back on the producer's thread.
struct Context<D> {
    log: ClientLog,
    in_flight: AtomicUsize,
    token: PhantomData<fn(D)>,
}

impl<D: Delivered> ClientContext for Context<D> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(&error, reason);
    }
}

impl<D: Delivered> ProducerContext for Context<D> {
    type DeliveryOpaque = D;

    fn delivery(&self, result: &DeliveryResult<'_>, token: D) {
        let delivery = match result {
            Ok(message) => Delivery {
                partition: partition_id(message.partition()),
                offset: Some(message.offset())
                    .filter(|offset| *offset >= 0)
                    .map(Offset),
                result: Ok(()),
            },
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let error = ProduceError::of_delivery(code, native::persisted(message));
                Delivery::failed(partition_id(message.partition()), error)
            }
        };
        // A panic would end the producer's thread, and no record would ever be settled again.
        if catch_unwind(AssertUnwindSafe(|| token.delivered(delivery))).is_err() {
            tracing::error!("a delivery token panicked; its record counts as settled");
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn options_become_librdkafkas_properties() {
        let mut options = ProducerOptions::new("p");
        options.delivery_timeout = Duration::from_secs(5);
        let defaults = options.defaults();
        assert!(defaults.contains(&("linger.ms", "0".to_owned())));
        assert!(defaults.contains(&("delivery.timeout.ms", "5000".to_owned())));
        assert!(defaults.contains(&("request.timeout.ms", "5000".to_owned())));
    }

    #[test]
    fn a_wrong_property_is_named_and_its_value_is_not_shown() {
        let mut settings = KafkaSettings::new("localhost:1");
        settings
            .properties
            .insert("compression.level".to_owned(), "s3cret".to_owned());
        let error =
            Producer::<Box<oneshot::Sender<Delivery>>>::new(&settings, &ProducerOptions::new("p"))
                .unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("compression.level"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");

        settings.properties = [("no.such.property".to_owned(), "x".to_owned())].into();
        let error =
            Producer::<Box<oneshot::Sender<Delivery>>>::new(&settings, &ProducerOptions::new("p"))
                .unwrap_err();
        assert!(
            matches!(&error, ClientError::UnknownProperty { property } if property == "no.such.property"),
            "{error:?}"
        );
    }
}
