//! One librdkafka producer: what [`Producer`](crate::Producer) replaces when it gave up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header as NativeHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Message};
use waybill_engine::{Offset, PartitionId};

use crate::client_log::ClientLog;
use crate::delivery::{Delivered, Delivery, ProduceError};
use crate::error::ClientError;
use crate::lanes::{Lanes, Waiting};
use crate::native;
use crate::producer::{ProducerOptions, SendError};
use crate::record::{OutRecord, partition_id, partition_number};
use crate::settings::KafkaSettings;

/// How long the thread waits for outcomes before it looks whether it is still wanted. The client waits for
/// whole milliseconds and spends the last one of each wait asking: long waits make that little.
const POLL_WAIT: Duration = Duration::from_secs(1);
/// How long the end of a producer waits for the outcomes of what it gave up.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// A librdkafka producer with a thread of its own.
pub(crate) struct NativeProducer<D: Delivered> {
    inner: Arc<Inner<D>>,
    limits: Limits,
    stop: Arc<AtomicBool>,
}

type Inner<D> = BaseProducer<Context<D>>;

/// How much may wait for its outcome, and how much of it may be one record.
#[derive(Clone, Copy)]
struct Limits {
    records: usize,
    bytes: usize,
    record_bytes: usize,
}

impl<D: Delivered> NativeProducer<D> {
    /// Makes a producer, which counts the records that it holds in `in_flight`.
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
        let limits = Limits::take(&mut config);
        let context = Context {
            log: ClientLog::new(&options.client_id),
            in_flight,
            in_flight_bytes: AtomicUsize::new(0),
            lanes: Lanes::default(),
            producer: OnceLock::new(),
        };
        let failed = |error| ClientError::new(&options.client_id, error);
        let inner: Arc<Inner<D>> = Arc::new(config.create_with_context(context).map_err(failed)?);
        _ = inner.context().producer.set(Arc::downgrade(&inner));
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&inner), Arc::clone(&stop));
        thread::Builder::new()
            .name("kafka-producer".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    polled.poll(POLL_WAIT);
                }
            })
            .map_err(|error| ClientError::Create {
                client_id: options.client_id.clone(),
                reason: format!("no thread for it: {error}"),
            })?;
        Ok(Self {
            inner,
            limits,
            stop,
        })
    }

    /// Takes a record. Never blocks.
    pub(crate) fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
        if native::gave_up(self.inner.client()) {
            // What is under way there is not waited for.
            return Err(SendError::refused(token, RDKafkaErrorCode::Fatal));
        }
        if record.bytes() > self.limits.record_bytes {
            return Err(SendError::refused(
                token,
                RDKafkaErrorCode::MessageSizeTooLarge,
            ));
        }
        let context = self.inner.context();
        // Counted before it is sent: its outcome may be told before `send` is back.
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
            _ => match context.lanes.enter(record, token) {
                Some(token) => token,
                None => return Ok(()),
            },
        };
        enqueue(&self.inner, record, token).inspect_err(|_| {
            context.count_out(record.bytes());
            context.go_on(record.topic, record.partition);
        })
    }

    /// Waits up to `timeout` until every record is settled. Blocks.
    pub(crate) fn flush(&self, timeout: Duration) -> KafkaResult<()> {
        self.inner.flush(timeout)
    }

    /// The error after which it sends nothing more, if it met one.
    pub(crate) fn fatal_error(&self) -> Option<String> {
        self.inner
            .client()
            .fatal_error()
            .map(|(code, reason)| format!("{code}: {reason}"))
    }

    /// Has it meet a fatal error.
    #[cfg(test)]
    pub(crate) fn fail_for_good(&self) {
        native::raise_fatal_error(self.inner.client());
    }
}

