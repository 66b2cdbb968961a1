//! Turns a checked request into a durable record, or finds the operation that it repeats.
//!
//! What must hold: an [`Answer`] means that the broker has acknowledged the record, or that the
//! operation was found. A refusal (503) is given only if the record is certainly not in the log.
//! Every other failure is "outcome unknown" (504), with the id to repeat the request with. The
//! acknowledgement itself updates the cache of recent requests, even if the connection has closed.
//!
//! `waybill_ingestion_core` decides; this is its driver. Only one request per id is in flight at a
//! time: equal requests share its outcome, others get a conflict. If two processes accept requests
//! with the same id at the same time, both are produced. The scheduler decides which one becomes
//! the operation, and a status with the token of either says so.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use waybill_api::request::Submission;
use waybill_engine::{
    IdOrigin, Offset, OperationId, OperationRow, PartitionId, Priority, RequestHash, Timestamp,
};
use waybill_http::auth::Tenants;
use waybill_http::problem::{Kind, Problem};
use waybill_ingestion_core::{
    Accepted, Admitted, Candidate, Failed, Found, Known, NotAdmitted, Position, Refusal, Settled,
    Ticket, known,
};
use waybill_kafka::{
    ClientError, Delivered, Delivery, ErrorCode, Header, KafkaSettings, OutRecord, ProduceError,
    Producer, ProducerOptions,
};
use waybill_messages::{Topics, headers};
use waybill_store::CorruptRow;
use waybill_telemetry::chain;
use waybill_telemetry::health::LowDisk;
use waybill_telemetry::trace::OpenSpan;
use waybill_topology::partition_map::PartitionMap;

use super::claims::{Client, SharedClaims};
use super::logs::Logs;
use super::measure::{QUEUE_BYTES, QUEUE_BYTES_MAX};
use super::reply_topics::ReplyTopics;
use super::request_lookup::RequestLookup;
use super::settings::IngestionSettings;
use super::spans;
use super::store_reads::StoreReads;
use super::tenant_semaphore::{Permit, TenantSemaphore};

/// The answer to a request that was not refused.
#[derive(Debug)]
pub enum Answer {
    /// The record is in the log: acknowledged now, or a moment ago for an equal request.
    Accepted(OperationId, Accepted),
    /// It repeats an operation that a scheduler has read.
    Repeated(Box<OperationRow>),
}

/// Accepts requests.
#[derive(Debug)]
pub struct Intake {
    reads: Arc<StoreReads>,
    reply_topics: ReplyTopics,
    producer: Producer<Box<DeliveryCallback>>,
    queue: Queue,
    claims: Arc<SharedClaims>,
    request_lookup: RequestLookup,
    logs: Logs,
    topics: Topics,
    partition_map: PartitionMap,
    low_disk: LowDisk,
    accept_timeout: Duration,
}

/// `Retry-After` while disk space is low: the broker frees space every 10 s.
const STORAGE_RETRY_AFTER: Duration = Duration::from_secs(10);

/// How much longer than the producer a request waits. The producer's own time-out knows whether the
/// record was sent, and is the better answer. It checks once a second, and begins to count up to
/// 600 ms late.
const ACKNOWLEDGE_GRACE: Duration = Duration::from_secs(2);

impl Intake {
    /// An intake that produces through `kafka`.
    pub fn new(
        config: &IngestionSettings,
        reads: Arc<StoreReads>,
        kafka: KafkaSettings,
        topics: Topics,
        partition_map: PartitionMap,
        low_disk: LowDisk,
    ) -> Result<Self, ClientError> {
        let mut options = ProducerOptions::new("waybill-ingestion");
        options.queue_records_max = saturating(config.producer_queue_records_max);
        options.queue_kib_max = saturating(config.producer_queue_bytes_max / 1024);
        options.delivery_timeout = config.accept_timeout;
        let record_max = config.request_bytes_max.max(config.batch_line_bytes_max);
        options.message_bytes_max = options.message_bytes_max.max(saturating(2 * record_max));
        Ok(Self {
            reads,
            request_lookup: RequestLookup::new(
                kafka.clone(),
                topics.clone(),
                config.pending_reads_max,
                config.pending_read_timeout,
            ),
            logs: Logs::new(kafka.clone(), topics.clone()),
            reply_topics: ReplyTopics::new(&kafka, config.accept_timeout)?,
            producer: Producer::new(&kafka, &options)?,
            queue: Queue::new(config),
            claims: Arc::new(SharedClaims::new(
                config.recent_accepted_max,
                config.accept_timeout,
            )),
            topics,
            partition_map,
            low_disk,
            accept_timeout: config.accept_timeout,
        })
    }

