//! The records that agents send: step replies and dead letters, each with the consumed record that
//! it finishes.
//!
//! Records that could not be sent or were not acknowledged wait here. The poller sends them again
//! before it reads on, so a broker that accepts no records also stops the reading of requests.
//! After a fatal error the producer is recreated; the records that it did not deliver wait here,
//! too.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waybill_engine::{PartitionId, Timestamp};
use waybill_kafka::{
    ClientError, Delivered, Delivery, ErrorCode, Header, KafkaSettings, OutRecord, ProduceError,
    Producer, ProducerOptions,
};
use waybill_messages::DEAD_LETTER_BYTES_MAX;

use super::offsets::{Offsets, Source};
use waybill_clock::wall_clock;

/// How long a refused record waits before it is sent again.
const RESEND_PAUSE: Duration = Duration::from_secs(1);
/// With this many records kept, no more requests are read.
const KEPT_MAX: usize = 1_000;

/// A record to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) topic: Arc<str>,
    pub(super) partition: PartitionId,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
    /// After this time no reply is awaited, and the consumed record is done without it.
    pub(super) until: Option<Timestamp>,
    /// The consumed record that is done once this one is acknowledged.
    pub(super) source: Source,
}

/// An outgoing record in flight, as the producer's token.
struct InFlight {
    outgoing: Arc<Outgoing>,
    resends: Arc<Resends>,
}

impl Delivered for Box<InFlight> {
    fn delivered(self, delivery: Delivery) {
        match delivery.result {
            Ok(()) => self.resends.offsets.done(self.outgoing.source),
            Err(error) => self.resends.keep(self.outgoing, error),
        }
    }
}

/// Receives the producer's outcomes. Holds no producer, so that a token never drops the last handle
/// of one.
#[derive(Debug)]
struct Resends {
    offsets: Arc<Offsets>,
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    outgoing: Arc<Outgoing>,
    /// The earliest time to send it again.
    at: Instant,
}

impl Resends {
    fn keep(&self, outgoing: Arc<Outgoing>, error: ProduceError) {
        if outgoing.until.is_none() && error.is_permanent() {
            // A dead letter that no broker will accept must not block its partition forever. The
            // step itself is not lost: its scheduler sees it time out.
            tracing::error!(
                topic = &*outgoing.topic,
                error = &error as &dyn std::error::Error,
                "could not write a poison record to the dead-letter topic; dropping it"
            );
            self.offsets.done(outgoing.source);
            return;
        }
        // A full queue empties soon; other refusals would be repeated.
        let full = error.code() == ErrorCode::QueueFull;
        let pause = if full { Duration::ZERO } else { RESEND_PAUSE };
        let mut kept = self.kept();
        if kept.is_empty() && !full {
            tracing::warn!(
                topic = &*outgoing.topic,
                error = &error as &dyn std::error::Error,
                "a record was not acknowledged; resending it and others like it"
            );
        }
        kept.push_back(Kept {
            outgoing,
            at: Instant::now() + pause,
        });
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The producer of all agents of a process.
pub(super) struct Outbox {
    producer: Producer<Box<InFlight>>,
    resends: Arc<Resends>,
}

impl Outbox {
    pub(super) fn new(
        kafka: &KafkaSettings,
        client_id: &str,
        offsets: Arc<Offsets>,
    ) -> Result<Self, ClientError> {
        let mut options = ProducerOptions::new(client_id);
        "waybill-agents".clone_into(&mut options.metrics_name);
        options.message_bytes_max = DEAD_LETTER_BYTES_MAX;
        Ok(Self {
            producer: Producer::new(kafka, &options)?,
            resends: Arc::new(Resends {
                offsets,
                kept: Mutex::default(),
            }),
        })
    }

    /// Sends a record, or keeps it for [`Outbox::send_kept`] if the queue is full. Never blocks.
    pub(super) fn send(&self, outgoing: Outgoing) {
        self.dispatch(Arc::new(outgoing));
    }

    /// Sends again, when due, the records that could not be sent or were not acknowledged.
    ///
    /// Returns whether few enough are left for the poller to read more requests.
    pub(super) fn send_kept(&self) -> bool {
        let now = Instant::now();
        let due: VecDeque<Kept> = {
            let mut kept = self.resends.kept();
            if kept.is_empty() {
                return true;
            }
            let (due, later): (VecDeque<_>, _) = kept.drain(..).partition(|kept| kept.at <= now);
            *kept = later;
            due
        };
        for Kept { outgoing, .. } in due {
            if outgoing.until.is_some_and(|until| until <= wall_clock()) {
                self.resends.offsets.done(outgoing.source);
            } else {
                self.dispatch(outgoing);
            }
        }
        self.resends.kept().len() < KEPT_MAX
    }

    /// Waits up to `timeout` until all sent records are acknowledged or failed. Blocks.
    pub(super) fn flush(&self, timeout: Duration) {
        if let Err(error) = self.producer.flush(timeout) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "not every reply was acknowledged; their requests will be read again"
            );
        }
    }

    fn dispatch(&self, outgoing: Arc<Outgoing>) {
        let token = Box::new(InFlight {
            outgoing: Arc::clone(&outgoing),
            resends: Arc::clone(&self.resends),
        });
        let headers = Header::all_of(&outgoing.headers);
        let record = OutRecord {
            topic: &outgoing.topic,
            partition: outgoing.partition,
            key: outgoing.key.as_deref(),
            value: outgoing.value.as_deref(),
            headers: &headers,
        };
        if let Err(refused) = self.producer.send(&record, token) {
            let (token, error) = refused.into_parts();
            self.resends.keep(token.outgoing, error);
        }
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("producer", &self.producer)
            .finish_non_exhaustive()
    }
}
