//! A producer whose acknowledgements settle tokens of the caller, not futures.

mod native;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};

use rdkafka::types::RDKafkaErrorCode;

use self::native::NativeProducer;
use crate::delivery::{Delivered, ProduceError};
use crate::error::{ClientError, RequestError};
use crate::record::OutRecord;
use crate::settings::KafkaSettings;

/// The longest pause between two tries while the queue is full.
const QUEUE_FULL_PAUSE_MAX: Duration = Duration::from_millis(10);

/// How long a topic may be unknown to the brokers before records for it are refused.
const TOPIC_UNKNOWN_MAX: Duration = Duration::from_secs(8);

/// Settings of a [`Producer`]. Records are always acknowledged by all in-sync replicas, and the
/// producer is always idempotent: librdkafka's own retries neither lose, repeat nor reorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerOptions {
    /// The client's name in the brokers' metrics and in logs.
    pub client_id: String,
    /// Its name in metrics: not that of a process or machine, which would make the number of series
    /// grow. Default: the client ID.
    pub metrics_name: String,
    /// At most this many records wait for their acknowledgement. Default 100,000.
    pub queue_records_max: u32,
    /// At most this much data waits for its acknowledgement. Default 64 MiB.
    pub queue_kib_max: u32,
    /// The largest record. Default 1 MiB.
    pub message_bytes_max: u32,
    /// A record fails if it is not acknowledged within this time, or up to 600 ms more if others of
    /// its partition were in flight when it arrived. Default 30 s.
    pub delivery_timeout: Duration,
    /// The compression, by librdkafka's name. Default `none`.
    pub compression: String,
}

impl ProducerOptions {
    /// The defaults for a client ID.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        let client_id = client_id.into();
        Self {
            metrics_name: client_id.clone(),
            client_id,
            queue_records_max: 100_000,
            queue_kib_max: 64 * 1024,
            message_bytes_max: 1024 * 1024,
            delivery_timeout: Duration::from_secs(30),
            compression: "none".to_owned(),
        }
    }

    pub(crate) fn defaults(&self) -> Vec<(&'static str, String)> {
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
            // Batches form from the records that gather while others of the partition are in
            // flight.
            ("linger.ms", "0".to_owned()),
            ("compression.type", self.compression.clone()),
            ("retry.backoff.ms", "50".to_owned()),
            // Roles wait for the topics that they create. So a topic that stays unknown for longer
            // was deleted.
            (
                "topic.metadata.propagation.max.ms",
                TOPIC_UNKNOWN_MAX.as_millis().to_string(),
            ),
        ]
    }
}

/// A record that was not accepted, with its token.
#[derive(thiserror::Error)]
pub enum SendError<D> {
    /// The producer's queue is full: try again later, or reject work.
    #[error("the producer's queue is full")]
    QueueFull(D),
    /// The record cannot be sent: it was not enqueued.
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
    pub(crate) fn refused(token: D, code: RDKafkaErrorCode) -> Self {
        let error = ProduceError::Refused { code };
        Self::Refused { token, error }
    }

    /// The token, and the error that it would receive.
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

/// A producer with its own thread, which passes each record's outcome to its token.
///
/// `D` is the token: `Box<T>` for one record, `Arc<T>` for many, see [`Delivered`]. When the
/// producer is dropped, records without an acknowledgement fail: flush first.
///
/// It survives librdkafka's fatal errors. An idempotent producer that cannot continue without a gap
/// or a duplicate stops for good. The next record sent creates a new one in its place, at most once
/// per [`Producer::REVIVAL_PAUSE`]. The records of the old one are settled as failed. So order is
/// not guaranteed between a failed record and one that was sent after it.
pub struct Producer<D: Delivered> {
    settings: KafkaSettings,
    options: ProducerOptions,
    current: RwLock<Current<D>>,
    in_flight: Arc<AtomicUsize>,
}

/// The librdkafka producer in use.
struct Current<D: Delivered> {
    producer: Arc<NativeProducer<D>>,
    /// Distinguishes it from its predecessors.
    number: u64,
    /// When a replacement was last attempted.
    tried_at: Option<Instant>,
}

impl<D: Delivered> Producer<D> {
    /// Minimum time between two attempts to recreate a producer that gave up. Records are refused
    /// in the meantime.
    pub const REVIVAL_PAUSE: Duration = Duration::from_secs(1);

    /// Creates a producer. Does not need a reachable broker.
    pub fn new(settings: &KafkaSettings, options: &ProducerOptions) -> Result<Self, ClientError> {
        let in_flight = Arc::default();
        let producer = NativeProducer::new(settings, options, Arc::clone(&in_flight))?;
        Ok(Self {
            settings: settings.clone(),
            options: options.clone(),
            current: RwLock::new(Current {
                producer: Arc::new(producer),
                number: 0,
                tried_at: None,
            }),
            in_flight,
        })
    }

