//! One librdkafka producer, which [`Producer`](crate::Producer) replaces after a fatal error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header as NativeHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Message};
use waybill_engine::PartitionId;

use super::{ProducerOptions, SendError};
use crate::client_log::ClientLog;
use crate::delivery::{Delivered, Delivery, ProduceError};
use crate::error::ClientError;
use crate::metrics::ProducerMetrics;
use crate::native;
use crate::partition::{partition_id, partition_number};
use crate::partition_queues::{PartitionQueues, QueuedRecord};
use crate::rebootstrap::Rebootstrap;
use crate::record::OutRecord;
use crate::settings::KafkaSettings;

/// How long the thread waits for outcomes before it sends overdue records and checks whether it
/// should stop. The client waits for whole milliseconds and spins for the remainder: so the value
/// leaves hardly any.
const POLL_WAIT: Duration = Duration::from_micros(100_050);
/// The pause of that thread after a panic, which may happen again at once.
const PAUSE_AFTER_PANIC: Duration = Duration::from_millis(100);
/// The longest that a record waits for those of its partition that are in flight.
const QUEUED_MAX: Duration = Duration::from_millis(500);
/// How long a flush pauses before it checks again for records that librdkafka has not received yet.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// A librdkafka producer with its own thread.
pub(crate) struct NativeProducer<D: Delivered> {
    inner: Arc<Inner<D>>,
    limits: Limits,
    stop: Arc<AtomicBool>,
    polling: Option<JoinHandle<()>>,
}

type Inner<D> = BaseProducer<Context<D>>;

/// How much may await its outcome, and how large one record may be.
#[derive(Clone, Copy)]
struct Limits {
    records: usize,
    bytes: usize,
    record_bytes: usize,
}

impl<D: Delivered> NativeProducer<D> {
    /// Creates a producer, which counts the records that it holds in `in_flight`.
    pub(crate) fn new(
        settings: &KafkaSettings,
        options: &ProducerOptions,
        in_flight: Arc<AtomicUsize>,
    ) -> Result<Self, ClientError> {
        let fixed = [
            ("acks", "all".to_owned()),
            ("enable.idempotence", "true".to_owned()),
            ("partitioner", "murmur2_random".to_owned()),
        ];
        let mut config = settings.client_config(&options.client_id, &options.defaults(), &fixed)?;
        let limits = Limits::take(&mut config)?;
        let context = Context {
            log: ClientLog::new(&options.client_id),
            rebootstrap: Rebootstrap::new(&config),
            in_flight,
            in_flight_bytes: AtomicUsize::new(0),
            partition_queues: PartitionQueues::default(),
            metrics: ProducerMetrics::new(&options.metrics_name),
            producer: OnceLock::new(),
        };
        let failed = |error| ClientError::new(&options.client_id, error);
        let inner: Arc<Inner<D>> = Arc::new(config.create_with_context(context).map_err(failed)?);
        _ = inner.context().producer.set(Arc::downgrade(&inner));
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&inner), Arc::clone(&stop));
        let polling = thread::Builder::new()
            .name("kafka-producer".to_owned())
            .spawn(move || {
                repeat_until(&stopped, || {
                    polled.poll(POLL_WAIT);
                    polled.context().send_overdue();
                    polled.context().rebootstrap.tend(polled.client());
                    polled.context().show();
                });
            })
            .map_err(|error| ClientError::Create {
                client_id: options.client_id.clone(),
                reason: format!("cannot start its thread: {error}"),
            })?;
        Ok(Self {
            inner,
            limits,
            stop,
            polling: Some(polling),
        })
    }

    /// Takes a record. Never blocks.
    pub(crate) fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
        if native::gave_up(self.inner.client()) {
            // Records in flight are not awaited.
            return Err(SendError::refused(token, RDKafkaErrorCode::Fatal));
        }
        if record.wire_bytes_max() > self.limits.record_bytes {
            return Err(SendError::refused(
                token,
                RDKafkaErrorCode::MessageSizeTooLarge,
            ));
        }
        let context = self.inner.context();
        // Counted before sending: the outcome may arrive before `send` returns.
        let records = context.in_flight.fetch_add(1, Ordering::Relaxed);
        let bytes = context
            .in_flight_bytes
            .fetch_add(record.bytes(), Ordering::Relaxed);
        if records >= self.limits.records
            || (records > 0 && bytes + record.bytes() > self.limits.bytes)
        {
            context.count_out(record.bytes());
            return Err(SendError::QueueFull(token));
        }
        let token = match record.partition {
            OutRecord::BY_KEY => token,
            _ => match context.partition_queues.enter(record, token) {
                Some(token) => token,
                None => return Ok(()),
            },
        };
        enqueue(&self.inner, record, token).inspect_err(|_| {
            context.count_out(record.bytes());
            context.send_waiting(record.topic, record.partition);
        })
    }

    /// Waits up to `timeout` until every record is settled. Blocks.
    pub(crate) fn flush(&self, timeout: Duration) -> KafkaResult<()> {
        let deadline = Instant::now() + timeout;
        loop {
            self.inner
                .flush(deadline.saturating_duration_since(Instant::now()))?;
            // A sender may have passed the queue and not handed its record over yet.
            if self.inner.context().partition_queues.are_idle() || Instant::now() >= deadline {
                return Ok(());
            }
            thread::sleep(FLUSH_PAUSE);
        }
    }

    /// The error after which it sends nothing more, if any.
    pub(crate) fn fatal_error(&self) -> Option<String> {
        self.inner
            .client()
            .fatal_error()
            .map(|(code, reason)| format!("{code}: {reason}"))
    }

    /// Makes it meet a fatal error.
    #[cfg(test)]
    pub(crate) fn fail_for_good(&self) {
        native::raise_fatal_error(self.inner.client());
    }
}

