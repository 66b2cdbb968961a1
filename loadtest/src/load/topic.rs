//! Requests sent straight to their topic, as `docs/submission.md` describes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash, Timestamp, partition_for,
};
use waybill_kafka::{
    Admin, Delivered, Delivery as Outcome, KafkaSettings, OutRecord, Producer, ProducerOptions,
    SendError,
};
use waybill_messages::Topics;
use waybill_telemetry::chain;

use super::Load;
use crate::scenario::kind::Drawn;

/// The pause while the producer's queue is full.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// The initial capacity for a delivery.
const INPUT_BYTES: usize = 400;

/// The topic of requests.
pub(super) struct Topic {
    producer: Producer<Box<Sent>>,
    topics: Topics,
    /// The number of partitions.
    partitions: u32,
    settled: (UnboundedSender<Settled>, UnboundedReceiver<Settled>),
}

/// An unacknowledged request.
struct Sent {
    id: OperationId,
    drawn: Drawn,
    settled: UnboundedSender<Settled>,
}

/// A request with its outcome, which may be a time-out.
struct Settled {
    id: OperationId,
    drawn: Drawn,
    is_taken: bool,
    at: Instant,
}

impl Delivered for Box<Sent> {
    fn delivered(self, outcome: Outcome) {
        let settled = Settled {
            id: self.id,
            drawn: self.drawn,
            is_taken: outcome.result.is_ok(),
            at: Instant::now(),
        };
        // The receiver is gone if the run was cut short.
        let _ = self.settled.send(settled);
    }
}

impl Topic {
    /// Reads the number of partitions.
    pub(super) async fn open(settings: &KafkaSettings, topics: &Topics) -> anyhow::Result<Self> {
        let admin = Admin::new(settings, "waybill-loadtest-admin")?;
        let partitions = admin.topic_partitions(topics.requests()).await?;
        Ok(Self {
            producer: Producer::new(settings, &ProducerOptions::new("waybill-loadtest"))?,
            topics: topics.clone(),
            partitions: partitions.with_context(|| {
                format!(
                    "topic {} does not exist (--topic-prefix)",
                    topics.requests()
                )
            })?,
            settled: unbounded_channel(),
        })
    }

    /// Sends all requests at their intended times, and waits for their outcomes.
    pub(super) async fn send_all(mut self, load: Rc<Load>) {
        let mut value = Vec::new();
        let mut sent = 0;
        while let Some((index, _, intended)) = load.claim(1) {
            load.pace.until(intended).await;
            while let Ok(settled) = self.settled.1.try_recv() {
                sent -= 1;
                report_settled(&load, &settled);
            }
            let drawn = load.draw(index);
            match self.send(&load, drawn, &mut value).await {
                Ok(()) => sent += 1,
                Err(error) => load.refused(drawn, 0, &chain(error.as_ref())),
            }
        }
        while sent > 0
            && let Some(settled) = self.settled.1.recv().await
        {
            sent -= 1;
            report_settled(&load, &settled);
        }
    }

    async fn send(&self, load: &Load, drawn: Drawn, value: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut input = Vec::with_capacity(INPUT_BYTES);
        drawn.write_input(&load.source.run, &mut input);
        let id = OperationId(uuid::Uuid::new_v4());
        let request = CreateRequest {
            operation: id,
            id_origin: IdOrigin::Caller,
            workflow: "drone-delivery".to_owned(),
            tenant: load.source.tenant(drawn).unwrap_or_default().to_owned(),
            caller_id: None,
            input,
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at: now(),
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        };
        value.clear();
        self.topics
            .framing()
            .encode(&OperationRequest::Create(request), value)?;
        let (topic, key) = (self.topics.of_priority(drawn.kind.priority()), id.key());
        let partition = partition_for(id, self.partitions);
        let record = OutRecord::new(topic, partition, &key, value);
        let mut token = Box::new(Sent {
            id,
            drawn,
            settled: self.settled.0.clone(),
        });
        loop {
            match self.producer.send(&record, token) {
                Ok(()) => return Ok(()),
                Err(SendError::QueueFull(back)) => {
                    token = back;
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                Err(SendError::Refused { error, .. }) => return Err(error.into()),
            }
        }
    }
}

fn report_settled(load: &Load, settled: &Settled) {
    match settled.is_taken {
        true => load.accepted(settled.id, settled.drawn, settled.at),
        false => load.refused(settled.drawn, 0, "the brokers did not acknowledge it"),
    }
}

fn now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since_epoch.unwrap_or_default().as_micros();
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}
