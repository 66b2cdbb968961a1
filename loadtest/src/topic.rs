//! Requests straight to their topic, as `docs/submission.md` has them.

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

use crate::delivery::Delivery;
use crate::run::Shared;

/// How long to wait for room in a full queue.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The topic of requests.
pub struct Topic {
    producer: Producer<Box<Sent>>,
    topics: Topics,
    /// How many partitions it has.
    partitions: u32,
    settled: (UnboundedSender<Settled>, UnboundedReceiver<Settled>),
}

/// A request on its way.
struct Sent {
    id: OperationId,
    index: usize,
    settled: UnboundedSender<Settled>,
}

/// A request of which the broker has said something, or nothing in time.
struct Settled {
    id: OperationId,
    index: usize,
    is_taken: bool,
    at: Instant,
}

impl Delivered for Box<Sent> {
    fn delivered(self, outcome: Outcome) {
        let settled = Settled {
            id: self.id,
            index: self.index,
            is_taken: outcome.result.is_ok(),
            at: Instant::now(),
        };
        // Nobody asks any more if the run was cut short.
        let _ = self.settled.send(settled);
    }
}

impl Topic {
    /// Looks how many partitions it has.
    pub async fn open(brokers: &str, topics: &Topics) -> anyhow::Result<Self> {
        let settings = KafkaSettings::new(brokers);
        let admin = Admin::new(&settings, "waybill-loadtest-admin")?;
        let partitions = admin.topic_partitions(topics.requests()).await?;
        Ok(Self {
            producer: Producer::new(&settings, &ProducerOptions::new("waybill-loadtest"))?,
            topics: topics.clone(),
            partitions: partitions.context("there is no topic of requests")?,
            settled: unbounded_channel(),
        })
    }

    /// Sends all of them, each at its time, and waits until the last is settled.
    pub async fn send_all(mut self, shared: Rc<Shared>) {
        let mut value = Vec::new();
        let mut sent = 0;
        while let Some((index, intended)) = shared.claim(1) {
            tokio::time::sleep_until(intended.into()).await;
            while let Ok(settled) = self.settled.1.try_recv() {
                sent -= 1;
                tell(&shared, &settled);
            }
            match self.send(index, &mut value).await {
                Ok(()) => sent += 1,
                Err(_) => shared.refused(0),
            }
        }
        while sent > 0
            && let Some(settled) = self.settled.1.recv().await
        {
            sent -= 1;
            tell(&shared, &settled);
        }
    }

    async fn send(&self, index: usize, value: &mut Vec<u8>) -> anyhow::Result<()> {
        let id = OperationId(uuid::Uuid::new_v4());
        let request = CreateRequest {
            operation: id,
            id_origin: IdOrigin::Caller,
            workflow: "drone-delivery".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: Delivery::new(index).body().into_bytes(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            requested_at: now(),
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        };
        value.clear();
        self.topics
            .framing()
            .encode(&OperationRequest::Create(request), value)?;
        let (topic, key) = (self.topics.requests(), id.key());
        let partition = partition_for(id, self.partitions);
        let record = OutRecord::new(topic, partition, &key, value);
        let mut token = Box::new(Sent {
            id,
            index,
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

fn tell(shared: &Shared, settled: &Settled) {
    match settled.is_taken {
        true => shared.accepted(settled.id, settled.index, settled.at),
        false => shared.refused(0),
    }
}

fn now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since_epoch.unwrap_or_default().as_micros();
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}