impl<D: Delivered> Drop for NativeProducer<D> {
    /// Ends its thread and settles the records that wait here. Dropping `inner` settles the rest.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(polling) = self.polling.take()
            && polling.join().is_err()
        {
            tracing::error!("the producer's thread panicked");
        }
        let context = self.inner.context();
        for waiting in context.partition_queues.close() {
            context.refuse(waiting, RDKafkaErrorCode::PurgeQueue);
        }
        context.metrics.show_queued(0, 0);
    }
}

impl Limits {
    /// Takes the configured limits, and gives librdkafka's queue twice as much: librdkafka counts a
    /// record until all outcomes of the same acknowledgement are delivered.
    fn take(config: &mut ClientConfig) -> Result<Self, ClientError> {
        let of = |config: &ClientConfig, property: &str| -> Result<u32, ClientError> {
            let value = config.get(property).unwrap_or_default();
            // librdkafka accepts more forms of numbers, such as `0x10` and `10k`.
            value.parse().map_err(|_| ClientError::InvalidValue {
                property: property.to_owned(),
            })
        };
        let record_bytes = of(config, "message.max.bytes")? as usize;
        let mut take = |property: &str| {
            let limit = of(config, property)?;
            let twice = limit.saturating_mul(2).min(2_147_483_647);
            config.set(property, twice.to_string());
            // For librdkafka 0 means no limit.
            Ok(if limit == 0 {
                usize::MAX
            } else {
                limit as usize
            })
        };
        Ok(Self {
            records: take("queue.buffering.max.messages")?,
            bytes: take("queue.buffering.max.kbytes")?.saturating_mul(1024),
            record_bytes,
        })
    }
}

/// Hands a record to librdkafka.
fn enqueue<D: Delivered>(
    inner: &Inner<D>,
    record: &OutRecord<'_>,
    token: D,
) -> Result<(), SendError<D>> {
    let message = BaseRecord::<[u8], [u8], D> {
        topic: record.topic,
        partition: (record.partition != OutRecord::BY_KEY)
            .then(|| partition_number(record.partition)),
        payload: record.value,
        key: record.key,
        timestamp: None,
        headers: native_headers(record),
        delivery_opaque: token,
    };
    inner.send(message).map_err(|(error, message)| {
        let token = message.delivery_opaque;
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => SendError::QueueFull(token),
            code => SendError::refused(token, code.unwrap_or(RDKafkaErrorCode::InvalidArgument)),
        }
    })
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

/// librdkafka's callbacks, on the producer's thread or on one that flushes it.
struct Context<D: Delivered> {
    log: ClientLog,
    rebootstrap: Rebootstrap,
    in_flight: Arc<AtomicUsize>,
    in_flight_bytes: AtomicUsize,
    partition_queues: PartitionQueues<D>,
    metrics: ProducerMetrics,
    producer: OnceLock<Weak<Inner<D>>>,
}

