//! The records that agents send: step replies and dead letters, each with the consumed record that
//! it finishes.
//!
//! Records that could not be sent or were not acknowledged are kept in the
//! [`AgentLoop`](waybill_agent_core::AgentLoop). The poller sends them again before it reads on, so
//! a broker that accepts no records also stops the reading of requests. After a fatal error the
//! producer is recreated; the records that it did not deliver are kept, too.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use waybill_agent_core::{Failed, Failure, Sent};
use waybill_clock::clocks;
use waybill_engine::PartitionId;
use waybill_kafka::{
    ClientError, Delivered, Delivery, ErrorCode, Header, KafkaSettings, OutRecord, ProduceError,
    Producer, ProducerOptions,
};
use waybill_messages::DEAD_LETTER_BYTES_MAX;

use super::state::State;

/// How many replies and dead letters may wait for their acknowledgement. Further ones are kept, and
/// no more requests are read while many are kept. A dead letter takes about two kilobytes, and its
/// record perhaps a few bytes.
const QUEUE_RECORDS_MAX: u32 = 10_000;

/// A record to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) topic: Arc<str>,
    pub(super) partition: PartitionId,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
    /// What it finishes once it is acknowledged.
    pub(super) sent: Sent,
}

/// An outgoing record in flight, as the producer's token. Holds no producer, so that a token never
/// drops the last handle of one.
struct InFlight {
    outgoing: Arc<Outgoing>,
    state: Arc<State>,
}

impl Delivered for Box<InFlight> {
    fn delivered(self, delivery: Delivery) {
        match delivery.result {
            Ok(()) => {
                let sent = self.outgoing.sent;
                self.state.finish(|agents| agents.acknowledged(sent));
            }
            Err(error) => self.failed(error),
        }
    }
}

impl InFlight {
    /// Handles a failure to send the record, or to have it acknowledged.
    fn failed(self, error: ProduceError) {
        let Self { outgoing, state } = self;
        let failure = match error.code() {
            _ if error.is_permanent() => Failure::Permanent,
            ErrorCode::QueueFull => Failure::QueueFull,
            _ => Failure::Temporary,
        };
        let (topic, sent) = (Arc::clone(&outgoing.topic), outgoing.sent);
        let now = clocks();
        match state.finish(|agents| agents.failed(outgoing, sent, failure, now)) {
            Failed::Dropped => tracing::error!(
                topic = &*topic,
                error = &error as &dyn std::error::Error,
                "could not write a poison record to the dead-letter topic; dropping it"
            ),
            Failed::Kept { is_first: true } if failure != Failure::QueueFull => tracing::warn!(
                topic = &*topic,
                error = &error as &dyn std::error::Error,
                "a record was not acknowledged; resending it and others like it"
            ),
            Failed::Kept { .. } => {}
        }
    }
}

/// The producer of all agents of a process.
pub(super) struct Outbox {
    producer: Producer<Box<InFlight>>,
    state: Arc<State>,
}

impl Outbox {
    pub(super) fn new(
        kafka: &KafkaSettings,
        client_id: &str,
        state: Arc<State>,
    ) -> Result<Self, ClientError> {
        let mut options = ProducerOptions::new(client_id);
        "waybill-agents".clone_into(&mut options.metrics_name);
        options.message_bytes_max = DEAD_LETTER_BYTES_MAX;
        options.queue_records_max = QUEUE_RECORDS_MAX;
        Ok(Self {
            producer: Producer::new(kafka, &options)?,
            state,
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
        if !self.state.lock().has_resends() {
            return true;
        }
        let now = clocks();
        let due = self.state.finish(|agents| agents.due_resends(now));
        for outgoing in due {
            self.dispatch(outgoing);
        }
        self.state.lock().may_read()
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
            state: Arc::clone(&self.state),
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
            token.failed(error);
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