    /// The reader of the store.
    pub fn reads(&self) -> &StoreReads {
        &self.reads
    }

    /// The request accepted last under `id`, if it is remembered.
    pub fn recent(&self, id: OperationId) -> Option<Accepted> {
        self.claims.accepted(id)
    }

    /// The reader of requests in their topic.
    pub fn request_lookup(&self) -> &RequestLookup {
        &self.request_lookup
    }

    /// Whether a partition's requests are in another topic than the one of its checkpoint.
    ///
    /// # Errors
    ///
    /// As [`Logs::is_another`].
    pub async fn is_another_log(
        &self,
        priority: Priority,
        partition: PartitionId,
    ) -> Result<bool, Problem> {
        self.logs.is_another(&self.reads, priority, partition).await
    }

    /// The names of the topics.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// How operations map to partitions.
    pub fn partition_map(&self) -> &PartitionMap {
        &self.partition_map
    }

    /// Accepts one request.
    pub async fn submit(&self, submission: &Submission) -> Result<Answer, Problem> {
        if submission.record.id_origin == IdOrigin::Caller {
            let row = self
                .rows(vec![submission.record.operation])
                .await?
                .pop()
                .transpose()?
                .flatten();
            if let Some(answer) = row.and_then(|row| answer_of_row(submission, row)) {
                return answer;
            }
        }
        self.check_reply_topic(submission).await?;
        match self.send(submission)? {
            Sent::InFlight(mut in_flight) => in_flight.outcome(self.accept_timeout).await,
            Sent::Before(answer) => Ok(answer),
        }
    }

    /// Reads the rows of these operations, in their order, each with its own result.
    pub async fn rows(&self, ids: Vec<OperationId>) -> Result<Vec<Read>, Problem> {
        let rows = self.reads.rows(ids).await?;
        let read = rows
            .into_iter()
            .map(|row| row.map_err(|corrupt| row_unreadable(&corrupt)));
        Ok(read.collect())
    }

    /// Refuses a request whose reply topic does not exist.
    pub async fn check_reply_topic(&self, submission: &Submission) -> Result<(), Problem> {
        match &submission.record.reply_to {
            Some(topic) => self.reply_topics.check(topic).await,
            None => Ok(()),
        }
    }