impl<D: Delivered> Context<D> {
    /// Sends the records that waited for a record that is now settled.
    fn send_waiting(&self, topic: &str, partition: PartitionId) {
        let mut settled = 1;
        while settled > 0 {
            settled -= 1;
            settled += self.send_all(topic, self.partition_queues.settled(topic, partition));
        }
    }

    /// Sends overdue records.
    fn send_overdue(&self) {
        for (topic, partition, overdue) in self.partition_queues.overdue(QUEUED_MAX) {
            for _ in 0..self.send_all(&topic, overdue) {
                self.send_waiting(&topic, partition);
            }
        }
    }

    /// Sends records of one partition. Returns how many were refused; those are settled.
    fn send_all(&self, topic: &str, released: Vec<QueuedRecord<D>>) -> usize {
        if released.is_empty() {
            return 0;
        }
        let producer = self.producer.get().and_then(Weak::upgrade);
        let mut refused = 0;
        for waiting in released {
            let (partition, bytes) = (waiting.partition(), waiting.bytes());
            let sent = waiting.send(topic, |record, token| match &producer {
                Some(producer) => enqueue(producer, record, token),
                None => Err(SendError::refused(token, RDKafkaErrorCode::PurgeQueue)),
            });
            if let Err(error) = sent {
                let (token, error) = error.into_parts();
                self.settle(token, Delivery::failed(partition, error), bytes);
                refused += 1;
            }
        }
        refused
    }

    /// Settles a record that will not be sent.
    fn refuse(&self, waiting: QueuedRecord<D>, code: RDKafkaErrorCode) {
        let error = ProduceError::Refused { code };
        let (bytes, partition) = (waiting.bytes(), waiting.partition());
        self.settle(waiting.token, Delivery::failed(partition, error), bytes);
    }

    /// Updates the gauges of queued records and bytes.
    fn show(&self) {
        let records = self.in_flight.load(Ordering::Relaxed);
        let bytes = self.in_flight_bytes.load(Ordering::Relaxed);
        self.metrics.show_queued(records, bytes);
    }

    /// Passes the outcome to a record's token.
    fn settle(&self, token: D, delivery: Delivery, bytes: usize) {
        let metrics = &self.metrics;
        match delivery.result {
            Ok(()) => metrics.acknowledged.increment(1),
            Err(_) => metrics.failed.increment(1),
        }
        caught("a record counts as settled", || token.delivered(delivery));
        self.count_out(bytes);
    }

    fn count_out(&self, bytes: usize) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Repeats `round` until `stop` is set.
fn repeat_until(stop: &AtomicBool, round: impl Fn()) {
    while !stop.load(Ordering::Relaxed) {
        if !caught("the thread continues", &round) {
            thread::sleep(PAUSE_AFTER_PANIC);
        }
    }
}

/// Does a part of the producer's thread's work. A panic in it must not end the thread, or keep it
/// from the rest of the outcomes that it was given: no record would ever be settled again. Returns
/// whether it did not panic.
fn caught(then: &'static str, work: impl FnOnce()) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(work));
    if ended.is_err() {
        tracing::error!(then, "a producer's thread panicked");
    }
    ended.is_ok()
}

impl<D: Delivered> ClientContext for Context<D> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.rebootstrap.error(&error);
        self.log.error(&error, reason);
    }
}

impl<D: Delivered> ProducerContext for Context<D> {
    type DeliveryOpaque = D;

    fn delivery(&self, result: &DeliveryResult<'_>, token: D) {
        caught("the next outcome is handled", || {
            self.settle_one(result, token)
        });
    }
}

impl<D: Delivered> Context<D> {
    fn settle_one(&self, result: &DeliveryResult<'_>, token: D) {
        let (message, delivery) = match result {
            Ok(message) => {
                let partition = partition_id(message.partition());
                let delivery = Delivery::acknowledged(partition, message.offset());
                (message, delivery)
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let error = ProduceError::of_delivery(code, native::persisted(message));
                let partition = partition_id(message.partition());
                (message, Delivery::failed(partition, error))
            }
        };
        let partition = delivery.partition;
        self.settle(token, delivery, message.key_len() + message.payload_len());
        self.send_waiting(message.topic(), partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_continues_after_a_panic() {
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        repeat_until(&stop, || {
            let before = rounds.fetch_add(1, Ordering::Relaxed);
            assert_ne!(before, 0, "a bug");
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(rounds.into_inner(), 2);
    }
}
