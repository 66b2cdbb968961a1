//! Reading one request back from its topic, so that a status can show it before a scheduler has.
//!
//! Why it exists. Until there is a row, a request lies nowhere but in the log, at the place that
//! its `Location` names. Keeping requests in memory as well would cost as much as the backlog. It is also how a place
//! that somebody made up is told from one that a `Location` named.
//!
//! What must hold: it is a convenience. A few questions may wait for it, one is answered at a time,
//! each within a short time; tenants share the room. A question without room, or without an
//! answer in time, does without.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use waybill_engine::{AmendRequest, CreateRequest, OperationRequest, Position};
use waybill_http::auth::Tenants;
use waybill_kafka::{
    AtOffset, ErrorCode, KafkaSettings, ReadError, RecordReader, RecordRef, RequestError,
};
use waybill_messages::Topics;

use super::measure::{PENDING_READS, PENDING_READS_MAX};
use super::shares::Places;

/// What lies at a place of a topic of requests.
#[derive(Debug)]
pub enum FoundRequest {
    /// The request that makes an operation.
    Create(Box<CreateRequest>),
    /// A request about an operation, such as to cancel it.
    Amend(Box<AmendRequest>),
    /// No record, or none that is a request.
    Nothing,
}

/// Reads single requests.
pub struct RequestLookup {
    reader: RecordReader,
    topics: Topics,
    timeout: Duration,
    /// One for each that may wait.
    places: Places,
}

impl RequestLookup {
    /// A reader of the requests that lets `waiting_max` wait for up to `timeout`.
    pub fn new(
        settings: KafkaSettings,
        topics: Topics,
        waiting_max: usize,
        timeout: Duration,
    ) -> Self {
        Self {
            reader: RecordReader::new(settings, "waybill-ingestion-lookup"),
            topics,
            timeout,
            places: Places::new(waiting_max, PENDING_READS.of([]), &PENDING_READS_MAX.of([])),
        }
    }

    /// What lies at `position`, if that can be found out soon. It is asked for one of these tenants.
    pub async fn read(&self, position: Position, tenants: &Tenants) -> Option<FoundRequest> {
        let _place = self.places.share(tenants, 1)?;
        let due = Instant::now() + self.timeout;
        let permit = tokio::time::timeout_at(due, self.reader.acquire());
        let permit = permit.await.ok()?;
        let Position {
            priority,
            partition,
            offset,
        } = position;
        let topics = self.topics.clone();
        let convert = move |record: RecordRef<'_>| request(&topics, record);
        let topic = self.topics.of_priority(priority);
        let due = due.into_std();
        match permit.read(topic, partition, offset, due, convert).await {
            Ok(AtOffset::Record(found)) => Some(found),
            Ok(AtOffset::Ahead | AtOffset::Absent) => Some(FoundRequest::Nothing),
            Ok(AtOffset::Deleted) => None,
            Err(ReadError::Request(error)) if is_unknown_partition(&error) => {
                Some(FoundRequest::Nothing)
            }
            Err(ReadError::Client(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "pending requests cannot be read");
                None
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, %partition, %offset, "could not read a pending request");
                None
            }
        }
    }

    /// Ends the connection, once a read under way has ended. Blocks.
    pub fn close(&self) {
        self.reader.close();
    }
}

impl fmt::Debug for RequestLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLookup")
            .field("topics", &self.topics.prefix())
            .finish_non_exhaustive()
    }
}

fn request(topics: &Topics, record: RecordRef<'_>) -> FoundRequest {
    let request = record
        .value()
        .and_then(|value| topics.framing().decode(value).ok());
    match request {
        Some(OperationRequest::Create(create)) => FoundRequest::Create(Box::new(create)),
        Some(OperationRequest::Amend(amend)) => FoundRequest::Amend(Box::new(amend)),
        None => FoundRequest::Nothing,
    }
}

fn is_unknown_partition(error: &RequestError) -> bool {
    matches!(
        error.code(),
        Some(ErrorCode::UnknownPartition | ErrorCode::UnknownTopicOrPartition)
    )
}