    /// Passes the request to the producer, unless its id is known.
    pub fn send(&self, submission: &Submission) -> Result<Sent, Problem> {
        let record = &submission.record;
        let mut value = Vec::with_capacity(record.input.len() + 256);
        if let Err(error) = self.topics.framing().encode_create(record, &mut value) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "could not encode a request"
            );
            return Err(Problem::new(
                Kind::Internal,
                "The request could not be encoded.",
            ));
        }
        let candidate = Candidate {
            id: record.operation,
            origin: record.id_origin,
            hash: record.request_hash,
        };
        let (outcome_sender, outcome_receiver) = oneshot::channel();
        let client = Client(outcome_sender);
        let admitted = self
            .claims
            .admit(candidate, self.refused(submission), client);
        let (ticket, client) = match admitted {
            Ok(Admitted::Produce(ticket, client)) => (ticket, client),
            Ok(Admitted::Shares) => {
                return Ok(Sent::InFlight(InFlight::new(outcome_receiver, submission)));
            }
            Ok(Admitted::Before(accepted)) => {
                return Ok(Sent::Before(Answer::Accepted(record.operation, accepted)));
            }
            Err(NotAdmitted::Conflict) => return Err(conflict(submission)),
            Err(NotAdmitted::Refused(problem)) => return Err(problem),
            Err(NotAdmitted::Unavailable(_)) => return Err(broker_silent()),
        };
        let ticket = OpenTicket {
            claims: Arc::clone(&self.claims),
            ticket: Some(ticket),
        };
        let room = self.queue.room(&submission.sender, value.len());
        let topic = self.topics.of_priority(submission.priority);
        let span = spans::of_record(record, topic);
        let trace = match &span {
            Some(span) => Some(span.context().to_string()),
            None => record.traceparent.clone(),
        };
        let callback = Box::new(DeliveryCallback::Request(Waiting {
            room,
            ticket,
            client,
            priority: submission.priority,
            hash: record.request_hash,
            workflow: Arc::clone(&submission.workflow),
            tenant: Some(&*record.tenant)
                .filter(|tenant| !tenant.is_empty())
                .map(Arc::from),
            caller_id: record.caller_id.as_deref().map(Arc::from),
            requested_at: record.requested_at,
            span,
        }));
        let key = record.operation.key();
        let trace = trace.as_ref().map(|trace| Header {
            key: headers::TRACEPARENT,
            value: Some(trace.as_bytes()),
        });
        let partition = self.partition_map.partition_of(record.operation);
        let record = OutRecord {
            headers: trace.as_slice(),
            ..OutRecord::new(topic, partition, &key, &value)
        };
        match self.enqueue(&record, callback) {
            Ok(()) => Ok(Sent::InFlight(InFlight::new(outcome_receiver, submission))),
            Err(error) => Err(not_produced(failed(error), || {
                outcome_unknown(submission.repeat_with())
            })),
        }
    }

    /// Why a new request may not be produced.
    fn refused(&self, submission: &Submission) -> Option<Problem> {
        if let Err(problem) = submission.check_deadlines() {
            return Some(problem);
        }
        self.low_disk.is_low().then(|| {
            insufficient_storage(
                "Free disk space is below storage.freeMin: accepted operations continue, and new \
                 ones are refused.",
            )
        })
    }

    /// Passes a record to the producer, if there is room for it. On refusal its callback has ended.
    fn enqueue(
        &self,
        record: &OutRecord<'_>,
        callback: Box<DeliveryCallback>,
    ) -> Result<(), ProduceError> {
        let (callback, error) = match callback.has_room() {
            true => match self.producer.send(record, callback) {
                Ok(()) => return Ok(()),
                Err(error) => error.into_parts(),
            },
            false => {
                let code = ErrorCode::QueueFull;
                (callback, ProduceError::Refused { code })
            }
        };
        callback.end(Err(error));
        Err(error)
    }

    /// Produces a record about an existing operation, such as a cancel or a recovery. Returns its
    /// position once the broker has acknowledged it. If the outcome is unknown, the problem names
    /// `repeat_with` as the id to repeat the request with.
    pub async fn send_verb(
        &self,
        sender: &Tenants,
        topic: &str,
        operation: OperationId,
        value: &[u8],
        repeat_with: &str,
    ) -> Result<(PartitionId, Option<Offset>), Problem> {
        if !self.claims.begin() {
            return Err(broker_silent());
        }
        let (outcome_sender, outcome_receiver) = oneshot::channel();
        let callback = Box::new(DeliveryCallback::Recovery(Acknowledgement {
            room: self.queue.room(sender, value.len()),
            claims: Arc::clone(&self.claims),
            outcome_sender,
        }));
        let key = operation.key();
        let partition = self.partition_map.partition_of(operation);
        let record = OutRecord::new(topic, partition, &key, value);
        let unknown = || outcome_unknown(repeat_with.to_owned());
        if let Err(error) = self.enqueue(&record, callback) {
            return Err(not_produced(failed(error), unknown));
        }
        match tokio::time::timeout(self.accept_timeout + ACKNOWLEDGE_GRACE, outcome_receiver).await
        {
            Ok(Ok(Ok(position))) => Ok(position),
            Ok(Ok(Err(error))) => Err(not_produced(failed(error), unknown)),
            Ok(Err(_)) | Err(_) => Err(unknown()),
        }
    }

    /// Waits until every record passed to the producer is settled, then closes the clients. Blocks.
    pub fn close(&self, timeout: Duration) {
        self.request_lookup.close();
        self.logs.close();
        if let Err(error) = self.producer.flush(timeout) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not flush all requests before the timeout"
            );
        }
    }
}

/// The answer to a request whose id has a row; `None` if the request is new nevertheless.
pub fn answer_of_row(
    submission: &Submission,
    row: OperationRow,
) -> Option<Result<Answer, Problem>> {
    match known(Found::from(&row), submission.record.request_hash) {
        Known::New => None,
        Known::Repeated => Some(Ok(Answer::Repeated(Box::new(row)))),
        Known::Conflict => Some(Err(conflict(submission))),
    }
}

