//! Reads one request back from its topic, so that a status can show it before a scheduler has read
//! it.
//!
//! Why it exists. Until there is a row, a request exists only in the log, at the position in its
//! `Location`. To keep requests in memory as well would cost as much as the backlog. The lookup
//! also distinguishes an invented position from one that a `Location` gave.
//!
//! What must hold: it is a convenience. A few status requests may wait for it. It serves one at a
//! time, each within a short time limit, and tenants share the room. A status request for which
//! there is no capacity, or no result in time, is answered without it.

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
use super::tenant_semaphore::TenantSemaphore;

/// The content of a position in a topic of requests.
#[derive(Debug)]
pub enum FoundRequest {
    /// A request that creates an operation.
    Create(Box<CreateRequest>),
    /// A request about an operation, such as to cancel it.
    Amend(Box<AmendRequest>),
    /// No record, or a record that is no request.
    Nothing,
}

/// Reads single requests.
pub struct RequestLookup {
    reader: RecordReader,
    topics: Topics,
    timeout: Duration,
    /// One permit for each status request that may wait.
    permits: TenantSemaphore,
}

impl RequestLookup {
    /// A reader with room for `waiting_max` requests that wait for up to `timeout`.
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
            permits: TenantSemaphore::new(
                waiting_max,
                PENDING_READS.of([]),
                &PENDING_READS_MAX.of([]),
            ),
        }
    }

    /// The content at `position`, if it can be read soon, for a caller with these tenants.
    pub async fn read(&self, position: Position, tenants: &Tenants) -> Option<FoundRequest> {
        let _permit = self.permits.acquire(tenants, 1)?;
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
                tracing::warn!(error, "could not read pending requests");
                None
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, %partition, %offset, "could not read a pending request");
                None
            }
        }
    }

    /// Closes the connection, once a read in progress has ended. Blocks.
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
