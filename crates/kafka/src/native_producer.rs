//! One librdkafka producer: what [`Producer`](crate::Producer) replaces when it gave up.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header as NativeHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use waybill_engine::Offset;

use crate::client_log::ClientLog;
use crate::delivery::{Delivered, Delivery, ProduceError};
use crate::error::ClientError;
use crate::native;
use crate::producer::{ProducerOptions, SendError};
use crate::record::{OutRecord, partition_id, partition_number};
use crate::settings::KafkaSettings;

/// A librdkafka producer with a thread of its own.
pub(crate) struct NativeProducer<D: Delivered> {
    inner: ThreadedProducer<Context<D>>,
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
        let config = settings.client_config(&options.client_id, &options.defaults(), &fixed)?;
        let context = Context {
            log: ClientLog::new(&options.client_id),
            in_flight,
            token: PhantomData,
        };
        let inner = config
            .create_with_context(context)
            .map_err(|error| ClientError::new(&options.client_id, error))?;
        Ok(Self { inner })
    }

    /// Enqueues a record. Never blocks.
    pub(crate) fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
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
    in_flight: Arc<AtomicUsize>,
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