/// The room in the producer's queue, which tenants share. Each record is charged at least
/// `bytes_max / records_max`, so that one bound enforces both.
#[derive(Debug)]
struct Queue {
    room: TenantSemaphore,
    record_bytes_min: usize,
}

impl Queue {
    fn new(config: &IngestionSettings) -> Self {
        let bytes_max = config.producer_queue_bytes_max;
        Self {
            room: TenantSemaphore::new(bytes_max, QUEUE_BYTES.of([]), &QUEUE_BYTES_MAX.of([])),
            record_bytes_min: bytes_max.div_ceil(config.producer_queue_records_max.max(1)),
        }
    }

    /// Reserves room for a record of this many bytes, until it is dropped; `None` if the sender has
    /// none.
    fn room(&self, sender: &Tenants, bytes: usize) -> Option<Permit> {
        self.room.acquire(sender, bytes.max(self.record_bytes_min))
    }
}

/// The result of passing a request to the producer.
#[derive(Debug)]
pub enum Sent {
    /// The request, or an equal one before it, is in flight.
    InFlight(InFlight),
    /// An equal request was accepted before.
    Before(Answer),
}

/// A request that was passed to the producer.
#[derive(Debug)]
pub struct InFlight {
    outcome_receiver: oneshot::Receiver<Settled>,
    operation: OperationId,
    caller_id: Option<String>,
}

impl InFlight {
    fn new(outcome_receiver: oneshot::Receiver<Settled>, submission: &Submission) -> Self {
        Self {
            outcome_receiver,
            operation: submission.record.operation,
            caller_id: submission.record.caller_id.clone(),
        }
    }

    /// Waits for the outcome. Dropping the future leaves the record in flight.
    pub async fn outcome(&mut self, accept_timeout: Duration) -> Result<Answer, Problem> {
        match tokio::time::timeout(
            accept_timeout + ACKNOWLEDGE_GRACE,
            &mut self.outcome_receiver,
        )
        .await
        {
            Ok(Ok(Ok(accepted))) => Ok(Answer::Accepted(self.operation, accepted)),
            Ok(Ok(Err(failed))) => Err(not_produced(failed, || self.unknown())),
            // The producer did not report. The record was passed to it, so the outcome is unknown.
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

/// The callback of the producer, called once the outcome of a record is known.
#[derive(Debug)]
enum DeliveryCallback {
    Request(Waiting),
    Recovery(Acknowledgement),
}

/// The position of a record, or why it was not acknowledged.
type Produced = Result<Position, ProduceError>;

impl DeliveryCallback {
    fn has_room(&self) -> bool {
        match self {
            Self::Request(waiting) => waiting.room.is_some(),
            Self::Recovery(waiting) => waiting.room.is_some(),
        }
    }

    /// Passes the outcome to everything that waits for it.
    fn end(self, outcome: Produced) {
        match self {
            Self::Request(waiting) => waiting.end(outcome),
            Self::Recovery(waiting) => waiting.end(outcome),
        }
    }
}

/// The room and the waiter of a record that is no request, such as a recovery.
#[derive(Debug)]
struct Acknowledgement {
    room: Option<Permit>,
    claims: Arc<SharedClaims>,
    outcome_sender: oneshot::Sender<Produced>,
}

impl Acknowledgement {
    fn end(self, outcome: Produced) {
        // Free the room before the receiver of the outcome can send the next record.
        drop(self.room);
        self.claims
            .end(outcome.err().map(failed), &Cause(outcome.err()));
        // The connection may be closed. The record is in the log either way.
        _ = self.outcome_sender.send(outcome);
    }
}

/// A request that was admitted. If it is dropped before it is settled, the requests that share it
/// learn that there is no outcome.
#[derive(Debug)]
struct OpenTicket {
    claims: Arc<SharedClaims>,
    ticket: Option<Ticket>,
}

impl OpenTicket {
    fn settle(
        mut self,
        produced: Produced,
        accepted: impl FnOnce(Position) -> Accepted,
    ) -> Option<Settled> {
        let ticket = self.ticket.take()?;
        let cause = Cause(produced.err());
        let produced = produced.map_err(failed);
        Some(self.claims.settle(ticket, produced, &cause, accepted))
    }
}

impl Drop for OpenTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.claims.abandon(ticket);
        }
    }
}