    /// Enqueues a record; its bytes are copied. Never waits for room or for the broker. On success
    /// the token receives the outcome, exactly once. An error returns the token, which then
    /// receives no outcome.
    pub fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
        let (token, error, number) = {
            let current = self.current();
            match current.producer.send(record, token) {
                Err(SendError::Refused { token, error })
                    if current.producer.fatal_error().is_some() =>
                {
                    (token, error, current.number)
                }
                sent => return sent,
            }
        };
        if self.replace(number) {
            self.current().producer.send(record, token)
        } else {
            Err(SendError::Refused { token, error })
        }
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

    /// Waits up to `timeout` until every record sent so far is settled. Blocks. Does not wait for
    /// the records of a producer that was replaced: they are settled within a second anyway.
    pub fn flush(&self, timeout: Duration) -> Result<(), RequestError> {
        // Not under the lock: concurrent senders must not wait.
        let producer = Arc::clone(&self.current().producer);
        producer
            .flush(timeout)
            .map_err(RequestError::new("flushing the producer"))
    }

    /// The number of records that are not settled yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // librdkafka's own count includes pending log lines and errors.
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Replaces producer number `failed` by a new one. Returns whether it is replaced.
    fn replace(&self, failed: u64) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.number != failed {
            return true;
        }
        let now = Instant::now();
        let is_too_soon = |tried_at| now < tried_at + Self::REVIVAL_PAUSE;
        if current.tried_at.is_some_and(is_too_soon) {
            return false;
        }
        current.tried_at = Some(now);
        let client = self.options.client_id.as_str();
        let reason = current.producer.fatal_error().unwrap_or_default();
        match NativeProducer::new(&self.settings, &self.options, Arc::clone(&self.in_flight)) {
            Ok(new) => {
                tracing::error!(
                    client,
                    reason,
                    "producer failed permanently; created a new one"
                );
                current.number += 1;
                let old = mem::replace(&mut current.producer, Arc::new(new));
                drop(current);
                end_aside(old);
                true
            }
            Err(error) => {
                tracing::error!(
                    client,
                    reason,
                    error = &error as &dyn std::error::Error,
                    "producer failed permanently; cannot create a new one"
                );
                false
            }
        }
    }

    fn current(&self) -> RwLockReadGuard<'_, Current<D>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Delivered> fmt::Debug for Producer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("client_id", &self.options.client_id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Drops a producer on its own thread: settling its remaining records may take half a second, and
/// the sender must not wait for it.
fn end_aside<D: Delivered>(old: Arc<NativeProducer<D>>) {
    let ending = thread::Builder::new()
        .name("kafka-producer-end".to_owned())
        .spawn(move || drop(old));
    if let Err(error) = ending {
        // The producer was dropped here, with the closure that did not run.
        tracing::warn!(%error, "could not start the thread that closes a failed producer");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use waybill_engine::PartitionId;

    use super::*;
    use crate::delivery::Delivery;
    use crate::settlement::Settlement;

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

    /// A producer that reaches no broker: its records stay queued.
    fn producer() -> Producer<Arc<Settlement>> {
        let nowhere = KafkaSettings::new("127.0.0.1:1");
        Producer::new(&nowhere, &ProducerOptions::new("p")).unwrap()
    }

    fn record() -> OutRecord<'static> {
        OutRecord::new("t", PartitionId(0), b"k", b"v")
    }

    #[test]
    fn a_failed_producer_is_recreated_and_its_records_are_settled_as_failed() {
        let producer = producer();
        let (settlement, settled) = Settlement::channel(1);
        producer.send(&record(), settlement).unwrap();
        producer.current().producer.fail_for_good();

        let (settlement, _receiver) = Settlement::channel(1);
        producer.send(&record(), Arc::clone(&settlement)).unwrap();
        assert_eq!(producer.current().number, 1);
        assert!(matches!(
            settled.blocking_recv(),
            Ok(Err(ProduceError::Refused { .. }))
        ));
        // The new one holds its record, and it alone is counted.
        assert_eq!(settlement.open(), 1);
        let deadline = Instant::now() + Duration::from_secs(30);
        while producer.in_flight() != 1 {
            assert!(Instant::now() < deadline, "{producer:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_producer_that_keeps_failing_is_recreated_at_a_bounded_rate() {
        let producer = producer();
        let token = || Settlement::channel(1).0;
        producer.current().producer.fail_for_good();
        let before = Instant::now();
        producer.send(&record(), token()).unwrap();
        producer.current().producer.fail_for_good();
        let fatal = ProduceError::Refused {
            code: RDKafkaErrorCode::Fatal,
        };
        let mut refused = 0;
        while let Err(error) = producer.send(&record(), token()) {
            assert_eq!(error.into_parts().1, fatal);
            refused += 1;
            assert!(before.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(10));
        }
        assert!(refused > 0);
        assert!(before.elapsed() >= Producer::<Arc<Settlement>>::REVIVAL_PAUSE);
        assert_eq!(producer.current().number, 2);
    }

    #[test]
    fn senders_that_meet_the_same_fatal_error_share_one_new_producer() {
        let producer = producer();
        producer.current().producer.fail_for_good();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| producer.send(&record(), Settlement::channel(1).0).unwrap());
            }
        });
        assert_eq!(producer.current().number, 1);
    }
}
