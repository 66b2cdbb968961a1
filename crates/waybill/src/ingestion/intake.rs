//! From a checked request to a durable record, or to the operation that it repeats.
//!
//! What must hold: an [`Answer`] other than a problem is given only for a record that the broker
//! has acknowledged, or for one that was found. A refusal (503) is given only where the record is
//! surely not in the log; everything else that went wrong is "outcome unknown" (504), with the id to
//! repeat it with. Whether a record was acknowledged is entered into the memory of recent requests
//! by the acknowledgement itself, whatever became of the connection that sent it.
//!
//! Twins in flight at once are both produced: which of them is the operation is the scheduler's to
//! say, and it says so under the token of either.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use waybill_engine::{IdOrigin, OperationId, OperationRow, RequestHash, Timestamp, partition_for};
use waybill_kafka::{
    ClientError, Delivered, Delivery, ErrorCode, Header, KafkaSettings, OutRecord, ProduceError,
    ProducerOptions, SendError,
};
use waybill_messages::{Record as _, Topics, headers};
use waybill_store::Store;

use super::config::IngestionConfig;
use super::outlet::{Flow, Outlet};
use super::problem::{Kind, Problem};
use super::recent::{Accepted, Recent};
use super::request::Submission;

/// How a request was answered that was not refused.
#[derive(Debug)]
pub enum Answer {
    /// It is on its way: acknowledged now, or a moment ago by an equal request.
    Accepted(OperationId, Accepted),
    /// It repeats an operation that a scheduler has read.
    Repeated(Box<OperationRow>),
}

/// Takes requests in.
#[derive(Debug)]
pub struct Intake {
    store: Arc<dyn Store>,
    outlet: Outlet<Box<Waiting>>,
    recent: Arc<Recent>,
    flow: Arc<Flow>,
    topics: Topics,
    partitions: u32,
    accept_timeout: Duration,
}

/// How much longer than the producer a request waits: the producer's own time-out knows whether
/// the record was sent, and is the better answer.
const ACKNOWLEDGE_GRACE: Duration = Duration::from_secs(1);

impl Intake {
    /// An intake that produces through `kafka`.
    pub fn new(
        config: &IngestionConfig,
        store: Arc<dyn Store>,
        kafka: KafkaSettings,
        topics: Topics,
        partitions: u32,
    ) -> Result<Self, ClientError> {
        let mut options = ProducerOptions::new("waybill-ingestion");
        options.queue_records_max = saturating(config.producer_queue_records_max);
        options.queue_kib_max = saturating(config.producer_queue_bytes_max / 1024);
        options.delivery_timeout = config.accept_timeout;
        let record_max = config.request_bytes_max.max(config.batch_line_bytes_max);
        options.message_bytes_max = options.message_bytes_max.max(saturating(2 * record_max));
        Ok(Self {
            store,
            outlet: Outlet::new(kafka, options)?,
            recent: Arc::new(Recent::new(config.recent_accepted_max)),
            flow: Arc::new(Flow::new(config.accept_timeout)),
            topics,
            partitions,
            accept_timeout: config.accept_timeout,
        })
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// What was accepted last.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// How many partitions requests are spread over.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Takes one request in.
    pub async fn submit(&self, submission: &Submission) -> Result<Answer, Problem> {
        if submission.record.id_origin == IdOrigin::Caller {
            let row = self
                .rows(vec![submission.record.operation])
                .await?
                .pop()
                .flatten();
            if let Some(answer) = self.known(submission, row) {
                return answer;
            }
        }
        let mut in_flight = self.send(submission)?;
        in_flight.outcome(self.accept_timeout).await
    }

    /// Reads the rows of these operations, in their order.
    pub async fn rows(&self, ids: Vec<OperationId>) -> Result<Vec<Option<OperationRow>>, Problem> {
        self.store
            .get_many(ids)
            .await
            .map_err(|error| store_unavailable(&error))
    }

    /// The answer to a request whose id is the caller's, if the id is known: from the row where
    /// there is one, else from memory.
    pub fn known(
        &self,
        submission: &Submission,
        row: Option<OperationRow>,
    ) -> Option<Result<Answer, Problem>> {
        let record = &submission.record;
        let conflict = || {
            let detail = "The request that has this id is another one.";
            Err(Problem::new(Kind::IdConflict, detail).with_id(submission.repeat_with()))
        };
        if let Some(row) = row {
            return Some(match row.created.request_hash == record.request_hash {
                true => Ok(Answer::Repeated(Box::new(row))),
                false => conflict(),
            });
        }
        let accepted = self.recent.get(record.operation)?;
        Some(match accepted.hash == record.request_hash {
            true => Ok(Answer::Accepted(record.operation, accepted)),
            false => conflict(),
        })
    }

    /// Hands the request to the producer.
    pub fn send(&self, submission: &Submission) -> Result<InFlight, Problem> {
        let record = &submission.record;
        let mut value = Vec::with_capacity(record.input.len() + 256);
        if let Err(error) = record.encode(&mut value) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a request cannot be encoded"
            );
            return Err(Problem::new(
                Kind::Internal,
                "The request could not be encoded.",
            ));
        }
        if !self.flow.begin() {
            let detail = "The broker has not acknowledged anything for a while.";
            return Err(Problem::new(Kind::BrokerUnavailable, detail));
        }
        let (tell, told) = oneshot::channel();
        let waiting = Box::new(Waiting {
            recent: Arc::clone(&self.recent),
            flow: Arc::clone(&self.flow),
            id: record.operation,
            hash: record.request_hash,
            workflow: Arc::clone(&submission.workflow),
            requested_at: record.requested_at,
            tell,
        });
        let key = record.operation.key();
        let trace = record.traceparent.as_ref().map(|trace| Header {
            key: headers::TRACEPARENT,
            value: Some(trace.as_bytes()),
        });
        let partition = partition_for(record.operation, self.partitions);
        let record = OutRecord {
            headers: trace.as_slice(),
            ..OutRecord::new(self.topics.requests(), partition, &key, &value)
        };
        match self.outlet.send(&record, waiting) {
            Ok(()) => Ok(InFlight {
                told,
                operation: submission.record.operation,
                caller_id: submission.record.caller_id.clone(),
            }),
            Err(error) => {
                self.flow.end(false);
                Err(match error {
                    SendError::QueueFull(_) => Problem::new(
                        Kind::Overloaded,
                        "The queue to the broker is full: requests come faster than it takes them.",
                    ),
                    SendError::Refused { error, .. } => {
                        not_produced(error, || outcome_unknown(submission.repeat_with()))
                    }
                })
            }
        }
    }

    /// Waits until every record that was handed over is settled. Blocks.
    pub fn flush(&self, timeout: Duration) {
        if let Err(error) = self.outlet.flush(timeout) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "requests are unsettled"
            );
        }
    }
}