/// Waits for the record of a request, then passes its outcome on.
#[derive(Debug)]
struct Waiting {
    room: Option<Permit>,
    ticket: OpenTicket,
    /// Present if the id is the server's: nobody else can wait.
    client: Option<Client>,
    priority: Priority,
    hash: RequestHash,
    workflow: Arc<str>,
    tenant: Option<Arc<str>>,
    caller_id: Option<Arc<str>>,
    requested_at: Timestamp,
    span: Option<OpenSpan>,
}

impl Waiting {
    fn end(self, outcome: Produced) {
        // Free the room before a client that learns the outcome can send the next request.
        drop(self.room);
        if let Some(span) = self.span {
            spans::sent(span, &outcome);
        }
        let settled = self.ticket.settle(outcome, |(partition, offset)| Accepted {
            priority: self.priority,
            partition,
            offset,
            hash: self.hash,
            workflow: self.workflow,
            tenant: self.tenant,
            caller_id: self.caller_id,
            requested_at: self.requested_at,
        });
        if let (Some(Client(client)), Some(settled)) = (self.client, settled) {
            // The connection may be closed. The record is in the log either way.
            drop(client.send(settled));
        }
    }
}

/// Why the broker is unavailable, with all causes.
struct Cause(Option<ProduceError>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => f.write_str(&chain(error)),
            None => Ok(()),
        }
    }
}

impl Delivered for Box<DeliveryCallback> {
    fn delivered(self, delivery: Delivery) {
        let position = (delivery.partition, delivery.offset);
        self.end(delivery.result.map(|()| position));
    }
}

fn conflict(submission: &Submission) -> Problem {
    let detail = "An earlier, different request has this id.";
    Problem::new(Kind::IdConflict, detail).with_id(submission.repeat_with())
}

fn outcome_unknown(repeat_with: String) -> Problem {
    let detail = "The broker did not acknowledge the request in time.";
    Problem::new(Kind::OutcomeUnknown, detail).with_id(repeat_with)
}

fn broker_silent() -> Problem {
    let detail = "The broker has not acknowledged a record for a while.";
    Problem::new(Kind::BrokerUnavailable, detail)
}

/// What a failed delivery says about the record.
fn failed(error: ProduceError) -> Failed {
    let code = match error {
        ProduceError::OutcomeUnknown { .. } => return Failed::Unknown,
        ProduceError::Refused { code } => code,
    };
    tracing::debug!(%code, "could not append a request");
    Failed::Refused(match code {
        ErrorCode::QueueFull => Refusal::QueueFull,
        ErrorCode::PolicyViolation => Refusal::DiskLimit,
        ErrorCode::MessageSizeTooLarge => Refusal::TooLarge,
        _ => Refusal::Broker,
    })
}

fn not_produced(failed: Failed, unknown: impl FnOnce() -> Problem) -> Problem {
    let refusal = match failed {
        Failed::Unknown => return unknown(),
        Failed::Refused(refusal) => refusal,
    };
    match refusal {
        Refusal::QueueFull => Problem::new(
            Kind::Overloaded,
            "The queue to the broker is full: requests arrive faster than the broker accepts them.",
        ),
        Refusal::DiskLimit => insufficient_storage(
            "The broker refuses these records: their topic has reached its disk limit \
             (broker.requestsDiskBytesMax, broker.recoveriesDiskBytesMax), or the free disk space \
             is below storage.freeMin.",
        ),
        Refusal::TooLarge => Problem::new(
            Kind::BodyTooLarge,
            "The broker refuses a record of this size.",
        ),
        Refusal::Broker => Problem::new(
            Kind::BrokerUnavailable,
            "The broker did not accept the request.",
        ),
    }
}

fn insufficient_storage(detail: &'static str) -> Problem {
    Problem::new(Kind::InsufficientStorage, detail).with_wait(STORAGE_RETRY_AFTER)
}

/// The row of one operation, `None` if it has none, or why it cannot be read.
pub type Read = Result<Option<OperationRow>, Problem>;

/// Logs the cause, which the client does not get.
fn row_unreadable(corrupt: &CorruptRow) -> Problem {
    tracing::error!(%corrupt, "could not read the row of a requested operation");
    let detail = "The stored state of this operation cannot be read.";
    Problem::new(Kind::RowUnreadable, detail).with_id(corrupt.id.to_string())
}

fn saturating(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