impl<D: Delivered> Drop for NativeProducer<D> {
    /// Settles what it holds. Its thread ends by itself.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let context = self.inner.context();
        for waiting in context.lanes.close() {
            context.refuse(waiting, RDKafkaErrorCode::PurgeQueue);
        }
        self.inner.purge(PurgeConfig::default().queue().inflight());
        if let Err(error) = self.inner.flush(END_PATIENCE) {
            tracing::warn!(%error, "not every record of a producer that ended is settled yet");
        }
    }
}

impl Limits {
    /// Takes the limits that are configured, and gives librdkafka twice as much for its queue: it counts a
    /// record until all that were acknowledged with it were told so.
    fn take(config: &mut ClientConfig) -> Self {
        let of = |config: &ClientConfig, property: &str| -> u32 {
            let limit = config.get(property).and_then(|limit| limit.parse().ok());
            limit.unwrap_or(0)
        };
        let record_bytes = of(config, "message.max.bytes") as usize;
        let mut take = |property: &str| {
            let limit = of(config, property);
            let twice = limit.saturating_mul(2).min(2_147_483_647);
            config.set(property, twice.to_string());
            // librdkafka takes 0 for no limit.
            if limit == 0 {
                usize::MAX
            } else {
                limit as usize
            }
        };
        Self {
            records: take("queue.buffering.max.messages"),
            bytes: take("queue.buffering.max.kbytes").saturating_mul(1024),
            record_bytes,
        }
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
        timestamp: record.timestamp_ms,
        headers: native_headers(record),
        delivery_opaque: token,
    };
    inner.send(message).map_err(|(error, message)| {
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

/// What librdkafka calls back, on the producer's thread or on one that flushes it.
struct Context<D: Delivered> {
    log: ClientLog,
    in_flight: Arc<AtomicUsize>,
    in_flight_bytes: AtomicUsize,
    lanes: Lanes<D>,
    producer: OnceLock<Weak<Inner<D>>>,
}

impl<D: Delivered> Context<D> {
    /// Sends what waited for a record that is settled now.
    fn go_on(&self, topic: &str, partition: PartitionId) {
        let mut settled = 1;
        while settled > 0 {
            settled -= 1;
            let released = self.lanes.settled(topic, partition);
            if released.is_empty() {
                continue;
            }
            let producer = self.producer.get().and_then(Weak::upgrade);
            for waiting in released {
                let refused = waiting.send(topic, |record, token| {
                    let bytes = record.bytes();
                    let sent = match &producer {
                        Some(producer) => enqueue(producer, record, token),
                        None => Err(SendError::refused(token, RDKafkaErrorCode::PurgeQueue)),
                    };
                    sent.map_err(|refused| (refused, bytes))
                });
                if let Err((refused, bytes)) = refused {
                    let (token, error) = refused.into_parts();
                    self.tell(token, Delivery::failed(partition, error), bytes);
                    settled += 1;
                }
            }
        }
    }

    /// Settles a record that is sent no more.
    fn refuse(&self, waiting: Waiting<D>, code: RDKafkaErrorCode) {
        let error = ProduceError::Refused { code };
        let (bytes, partition) = (waiting.bytes(), waiting.partition());
        self.tell(waiting.token, Delivery::failed(partition, error), bytes);
    }

    /// Tells a record's token the outcome.
    fn tell(&self, token: D, delivery: Delivery, bytes: usize) {
        // A panic would end the producer's thread, and no record would ever be settled again.
        if catch_unwind(AssertUnwindSafe(|| token.delivered(delivery))).is_err() {
            tracing::error!("a delivery token panicked; its record counts as settled");
        }
        self.count_out(bytes);
    }

    fn count_out(&self, bytes: usize) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
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
        let (message, delivery) = match result {
            Ok(message) => {
                let delivery = Delivery {
                    partition: partition_id(message.partition()),
                    offset: Some(message.offset())
                        .filter(|offset| *offset >= 0)
                        .map(Offset),
                    result: Ok(()),
                };
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
        self.tell(token, delivery, message.key_len() + message.payload_len());
        self.go_on(message.topic(), partition);
    }
}