/// A request that was handed to the producer.
#[derive(Debug)]
pub struct InFlight {
    told: oneshot::Receiver<Settled>,
    operation: OperationId,
    caller_id: Option<String>,
}

impl InFlight {
    /// Waits for its outcome. Dropping the future leaves the record on its way.
    pub async fn outcome(&mut self, accept_timeout: Duration) -> Result<Answer, Problem> {
        match tokio::time::timeout(accept_timeout + ACKNOWLEDGE_GRACE, &mut self.told).await {
            Ok(Ok(Ok((id, accepted)))) => Ok(Answer::Accepted(id, accepted)),
            Ok(Ok(Err(error))) => Err(not_produced(error, || self.unknown())),
            // No word from the producer: whatever became of the record, it was handed over.
            Ok(Err(_)) | Err(_) => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Problem {
        let id = self
            .caller_id
            .clone()
            .unwrap_or_else(|| self.operation.to_string());
        outcome_unknown(id)
    }
}

type Settled = Result<(OperationId, Accepted), ProduceError>;

/// The token of a record: it tells memory and the waiting request.
#[derive(Debug)]
struct Waiting {
    recent: Arc<Recent>,
    flow: Arc<Flow>,
    id: OperationId,
    hash: RequestHash,
    workflow: Arc<str>,
    requested_at: Timestamp,
    tell: oneshot::Sender<Settled>,
}

impl Delivered for Box<Waiting> {
    fn delivered(self, delivery: Delivery) {
        let Waiting {
            recent,
            flow,
            id,
            hash,
            workflow,
            requested_at,
            tell,
        } = *self;
        flow.end(delivery.result.is_ok());
        let (partition, offset) = (delivery.partition, delivery.offset);
        let settled = delivery.result.map(|()| {
            let accepted = Accepted {
                partition,
                offset,
                hash,
                workflow,
                requested_at,
            };
            recent.insert(id, accepted.clone());
            (id, accepted)
        });
        // The connection may be gone; the record is there all the same.
        drop(tell.send(settled));
    }
}

fn outcome_unknown(repeat_with: String) -> Problem {
    let detail = "The broker did not acknowledge the request in time.";
    Problem::new(Kind::OutcomeUnknown, detail).with_id(repeat_with)
}

fn not_produced(error: ProduceError, unknown: impl FnOnce() -> Problem) -> Problem {
    let code = match error {
        ProduceError::OutcomeUnknown { .. } => return unknown(),
        ProduceError::Refused { code } => code,
    };
    tracing::debug!(%code, "a request was not appended");
    match code {
        ErrorCode::QueueFull => Problem::new(Kind::Overloaded, "The queue to the broker is full."),
        ErrorCode::MessageSizeTooLarge => Problem::new(
            Kind::BodyTooLarge,
            "The broker refuses a record of this size.",
        ),
        _ => Problem::new(
            Kind::BrokerUnavailable,
            "The broker did not take the request.",
        ),
    }
}

/// Tells the cause to the log, not to the client.
pub fn store_unavailable(error: &waybill_store::StoreError) -> Problem {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "the state store could not be read"
    );
    Problem::new(Kind::StoreUnavailable, "The state store could not be read.")
}

fn saturating(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
